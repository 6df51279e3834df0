"""The client for programs on an event loop. ``AsyncClient`` has the methods of ``Client`` under the same names.

Waits run in threads of the client, or follow the future of a submission. They leave the loop's own threads free. A
cancelled wait does not cancel its request: pass ``request_id`` and ``since_epoch`` of ``submit_future`` to
``withdraw``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

from ringlog.client.changes import AsyncChanges
from ringlog.client.client import TIMEOUT_S, Client, connect
from ringlog.client.engine import Submission
from ringlog.client.fields import Intent
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch
from ringlog.log.errors import WaitTimedOut
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, Submitted, WithdrawnResult

T = TypeVar("T")
THREADS_MAX: Final = 100
"""Waits at the same time. Further ones wait for a thread."""
SLICE_S: Final = 1.0
"""The time after which the thread of a cancelled ``wait_for`` ends."""


class AsyncClient:
    """A connection of one submitter to a cluster, for ``async with``. The arguments are those of ``connect``."""

    def __init__(
        self,
        bootstrap_servers: str = "",
        cluster: str = "",
        submitter: str = "client",
        *,
        timeout_s: float = 5.0,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        self._open = partial(connect, bootstrap_servers, cluster, submitter, timeout_s=timeout_s, **options)
        self._client = client
        self._threads = ThreadPoolExecutor(THREADS_MAX, "ringlog-aio")

    async def _in_thread(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        call = partial(copy_context().run, function, *arguments, **options)
        return await asyncio.wrap_future(self._threads.submit(call))

    async def start(self) -> AsyncClient:
        """Connect. Raises as ``connect``."""
        if self._client is None:
            opening = self._threads.submit(self._open)
            try:
                self._client = await asyncio.wrap_future(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_opened)
                raise
        return self

    async def close(self) -> None:
        """Close the connection; see ``Client.close``."""
        if self._client is not None:
            await self._in_thread(self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client(self) -> Client:
        """The client that does the work."""
        assert self._client is not None, "the client is started: async with AsyncClient(...), or await start()"
        return self._client

    @property
    def replica(self) -> LogReplica:
        """The replica of the client."""
        return self.client.replica

    @property
    def state(self) -> ClusterState:
        """The newest applied state."""
        return self.client.state

    async def read_barrier(self, timeout_s: float = TIMEOUT_S) -> ClusterState:
        """See ``Client.read_barrier``."""
        return await self._in_thread(self.client.read_barrier, timeout_s)

    async def strict_barrier(self, timeout_s: float = TIMEOUT_S) -> ClusterState:
        """See ``Client.strict_barrier``."""
        return await self._in_thread(self.client.strict_barrier, timeout_s)

    async def wait_for(self, predicate: Callable[[ClusterState], T | None], timeout_s: float, awaited: str) -> T:
        """See ``Client.wait_for``. The predicate runs in another thread."""
        started = time.monotonic()
        while True:
            left = timeout_s - (time.monotonic() - started)
            try:
                return await self._in_thread(self.client.wait_for, predicate, min(left, SLICE_S), awaited)
            except WaitTimedOut as error:
                if left <= SLICE_S:
                    raise WaitTimedOut(awaited, time.monotonic() - started, error.hint) from None

    async def state_at(self, epoch: Epoch) -> ClusterState:
        """See ``Client.state_at``."""
        return await self._in_thread(self.client.state_at, epoch)

    def changes(self, since: Epoch | None = None, of: Collection[str] = ()) -> AsyncChanges:
        """See ``Client.changes``."""
        return AsyncChanges(partial(self.client.changes, since, of))

    async def submit(
        self,
        command: Command | Intent,
        *,
        timeout_s: float = TIMEOUT_S,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
        direct_after_s: float | None = None,
    ) -> Submitted:
        """See ``Client.submit``."""
        if direct_after_s is None:
            again = {"timeout_s": timeout_s, "request_id": request_id, "since_epoch": since_epoch}
            send = partial(self.client.submit_future, command, **again)  # type: ignore[arg-type]
            # A retry may first read up to the epoch of the earlier attempt, which blocks.
            return await asyncio.wrap_future(send() if since_epoch is None else await self._in_thread(send))
        return await self._in_thread(
            self.client.submit,
            command,
            timeout_s=timeout_s,
            request_id=request_id,
            since_epoch=since_epoch,
            direct_after_s=direct_after_s,
        )

    def submit_future(
        self,
        command: Command | Intent,
        *,
        timeout_s: float = TIMEOUT_S,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
    ) -> Submission:
        """See ``Client.submit_future``. To await it: ``asyncio.wrap_future(submission)``."""
        return self.client.submit_future(command, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)

    async def submit_many(self, commands: Sequence[Command], *, timeout_s: float = TIMEOUT_S) -> tuple[Submitted, ...]:
        """See ``Client.submit_many``."""
        return await self._in_thread(self.client.submit_many, commands, timeout_s=timeout_s)

    async def withdraw(
        self, request_id: str, since_epoch: Epoch, *, timeout_s: float = TIMEOUT_S
    ) -> WithdrawnResult | AppliedResult | ExpiredResult:
        """See ``Client.withdraw``."""
        return await self._in_thread(self.client.withdraw, request_id, since_epoch, timeout_s=timeout_s)


def _close_opened(opening: Future[Client]) -> None:
    """Close a client that was opened after its start had been cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
