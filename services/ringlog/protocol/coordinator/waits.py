"""The cause of the wait of an operation or a tablet, as a kind and nodes: for metrics and for views.

The functions count as the coordinator does. They check in the order of the log's rules: an operator's decision,
tablets, the order of operations, the gate, the generation, the stream reports. ``operator.views.waiting`` has the same
in sentences, with the ways to end each wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.movements.progress import unreported, waits_behind
from ringlog.kernel.operations.gates import gate, leaving_node, missing, stopped_by
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, PUBLISH_CDC_GENERATION, REQUESTED
from ringlog.kernel.service import holds_place
from ringlog.kernel.tablets.gates import must_report, unmet_gate, waited_for
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, must_wait
from ringlog.kernel.tablets.stages import session
from ringlog.kernel.values import NodeId, Value
from ringlog.protocol.coordinator.witnesses import reports_of, valid_reports, witnesses_of
from ringlog.wire.records import NodeAck

DECISION: Final = "decision"
SERVICE: Final = "service"
TABLET_TRACK: Final = "tablets"
TURN: Final = "turn"
ACKNOWLEDGEMENTS: Final = "acknowledgements"
GENERATION: Final = "generation"
PUBLICATION: Final = "publication"
SURVIVORS: Final = "survivors"
STREAMS: Final = "streams"
COORDINATOR: Final = "coordinator"

WAITS: Final = {
    DECISION: "an operator's decision, after a failure",
    SERVICE: "its node to leave the metadata service",
    TABLET_TRACK: "tablets to leave its node, or migrating tablets to arrive",
    TURN: "other operations to end",
    ACKNOWLEDGEMENTS: "nodes to acknowledge the stage",
    GENERATION: "the commit of its CDC generation",
    PUBLICATION: "the publication of its CDC generation",
    SURVIVORS: "nodes to be up: too few other nodes have every row",
    STREAMS: "nodes to report that they streamed their rows",
    COORDINATOR: "the coordinator to start the next stage",
}
"""The kinds of waits, with their texts."""


class Awaited(Value):
    """A wait of a kind of ``WAITS``. ``nodes``: the nodes without an answer; a quorum may not need all of them."""

    kind: str
    nodes: tuple[NodeId, ...] = ()


def operation_waits(state: ClusterState, found: Operation, acks: Mapping[str, NodeAck]) -> Awaited:
    """Return the wait of an operation in flight, given the acknowledgements that count."""
    if stopped_by(found):
        return Awaited(DECISION)
    if found.stage == REQUESTED:
        node = leaving_node(found)
        if node and holds_place(state, node):
            return Awaited(SERVICE, (node,))
        if must_wait(state, found) is not None:
            return Awaited(TABLET_TRACK)
        return Awaited(TURN if waits_behind(state, found) else COORDINATOR)
    if nodes := missing(gate(state, found), witnesses_of(state, acks)):
        return Awaited(ACKNOWLEDGEMENTS, nodes)
    if found.stage == COMMIT_CDC_GENERATION:
        return Awaited(GENERATION)
    if found.stage == PUBLISH_CDC_GENERATION:
        return Awaited(PUBLICATION)
    if nodes := unreported(found, reports_of(state, acks, found)):
        return Awaited(STREAMS, nodes)
    return Awaited(COORDINATOR)


def tablet_waits(state: ClusterState, tablets: TabletMap, tablet: Tablet, acks: Mapping[str, NodeAck]) -> Awaited:
    """Return the wait of a tablet in transition, given the acknowledgements that count."""
    assert tablet.transition is not None, "only a migrating tablet waits"
    if nodes := missed(tablet, state.nodes):
        return Awaited(SURVIVORS, nodes)
    acked = {one.node: min(one.applied, one.drained) for one in witnesses_of(state, acks)}
    if nodes := waited_for(unmet_gate(state, tablets, tablet, acked)):
        return Awaited(ACKNOWLEDGEMENTS, nodes)
    own = session(tablets.table, tablet.index, tablet.transition)
    done = {node for node, ack in acks.items() if own in [one.operation for one in valid_reports(state, node, ack)]}
    wanted = must_report(tablet, state.nodes, is_anywhere(state, tablets.table)) if own else ()
    nodes = tuple(node for node in wanted if node not in done)
    return Awaited(STREAMS, nodes) if nodes else Awaited(COORDINATOR)
