"""The log as the console sees it: recent records, past states, and waiting for a new epoch.

``EpochHub`` follows the replica of a client and keeps the last ``WINDOW`` folded records. They serve most questions
about the past without a replay. States share unchanged parts, so the window costs little more than its changes. Older
epochs are replayed from the log, one replay at a time.

Invariants: the records of the window are without a gap. A stream of events contains each epoch after its start once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final, NoReturn

from ringlog.client.changes import EpochUnknown, Snapshots
from ringlog.client.client import Client
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.folding import FoldedRecord
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_lines import LogFilter, chosen
from ringlog.operator.history.log_past import past

WINDOW: Final = 512
STATES_MAX: Final = 8
"""Replayed states that are kept."""
REPLAY_WAIT_S: Final = 2.0
CATCH_UPS_MAX: Final = 2
"""Streams that read old epochs at the same time."""
BATCH: Final = 256


class EpochEvent(Value):
    """An applied entry. ``sections``: names of the sections of the state that it changed."""

    epoch: Epoch
    kind: str
    at: Micros
    sections: tuple[str, ...]


def event_of(after: ClusterState, entry: Entry) -> EpochEvent:
    """Return the event of an applied entry."""
    changed = sorted(name for name, epoch in after.changed.items() if epoch == after.epoch)
    return EpochEvent(after.epoch, entry.kind, entry.at, tuple(changed))


class EpochHub:
    """The recent records of a client's log. Thread-safe; ``close`` it before the client.

    Args:
        open_snapshots: Opens the snapshots of the cluster; None: the log has none.
    """

    def __init__(self, client: Client, open_snapshots: Snapshots | None = None) -> None:
        self._client = client
        self._open_snapshots = open_snapshots
        self._lock, self._replaying = threading.Lock(), threading.Lock()
        self._records: deque[FoldedRecord] = deque(maxlen=WINDOW)
        self._states: OrderedDict[Epoch, ClusterState] = OrderedDict()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._catch_ups = asyncio.Semaphore(CATCH_UPS_MAX)
        self.is_closed = False
        subscription = client.replica.subscribe(self._follow)
        self._first_offset, self._unsubscribe = subscription.offset, subscription.close
        self.state = subscription.state

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._unsubscribe()
        self.wake()

    def fill(self) -> None:
        """Read the records before the first followed one into the window. Errors leave it as it is."""
        try:
            near = max(self.state.epoch - WINDOW // 2, 0)
            with self._replay():
                found = [one for one in self._past(near) if one.offset < self._first_offset]
        except (LogError, Refused):
            return
        with self._lock:
            room = WINDOW - len(self._records)
            self._records.extendleft(reversed(found[-room:] if room else []))

    @contextmanager
    def _replay(self) -> Iterator[None]:
        """Allow one replay at a time. Raises Refused: a long replay must not occupy the threads of all views."""
        if not self._replaying.acquire(timeout=REPLAY_WAIT_S):
            raise Refused("replay_busy", "another request reads the past: try again in a moment")
        try:
            yield
        finally:
            self._replaying.release()

    def _past(self, near: Epoch) -> Sequence[FoldedRecord]:
        snapshots = self._open_snapshots
        found = past(
            self._client.replica.log,
            snapshots or self._no_snapshots,
            None,
            near if snapshots is not None else None,
        )
        return tuple(deque(found.lines(), maxlen=WINDOW))

    @staticmethod
    def _no_snapshots() -> NoReturn:
        raise LogError("the log has no snapshots", "")

    def _follow(
        self,
        before: ClusterState,
        after: ClusterState,
        item: Entry | UnreadableEntry,
        outcome: Outcome,
        offset: int,
    ) -> None:
        with self._lock:
            self._records.append(FoldedRecord(offset, item, outcome, before, after))
            self.state = after
        if after is not before:
            self.wake()

    # --------------------------------------------------------------------------------------------- waiting

    def wake(self) -> None:
        """Wake all waiting tasks."""
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition holds, the hub is closed, or the time is over. Return the condition."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            event = asyncio.Event()
            with self._lock:
                self._waiters.add((loop, event))
            try:
                left = until - loop.time()
                if is_done() or self.is_closed or left <= 0:
                    return is_done()
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    continue
            finally:
                with self._lock:
                    self._waiters.discard((loop, event))

    # ------------------------------------------------------------------------------------------------ past

    def state_at(self, epoch: Epoch) -> ClusterState:
        """Return the state at an epoch. Raises EpochUnknown, LogUnavailable."""
        with self._lock:
            if epoch == self.state.epoch:
                return self.state
            for one in reversed(self._records):
                if one.after.epoch == epoch:
                    return one.after
            if epoch in self._states:
                self._states.move_to_end(epoch)
                return self._states[epoch]
        if epoch > self.state.epoch:
            raise EpochUnknown(f"the log ends with epoch {self.state.epoch}", "pass an earlier epoch")
        with self._replay():
            found = self._client.state_at(epoch)
        with self._lock:
            self._states[epoch] = found
            while len(self._states) > STATES_MAX:
                self._states.popitem(last=False)
        return found

    def records(self, wanted: LogFilter, until: Epoch, last: int) -> tuple[tuple[FoldedRecord, ...], Epoch]:
        """Return the last records that the filter selects, up to an epoch, and the first epoch that was searched.

        If the window has enough, or if the log cannot be read, the answer comes from the window.
        """
        with self._lock:
            window = tuple(self._records)
        first = window[0].before.epoch + 1 if window else self.state.epoch + 1
        fitting = [one for one in window if one.outcome.epoch <= until and wanted.fits(one)]
        if len(fitting) >= last or first <= max(wanted.since, 1):
            return tuple(fitting[-last:]), max(wanted.since, 1)
        try:
            with self._replay():
                snapshots = self._open_snapshots
                near = wanted.since - 1 if snapshots is not None and wanted.since > 1 else None
                found = past(self._client.replica.log, snapshots or self._no_snapshots, None, near)
                lines = (one for one in found.lines() if one.outcome.epoch <= until)
                return tuple(chosen(lines, wanted, last)), max(wanted.since, found.start.state.epoch + 1)
        except LogUnavailable:
            return tuple(fitting[-last:]), first

    # ---------------------------------------------------------------------------------------------- events

    def after(self, epoch: Epoch) -> list[EpochEvent] | None:
        """Return at most ``BATCH`` events after an epoch; None if the window begins later."""
        with self._lock:
            if epoch >= self.state.epoch:
                return []
            if not self._records or self._records[0].before.epoch > epoch:
                return None
            found = [
                event_of(one.after, one.item)
                for one in self._records
                if one.outcome.kind is OutcomeKind.APPLIED and one.after.epoch > epoch and isinstance(one.item, Entry)
            ]
        return found[:BATCH]

    async def old_events(self, epoch: Epoch) -> AsyncGenerator[EpochEvent, None]:
        """Yield events after an epoch from the log, until the window contains the next one.

        Raises EpochUnknown, LogUnavailable.
        """
        async with self._catch_ups:
            changes = await asyncio.to_thread(self._client.changes, epoch)
            with closing(changes):
                while not self.is_closed and self.after(epoch) is None:
                    change = await asyncio.to_thread(next, changes, None)
                    if change is None:
                        return
                    epoch = change.after.epoch
                    yield event_of(change.after, change.entry)
