"""What a replica folds, for one thread that may be slower than the replica and must miss nothing.

A ``Feed`` gives every record after a certain epoch, in order, each once. What the replica folds is handed over, so
nobody folds it twice. But the replica does not wait, and states are not piled up without bound: records of a weight of
at most ``KEPT_MAX`` are kept, the newest. Who is further behind folds the log by himself, from where he stands, until
what is kept follows. So the memory of a feed is its own state and those few, however long its reader takes.

A record weighs 1, as many of them as a cluster commits while its publisher writes a transaction; one that changes a
part which grows with the ring weighs ``HEAVY``, for its state shares less with the one before it; so does one that
was refused.

The feed is made before the replica starts, and takes its own start when the replica passes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from ringlog.kernel.columns.fast_dataclass import maker_of
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogForked
from ringlog.log.folding import FoldedRecord, Start, follow
from ringlog.log.port import LogTail
from ringlog.log.replicas.replica import LogReplica

KEPT_MAX, HEAVY = 2_000, 20
TAKEN_TOGETHER = 32
"""Records that the reader takes at once, so that two threads do not meet at a lock for each."""
POLL_S = 0.2

_new_record = maker_of(FoldedRecord)
_new_start = maker_of(Start)


class Feed:
    """All that ``replica`` folds after ``epoch``, which it has not passed. ``take`` is for one thread.

    ``kept_max``: what the records weigh that are kept for a slow reader; one is kept in any case.
    """

    def __init__(self, replica: LogReplica, epoch: Epoch, kept_max: int = KEPT_MAX) -> None:
        self._log = replica.log
        self._epoch = epoch
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, FoldedRecord]] = deque()
        self._in_hand: deque[FoldedRecord] = deque()
        """The next ones of the reader, who alone looks at them."""
        self._kept_max = kept_max
        self._weight = 0
        self._heard = self._taken = 0
        self._at: Start | None = None
        self._tail: LogTail | None = None
        """Of a reader that is behind: kept until it is not, since a new one may take long for its first record."""
        subscription = replica.subscribe(self._hear, replica.halt_on_defect)
        assert subscription.state.epoch <= epoch, "the replica has passed that epoch"
        if subscription.state.epoch == epoch:
            self._at = Start(subscription.state, subscription.offset)
        self._unsubscribe = subscription.close

    def close(self) -> None:
        """Hear no more."""
        self._unsubscribe()
        self._let_go()

    @property
    def state(self) -> ClusterState | None:
        """The state after the last record taken, at first that of ``epoch``; None: the replica is not there yet."""
        at = self._at
        return None if at is None else at.state

    def take(self) -> Iterator[FoldedRecord]:
        """The records since the last time, until there is none. It may end early, if the log does not answer."""
        while True:
            if self._in_hand or self._is_at_hand():
                self._let_go()
                while self._in_hand:
                    yield self._took(self._in_hand.popleft())
            elif self._is_behind():
                yield from self._folded_here()
                if self._is_behind():
                    return
            else:
                return

    def _hear(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        with self._lock:
            if self._at is not None:
                made = _new_record(offset, item, outcome, before, after)
                weight = weight_of(made)
                self._kept.append((weight, made))
                self._weight += weight
                self._heard += 1
                while self._weight > self._kept_max and len(self._kept) > 1:
                    self._pop()
            elif after.epoch == self._epoch:
                self._at = Start(after, offset + 1)

    def _is_at_hand(self) -> bool:
        """True if the next record is kept: it and some more are in hand then."""
        with self._lock:
            self._forget_taken()
            if self._oldest == self._taken:
                for _ in range(min(len(self._kept), TAKEN_TOGETHER)):
                    self._in_hand.append(self._pop())
        return bool(self._in_hand)

    def _is_behind(self) -> bool:
        """True if the next record was heard of, and is not kept any more."""
        with self._lock:
            self._forget_taken()
            return self._taken < self._oldest

    @property
    def _oldest(self) -> int:
        """The number of the oldest record that is kept, or else of the next one."""
        return self._heard - len(self._kept)

    def _forget_taken(self) -> None:
        while self._kept and self._oldest < self._taken:
            self._pop()

    def _pop(self) -> FoldedRecord:
        """The oldest record that is kept: not any more."""
        weight, made = self._kept.popleft()
        self._weight -= weight
        return made

    def _folded_here(self) -> Iterator[FoldedRecord]:
        """Read the log from where the reader stands until what is kept follows, or nothing comes."""
        assert self._at is not None, "who is behind has begun"
        if self._tail is None:
            self._tail = self._log.tail(self._at.position)
        while self._is_behind() and (records := self._tail.poll(POLL_S)):
            try:
                for made in follow(records, self._at.state):
                    if made.is_halt or not self._is_behind():
                        self._let_go()
                        return
                    yield self._took(made)
            except GeneratorExit:  # its reader had enough: the rest of these records is read again
                self._let_go()
                raise

    def _let_go(self) -> None:
        """What comes next is kept, or is to be read again."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _took(self, made: FoldedRecord) -> FoldedRecord:
        """Raises LogForked where the log that was read here and what the replica folded are two histories."""
        assert self._at is not None, "who takes has begun"
        if made.before.state_id != self._at.state.state_id:
            raise LogForked(f"offset {made.offset} does not follow on state {self._at.state.state_id}")
        self._at = _new_start(made.after, made.offset + 1)
        self._taken += 1
        return made


def weight_of(made: FoldedRecord) -> int:
    """What keeping a record costs, in small ones. What was refused may be large, whatever it would have changed."""
    before, after = made.before, made.after
    if after is before:
        return HEAVY if made.outcome.kind is OutcomeKind.REFUSED else 1
    grows = (  # these grow with the number of ranges, or of partitions
        after.placements is not before.placements
        or after.generations is not before.generations
        or after.prepared is not before.prepared
        or after.tablets is not before.tablets
        or after.operations is not before.operations
        or after.zone_partitions is not before.zone_partitions
    )
    return HEAVY if grows else 1
