"""The condition that an operation or a tablet waits for, in words, with the commands that end the wait.

The functions count as the coordinator does: valid acknowledgements, and the reports of nodes that receive rows. They
make no decision. Each remedy is a command that the rules of the log accept in the present state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Failure, Node, Operation
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.movements.progress import waits_behind
from ringlog.kernel.operations.gates import counts_from, describe, explain, gate, stopped_by
from ringlog.kernel.operations.gates import leaving_node as parting_of
from ringlog.kernel.operations.kinds import kind_of as kind_of_operation
from ringlog.kernel.operations.stages import (
    POINT_OF_NO_RETURN,
    has_reached,
)
from ringlog.kernel.service import explained, missing, next_step
from ringlog.kernel.tablets.gates import turns_back_without, unmet_gate
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.mutual_exclusion import drained_by, knows_every_row, tables_on, transitions
from ringlog.kernel.tablets.stages import (
    SALVAGED,
    STAGES,
    WRITE_BOTH_READ_NEW,
    is_salvage,
    kind_of,
    nodes_of,
    readers,
    session,
)
from ringlog.kernel.values import Micros, NodeId, Value, replace
from ringlog.kernel.zones.data import zone_of
from ringlog.operator.views import ways_out as advice
from ringlog.operator.views.clocks import left_ahead, ways_of
from ringlog.operator.views.words import when
from ringlog.protocol.coordinator.ack_book import matches_log
from ringlog.protocol.coordinator.waits import (
    ACKNOWLEDGEMENTS,
    DECISION,
    GENERATION,
    PUBLICATION,
    SERVICE,
    STREAMS,
    SURVIVORS,
    TABLET_TRACK,
    TURN,
    operation_waits,
    tablet_waits,
)
from ringlog.protocol.coordinator.waits import COORDINATOR as COORDINATING
from ringlog.protocol.coordinator.witnesses import complaints, session_complaints, witnesses_of
from ringlog.wire.acks import REJECTED_ACK_REMEDY
from ringlog.wire.records import FailedTries, NodeAck

COORDINATOR = "the coordinator"
NAMES_MAX = 5
"""The most names in a line of advice."""


class WaitingFor(Value):
    """A wait in words. ``nodes``: the nodes without an answer; a quorum may not need all of them.

    ``advise`` computes the remedies. It plans each one on the state, which is expensive.
    """

    text: str
    nodes: tuple[NodeId, ...] = ()
    advise: Callable[[], tuple[str, ...]] = tuple

    @property
    def ways_out(self) -> tuple[str, ...]:
        """The remedies, a line each."""
        return self.advise()


def waiting(
    state: ClusterState,
    found: Operation,
    acks: Mapping[str, NodeAck],
    now: Micros | None = None,
    rejected_nodes: Collection[str] = (),
) -> WaitingFor:
    """Return the wait of an operation in flight.

    ``acks``: the nodes' last acknowledgements. ``now``: the clock, if available. ``rejected_nodes``: names of nodes
    whose acknowledgements the coordinator rejects.
    """
    silent = {one.id for one in state.nodes.values() if one.name in rejected_nodes}
    waits = _waiting(state, found, {node: ack for node, ack in acks.items() if node not in silent}, now)
    why = [
        f"{state.nodes[node].name} sends acknowledgements that are rejected: {REJECTED_ACK_REMEDY}"
        for node in waits.nodes
        if node in silent
    ]
    return replace(waits, advise=lambda: (*why, *waits.ways_out))


def _waiting(state: ClusterState, found: Operation, acks: Mapping[str, NodeAck], now: Micros | None) -> WaitingFor:
    here = operation_waits(state, found, acks)
    if here.kind == DECISION:
        return _decision(state, found, stopped_by(found))
    if here.kind == SERVICE:
        (node,) = here.nodes
        return _service(state, found, node, acks)
    if here.kind == TABLET_TRACK:
        return _tablets(state, found)
    if here.kind == TURN:
        return _turn(state, found)
    wrong = complaints(state, acks, found)
    if here.kind == ACKNOWLEDGEMENTS:
        missed = explain(gate(state, found), witnesses_of(state, acks), state.nodes)
        text = "; ".join([missed, *_wrong_reports(wrong, here.nodes)])
        return WaitingFor(text, here.nodes, lambda: _ways_out(state, found, here.nodes))
    if here.kind == GENERATION:
        return _generation(state, found, now)
    if here.kind == PUBLICATION:
        return WaitingFor(f"generation {found.generation} in the change topics")
    if here.kind == STREAMS:
        names = ", ".join(state.nodes[node].name for node in here.nodes)
        text = f"{names} to stream {'its' if len(here.nodes) == 1 else 'their'} rows"
        failed_tries = [
            f"{state.nodes[node].name} asked {format_failed_tries(state, one)}"
            for node, one in tries(state, found, acks)
        ]
        text = "; ".join([text, *_wrong_reports(wrong, here.nodes), *failed_tries])
        return WaitingFor(text, here.nodes, lambda: _ways_out(state, found, here.nodes))
    return WaitingFor(COORDINATOR)


def _service(state: ClusterState, found: Operation, node: NodeId, acks: Mapping[str, NodeAck]) -> WaitingFor:
    """Return the wait until ``node`` has left the metadata service, with the members that delay it."""
    step, acknowledged = next_step(state), witnesses_of(state, acks)
    text = f"{state.nodes[node].name} to leave the metadata service (see: ringlog service show)"
    lacking, silent = (0, ()) if step is None else missing(state, step, acknowledged)
    if step is None or not lacking:
        return WaitingFor(text, (), lambda: _cancel(state, found))
    ways = tuple(_restart_lines([state.nodes[one] for one in silent], found.id))
    return WaitingFor(
        f"{text}; {explained(state, step, acknowledged)}", silent, lambda: (*ways, *_cancel(state, found))
    )


def _generation(state: ClusterState, found: Operation, now: Micros | None) -> WaitingFor:
    text = "the commit of its CDC generation" + (f" {found.generation}" if found.generation else "")
    left = () if now is None else left_ahead(state, now)
    if left and now is not None:
        text = "; ".join(
            [f"{text}, which must start after the timestamp that a wrong clock left", *(one.text for one in left)]
        )
        return WaitingFor(text, (), lambda: (*ways_of(left, now), *_cancel(state, found)))
    return WaitingFor(text)


def _wrong_reports(wrong: tuple[tuple[NodeId, str], ...], nodes: tuple[NodeId, ...]) -> list[str]:
    """Return the invalid reports of the awaited nodes, with their code."""
    return [f"bad_field: {text}" for node, text in wrong if node in nodes]


def tries(state: ClusterState, found: Operation, acks: Mapping[str, NodeAck]) -> tuple[tuple[NodeId, FailedTries], ...]:
    """Return (node, failed stream attempts) of an operation's present stage, sorted."""
    since = counts_from(found)
    reported = [(node, one) for node, ack in acks.items() if matches_log(ack, state) for one in ack.tries]
    return tuple(
        (node, one) for node, one in sorted(reported, key=repr) if (one.operation, one.since) == (found.id, since)
    )


