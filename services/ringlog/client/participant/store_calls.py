"""Calls of a store from the threads of its participant: its methods may be ordinary ones or coroutine functions.

Invariant: a call returns after its method has ended. A coroutine function without an event loop is an error, because
its calls would have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Final

from ringlog.client.participant.store import AsyncStore, Gain, Loss, Store
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.protocol.nodes.errors import NodeFailed

POLL_S: Final = 0.2
_END: Final = object()


class _AsyncRows(Iterator[bytes]):
    """Rows of an async iterator. ``done``: see ``StoreCalls``."""

    def __init__(self, done: Callable[..., Any], rows: Any) -> None:
        self._done, self._rows = done, rows
        self._next: Future[Any] | None = None
        self._is_cancelled = False

    def __next__(self) -> bytes:
        row = self._done(anext(self._rows, _END), self._began)
        if row is _END:
            raise StopIteration
        found: bytes = row
        return found

    def _began(self, future: Future[Any]) -> None:
        self._next = future
        if self._is_cancelled:
            future.cancel()

    def cancel(self) -> None:
        """End the wait for a row, from another thread."""
        self._is_cancelled = True
        if self._next is not None:
            self._next.cancel()

    def close(self) -> None:
        if hasattr(self._rows, "aclose"):
            self._done(self._rows.aclose())


class StoreCalls:
    """A ``Store`` that calls ``store``. Safe from threads. ``loop``: runs coroutine functions."""

    def __init__(self, store: Store | AsyncStore) -> None:
        self._store: Any = store
        self.loop: asyncio.AbstractEventLoop | None = None
        if hasattr(store, "sizes"):
            self.sizes: Callable[[str], Any] = lambda place: self._done(self._store.sizes(place))

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        """See ``Store.adopt``."""
        self._done(self._store.adopt(before, after))

    def drain(self, below: Epoch) -> None:
        """See ``Store.drain``."""
        self._done(self._store.drain(below))

    def forget(self, loss: Loss) -> None:
        """See ``Store.forget``."""
        self._done(self._store.forget(loss))

    def fetch(self, gain: Gain) -> Iterable[bytes]:
        """See ``Store.fetch``."""
        rows: Any = self._done(self._store.fetch(gain))
        return _AsyncRows(self._done, aiter(rows)) if isinstance(rows, AsyncIterable) else rows

    def reject_loop(self, name: str) -> None:
        """Raise NodeFailed in the thread of the event loop: there, a wait for the store never ends."""
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is not self.loop:
                return
            raise NodeFailed(f"{name} waits for coroutines of this event loop: await asyncio.to_thread(...{name})")

    def _done(self, result: Any, began: Callable[[Future[Any]], None] = lambda _: None) -> Any:
        """Return the result of a method, after the event loop has computed it. ``began`` receives its future."""
        if not inspect.isawaitable(result):
            return result

        async def awaited() -> Any:
            return await result

        if self.loop is None:
            getattr(result, "close", lambda: None)()
            raise TypeError("the store has coroutine functions: use `await participant.serve()`")
        future = asyncio.run_coroutine_threadsafe(awaited(), self.loop)
        began(future)
        while not wait((future,), POLL_S).done:
            if not self.loop.is_running():
                raise NodeFailed("the event loop has stopped: await the end of `serve` before that")
        return future.result()
