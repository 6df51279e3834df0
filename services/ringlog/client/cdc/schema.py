"""Tables of CDC rows, from a replica of the metadata log.

Invariant: a row is interpreted only after the log is applied up to the epoch of the decision on it. A change topic
would not be sufficient. It contains only the newest version of a table and nothing of a dropped table. It also lags
behind the log that the writers of rows follow.

The replica starts from the newest snapshot. The snapshot's state contains the table versions that may still apply to a
write. If a row is older than these versions, the log before the snapshot is read once. That begins at the first entry,
or at the oldest snapshot if the first entry was truncated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ringlog.client.cdc.errors import TablesForgotten
from ringlog.client.cdc.table_versions import TableVersions
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.changes import TableChange
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogForked
from ringlog.log.folding import Start, follow
from ringlog.log.opening import start_point_finder
from ringlog.log.port import MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.identity import IdentityStore
from ringlog.log.replicas.replay import ProgressCallback, ProgressReporter, log_progress
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.runtime.logs import get_logger

ANSWER_S = 30.0
PAST = "for rows from before its newest snapshot"

log = get_logger(__name__)


class SchemaFollower:
    """A follower of one cluster's metadata log. Not thread-safe. Call ``start`` and ``close``.

    ``record``, ``metadata`` and ``start_finder`` are those of ``MetadataWatch``.

    Args:
        past: Source of the start point for reading the log before the snapshot. Default on Kafka: the earliest
            possible.
        on_progress: Callback for progress messages of long reads.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        record: Path | IdentityStore | None = None,
        metadata: MetadataLog | None = None,
        start_finder: StartPointFinder | None = None,
        past: StartPointFinder | None = None,
        on_progress: ProgressCallback = log_progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table_versions = TableVersions()
        if past is None and metadata is None:
            past = start_point_finder(bootstrap_servers, cluster, oldest=True)
        self._past, self._on_progress, self._clock = past, on_progress, clock
        self._watch = MetadataWatch(
            bootstrap_servers,
            cluster,
            record=record,
            metadata=metadata,
            start_finder=start_finder,
            on_progress=on_progress,
        )
        self._watch.subscribe(self._record_step, self._watch.replica.halt_on_defect)

    def start(self) -> SchemaFollower:
        """Replay the log to its current end.

        Raises ClusterNotCreated, TopicMissing, other LogErrors; the follower is then closed. One of them is raised if
        the log is not the one in ``record``: rows must not be interpreted with the tables of another history.
        """
        self._watch.start()
        # A subscription starts between two records and returns the state there. ``begin`` has no effect if a step was
        # already recorded.
        between = self._watch.subscribe(lambda *_: None)
        between.close()
        self.table_versions.begin(between.state)
        self._catch_up(self._watch.state.epoch)
        return self

    def at(self, name: str, epoch: Epoch) -> TableChange | None:
        """Return the table as in ``TableVersions.at``, after the log is applied up to that epoch.

        Returns None for an epoch that the log does not contain. Raises TablesForgotten, ReplicaHalted, LogUnavailable,
        WaitTimedOut.
        """
        # The writer of the row had applied that entry. So a barrier reaches it, or it does not exist.
        if epoch > self.table_versions.epoch and epoch > self.newest().epoch:
            return None
        if not self.table_versions.knows(name, epoch) and not self.whole().knows(name, epoch):
            raise TablesForgotten(name, epoch)
        return self.table_versions.at(name, epoch)

    def newest(self) -> TableVersions:
        """Return ``table_versions`` after a read barrier. Raises ReplicaHalted, LogUnavailable, WaitTimedOut."""
        self._catch_up(self._watch.read_barrier(ANSWER_S).epoch)
        return self.table_versions

    def whole(self) -> TableVersions:
        """Return ``table_versions`` extended by the log before the snapshot, which is read at most once.

        Raises LogForked, LogTruncated, LogUnavailable.
        """
        if self.table_versions.began > 0 and self._past is not None:
            metadata = self._watch.replica.log
            start = self._past.start(metadata, metadata.identity(), lambda _: ())
            if metadata.begin_offset() <= start.position and start.state.epoch < self.table_versions.began:
                self.table_versions.extend_back(self._before(start))
            self._past = None
        return self.table_versions

    def close(self) -> None:
        self._watch.close()

    def _before(self, start: Start) -> TableVersions:
        """Read the versions from ``start`` to the initial state of the replica."""
        end, metadata = self._watch.replica.started_from, self._watch.replica.log
        found, state = TableVersions(), start.state
        found.begin(state)
        log.info("looks_back", log=metadata.name, from_epoch=state.epoch, to_epoch=end.epoch)
        teller = ProgressReporter(metadata.name, start.position, end.position, self._on_progress, self._clock, PAST)
        tail = metadata.tail(start.position)
        try:
            for made in follow(read_to_end(metadata, tail), state):
                found.record_step(made.before, made.after)
                state = made.after
                teller.at(state.epoch, made.offset + 1)
                if state.epoch == end.epoch:
                    break
        finally:
            tail.close()
        # The snapshot and the log must describe the same history.
        if state.state_id != end.state_id:
            raise LogForked(
                f"epoch {end.epoch} has state {end.state_id} in a snapshot, but {state.state_id} in the log"
            )
        return found

    def _record_step(
        self,
        before: ClusterState,
        after: ClusterState,
        _record: Entry | UnreadableEntry,
        _outcome: Outcome,
        _offset: int,
    ) -> None:
        self.table_versions.begin(before)
        self.table_versions.record_step(before, after)

    def _catch_up(self, epoch: Epoch) -> None:
        """Wait until the versions include ``epoch``. A state is published before its subscribers are called."""
        self._watch.wait_for(lambda _: self.table_versions.epoch >= epoch, ANSWER_S, f"epoch {epoch} to be read")
