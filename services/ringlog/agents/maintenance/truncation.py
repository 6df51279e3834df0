"""The archive of the log, and the deletion of old entries. Both are work of the cache writer.

After each snapshot that it stored, the cache writer extends the archive, if a location is set (``RINGLOG_ARCHIVE``). It
folds the added entries, and compares the state with its own. Then it records the end of the archive in the log. An
instance that takes over extends the archive to the newest confirmed snapshot, unless the log records that it reaches
that far (``behind``). ``ringlog.agents.maintenance.snapshots`` retries after a failure.

A deletion follows the entry of a ``TruncateLog``. A repeated deletion changes nothing, and a deletion never exceeds the
limit in the state. So an instance that takes over repeats it. Each deletion first checks:

1. The confirmed snapshot of the new beginning is readable and fits the log. A reader that cannot use a later one,
   because its own replica is further back, can begin there as long as the log does.
2. The configured archive contains all entries to be deleted, and is the one that the log records.
3. The change topics are past the new beginning. The change publisher continues from their last epoch.
4. This instance is still the active one.

An unmet condition is reported and retried later. A log that is longer than necessary does no harm.
"""

from __future__ import annotations

from collections.abc import Callable

from ringlog.kernel.commands.cluster.truncation import RecordArchive
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import ARCHIVED, TRUNCATED, confirmed_snapshots
from ringlog.kernel.model.modes import LogBound, TakenSnapshot
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.archive.archive import Archive, SegmentHead, update_archive
from ringlog.log.errors import ArchiveForged, ArchiveGap, ArchiveOfAnotherLog, LogUnavailable, SnapshotIncomplete
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.runtime.logs import get_logger

log = get_logger(__name__)


class LogEnds:
    """The archive and the beginning of one log. For one thread.

    ``delete``: deletes the records before an offset. ``published``: returns the last epoch of the change topics.
    ``acts``: returns whether this instance may continue. ``say``: receives each event.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        open_snapshots: Callable[[], SnapshotTopic],
        delete: Callable[[int], None],
        archive: Archive | None,
        published: Callable[[], Epoch],
        acts: Callable[[], bool],
        say: Callable[..., object] = log.info,
    ) -> None:
        self._log = metadata
        self._open = open_snapshots
        self._delete = delete
        self._archive = archive
        self._published = published
        self._acts = acts
        self._say = say

    def begin(self) -> int:
        """Return the first offset of the log. Raises LogUnavailable."""
        return self._log.begin_offset()

    def behind(self, state: ClusterState) -> TakenSnapshot | None:
        """Return the newest confirmed snapshot if the log does not record that the archive reaches it."""
        if self._archive is None or not (confirmed := confirmed_snapshots(state)):
            return None
        known = state.log_bounds.get(ARCHIVED)
        return confirmed[-1] if known is None or known.epoch < confirmed[-1].epoch else None

    def archive(self, epoch: Epoch, wanted: Callable[[], str]) -> RecordArchive | None:
        """Extend the archive up to this epoch. Return the command that records its end; None if no location is set.

        Args:
            wanted: returns the digest of the state of ``epoch``.

        Raises ArchiveRefused, ArchiveUnavailable, LogUnavailable.
        """
        if self._archive is None:
            return None
        end = update_archive(self._archive, self._log, self._open, epoch)
        if end.state.epoch == epoch and digest(end.state) != wanted():
            raise ArchiveOfAnotherLog(f"epoch {epoch}: the archive has another digest than the log")
        last = self._archive.segments()[-1]
        self._say("archived", epoch=last.last, segment=last.name, digest=last.digest)
        return RecordArchive(last.last, last.next, last.digest)

    def truncate(self, state: ClusterState) -> None:
        """Delete the entries that a ``TruncateLog`` of this state allows to delete, if they still exist.

        Raises SnapshotRefused, ArchiveRefused, ArchiveUnavailable, LogUnavailable. In these cases nothing was deleted.
        """
        bound = state.log_bounds.get(TRUNCATED)
        if bound is None or self._log.begin_offset() >= bound.position:
            return
        allowed = bound.position
        self._covered(bound)
        if self._archive is not None:
            _holds(self._archive.segments(), state, allowed)
        if (published := self._published()) <= bound.epoch:
            raise LogUnavailable(
                f"the change topics are at epoch {published}; the truncated log is to start with epoch {bound.epoch}"
            )
        # Checked last, because another instance may have taken over during the other checks.
        if self._acts():
            self._delete(allowed)
            self._say("log_truncated", begin=allowed, epoch=bound.epoch)

    def _covered(self, bound: LogBound) -> None:
        """Check that every reader could begin if the log began at ``bound``. Raises SnapshotRefused."""
        start = StartPointFinder(self._open, bound.epoch, warns=False).start(
            self._log, self._log.identity(), lambda _: ()
        )
        if start.position != bound.position + 1:
            raise SnapshotIncomplete(
                f"readers cannot start from the snapshot of epoch {bound.epoch}",
                "take another snapshot, and truncate up to that snapshot",
            )


def _holds(heads: tuple[SegmentHead, ...], state: ClusterState, allowed: int) -> None:
    """Check that the archive contains all entries before ``allowed``, and is the one that the log records."""
    if not heads or heads[-1].next < allowed:
        raise ArchiveGap(
            f"the archive does not contain the entries before offset {allowed} yet", "take another snapshot"
        )
    known = state.log_bounds.get(ARCHIVED)
    if known is not None and all(head.digest != known.digest for head in heads):
        raise ArchiveForged(
            f"the log records an archive with a segment of epoch {known.epoch}; this archive does not have that segment"
        )
