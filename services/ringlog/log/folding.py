"""Folding a log, record by record: the one loop of all who read it.

A fold begins with a state and goes on from the position behind it (``Start``): the empty state and the log's
beginning, or a state that was stored. An entry that this release cannot judge (``halt``) ends the loop, in whatever
process runs it: what comes after it would be a guess.

How a record is decoded and judged is a hook of the loop: by ``judge``, unless somebody remembers what that gave. The
same bytes on the same state, the very object, make the same. An author folds its entries before it sends them
(``ReadAhead``): a reader of the same process need not do it again. Nor do the many readers of a simulated cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ringlog.kernel.columns.fast_dataclass import maker_of
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, Folded, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogGap
from ringlog.wire.entries import EncodedEntry, decode_entry

Item = Entry | UnreadableEntry
Judging = Callable[[ClusterState, bytes], tuple[Item, Folded]]
"""A record's bytes, decoded, and what they make of a state."""


class RecordBytes(Protocol):
    """A record of the log: its place, and its bytes."""

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...


def judge(state: ClusterState, data: bytes) -> tuple[Item, Folded]:
    """Decode a record and fold it, without a memory."""
    item = decode_entry(data)
    return item, fold(state, item)


@dataclass(frozen=True, slots=True)
class Start:
    """A state, and the offset behind the last record that is in it."""

    state: ClusterState = EMPTY_STATE
    position: int = 0


BEGINNING = Start()
_HALT = OutcomeKind.HALT


@dataclass(frozen=True, slots=True)
class Founder:
    """Who wrote the entry that founded the cluster, and when (by its own clock)."""

    cluster_id: str
    submitter: str
    at: Micros
    offset: int


@dataclass(frozen=True, slots=True)
class FoldedRecord:
    """One record of the log, decoded, its verdict, and the states before and after it."""

    offset: int
    item: Item
    outcome: Outcome
    before: ClusterState
    after: ClusterState

    @property
    def is_halt(self) -> bool:
        """True if this release cannot judge it: it is the last one."""
        return self.outcome.kind is _HALT

    @property
    def founder(self) -> Founder | None:
        """Who founded the cluster, if this entry did."""
        if self.before.epoch > 0 or self.after.epoch == 0:
            return None
        assert isinstance(self.item, Entry), "only an entry makes an epoch"
        return Founder(self.after.cluster_id, self.item.submitter, self.item.at, self.offset)

    @property
    def next(self) -> Start:
        """Where to go on after it."""
        return Start(self.after, self.offset + 1)


_new_record = maker_of(FoldedRecord)
READ_AHEAD_MAX = 2_000


class ReadAhead:
    """What entries that are still to be sent make of the states that they are decided on; at most ``READ_AHEAD_MAX``.

    An author writes in its own thread, and the log's reader in another one.
    """

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[ClusterState, Entry, Folded]] = {}

    def fold(self, state: ClusterState, encoded: EncodedEntry) -> Folded:
        """What the entry makes of the state; kept if it is applied there, until it is taken or others need the room."""
        folded = fold(state, encoded.entry)
        if folded.outcome.kind is OutcomeKind.APPLIED:
            if len(self._made) >= READ_AHEAD_MAX:
                self._made.clear()  # they were lost: what is sent is soon read
            self._made[encoded.data] = state, encoded.entry, folded
        return folded

    def take(self, state: ClusterState, data: bytes) -> tuple[Entry, Folded] | None:
        """What was foreseen of these bytes on this very state; forgotten then."""
        found = self._made.pop(data, None)
        return None if found is None or found[0] is not state else found[1:]

    def judge(self, state: ClusterState, data: bytes) -> tuple[Item, Folded]:
        """As ``judge`` of the module, but what was foreseen is not folded again."""
        return self.take(state, data) or judge(state, data)


class GapWatch:
    """Notices that a log lacks entries in its middle, from what comes after them.

    Who makes an entry has folded the epoch since which it may apply. So an entry from an epoch beyond the log's follows
    on something that is not there; two of them, the second on the first, are no defect of one author.

    ``until``: an offset; None: everywhere. Who follows a log as it grows is shown another history in other ways.
    """

    def __init__(self, until: int | None = None) -> None:
        self._until = until
        self._beyond = ""

    def saw(self, made: FoldedRecord) -> None:
        """Each record, in order. Raises LogGap."""
        item = made.item
        if self._until is not None and made.offset >= self._until:
            return
        if made.after is not made.before:
            self._beyond = ""
        elif made.outcome.kind is OutcomeKind.EXPIRED and isinstance(item, Entry):
            epoch = made.before.epoch
            if item.since_epoch > epoch:
                if self._beyond and item.prev_state_id == self._beyond:
                    what = f"offset {made.offset} follows on epoch {item.since_epoch}, {epoch} is the last that is here"
                    raise LogGap(what, "entries are missing: see `ringlog recover`")
                self._beyond = item.state_id


def follow(
    records: Iterable[RecordBytes], state: ClusterState = EMPTY_STATE, judging: Judging = judge
) -> Iterator[FoldedRecord]:
    """Fold records, in the log's order, onto ``state``; a halt is the last outcome."""
    for record in records:
        item, folded = judging(state, record.data)
        made = _new_record(record.offset, item, folded.outcome, state, folded.state)
        yield made
        if made.is_halt:
            return
        state = folded.state