def format_failed_tries(state: ClusterState, one: FailedTries) -> str:
    """Return failed stream attempts in words."""
    source = state.nodes[one.source].name if one.source in state.nodes else one.source
    most = setting(state, "stream_tries_max")
    return f"{source} {one.count} of {most} times without success since {when(one.at)}: {one.reason}"


def _decision(state: ClusterState, found: Operation, failures: tuple[Failure, ...]) -> WaitingFor:
    failed_nodes = tuple(sorted({failure.node for failure in failures if failure.node in state.nodes}))
    failed = "; ".join(describe(state, failure) for failure in failures)
    again = advice.remedy_line(state, "after you fix the cause", advice.retry(found))
    text = f"an operator's decision since epoch {failures[0].epoch}: {failed}"
    return WaitingFor(text, failed_nodes, lambda: (*again, *_cancel(state, found)))


def _tablets(state: ClusterState, found: Operation) -> WaitingFor:
    node = parting_of(found)
    if node and (tables := tables_on(state, node)):
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        leaving = _counted(_tablets_on(state, node), "tablet")
        text = f"the balancer to move {leaving} of {tables[0]}{more} away from {state.nodes[node].name}"
        how = "for the progress and obstacles: ringlog balance status"
        return WaitingFor(text, (), lambda: (how, *advice.replace_again(state, found), *_cancel(state, found)))
    tablets, one = next(transitions(state))
    moving = _counted(sum([len(each.transitions) for each in state.tablets.values()]), "migrating tablet")
    text = f"{moving} to arrive, the first is {tablets.table}/{one.tablet} ({one.stage})"
    why = f"for the cause of its wait: ringlog tablet explain {tablets.table} {one.tablet}"
    return WaitingFor(text, (), lambda: (why, *_cancel(state, found)))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _tablets_on(state: ClusterState, node: NodeId) -> int:
    """Return how many tablets a node has or will have. A tablet that migrates within the node counts twice."""
    settled = [found.held[found.nodes.index(node)] for found in state.tablets.values() if node in found.nodes]
    return sum(settled) + sum([replica.node == node for _, one in transitions(state) for replica in one.next])


