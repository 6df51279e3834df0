"""What the state says of the cluster as numbers, with what its movements wait for. Shown by the coordinator that works:
it hears the acknowledgements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from ringlog.kernel.log_ends import ARCHIVED, TRUNCATED, confirmed_snapshots
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import in_recovery, read_group
from ringlog.kernel.state import NODE_STATES, ClusterState
from ringlog.kernel.tablets.track import transitions
from ringlog.kernel.values import SECOND_US, Epoch, Micros
from ringlog.protocol.waits import WAITS, operation_waits, tablet_waits
from ringlog.runtime.figures import Sample
from ringlog.wire.records import NodeAck

NODES_MAX: Final = 50
"""Nodes that are shown one by one as waited for: those that most wait for."""

Acks = Mapping[str, NodeAck]


def cluster_samples(state: ClusterState, acks: Acks, now: Micros) -> Iterator[Sample]:
    """The figures at ``state``, given the last acknowledgements that count there."""
    states = Counter(node.state for node in state.nodes.values())
    yield from (Sample("ringlog_cluster_nodes", states[one], (one,)) for one in NODE_STATES)
    present = [node for node in state.nodes.values() if node.state != "left"]
    yield Sample("ringlog_cluster_nodes_down", sum(node.down for node in present))
    yield Sample("ringlog_cluster_service_members", len(read_group(state)))
    yield Sample("ringlog_cluster_in_recovery", in_recovery(state) is not None)
    yield Sample("ringlog_cluster_pauses", len(state.pauses))
    yield Sample("ringlog_cluster_settled_seconds", state.settled.until / SECOND_US)
    yield from _movements(state, acks, now)
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
