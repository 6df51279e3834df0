"""Metrics of agents: the cluster's state as the coordinator sees it, and the validator's queue and latencies.

The active coordinator reads the acknowledgements, so it also shows what movements wait for. Latencies are measured with
the process's own clock, from reading a record of requests to answering all of it: times in clients' records are of
other clocks. One thread writes, any may read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Final

from ringlog.kernel.history import ARCHIVED, TRUNCATED, confirmed_snapshots
from ringlog.kernel.model.state import NODE_STATES, ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import in_recovery, read_group
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import SECOND_US, Epoch, Micros, NodeId
from ringlog.protocol.coordinator.waits import WAITS, operation_waits, tablet_waits
from ringlog.runtime.monitoring.metrics import Durations, Sample
from ringlog.wire.records import APPLIED, EXPIRED, REJECTED, NodeAck

NODES_MAX: Final = 50
"""Nodes that are shown one by one: those that most wait for, those that have been silent for longest."""
NOBODY: Final[Mapping[NodeId, Micros]] = {}

Acks = Mapping[str, NodeAck]


def cluster_samples(
    state: ClusterState, acks: Acks, now: Micros, heard: Mapping[NodeId, Micros] = NOBODY
) -> Iterator[Sample]:
    """The figures at ``state``, given the last acknowledgements that count there, and when nodes were last heard."""
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
    yield from _writers(state)


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
    """Nodes that should be working, the one that has been silent for longest first."""
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


def _writers(state: ClusterState) -> Iterator[Sample]:
    live = [writer for writer in state.writers.values() if writer.fenced is None]
    yield Sample("ringlog_cdc_writers", len(live), ("live",))
    yield Sample("ringlog_cdc_writers", len(state.writers) - len(live), ("fenced",))
    if live:
        lowest = min(writer.low_watermark for writer in live)
        yield Sample("ringlog_cdc_writers_low_watermark_seconds", lowest / SECOND_US)


class AnswerTimes:
    """All times in seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._open: deque[tuple[int, int, float]] = deque()
        self._waiting = 0
        self._sent: float | None = None
        self._outcomes = Counter({APPLIED: 0, REJECTED: 0, EXPIRED: 0})
        self._answered = Durations()
        self._committed = Durations()

    def arrived(self, offset: int, requests: int, now: float) -> None:
        """A record of requests came in."""
        self._open.append((offset, requests, now))
        self._waiting += requests

    def sent(self, now: float) -> None:
        """Entries were appended; more of them may follow before their fates are known."""
        if self._sent is None:
            self._sent = now

    def settled(self, outcome: str) -> None:
        """One request has its answer."""
        self._outcomes[outcome] += 1

    def committed(self, now: float) -> None:
        """The fates of what was sent are final."""
        if self._sent is not None:
            self._committed.add(now - self._sent)
            self._sent = None

    def acknowledged(self, offset: int, now: float) -> None:
        """All records up to this offset are answered."""
        while self._open and self._open[0][0] <= offset:
            _, requests, since = self._open.popleft()
            self._waiting -= requests
            self._answered.add(now - since)

    def samples(self) -> Iterator[Sample]:
        """The figures."""
        yield Sample("ringlog_validator_waiting_requests", self._waiting)
        yield Sample("ringlog_validator_answer_seconds", self._answered)
        yield Sample("ringlog_validator_commit_seconds", self._committed)
        yield from (Sample("ringlog_validator_answers", self._outcomes[one], (one,)) for one in sorted(self._outcomes))