def _turn(state: ClusterState, found: Operation) -> WaitingFor:
    text = f"its turn: one of {', '.join(other.id for other in waits_behind(state, found))} to end"
    settings = {"operations_concurrent_max": setting(state, "operations_concurrent_max") + 1}
    more = advice.submit({"command": "ChangeSettings", "settings": settings})
    return WaitingFor(text, (), lambda: (*advice.remedy_line(state, "raise the limit", more), *_cancel(state, found)))


def _cancel(state: ClusterState, found: Operation) -> tuple[str, ...]:
    return advice.remedy_line(state, "cancel it", advice.cancel(found))


def _ways_out(state: ClusterState, found: Operation, nodes: tuple[NodeId, ...]) -> tuple[str, ...]:
    """Return the remedies for nodes that do not return; see ``operator.views.ways_out``."""
    awaited = [state.nodes[node] for node in nodes]
    parting = parting_of(found)
    is_late = has_reached(found, POINT_OF_NO_RETURN)
    found_ways = [*_restart_lines(awaited, found.id)]
    again = advice.replace_again(state, found)
    found_ways += again
    for node in awaited:
        if node.id == parting and not node.down and not again:
            found_ways += advice.remedy_line(
                state, f"if {node.name} is permanently lost, continue without it", *advice.down(node)
            )
        elif node.id == parting and is_late:
            text = f"if {node.name} is permanently lost, continue without it"
            found_ways += advice.remedy_line(
                state, text, advice.assassinate(node), remark="reads of other nodes may miss rows"
            )
    others = [node for node in awaited if node.id != parting]
    if is_late:
        found_ways.append("too late to cancel: the operation continues when enough of them have returned")
        return (*found_ways, *(way for node in others for way in _without(state, found, node)))
    found_ways += _cancel(state, found)
    gone = next((node for node in others if node.down), next(iter(others), None))
    if gone is not None:
        text = f"if {gone.name} is permanently lost"
        if gone.id == found.node and kind_of_operation(found).brings_node:
            found_ways += advice.remedy_line(state, text, advice.cancel(found), advice.unregister(gone))
        else:
            found_ways += advice.without_node(state, gone, advice.cancel(found), text=text)
    return tuple(found_ways)


def _restart_lines(awaited: Sequence[Node], action: str) -> Iterator[str]:
    """Yield the usual remedy first: a restarted node continues its work."""
    down = [node.name for node in awaited if node.down]
    others = [node.name for node in awaited if not node.down]
    if down:
        yield f"start {', '.join(down)} again, which {'was' if len(down) == 1 else 'were'} declared down"
    if others:
        shown = ", ".join(others[:NAMES_MAX]) + (", …" if len(others) > NAMES_MAX else "")
        has, them = ("has", "it") if len(others) == 1 else ("have", "them")
        yield f"if {shown} {has} stopped, start {them} again: {action} then continues"


