"""Metrics of agents: the cluster's state as the coordinator sees it, and the validator's queue and latencies.

The active coordinator reads the acknowledgements, so it also shows the waits of range movements. Latencies use the
process's own clock, because times in clients' records are from other clocks. They run from reading a record of requests
to answering all of it. One thread writes the metrics, any thread may read them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ringlog.kernel.history import ARCHIVED, TRUNCATED, confirmed_snapshots
from ringlog.kernel.model.principals import SENDER_CODES
from ringlog.kernel.model.state import NODE_STATES, ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import in_recovery, read_group
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import SECOND_US, Epoch, Micros, NodeId
from ringlog.log.kafka.lag import Lag
from ringlog.protocol.coordinator.waits import WAITS, operation_waits, tablet_waits
from ringlog.runtime.monitoring.metrics import Durations, Sample
from ringlog.wire.records import APPLIED, EXPIRED, REJECTED, NodeAck

NODES_MAX: Final = 50
"""The most nodes with a metric each: those that block most movements, or that have been silent for longest."""
NOBODY: Final[Mapping[NodeId, Micros]] = {}

Acks = Mapping[str, NodeAck]


def cluster_samples(
    state: ClusterState, acks: Acks, now: Micros, heard: Mapping[NodeId, Micros] = NOBODY, lags: Sequence[Lag] = ()
) -> Iterator[Sample]:
    """Yield the metrics of ``state``. ``acks``: those that count. ``heard``: the time of each node's last report.
    ``lags``: those of live CDC writers.
    """
    states = Counter(node.state for node in state.nodes.values())
    yield from (Sample("ringlog_cluster_nodes", states[one], (one,)) for one in NODE_STATES)
    present = [node for node in state.nodes.values() if node.state != "left"]
    yield Sample("ringlog_cluster_nodes_down", sum(node.down for node in present))
    yield Sample("ringlog_cluster_service_members", len(read_group(state)))
    yield Sample("ringlog_cluster_in_recovery", in_recovery(state) is not None)
    yield Sample("ringlog_cluster_pauses", len(state.pauses))
    yield Sample("ringlog_cluster_settled_seconds", state.settled.until / SECOND_US)
    yield from _movements(state, acks, now)
    yield from _heard(state, heard)
    yield from _log(state)
    yield from _writers(state, lags)


def _movements(state: ClusterState, acks: Acks, now: Micros) -> Iterator[Sample]:
    operations, tablets, nodes = Counter[str](), Counter[str](), Counter[str]()
    oldest = dict.fromkeys(WAITS, now)
    for operation in in_flight(state):
        awaited = operation_waits(state, operation, acks)
        operations[awaited.kind] += 1
        nodes.update(awaited.nodes)
        oldest[awaited.kind] = min(oldest[awaited.kind], operation.marks[-1].at)
    for found, transition in transitions(state):
        awaited = tablet_waits(state, found, found.tablet(transition.tablet), acks)
        tablets[awaited.kind] += 1
        nodes.update(awaited.nodes)
    for kind in WAITS:
        yield Sample("ringlog_operations", operations[kind], (kind,))
        yield Sample("ringlog_operations_oldest_seconds", (now - oldest[kind]) / SECOND_US, (kind,))
        yield Sample("ringlog_tablets_on_their_way", tablets[kind], (kind,))
    yield Sample("ringlog_awaited_nodes", len(nodes))
    most = sorted(nodes.items(), key=lambda one: (-one[1], one[0]))[:NODES_MAX]
    yield from (Sample("ringlog_awaited_node", count, (state.nodes[node].name,)) for node, count in most)


def _heard(state: ClusterState, heard: Mapping[NodeId, Micros]) -> Iterator[Sample]:
    """Yield the time of the last report of each node that should be running, longest silence first."""
    wanted = [node for node in state.nodes.values() if node.id in heard and node.state != "left" and not node.down]
    for node in sorted(wanted, key=lambda one: (heard[one.id], one.name))[:NODES_MAX]:
        yield Sample("ringlog_node_heard_seconds", heard[node.id] / SECOND_US, (node.name,))


def _log(state: ClusterState) -> Iterator[Sample]:
    confirmed = confirmed_snapshots(state)
    yield Sample("ringlog_snapshot_epoch", max((one.epoch for one in confirmed), default=0))
    yield Sample("ringlog_archive_epoch", _bound(state, ARCHIVED))
    yield Sample("ringlog_log_begin_epoch", _bound(state, TRUNCATED))


def _bound(state: ClusterState, name: str) -> Epoch:
    found = state.log_bounds.get(name)
    return 0 if found is None else found.epoch


def _writers(state: ClusterState, lags: Sequence[Lag]) -> Iterator[Sample]:
    live = [writer for writer in state.writers.values() if writer.fenced is None]
    yield Sample("ringlog_cdc_writers", len(live), ("live",))
    yield Sample("ringlog_cdc_writers", len(state.writers) - len(live), ("fenced",))
    if live:
        lowest = min(writer.low_watermark for writer in live)
        yield Sample("ringlog_cdc_writers_low_watermark_seconds", lowest / SECOND_US)
    if lags:
        yield Sample("ringlog_cdc_writers_behind_offsets", max(one.records for one in lags))
    ages = [one.seconds for one in lags if one.seconds is not None]
    if ages:
        yield Sample("ringlog_cdc_writers_behind_seconds", max(ages))


class LatencyMetrics:
    """The validator's queue and latencies. All times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._open: deque[tuple[int, int, float]] = deque()
        self._waiting = 0
        self._sent: float | None = None
        self._outcomes = Counter({APPLIED: 0, REJECTED: 0, EXPIRED: 0})
        self._refusals = Counter(dict.fromkeys(SENDER_CODES, 0))
        self._answered = Durations()
        self._committed = Durations()

    def arrived(self, offset: int, requests: int, now: float) -> None:
        """Record the arrival of a record of requests."""
        self._open.append((offset, requests, now))
        self._waiting += requests

    def sent(self, now: float) -> None:
        """Record an append of entries. Only the first append before ``committed`` starts the latency."""
        if self._sent is None:
            self._sent = now

    def refused(self, code: str) -> None:
        """Count a request that its sender may not send. ``code``: one of ``SENDER_CODES``."""
        self._refusals[code] += 1

    def settled(self, outcome: str) -> None:
        """Count an answer to one request."""
        self._outcomes[outcome] += 1

    def committed(self, now: float) -> None:
        """Record that the outcomes of all sent entries are final."""
        if self._sent is not None:
            self._committed.add(now - self._sent)
            self._sent = None

    def acknowledged(self, offset: int, now: float) -> None:
        """Record that all records up to this offset are answered."""
        while self._open and self._open[0][0] <= offset:
            _, requests, since = self._open.popleft()
            self._waiting -= requests
            self._answered.add(now - since)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        yield Sample("ringlog_validator_waiting_requests", self._waiting)
        yield Sample("ringlog_validator_answer_seconds", self._answered)
        yield Sample("ringlog_validator_commit_seconds", self._committed)
        yield from (Sample("ringlog_validator_answers", self._outcomes[one], (one,)) for one in sorted(self._outcomes))
        yield from (Sample("ringlog_validator_refused", self._refusals[one], (one,)) for one in sorted(self._refusals))
