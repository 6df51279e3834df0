"""The tables that rows of the CDC log are of, from a replica of the metadata log.

A row may be decided by an epoch that this process has not folded yet: then it is folded first, and nothing is guessed.
A change topic would not do: it has the newest version of a table and none of a dropped one, and lags behind the log
that the writers of rows follow.

It folds the log from its first entry, to know every version of every table; from the oldest snapshot on only where that
entry was let go.
"""

from __future__ import annotations

from pathlib import Path

from ringlog.client.cdc.errors import TablesForgotten
from ringlog.client.cdc.lives import Lives
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.changes import TableChange
from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.beginning import Beginning
from ringlog.log.identity import Memory
from ringlog.log.opening import beginning_of
from ringlog.log.port import MetadataLog

ANSWER_S = 30.0


class SchemaFollower:
    """Follows one cluster's metadata log. For one thread; ``start`` it and ``close`` it.

    ``record``, ``metadata``, ``beginning``: see ``MetadataWatch``.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        record: Path | Memory | None = None,
        metadata: MetadataLog | None = None,
        beginning: Beginning | None = None,
    ) -> None:
        self.lives = Lives()
        if beginning is None and metadata is None:
            beginning = beginning_of(bootstrap_servers, cluster, oldest=True)
        self._watch = MetadataWatch(bootstrap_servers, cluster, record=record, metadata=metadata, beginning=beginning)
        self._watch.subscribe(self._note)

    def start(self) -> SchemaFollower:
        """Fold the log to its present end. Raises NotFounded, TopicMissing, other LogErrors; is closed then: also
        where the log is not the one that ``record`` was of, since rows would be read by the tables of another history.
        """
        self._watch.start()
        self.lives.begin(self._watch.replica.began)
        self._catch_up(self._watch.state.epoch)
        return self

    def at(self, name: str, epoch: Epoch) -> TableChange | None:
        """``Lives.at`` once all of the log up to that epoch is folded. None, too, of an epoch that the log has not.

        Raises TablesForgotten, ReplicaHalted, LogUnavailable, WaitTimedOut.
        """
        if epoch > self.lives.epoch:
            # The row's writer had folded that entry, so it is there: a barrier finds it, or there is none.
            self._catch_up(self._watch.read_barrier(ANSWER_S).epoch)
            if epoch > self.lives.epoch:
                return None
        if not self.lives.knows(name, epoch):
            raise TablesForgotten(name, epoch)
        return self.lives.at(name, epoch)

    def close(self) -> None:
        """Stop following."""
        self._watch.close()

    def _note(
        self,
        before: ClusterState,
        after: ClusterState,
        _record: Entry | UnreadableEntry,
        _outcome: Outcome,
        _offset: int,
    ) -> None:
        self.lives.begin(before)
        self.lives.note(before, after)

    def _catch_up(self, epoch: Epoch) -> None:
        """A state is published before its followers hear of it."""
        self._watch.wait_for(lambda _: self.lives.epoch >= epoch, ANSWER_S, f"epoch {epoch} to be noted")
