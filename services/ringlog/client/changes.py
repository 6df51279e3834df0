"""Changes of the state since an epoch, one by one, and the state at a past epoch.

``ChangeStream`` reads the log itself, at the pace of its caller. It therefore keeps no queue, and delays no replica. It
starts from the newest state of the replica, or from the newest snapshot that is not later than the epoch.

Invariant: the changes of an iterator are complete and in the order of the log. An iterator that cannot continue raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Final

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.sections import BY_NAME
from ringlog.kernel.values import Epoch, Value
from ringlog.log.archive.archive import all_records
from ringlog.log.errors import LogError, ReplicaHalted
from ringlog.log.folding import BEGINNING, Start, follow
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder

POLL_S: Final = 0.5
Snapshots = Callable[[], SnapshotTopic]
"""Opens the snapshots of the cluster."""


class EpochUnknown(LogError):
    """The log does not reach back to this epoch, or does not have it yet."""

    code = "epoch_unknown"


class MetadataChange(Value):
    """One applied entry, and the states before and after it."""

    before: ClusterState
    after: ClusterState
    entry: Entry

    def concerns(self, sections: Collection[str]) -> bool:
        """Return whether one of these sections of the state changed."""
        return any(not BY_NAME[name].is_same(self.before, self.after) for name in sections)


class ChangeStream(Iterator[MetadataChange]):
    """The changes after a state. Blocks until there is one; ``close`` from another thread ends it.

    Args:
        log: The metadata log.
        start: The state before the first change, and its position in the log.
        since: ChangeStream up to this epoch are left out.
        of: Names of sections, for example ``placements``. Empty: all changes.
        check: Called before each wait. May raise to end the iterator.
    """

    def __init__(
        self,
        log: MetadataLog,
        start: Start,
        since: Epoch,
        of: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        if unknown := sorted(set(of) - BY_NAME.keys()):
            raise ValueError(f"of: {', '.join(unknown)} is not a section: {', '.join(sorted(BY_NAME))}")
        self.state = start.state
        self._since, self._of, self._check = since, frozenset(of), check
        self._found = self._changes(log, start.position)
        self._closed = False

    def close(self) -> None:
        """End the iterator, within half a second if another thread waits in it."""
        self._closed = True
        with suppress(ValueError):  # that thread is in the generator
            self._found.close()

    def __enter__(self) -> ChangeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> MetadataChange:
        return next(self._found)

    def _changes(self, log: MetadataLog, position: int) -> Generator[MetadataChange, None, None]:
        with closing(log.tail(position)) as tail:
            while not self._closed:
                self._check()
                for made in follow(tail.poll(POLL_S), self.state):
                    if made.is_halt:
                        raise ReplicaHalted(made.outcome.code, made.outcome.detail, made.offset)
                    if made.after is made.before:
                        continue
                    self.state = made.after
                    assert isinstance(made.item, Entry), "only an entry changes the state"
                    change = MetadataChange(made.before, made.after, made.item)
                    if made.after.epoch > self._since and (not self._of or change.concerns(self._of)):
                        yield change
                        if self._closed:
                            return


class AsyncChanges:
    """``ChangeStream`` for an event loop: ``async for change in changes``. Each iterator waits in a separate thread.

    A cancelled wait ends the iteration. To continue, open another one with the last epoch.
    """

    def __init__(self, changes: Callable[[], ChangeStream]) -> None:
        self._open = changes
        self._changes: ChangeStream | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "ringlog-changes")

    def close(self) -> None:
        """End the iteration."""
        self._is_closed = True
        if self._changes is not None:
            self._changes.close()

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> MetadataChange:

        try:
            found = await asyncio.wrap_future(self._thread.submit(self._next))
        except asyncio.CancelledError:
            self.close()
            raise
        if found is None:
            raise StopAsyncIteration
        return found

    def _next(self) -> MetadataChange | None:
        self._changes = self._changes or self._open()
        if self._is_closed:
            self._changes.close()
        return next(self._changes, None)


def start_before(log: MetadataLog, snapshots: Snapshots | None, epoch: Epoch) -> Start:
    """Return a state of at most this epoch, and its position. Raises EpochUnknown, LogUnavailable."""
    begin = log.begin_offset()
    if snapshots is not None:
        found = StartPointFinder(snapshots, epoch).start(log, log.identity(), lambda _: ())
        if found.position >= begin and found.state.epoch <= epoch:
            return found
    if begin > 0:
        raise EpochUnknown(
            f"{log.name} begins at offset {begin}, after epoch {epoch}",
            "`ringlog log at EPOCH --archive` reads older epochs",
        )
    return BEGINNING


def state_at(log: MetadataLog, snapshots: Snapshots | None, epoch: Epoch) -> ClusterState:
    """Return the state at ``epoch``. Raises EpochUnknown, LogUnavailable."""
    start = start_before(log, snapshots, epoch)
    state = start.state
    for made in follow(all_records(log, None, start.position), state):
        if state.epoch >= epoch or made.is_halt:
            break
        state = made.after
    if state.epoch != epoch:
        raise EpochUnknown(f"{log.name} ends with epoch {state.epoch}, before epoch {epoch}", "pass an earlier epoch")
    return state
