"""What the acknowledgements are good for: witnesses and reports that the log will take, and who said what it will not.

A node may be anybody's program. What it says wrongly is left out, so that it holds up nobody else, and is reported: by
``complaints`` to those who ask what an operation waits for, with the field and the rule. The coordinator collects here,
and the command line counts here, so that both see the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.gates import REPORTED_STAGES, broken_epochs, broken_report, gaining_nodes
from ringlog.kernel.values import NodeId, StreamReport, Witness
from ringlog.protocol.coordinator.ack_book import is_vouched_for
from ringlog.wire.records import FailedTries, NodeAck

Acks = Mapping[str, NodeAck]


def witnesses_of(state: ClusterState, acks: Acks) -> tuple[Witness, ...]:
    """Acknowledgements of present nodes that the log vouches for, none beyond the state that it is shown to."""
    return tuple(
        Witness(node, ack.applied, min(ack.drained, state.epoch))
        for node, ack in _counted(state, acks)
        if broken_epochs(ack.applied, ack.drained) is None
    )


def reports_of(state: ClusterState, acks: Acks, operation: Operation) -> tuple[StreamReport, ...]:
    """The last report of each gaining node on this operation, if it is sound."""
    last = _last_reports(state, acks, operation)
    return tuple(report for report in last if broken_report(report) is None)


def valid_reports(state: ClusterState, node: NodeId, ack: NodeAck) -> tuple[StreamReport, ...]:
    """What a node reports of itself, of whatever it is, that can be used, if its acknowledgement counts."""
    return tuple(one for one in _own(state, node, ack) if broken_report(one) is None)


def session_complaints(state: ClusterState, acks: Acks, name: str) -> tuple[tuple[NodeId, str], ...]:
    """(node, what is wrong) of all that nodes report of a session and that cannot count, by node."""
    reports = (report for node, ack in sorted(acks.items()) for report in _own(state, node, ack))
    return tuple(_malformed(state, (report for report in reports if report.operation == name)))


def session_tries(state: ClusterState, acks: Acks) -> Iterator[tuple[NodeId, FailedTries]]:
    """(node, stream that it has asked for in vain) of sessions of tablets, by node; of whatever session."""
    for node, ack in _counted(state, acks):
        yield from ((node, one) for one in ack.tries if one.operation not in state.operations)


def complaints(
    state: ClusterState, acks: Acks, operation: Operation, latest_acks: Acks | None = None
) -> tuple[tuple[NodeId, str], ...]:
    """(node, what is wrong) of all that nodes have said and that cannot count for an operation in flight, by node.

    ``latest_acks``: their last words, where ``acks`` has only what counts.
    """
    return tuple(
        sorted({*_of_acks(state, acks if latest_acks is None else latest_acks), *_of_reports(state, acks, operation)})
    )


def _counted(state: ClusterState, acks: Acks) -> list[tuple[NodeId, NodeAck]]:
    return [(node, ack) for node, ack in sorted(acks.items()) if _counts(state, node, ack)]


def _counts(state: ClusterState, node: NodeId, ack: NodeAck) -> bool:
    return node == ack.node and is_vouched_for(ack, state) and state.nodes[node].state != "left"


def _own(state: ClusterState, node: NodeId, ack: NodeAck) -> tuple[StreamReport, ...]:
    return tuple(one for one in ack.reports if one.node == node) if _counts(state, node, ack) else ()


def _malformed(state: ClusterState, reports: Iterable[StreamReport]) -> Iterator[tuple[NodeId, str]]:
    for report in reports:
        if (broken := broken_report(report)) is not None:
            yield report.node, f"report of {state.nodes[report.node].name} is malformed: {broken}"


def _last_reports(state: ClusterState, acks: Acks, operation: Operation) -> list[StreamReport]:
    last = []
    for node in gaining_nodes(operation):
        ack = acks.get(node)
        reports = ack.reports if ack is not None and _counts(state, node, ack) else ()
        last += [report for report in reports if report.operation == operation.id and report.node == node][-1:]
    return last


def _of_another_history(state: ClusterState, ack: NodeAck) -> bool:
    """Its epoch is another state here. Epochs that cannot be compared are no reason to complain."""
    return state_id_at(state, ack.applied) != "" and not is_vouched_for(ack, state)


def _of_acks(state: ClusterState, acks: Acks) -> Iterator[tuple[NodeId, str]]:
    for node, ack in sorted(acks.items()):
        if node in state.node_names and node not in state.nodes:
            meant = state.node_names[node]
            yield meant, f"{node} acknowledges under its name; node must be its id, {meant}"
        elif node in state.nodes and ack.cluster_id != state.cluster_id:
            name = state.nodes[node].name
            yield node, f"{name} acknowledges cluster {ack.cluster_id}, and this one is {state.cluster_id}"
        elif node in state.nodes and _of_another_history(state, ack):
            name = state.nodes[node].name
            yield node, f"{name} acknowledges epoch {ack.applied} of a history that the log does not have"
        elif node in state.nodes and (broken := broken_epochs(ack.applied, ack.drained)) is not None:
            yield node, f"the acknowledgement of {state.nodes[node].name} is malformed: {broken}"


def _of_reports(state: ClusterState, acks: Acks, operation: Operation) -> Iterator[tuple[NodeId, str]]:
    if operation.stage not in REPORTED_STAGES:
        return
    yield from _malformed(state, _last_reports(state, acks, operation))
    for node in gaining_nodes(operation):
        ack = acks.get(node)
        for report in ack.reports if ack is not None and _counts(state, node, ack) else ():
            if report.operation == operation.id and report.node != node:
                yield node, f"report of {state.nodes[node].name} names node {report.node[:100]!r}, not its id {node}"
