"""The keeper looks after both ends of the log's life: what becomes old is archived, and goes when it was ordered.

After each snapshot that it stored the keeper extends the archive, if a folder is set for one (``RINGLOG_ARCHIVE``): it
folds what goes in and compares the state with its own. Then the log is to know how far the archive goes. Who takes over
extends it to the newest snapshot that is confirmed, if the log does not know that it goes so far (``behind``). What the
place does not take is tried again (``ringlog.agents.maintenance.snapshots``).

A deletion follows the entry of a ``TruncateLog``. It is the same however often it is done, so who takes over does it
again, and it never goes above what the state allows. Before it, by a fresh look:

1. the confirmed snapshot of the new beginning can be read and fits the log: who may not begin with a later one,
   since it is further back, begins there, as long as the log does;
2. the archive that is set holds all that goes, and is the one that the log knows of;
3. the change topics are past the new beginning: their publisher goes on from what they say;
4. this instance still acts in its role.

What is lacking is said, and tried again later: the log may be longer than it need be, for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable

from ringlog.kernel.commands.cluster.truncation import RecordArchive
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import ARCHIVED, TRUNCATED, confirmed_snapshots
from ringlog.kernel.model.modes import LogBound, TakenSnapshot
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.archive.archive import Archive, SegmentHead, grown
from ringlog.log.errors import ArchiveForged, ArchiveGap, ArchiveOfAnotherLog, LogUnavailable, SnapshotIncomplete
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.start_point import Beginning, SnapshotTopic
from ringlog.runtime.logs import get_logger

log = get_logger(__name__)


class LogEnds:
    """The archive and the beginning of one log. For use by one thread.

    ``delete``: has the broker delete what is before an offset; ``published``: the epoch that the change topics have;
    ``acts``: false if this instance must not go on; ``say``: hears what was done.
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
        """Where the log begins now. Raises LogUnavailable."""
        return self._log.begin_offset()

    def behind(self, state: ClusterState) -> TakenSnapshot | None:
        """The newest confirmed snapshot, where the archive does not go so far by what the log knows of it."""
        if self._archive is None or not (confirmed := confirmed_snapshots(state)):
            return None
        known = state.log_bounds.get(ARCHIVED)
        return confirmed[-1] if known is None or known.epoch < confirmed[-1].epoch else None

    def archive(self, epoch: Epoch, wanted: Callable[[], str]) -> RecordArchive | None:
        """Extend the archive up to this epoch, and what the log is to know of it; None if no place is set. ``wanted``:
        the digest of the epoch's state.

        Raises ArchiveRefused, ArchiveUnavailable, LogUnavailable.
        """
        if self._archive is None:
            return None
        end = grown(self._archive, self._log, self._open, epoch)
        if end.state.epoch == epoch and digest(end.state) != wanted():
            raise ArchiveOfAnotherLog(f"epoch {epoch}: what the archive holds folds to another digest")
        last = self._archive.segments()[-1]
        self._say("archived", epoch=last.last, segment=last.name, digest=last.digest)
        return RecordArchive(last.last, last.next, last.digest)

    def truncate(self, state: ClusterState) -> None:
        """Delete what a ``TruncateLog`` of this state lets go, if it is there still.

        Raises SnapshotRefused, ArchiveRefused, ArchiveUnavailable, LogUnavailable; then nothing was deleted.
        """
        bound = state.log_bounds.get(TRUNCATED)
        if bound is None or self._log.begin_offset() >= bound.position:
            return
        allowed = bound.position
        self._covered(bound)
        if self._archive is not None:
            _holds(self._archive.segments(), state, allowed)
        if (published := self._published()) <= bound.epoch:
            raise LogUnavailable(f"the change topics are at epoch {published}, {bound.epoch} is to be the first")
        if self._acts():
            self._delete(allowed)
            self._say("log_truncated", begin=allowed, epoch=bound.epoch)

    def _covered(self, bound: LogBound) -> None:
        """Every reader could begin if the log began there."""
        start = Beginning(self._open, bound.epoch, warns=False).start(self._log, self._log.identity(), lambda _: ())
        if start.position != bound.position + 1:
            raise SnapshotIncomplete(
                f"nobody can begin with the snapshot of epoch {bound.epoch}", "take another, and truncate up to it"
            )


def _holds(heads: tuple[SegmentHead, ...], state: ClusterState, allowed: int) -> None:
    if not heads or heads[-1].next < allowed:
        raise ArchiveGap(f"the archive does not hold the entries before offset {allowed} yet", "take another snapshot")
    known = state.log_bounds.get(ARCHIVED)
    if known is not None and all(head.digest != known.digest for head in heads):
        raise ArchiveForged(
            f"the log knows of an archive with a segment of epoch {known.epoch}; it is another one here"
        )
