"""Witnesses and stream reports from acknowledgements, and complaints about those that cannot count.

A node may run any program. A wrong acknowledgement or report is left out, so that it does not block other nodes.
Operators who look at the operation see a complaint with the field and the broken rule (``complaints``). The coordinator
and the command line both call these functions, so they count the same acknowledgements.

Invariant: the log never rejects a command because of a witness or a report from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.gates import REPORTED_STAGES, broken_epochs, broken_report, gaining_nodes
from ringlog.kernel.values import NodeId, StreamReport, Witness
from ringlog.protocol.coordinator.ack_book import matches_log
from ringlog.wire.records import FailedTries, NodeAck

Acks = Mapping[str, NodeAck]


def witnesses_of(state: ClusterState, acks: Acks) -> tuple[Witness, ...]:
    """Return the acknowledgements of present nodes that match the log.

    A node may have drained a later epoch than that of ``state``. The value is capped, because the log checks it on
    ``state``.
    """
    return tuple(
        Witness(node, ack.applied, min(ack.drained, state.epoch))
        for node, ack in _counted(state, acks)
        if broken_epochs(ack.applied, ack.drained) is None
    )


def reports_of(state: ClusterState, acks: Acks, operation: Operation) -> tuple[StreamReport, ...]:
    """Return the last report of each gaining node about this operation, if it is well-formed."""
    last = _last_reports(state, acks, operation)
    return tuple(report for report in last if broken_report(report) is None)


def valid_reports(state: ClusterState, node: NodeId, ack: NodeAck) -> tuple[StreamReport, ...]:
    """Return the well-formed reports of a node about itself, for any session, if its acknowledgement counts."""
    return tuple(one for one in _own(state, node, ack) if broken_report(one) is None)


def session_complaints(state: ClusterState, acks: Acks, name: str) -> tuple[tuple[NodeId, str], ...]:
    """Return (node, complaint) for each malformed report about a session, ordered by node."""
    reports = (report for node, ack in sorted(acks.items()) for report in _own(state, node, ack))
    return tuple(_malformed(state, (report for report in reports if report.operation == name)))


def session_tries(state: ClusterState, acks: Acks) -> Iterator[tuple[NodeId, FailedTries]]:
    """Yield (node, failed stream) for sessions of tablets, ordered by node."""
    for node, ack in _counted(state, acks):
        yield from ((node, one) for one in ack.tries if one.operation not in state.operations)


def complaints(
    state: ClusterState, acks: Acks, operation: Operation, latest_acks: Acks | None = None
) -> tuple[tuple[NodeId, str], ...]:
    """Return (node, complaint) for all that cannot count for an operation in flight, ordered by node.

    Args:
        acks: the acknowledgements that count.
        latest_acks: the last acknowledgement of each node, even if it does not count. Default: ``acks``.
    """
    return tuple(
        sorted({*_of_acks(state, acks if latest_acks is None else latest_acks), *_of_reports(state, acks, operation)})
    )


def _counted(state: ClusterState, acks: Acks) -> list[tuple[NodeId, NodeAck]]:
    return [(node, ack) for node, ack in sorted(acks.items()) if _counts(state, node, ack)]


def _counts(state: ClusterState, node: NodeId, ack: NodeAck) -> bool:
    """Return whether an acknowledgement is the node's own, of this log, and of a node that has not left."""
    return node == ack.node and matches_log(ack, state) and state.nodes[node].state != "left"


def _own(state: ClusterState, node: NodeId, ack: NodeAck) -> tuple[StreamReport, ...]:
    return tuple(one for one in ack.reports if one.node == node) if _counts(state, node, ack) else ()


def _malformed(state: ClusterState, reports: Iterable[StreamReport]) -> Iterator[tuple[NodeId, str]]:
    """Yield (node, complaint) for each malformed report."""
    for report in reports:
        if (broken := broken_report(report)) is not None:
            yield report.node, f"report of {state.nodes[report.node].name} is malformed: {broken}"


def _last_reports(state: ClusterState, acks: Acks, operation: Operation) -> list[StreamReport]:
    """Return the last report of each gaining node about an operation, well-formed or not."""
    last = []
    for node in gaining_nodes(operation):
        ack = acks.get(node)
        reports = ack.reports if ack is not None and _counts(state, node, ack) else ()
        last += [report for report in reports if report.operation == operation.id and report.node == node][-1:]
    return last


def _of_another_history(state: ClusterState, ack: NodeAck) -> bool:
    """Return whether the log has another state at the acknowledged epoch.

    An epoch that the history does not remember cannot be compared, so it causes no complaint.
    """
    return state_id_at(state, ack.applied) != "" and not matches_log(ack, state)


def _of_acks(state: ClusterState, acks: Acks) -> Iterator[tuple[NodeId, str]]:
    """Yield (node, complaint) for acknowledgements with a wrong name, cluster, history or number."""
    for node, ack in sorted(acks.items()):
        if node in state.node_names and node not in state.nodes:
            meant = state.node_names[node]
            yield meant, f"{node} acknowledges with its name as the node; the node must be its id, {meant}"
        elif node in state.nodes and ack.cluster_id != state.cluster_id:
            name = state.nodes[node].name
            yield node, f"{name} acknowledges cluster {ack.cluster_id}, this cluster is {state.cluster_id}"
        elif node in state.nodes and _of_another_history(state, ack):
            name = state.nodes[node].name
            yield node, f"{name} acknowledges epoch {ack.applied} of a history that the log does not have"
        elif node in state.nodes and (broken := broken_epochs(ack.applied, ack.drained)) is not None:
            yield node, f"the acknowledgement of {state.nodes[node].name} is malformed: {broken}"


def _of_reports(state: ClusterState, acks: Acks, operation: Operation) -> Iterator[tuple[NodeId, str]]:
    """Yield (node, complaint) for reports about an operation that are malformed or name another node."""
    if operation.stage not in REPORTED_STAGES:
        return
    yield from _malformed(state, _last_reports(state, acks, operation))
    for node in gaining_nodes(operation):
        ack = acks.get(node)
        for report in ack.reports if ack is not None and _counts(state, node, ack) else ():
            if report.operation == operation.id and report.node != node:
                yield node, f"report of {state.nodes[node].name} names node {report.node[:100]!r}, not its id {node}"
