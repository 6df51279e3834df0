"""The fold loop: decode the records of a log and apply them to a state, in order.

All readers of the log use this loop. A fold begins at a ``Start``: the empty state at the log's beginning, or a stored
state with its position.

Invariant: an entry that this release cannot judge (``halt``) ends the loop in every process. The result of any later
entry would be a guess.

The caller can replace the function that decodes and judges a record. The result depends only on the bytes and on the
state object. Authors use this: they fold their entries before they send them (``ReadAhead``), so a reader of the same
process does not fold them again. The simulator shares results between the readers of a cluster in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, Folded, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Micros, Value
from ringlog.log.errors import LogGap
from ringlog.wire.entries import EncodedEntry, decode_entry
from ringlog.wire.senders import parsed_sender

Item = Entry | UnreadableEntry
Judging = Callable[[ClusterState, bytes], tuple[Item, Folded]]
"""Decode a record and fold it onto a state."""


class RecordBytes(Protocol):
    """A record of the log: its offset and its bytes."""

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...


def judge(state: ClusterState, data: bytes) -> tuple[Item, Folded]:
    """Decode a record and fold it, without a cache."""
    item = decode_entry(data)
    return item, fold(state, item)


class Start(Value):
    """A state, and the offset after the last record that it contains."""

    state: ClusterState = EMPTY_STATE
    position: int = 0


BEGINNING = Start()
_HALT = OutcomeKind.HALT


class ClusterOrigin(Value):
    """The author of the cluster's initial entry, and the time of that entry by the author's clock."""

    cluster_id: str
    submitter: str
    at: Micros
    offset: int


class FoldedRecord(Value):
    """A decoded record of the log, its outcome, and the states before and after it."""

    offset: int
    item: Item
    outcome: Outcome
    before: ClusterState
    after: ClusterState

    @property
    def is_halt(self) -> bool:
        """True if this release cannot judge the record. It is then the last record of the fold."""
        return self.outcome.kind is _HALT

    @property
    def origin(self) -> ClusterOrigin | None:
        """The founder, if this entry created the cluster."""
        if self.before.epoch > 0 or self.after.epoch == 0:
            return None
        assert isinstance(self.item, Entry), "only an entry has an epoch"
        return ClusterOrigin(self.after.cluster_id, parsed_sender(self.item.submitter).name, self.item.at, self.offset)

    @property
    def next(self) -> Start:
        """The start for a fold that continues after this record."""
        return Start(self.after, self.offset + 1)


READ_AHEAD_MAX = 2_000


class ReadAhead:
    """A cache of fold results for entries that are not sent yet, at most ``READ_AHEAD_MAX``.

    Safe with one author thread and one reader thread.
    """

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[ClusterState, Entry, Folded]] = {}

    def fold(self, state: ClusterState, encoded: EncodedEntry) -> Folded:
        """Fold the entry onto the state. Cache the result if the entry is applied.

        The result stays until ``take`` removes it or the cache is full.
        """
        folded = fold(state, encoded.entry)
        if folded.outcome.kind is OutcomeKind.APPLIED:
            if len(self._made) >= READ_AHEAD_MAX:
                # Entries that were sent are read soon after. A full cache contains results of entries that got lost.
                self._made.clear()
            self._made[encoded.data] = state, encoded.entry, folded
        return folded

    def take(self, state: ClusterState, data: bytes) -> tuple[Entry, Folded] | None:
        """Remove and return the cached result for these bytes. None if it belongs to another state object."""
        found = self._made.pop(data, None)
        # Compare identity: it is cheap, and users of the result skip sections that are the same object before and
        # after.
        return None if found is None or found[0] is not state else found[1:]

    def judge(self, state: ClusterState, data: bytes) -> tuple[Item, Folded]:
        """Return the cached result, or decode and fold the record as the function ``judge`` does."""
        return self.take(state, data) or judge(state, data)


class GapWatch:
    """A detector for entries that are missing in the middle of a log.

    An author has folded the log up to ``since_epoch`` of its entry. If ``since_epoch`` is greater than the log's epoch,
    the entry therefore follows an entry that the log does not contain. One such entry may be a defect of its author.
    Two of them, the second with the first as its predecessor, prove a gap.

    Args:
        until: Check records before this offset only. None: check all. A replica that follows a growing log detects
            another history by other means (``ringlog.log.replicas.replica``).
    """

    def __init__(self, until: int | None = None) -> None:
        self._until = until
        self._beyond = ""

    def check(self, made: FoldedRecord) -> None:
        """Check the next record. Call it for each record, in order. Raises LogGap."""
        item = made.item
        if self._until is not None and made.offset >= self._until:
            return
        if made.after is not made.before:
            self._beyond = ""
        elif made.outcome.kind is OutcomeKind.EXPIRED and isinstance(item, Entry):
            epoch = made.before.epoch
            # The author decided on an epoch that this log never reached. The first such entry is only noted. A second
            # one that follows it proves that both authors saw an epoch which is missing here.
            if item.since_epoch > epoch:
                if self._beyond and item.prev_state_id == self._beyond:
                    what = f"offset {made.offset} follows epoch {item.since_epoch}, but the log ends at epoch {epoch}"
                    raise LogGap(what, "entries are missing: rebuild the log with ringlog recover")
                self._beyond = item.state_id


def follow(
    records: Iterable[RecordBytes], state: ClusterState = EMPTY_STATE, judging: Judging = judge
) -> Iterator[FoldedRecord]:
    """Fold records in log order onto ``state``. A halt is the last item."""
    for record in records:
        item, folded = judging(state, record.data)
        made = FoldedRecord(record.offset, item, folded.outcome, state, folded.state)
        yield made
        if made.is_halt:
            return
        state = folded.state
