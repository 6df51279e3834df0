"""Copies of the metadata log, for the recovery of a lost log.

A copy consists of a state (the empty state or a snapshot) and of the log's original records, from the entry that made
the state. A recovery validates a copy with a fold of every record. Epochs that other processes have stored must have
the same states (``KnownEpoch``). A record that this release cannot judge makes the copy unusable for this release.

Copies exist in two places: in the folder of a member of the metadata service (``ringlog.node.log.log_copy``), and in an
archive.

Source: CEP-21, "Failure Recovery".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ringlog.kernel.values import Value
from ringlog.log.archive.archive import Archive
from ringlog.log.errors import CopyMissing, LogGap, ReplicaHalted
from ringlog.log.folding import BEGINNING, GapWatch, Start, follow
from ringlog.log.port import LogRecord
from ringlog.log.replicas.identity import KnownEpoch, check_epochs


class LogCopy(Value):
    """A copy of the log.

    ``records`` returns the records from offset ``begin`` on and can be called repeatedly. ``seen`` lists epochs that
    the log had. ``place`` is its location in messages.
    """

    place: str
    start: Start
    records: Callable[[], Iterable[LogRecord]]
    seen: tuple[KnownEpoch, ...] = ()

    @property
    def begin(self) -> int:
        """The offset of the first record, whose entry made the state. Readers compare it with the state."""
        return max(self.start.position - 1, 0)

    def behind(self) -> Iterator[LogRecord]:
        """Return the records after the state."""
        return (record for record in self.records() if record.offset >= self.start.position)


class CopyEnd(Value):
    """The start after a copy's last applied entry. ``lost`` lists epochs beyond it that were seen.

    ``has_gap`` is True if later entries were decided on epochs that the copy lacks.
    """

    at: Start
    lost: tuple[KnownEpoch, ...]
    has_gap: bool = False


def copy_of_archive(archive: Archive) -> LogCopy:
    """Return an archive as a copy. Raises CopyMissing, ArchiveRefused, ArchiveUnavailable, also while
    reading records.
    """
    heads = archive.segments()
    if not heads:
        raise CopyMissing(
            f"{archive.place.name} contains neither a log replica's copy of the log nor segments of an archive"
        )
    seen = tuple(KnownEpoch(head.last, head.state_id, head.name, head.next) for head in heads)
    return LogCopy(archive.place.name, BEGINNING, lambda: archive.records(heads), seen)


def end_of(copy: LogCopy) -> CopyEnd:
    """Fold the whole copy and return its end.

    Raises LogForked, CopyMissing, ReplicaHalted, and the errors of reading it.
    """
    at, seen, watch = copy.start, check_epochs(copy.seen, copy.start.state, 0), GapWatch()
    try:
        for made in follow(copy.behind(), at.state):
            if made.is_halt:
                hint = "this release does not support the entry: install a release that does"
                raise ReplicaHalted(made.outcome.code, made.outcome.detail, made.offset, hint)
            watch.check(made)
            at = made.next if made.after is not made.before else at
            seen = check_epochs(seen, made.after, made.next.position)
        has_gap = False
    except LogGap:
        has_gap = True
    if at.state.epoch == 0:
        raise CopyMissing(f"{copy.place} contains no initial entry of a cluster")
    return CopyEnd(at, seen, has_gap)
