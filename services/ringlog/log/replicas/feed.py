"""A feed of folded records for one thread that may be slower than the replica and must not miss a record.

A ``Feed`` returns every record after a certain epoch, in order and exactly once. It stores the records that the replica
folds, so the reader does not fold them again. The replica does not wait for the reader.

Invariant: memory is bounded. The feed stores the newest records, up to a total weight of ``WEIGHT_MAX``. A reader that
is further behind folds the log itself from its own position, until it reaches the stored records. So a feed holds one
state and the stored records, however slow its reader is.

A small record weighs 1. A cluster commits about ``WEIGHT_MAX`` of these while one transaction of changes is written. A
record weighs ``LARGE_WEIGHT`` if it changes a state section that grows with the ring, because consecutive states then
share less memory. A refused record also weighs ``LARGE_WEIGHT``.

Create the feed before the replica starts. The feed takes its start state when the replica reaches the epoch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogForked
from ringlog.log.folding import FoldedRecord, Start, follow
from ringlog.log.port import LogTail
from ringlog.log.replicas.replica import LogReplica

WEIGHT_MAX, LARGE_WEIGHT = 2_000, 20
BATCH_RECORDS = 32
"""Records that the reader takes at once, so that the two threads do not compete for the lock at every record."""
POLL_S = 0.2


class Feed:
    """All records that ``replica`` folds after ``epoch``. The replica must not be past that epoch.

    ``take`` is for use by one thread.

    Args:
        weight_max: Maximum weight of the records stored for a slow reader. One record is stored in any case.
    """

    def __init__(self, replica: LogReplica, epoch: Epoch, weight_max: int = WEIGHT_MAX) -> None:
        self._log = replica.log
        self._epoch = epoch
        self._lock = threading.Lock()
        self._stored: deque[tuple[int, FoldedRecord]] = deque()
        self._batch: deque[FoldedRecord] = deque()
        """Records taken out for the reader. Only the reader's thread uses them, without the lock."""
        self._weight_max = weight_max
        self._weight = 0
        # Both count records after ``epoch``: folded by the replica, and returned to the reader.
        self._folded_count = self._returned_count = 0
        self._at: Start | None = None
        self._tail: LogTail | None = None
        """The log reader of a feed that is behind. It stays open meanwhile, since a new one may be slow to return
        records.
        """
        subscription = replica.subscribe(self._on_folded, replica.halt_on_defect)
        assert subscription.state.epoch <= epoch, "the replica is not behind the epoch"
        if subscription.state.epoch == epoch:
            self._at = Start(subscription.state, subscription.offset)
        self._unsubscribe = subscription.close

    def close(self) -> None:
        """Unsubscribe from the replica and close the log reader."""
        self._unsubscribe()
        self._close_tail()

    @property
    def state(self) -> ClusterState | None:
        """The state after the last record taken; at first the state of ``epoch``. None until the replica reaches it."""
        at = self._at
        return None if at is None else at.state

    def take(self) -> Iterator[FoldedRecord]:
        """Return the records since the last call, until there are no more. May end early if the log does not answer."""
        while True:
            if self._batch or self._fetch_batch():
                self._close_tail()
                while self._batch:
                    yield self._advance(self._batch.popleft())
            elif self._has_missed_records():
                yield from self._fold_missed()
                if self._has_missed_records():
                    return
            else:
                return

    def _on_folded(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        with self._lock:
            if self._at is not None:
                made = FoldedRecord(offset, item, outcome, before, after)
                weight = weight_of(made)
                self._stored.append((weight, made))
                self._weight += weight
                self._folded_count += 1
                while self._weight > self._weight_max and len(self._stored) > 1:
                    self._pop()
            elif after.epoch == self._epoch:
                self._at = Start(after, offset + 1)

    def _fetch_batch(self) -> bool:
        """Return True if the next record is stored. Then move it and some following ones to ``_batch``."""
        with self._lock:
            self._drop_returned()
            if self._oldest == self._returned_count:
                for _ in range(min(len(self._stored), BATCH_RECORDS)):
                    self._batch.append(self._pop())
        return bool(self._batch)

    def _has_missed_records(self) -> bool:
        """Return True if the replica has folded the next record and the feed no longer stores it."""
        with self._lock:
            self._drop_returned()
            return self._returned_count < self._oldest

    @property
    def _oldest(self) -> int:
        """The number of the oldest stored record, or of the next one if none is stored."""
        return self._folded_count - len(self._stored)

    def _drop_returned(self) -> None:
        while self._stored and self._oldest < self._returned_count:
            self._pop()

    def _pop(self) -> FoldedRecord:
        """Remove and return the oldest stored record."""
        weight, made = self._stored.popleft()
        self._weight -= weight
        return made

    def _fold_missed(self) -> Iterator[FoldedRecord]:
        """Read and fold the log from the reader's position until the next record is stored, or nothing arrives."""
        assert self._at is not None, "a subscription that is behind has a position"
        if self._tail is None:
            self._tail = self._log.tail(self._at.position)
        while self._has_missed_records() and (records := self._tail.poll(POLL_S)):
            try:
                for made in follow(records, self._at.state):
                    # The replica halts at the same record, and the feed ends there. If the next record is stored again,
                    # the log reader is no longer needed.
                    if made.is_halt or not self._has_missed_records():
                        self._close_tail()
                        return
                    yield self._advance(made)
            # The reader stopped iterating. The remaining records of this poll are lost here, so a new log reader must
            # read them again.
            except GeneratorExit:
                self._close_tail()
                raise

    def _close_tail(self) -> None:
        """Close the log reader."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _advance(self, made: FoldedRecord) -> FoldedRecord:
        """Advance the reader's position past a record.

        Raises:
            LogForked: The records read here and the records folded by the replica belong to two histories.
        """
        assert self._at is not None, "a reading subscription has a position"
        if made.before.state_id != self._at.state.state_id:
            raise LogForked(f"offset {made.offset} does not follow state {self._at.state.state_id}")
        self._at = Start(made.after, made.offset + 1)
        self._returned_count += 1
        return made


def weight_of(made: FoldedRecord) -> int:
    """Return the memory cost of storing a record, relative to a small one.

    A refused record may be large even if its command would have changed little.
    """
    before, after = made.before, made.after
    if after is before:
        return LARGE_WEIGHT if made.outcome.kind is OutcomeKind.REFUSED else 1
    grows = (  # These sections grow with the number of ranges or of partitions.
        after.placements is not before.placements
        or after.generations is not before.generations
        or after.prepared is not before.prepared
        or after.tablets is not before.tablets
        or after.operations is not before.operations
        or after.zone_partitions is not before.zone_partitions
    )
    return LARGE_WEIGHT if grows else 1