def _without(state: ClusterState, found: Operation, node: Node) -> Iterator[str]:
    """Yield the remedy for an operation past the point of no return whose node is lost."""
    text = f"if {node.name} is permanently lost"
    kept = advice.remedy_line(state, text, *advice.down(node), advice.retry(found, node))
    loss = "too few other nodes know that it continued: their reads may miss rows"
    last = (*advice.down(node), advice.retry(found, node, admits_loss=True))
    yield from kept or advice.remedy_line(state, text, *last, remark=loss)


# ------------------------------------------------------------------------------------------------------- tablets


def tablet_waiting(state: ClusterState, tablets: TabletMap, tablet: Tablet, acks: Mapping[str, NodeAck]) -> WaitingFor:
    """Return the wait of a tablet in transition, given the nodes' last acknowledgements."""
    assert tablet.transition is not None, "only a migrating tablet waits"
    here = tablet_waits(state, tablets, tablet, acks)
    if here.kind == COORDINATING:
        return WaitingFor(COORDINATOR)
    if here.kind == ACKNOWLEDGEMENTS:
        acked = {one.node: min(one.applied, one.drained) for one in witnesses_of(state, acks)}
        text = explain(unmet_gate(state, tablets, tablet, acked), (), state.nodes)
    elif here.kind == SURVIVORS:
        text = (
            f"{', '.join(state.nodes[node].name for node in here.nodes)} to be up: too few other nodes have every row"
        )
    else:
        work = STAGES[tablet.transition.stage].work.value
        text = f"{', '.join(state.nodes[node].name for node in here.nodes)} to report that its work ({work}) is done"
        own = session(tablets.table, tablet.index, tablet.transition)
        text = "; ".join([text, *_wrong_reports(session_complaints(state, acks, own), here.nodes)])
    return WaitingFor(text, here.nodes, lambda: _tablet_ways_out(state, tablets, tablet, here.nodes))


def _tablet_ways_out(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, nodes: tuple[NodeId, ...]
) -> tuple[str, ...]:
    """Return the remedies for awaited nodes that do not return."""
    assert tablet.transition is not None, "only a migrating tablet waits"
    awaited = [state.nodes[node] for node in nodes]
    name = f"{tablets.table}/{tablet.index}"
    found_ways = [*_restart_lines(awaited, name)]
    stage = tablet.transition.stage
    if stage != WRITE_BOTH_READ_NEW and turns_back_without(state, tablets, tablet, nodes):
        one = {"table": tablets.table, "tablet": tablet.index, "reason": advice.REASON}
        back = advice.submit({"command": "RevertTablets", "tablets": [one]})
        found_ways += advice.remedy_line(state, "revert it", back)
    asks = stage == SALVAGED and any(node.down for node in awaited) and not kind_of(tablet.transition).admits_loss
    if asks or missed(tablet, state.nodes):
        found_ways += advice.remedy_line(state, "continue without", advice.reset(zone_of(state, tablets.table)))
    for node in awaited:
        text = f"if {node.name} is permanently lost"
        if not node.down:
            found_ways += advice.remedy_line(state, text, *advice.down(node))
            continue
        leaving = drained_by(state).get(node.id)
        first = () if leaving is None else (advice.cancel(leaving),)
        has_every_row = knows_every_row(state, tablets.table, nodes_of(readers(tablet)))
        # Remove and replace stream the tablet's rows from the other replicas, so those must have every row.
        lasts = (advice.remove, advice.swap) if has_every_row and not is_salvage(tablet.transition) else ()
        kept = [way for last in lasts for way in advice.remedy_line(state, text, *first, last(node))]
        loss = "rows that only it has are lost"
        found_ways += kept or advice.remedy_line(state, text, *first, advice.assassinate(node), remark=loss)
    return tuple(found_ways)
