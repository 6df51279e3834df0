"""Sampling of a running node for ``/metrics`` and ``/health``. It sends no request and never waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId
from ringlog.log.replicas.metrics import log_view
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.log.log_copy import COPY
from ringlog.node.log.member_copy import MemberCopy
from ringlog.node.reports.health_view import BrokerClock, NodeView, health_of, samples_of
from ringlog.node.rows.disk_rows import ROWS
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_service import CELLS, DataService
from ringlog.node.streams.mutation_tail import MutationsTail
from ringlog.runtime.clock import Clock
from ringlog.runtime.logs import get_logger
from ringlog.runtime.monitoring.health import Health, StateSince
from ringlog.runtime.monitoring.metrics import Sample

log = get_logger("ringlog.node")

FILES = {"rows": f"{ROWS}*", "registers": f"{CELLS}/*", "log_copy": f"{COPY}*"}
"""The files of a node by metric label, as patterns in its folder."""


class NodeWatch:
    """Samples one node.

    Args:
        failure: Returns the reason why the node cannot continue, or None.
        is_stopping: Returns True if the process was asked to stop.

    Attributes:
        copy: The member's copy of the log, once it exists.
    """

    def __init__(
        self,
        options: NodeOptions,
        folder: NodeFolder,
        row_replica: RowReplica,
        data: DataService,
        replica: LogReplica,
        tail: MutationsTail,
        verdicts: Counter[str],
        clock: Clock,
        failure: Callable[[], Exception | None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.labels: Mapping[str, str] = {"node": options.name}
        self.broker_clock = BrokerClock()
        self.copy: MemberCopy | None = None
        self._path = options.folder
        self._folder = folder
        self._row_replica = row_replica
        self._data = data
        self._replica = replica
        self._tail = tail
        self._verdicts = verdicts
        self._clock = clock
        self._failure = failure
        self._is_stopping = is_stopping
        self._since = StateSince(clock.now_us)

    def health(self) -> tuple[Health, Micros]:
        """Return the health and its start time. See ``WatchedProcess``."""
        found = health_of(self._view())
        return found, self._since.of(found.state)

    def folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, _offset: int
    ) -> None:
        """Log that the node has left the cluster. A follower of the replica (``LogReplica.subscribe``)."""
        if has_left(after, self._row_replica.node) and not has_left(before, self._row_replica.node):
            self.report_departure(after)

    def report_departure(self, state: ClusterState) -> None:
        """Log that the node is not a member in ``state``, so its process is not needed."""
        log.info("left_cluster", epoch=state.epoch, next_step="the process can be stopped", **self.labels)

    def samples(self) -> Iterator[Sample]:
        """Return the metrics. See ``WatchedProcess``."""
        return samples_of(self._view())

    def _view(self) -> NodeView:
        row_replica, failure = self._row_replica, self._failure()
        state, positions = row_replica.state, dict(row_replica.positions)
        return NodeView(
            row_replica.node,
            log_view(self._replica),
            state,
            self._clock.now_us(),
            row_replica.caught_up,
            self._is_stopping(),
            "" if failure is None else str(failure),
            self._data.status() if self._data.is_served else None,
            self._folder.acknowledged,
            self._copied(state),
            len(row_replica.store),
            row_replica.streams,
            self._tail.behind(positions),
            self.broker_clock.ahead,
            self._data.tries.failed_tries(),
            dict(self._verdicts),
            {of: _size(self._path, pattern) for of, pattern in FILES.items()},
            self._data.asking.newest_epoch,
        )

    def _copied(self, state: ClusterState) -> Epoch | None:
        is_member = self._row_replica.node in state.service
        return self.copy.acknowledgeable(state) if self.copy is not None and is_member else None


def has_left(state: ClusterState, node: NodeId) -> bool:
    """Return True if the node has left the cluster."""
    member = state.nodes.get(node)
    return member is not None and member.state == "left"


def _size(folder: Path, pattern: str) -> int:
    total = 0
    for path in folder.glob(pattern):
        with suppress(OSError):  # The file was replaced since it was listed.
            total += path.stat().st_size
    return total
