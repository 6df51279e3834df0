"""An adapter that lets programs on an event loop wait for a replica without blocking the loop.

The replica's threads notify the loop with ``call_soon_threadsafe``. Blocking calls run in worker threads. To await
futures of the client, use ``asyncio.wrap_future(client.submit_future(...))``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.errors import ReplicaHalted
from ringlog.log.replicas.replica import LogReplica

LOOK_S = 0.5
T = TypeVar("T")


class AsyncReplica:
    """A replica whose state can be awaited on the running event loop.

    Create and close it on that loop.
    """

    def __init__(self, replica: LogReplica) -> None:
        self.replica = replica
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._unsubscribe = replica.subscribe(self._follow).close

    @property
    def state(self) -> ClusterState:
        return self.replica.state

    def close(self) -> None:
        """Unsubscribe from the replica."""
        self._unsubscribe()

    async def newer_than(self, epoch: Epoch) -> ClusterState:
        """Wait until the epoch is above ``epoch`` and return the newest state. Raises ReplicaHalted."""
        while True:
            self._moved.clear()
            self._raise_if_halted()
            if self.replica.state.epoch > epoch:
                return self.replica.state
            try:
                # The replica does not notify followers when it halts, so check for that regularly.
                await asyncio.wait_for(self._moved.wait(), LOOK_S)
            except TimeoutError:
                continue

    async def read_barrier(self, timeout_s: float = 30.0) -> ClusterState:
        """See ``LogReplica.read_barrier``."""
        return await asyncio.to_thread(self.replica.read_barrier, timeout_s)

    async def wait_for(self, predicate: Callable[[ClusterState], T | None], timeout_s: float, what: str) -> T:
        """See ``LogReplica.wait_for``. ``predicate`` runs in another thread."""
        return await asyncio.to_thread(self.replica.wait_for, predicate, timeout_s, what)

    def _follow(
        self, _: ClusterState, _after: ClusterState, _item: Entry | UnreadableEntry, outcome: Outcome, _offset: int
    ) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self._loop.call_soon_threadsafe(self._moved.set)

    def _raise_if_halted(self) -> None:
        halted = self.replica.halted
        if halted is not None:
            raise ReplicaHalted(halted.code, halted.detail, halted.offset, halted.hint)
