"""The tables that rows of the CDC log are of, from a replica of the metadata log.

A row may be decided by an epoch that this process has not folded yet: then it is folded first, and nothing is guessed.
A change topic would not do: it has the newest version of a table and none of a dropped one, and lags behind the log
that the writers of rows follow.

It begins with the newest snapshot, whose state keeps the versions that may still count for a write. Where a row is from
before those, it folds once what there is of the log before that snapshot: from the first entry, or from the oldest
snapshot where that entry was let go.
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
from ringlog.log.opening import beginning_of
from ringlog.log.port import MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.identity import Memory
from ringlog.log.replicas.replay import ReplayTeller, Tell, say
from ringlog.log.replicas.start_point import Beginning
from ringlog.runtime.logs import get_logger

ANSWER_S = 30.0
PAST = "for rows from before its newest snapshot"

log = get_logger(__name__)


class SchemaFollower:
    """Follows one cluster's metadata log. For one thread; ``start`` it and ``close`` it.

    ``record``, ``metadata``, ``beginning``: see ``MetadataWatch``. ``past``: finds where the past begins that is looked
    into when need be; on Kafka, as early as the log allows. ``tell``: hears how far a long reading is.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        record: Path | Memory | None = None,
        metadata: MetadataLog | None = None,
        beginning: Beginning | None = None,
        past: Beginning | None = None,
        tell: Tell = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table_versions = TableVersions()
        if past is None and metadata is None:
            past = beginning_of(bootstrap_servers, cluster, oldest=True)
        self._past, self._tell, self._clock = past, tell, clock
        self._watch = MetadataWatch(
            bootstrap_servers, cluster, record=record, metadata=metadata, beginning=beginning, tell=tell
        )
        self._watch.subscribe(self._record_step, self._watch.replica.halt_on_defect)

    def start(self) -> SchemaFollower:
        """Fold the log to its present end. Raises NotFounded, TopicMissing, other LogErrors; is closed then: also
        where the log is not the one that ``record`` was of, since rows would be read by the tables of another history.
        """
        self._watch.start()
        between = self._watch.subscribe(lambda *_: None)  # two records; what was noted before has begun it
        between.close()
        self.table_versions.begin(between.state)
        self._catch_up(self._watch.state.epoch)
        return self

    def at(self, name: str, epoch: Epoch) -> TableChange | None:
        """``TableVersions.at`` once all of the log up to that epoch is folded. None, too, of an epoch that the log has
        not.

        Raises TablesForgotten, ReplicaHalted, LogUnavailable, WaitTimedOut.
        """
        # The row's writer had folded that entry, so it is there: a barrier finds it, or there is none.
        if epoch > self.table_versions.epoch and epoch > self.newest().epoch:
            return None
        if not self.table_versions.knows(name, epoch) and not self.whole().knows(name, epoch):
            raise TablesForgotten(name, epoch)
        return self.table_versions.at(name, epoch)

    def newest(self) -> TableVersions:
        """``table_versions`` with all that is in the log now. Raises ReplicaHalted, LogUnavailable, WaitTimedOut."""
        self._catch_up(self._watch.read_barrier(ANSWER_S).epoch)
        return self.table_versions

    def whole(self) -> TableVersions:
        """``table_versions`` with all that there is of the log: what was before the snapshot is folded, once.

        Raises LogForked, LogTruncated, LogUnavailable.
        """
        if self.table_versions.began > 0 and self._past is not None:
            metadata = self._watch.replica.log
            start = self._past.start(metadata, metadata.identity(), lambda _: ())
            if metadata.begin_offset() <= start.position and start.state.epoch < self.table_versions.began:
                self.table_versions.follow_on(self._before(start))
            self._past = None
        return self.table_versions

    def close(self) -> None:
        """Stop following."""
        self._watch.close()

    def _before(self, start: Start) -> TableVersions:
        """From there to the state with which the replica began."""
        end, metadata = self._watch.replica.began, self._watch.replica.log
        found, state = TableVersions(), start.state
        found.begin(state)
        log.info("looks_back", log=metadata.name, from_epoch=state.epoch, to_epoch=end.epoch)
        teller = ReplayTeller(metadata.name, start.position, end.position, self._tell, self._clock, PAST)
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
        if state.state_id != end.state_id:
            raise LogForked(f"epoch {end.epoch} is {end.state_id} in a snapshot, and {state.state_id} in the log")
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
        """A state is published before its followers hear of it."""
        self._watch.wait_for(lambda _: self.table_versions.epoch >= epoch, ANSWER_S, f"epoch {epoch} to be noted")
