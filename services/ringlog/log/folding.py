"""Folding a log, record by record: the one loop of all who read it.

Whoever folds begins with a state and goes on from the position behind it (``Start``): the empty state and the log's
beginning, or a state that was stored. An entry that this release cannot judge (``halt``) ends the loop, whoever runs
it: what comes after it would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import Entry, Outcome, OutcomeKind, Unreadable
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.port import LogRecord
from ringlog.wire.entries import decode_entry


@dataclass(frozen=True, slots=True)
class Start:
    """A state, and the offset behind the last record that is in it."""

    state: ClusterState = EMPTY_STATE
    position: int = 0


BEGINNING = Start()


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
    item: Entry | Unreadable
    outcome: Outcome
    before: ClusterState
    after: ClusterState

    @property
    def is_halt(self) -> bool:
        """True if this release cannot judge it: it is the last one."""
        return self.outcome.kind is OutcomeKind.HALT

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


def follow(records: Iterable[LogRecord], state: ClusterState = EMPTY_STATE) -> Iterator[FoldedRecord]:
    """Fold records, in the log's order, onto ``state``; a halt is the last one told."""
    for record in records:
        item = decode_entry(record.data)
        folded = fold(state, item)
        made = FoldedRecord(record.offset, item, folded.outcome, state, folded.state)
        yield made
        if made.is_halt:
            return
        state = folded.state
