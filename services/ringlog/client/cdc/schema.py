"""The tables that rows of the CDC log are of, from a replica of the metadata log.

A row may be decided by an epoch that this process has not folded yet: then it is folded first, and nothing is guessed.
A change topic would not do: it has the newest version of a table and none of a dropped one, and lags behind the log
that the writers of rows follow.
"""

from __future__ import annotations

from ringlog.client.cdc.lives import Lives
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.changes import TableChange
from ringlog.kernel.outcome import Entry, Outcome, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch

ANSWER_S = 30.0


class Schema:
    """Follows one cluster's metadata log. For one thread; ``start`` it and ``close`` it."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self.lives = Lives()
        self._watch = MetadataWatch(bootstrap_servers, cluster)
        self._watch.subscribe(self._note)

    def start(self) -> Schema:
        """Fold the log to its present end. Raises NotFounded, TopicMissing, other LogErrors; is closed then."""
        self._watch.start()
        self._catch_up(self._watch.state.epoch)
        return self

    def at(self, name: str, epoch: Epoch) -> TableChange | None:
        """``Lives.at`` once all of the log up to that epoch is folded. None, too, of an epoch that the log has not.

        Raises ReplicaHalted, LogUnavailable, WaitTimedOut.
        """
        if epoch > self.lives.epoch:
            # Whoever wrote the row had folded that entry, so it is there: a barrier finds it, or there is none.
            self._catch_up(self._watch.read_barrier(ANSWER_S).epoch)
            if epoch > self.lives.epoch:
                return None
        return self.lives.at(name, epoch)

    def close(self) -> None:
        """Stop following."""
        self._watch.close()

    def _note(
        self, before: ClusterState, after: ClusterState, _record: Entry | Unreadable, _outcome: Outcome, _offset: int
    ) -> None:
        self.lives.note(before, after)

    def _catch_up(self, epoch: Epoch) -> None:
        """A state is published before its followers hear of it."""
        self._watch.wait_for(lambda _: self.lives.epoch >= epoch, ANSWER_S, f"epoch {epoch} to be noted")
