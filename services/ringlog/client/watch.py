"""Watching a cluster: the folded state, barriers on it, and every change as it happens; nothing is ever written.

The part of the client for programs that only follow, such as a stream job: its driver needs complete knowledge up to
a point, which a read barrier on the log gives and a change topic cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ringlog.client.errors import NotFounded
from ringlog.kernel.model.state import ClusterState
from ringlog.log.opening import beginning_of, open_metadata
from ringlog.log.port import MetadataLog
from ringlog.log.reading import SILENCE_S
from ringlog.log.replicas.identity import Memory
from ringlog.log.replicas.replay import Tell, catch_up, say
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import Beginning
from ringlog.log.replicas.subscribers import Follower, Halt, Subscription

TIMEOUT_S = 30.0
T = TypeVar("T")


class MetadataWatch:
    """Follows one cluster's metadata. Safe from threads; use it as a context, or ``start`` and ``close`` it.

    ``cluster_id`` and ``record``: see ``LogReplica``. ``tell``: hears of a long replay. ``metadata``: another log than
    Kafka's, which the watch then closes. ``beginning``: where it begins; on Kafka, with the newest snapshot.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        *,
        cluster_id: str | None = None,
        record: Path | Memory | None = None,
        tell: Tell = say,
        metadata: MetadataLog | None = None,
        beginning: Beginning | None = None,
    ) -> None:
        if beginning is None and metadata is None:
            beginning = beginning_of(bootstrap_servers, cluster)
        self._log = metadata if metadata is not None else open_metadata(bootstrap_servers, cluster, "watch")
        self._tell = tell
        self.replica = LogReplica(self._log, cluster_id=cluster_id, record=record, beginning=beginning)

    def start(self, silence_s: float = SILENCE_S) -> MetadataWatch:
        """Begin, and replay the log to its present end, however long that takes.

        Raises LogUnavailable when nothing comes for ``silence_s``, NotFounded, TopicMissing, TopicMisconfigured, other
        LogErrors.
        """
        try:
            self.replica.start()
            if catch_up(self.replica, silence_s=silence_s, tell=self._tell).epoch == 0:
                raise NotFounded(self._log.name)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop following."""
        self.replica.stop()
        self._log.close()

    def __enter__(self) -> MetadataWatch:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> ClusterState:
        """The newest folded state."""
        return self.replica.state

    @property
    def halted(self) -> Halt | None:
        """Why it follows no more, if it halted."""
        return self.replica.halted

    def read_barrier(self, timeout_s: float = TIMEOUT_S) -> ClusterState:
        """A state with everything that was in the log when this was called."""
        return self.replica.read_barrier(timeout_s)

    def wait_for(self, predicate: Callable[[ClusterState], T | None], timeout_s: float, awaited: str) -> T:
        """See ``Replica.wait_for``."""
        return self.replica.wait_for(predicate, timeout_s, awaited)

    def subscribe(self, follower: Follower, on_failure: Callable[[Exception], None] | None = None) -> Subscription:
        """See ``LogReplica.subscribe``."""
        return self.replica.subscribe(follower, on_failure)
