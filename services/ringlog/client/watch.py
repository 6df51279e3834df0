"""Read-only access to a cluster: the current state, barriers, and a subscription to every change.

This is the part of the client for programs that only follow the log, such as the driver of a stream job. A driver must
know that it has seen everything up to a point. A read barrier on the log guarantees that; a change topic cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ringlog.client.errors import ClusterNotCreated
from ringlog.kernel.model.state import ClusterState
from ringlog.log.opening import open_metadata, start_point_finder
from ringlog.log.port import MetadataLog
from ringlog.log.reading import SILENCE_S
from ringlog.log.replicas.identity import IdentityStore
from ringlog.log.replicas.replay import ProgressCallback, catch_up, log_progress
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.log.replicas.subscribers import Follower, Halt, Subscription

TIMEOUT_S = 30.0
T = TypeVar("T")


class MetadataWatch:
    """A follower of one cluster's metadata. Thread-safe. Use it as a context manager, or call ``start`` and ``close``.

    On Kafka, it starts from the newest snapshot. ``cluster_id``, ``record`` and ``start_finder`` are those of
    ``LogReplica``.

    Args:
        on_progress: Callback for progress messages during a long replay.
        metadata: A log to use instead of Kafka's. The watch closes it.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        *,
        cluster_id: str | None = None,
        record: Path | IdentityStore | None = None,
        on_progress: ProgressCallback = log_progress,
        metadata: MetadataLog | None = None,
        start_finder: StartPointFinder | None = None,
    ) -> None:
        if start_finder is None and metadata is None:
            start_finder = start_point_finder(bootstrap_servers, cluster)
        self._log = metadata if metadata is not None else open_metadata(bootstrap_servers, cluster, "watch")
        self._on_progress = on_progress
        self.replica = LogReplica(self._log, cluster_id=cluster_id, record=record, start_finder=start_finder)

    def start(self, silence_s: float = SILENCE_S) -> MetadataWatch:
        """Start the replica and replay the log to its current end. The duration is not bounded.

        The watch is closed if this raises. Raises LogUnavailable if nothing arrives for ``silence_s``,
        ClusterNotCreated, TopicMissing, TopicMisconfigured, other LogErrors.
        """
        try:
            self.replica.start()
            if catch_up(self.replica, silence_s=silence_s, on_progress=self._on_progress).epoch == 0:
                raise ClusterNotCreated(self._log.name)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self.replica.stop()
        self._log.close()

    def __enter__(self) -> MetadataWatch:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> ClusterState:
        """The newest applied state."""
        return self.replica.state

    @property
    def halted(self) -> Halt | None:
        """The reason why the replica halted, if it did."""
        return self.replica.halted

    def read_barrier(self, timeout_s: float = TIMEOUT_S) -> ClusterState:
        """Return a state that includes every entry that was in the log when this was called."""
        return self.replica.read_barrier(timeout_s)

    def wait_for(self, predicate: Callable[[ClusterState], T | None], timeout_s: float, awaited: str) -> T:
        """Wait for a state; see ``LogReplica.wait_for``."""
        return self.replica.wait_for(predicate, timeout_s, awaited)

    def subscribe(self, follower: Follower, on_failure: Callable[[Exception], None] | None = None) -> Subscription:
        """Register a follower; see ``LogReplica.subscribe``."""
        return self.replica.subscribe(follower, on_failure)
