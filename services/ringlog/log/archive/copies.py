"""A copy of the metadata log, wherever it was kept: what a lost log is rebuilt from.

A copy is a state (the empty one, or that of a snapshot), and the records of the log from the entry on that made it, as
they were. What it is worth says its fold: every record is folded anew, epochs that somebody saw must have the states
that they had then (``Seen``), and what this release cannot judge ends it.

Two places have copies: the folder of a member of the metadata service (``ringlog.node.log.log_copy``), and an archive.

Source: CEP-21, "Failure Recovery".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ringlog.log.archive.archive import Archive
from ringlog.log.errors import CopyMissing, LogGap, ReplicaHalted
from ringlog.log.folding import BEGINNING, GapWatch, Start, follow
from ringlog.log.port import LogRecord
from ringlog.log.replicas.identity import Seen, compared


@dataclass(frozen=True, slots=True)
class LogCopy:
    """``records``: gives them, from offset ``begin`` on, as often as it is called. ``seen``: what the log had.

    ``place``: where it is, for people.
    """

    place: str
    start: Start
    records: Callable[[], Iterable[LogRecord]]
    seen: tuple[Seen, ...] = ()

    @property
    def begin(self) -> int:
        """Offset of the first record: of the entry that made the state, which readers compare with it."""
        return max(self.start.position - 1, 0)

    def behind(self) -> Iterator[LogRecord]:
        """The records that follow the state."""
        return (record for record in self.records() if record.offset >= self.start.position)


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """How far a copy goes: behind its last entry that applies. ``lost``: what was seen beyond that.

    ``has_gap``: entries follow that were decided on epochs which are missing here.
    """

    at: Start
    lost: tuple[Seen, ...]
    has_gap: bool = False


def copy_of_archive(archive: Archive) -> LogCopy:
    """Raises CopyMissing, ArchiveRefused, ArchiveUnavailable; reading the records, too."""
    heads = archive.segments()
    if not heads:
        raise CopyMissing(f"{archive.place.name} holds neither a member's copy of the log nor segments of an archive")
    seen = tuple(Seen(head.last, head.state_id, head.name, head.next) for head in heads)
    return LogCopy(archive.place.name, BEGINNING, lambda: archive.records(heads), seen)


def end_of(copy: LogCopy) -> CopyEnd:
    """Fold it all. Raises LogForked, CopyMissing, ReplicaHalted, and what reading it raises."""
    at, seen, watch = copy.start, compared(copy.seen, copy.start.state, 0), GapWatch()
    try:
        for made in follow(copy.behind(), at.state):
            if made.is_halt:
                hint = "this release does not know the entry: install one that does"
                raise ReplicaHalted(made.outcome.code, made.outcome.detail, made.offset, hint)
            watch.saw(made)
            at = made.next if made.after is not made.before else at
            seen = compared(seen, made.after, made.next.position)
        has_gap = False
    except LogGap:
        has_gap = True
    if at.state.epoch == 0:
        raise CopyMissing(f"{copy.place} holds no entry that founds a cluster")
    return CopyEnd(at, seen, has_gap)
