"""For whom or what an operation or a tablet waits, and what an operator can do about it.

It counts what the coordinator counts: acknowledgements that the log vouches for, and reports of the nodes that get
rows. Nothing here decides anything; the ways out are those that the rules of the log allow, each as the
command to type.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ringlog.kernel.operations.failures import counts_from, stopped_by, told
from ringlog.kernel.operations.gates import explain, gate, outnumbered
from ringlog.kernel.operations.gates import parting as parting_of
from ringlog.kernel.operations.progress import waits_behind
from ringlog.kernel.operations.stages import (
    POINT_OF_NO_RETURN,
    has_reached,
)
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, Failure, Operation
from ringlog.kernel.tablets.gates import awaited
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.map import Tablet, TabletMap
from ringlog.kernel.tablets.stages import SALVAGED, STAGES, WRITE_BOTH_READ_NEW, kind_of, session
from ringlog.kernel.tablets.track import is_anywhere, tables_on, transitions
from ringlog.kernel.values import Micros, NodeId
from ringlog.kernel.zones.data import zone_of
from ringlog.operator.clocks import left_ahead, ways_of
from ringlog.operator.shown import when
from ringlog.protocol.ack_book import is_vouched_for
from ringlog.protocol.waits import (
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
from ringlog.protocol.waits import COORDINATOR as COORDINATING
from ringlog.protocol.witnesses import complaints, session_complaints, witnesses_of
from ringlog.wire.ack_codes import NOT_BELIEVED_ENDS
from ringlog.wire.records import FailedTries, NodeAck

COORDINATOR = "the coordinator"


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """``text``: in words. ``nodes``: who is waited for; of a quorum not all may be needed. ``ways_out``: what to do."""

    text: str
    nodes: tuple[NodeId, ...] = ()
    ways_out: tuple[str, ...] = ()


def waiting(
    state: ClusterState,
    found: Operation,
    acks: Mapping[str, NodeAck],
    now: Micros | None = None,
    doubted: Collection[str] = (),
) -> WaitingFor:
    """What an operation in flight waits for, given the nodes' last acknowledgements. ``now``: the clock, if there is
    one; ``doubted``: names of nodes whose last word the coordinator does not believe.
    """
    silent = {one.id for one in state.nodes.values() if one.name in doubted}
    waits = _waiting(state, found, {node: ack for node, ack in acks.items() if node not in silent}, now)
    why = [f"{state.nodes[node].name} is not believed: {NOT_BELIEVED_ENDS}" for node in waits.nodes if node in silent]
    return replace(waits, ways_out=(*why, *waits.ways_out))


def _waiting(state: ClusterState, found: Operation, acks: Mapping[str, NodeAck], now: Micros | None) -> WaitingFor:
    here = operation_waits(state, found, acks)
    if here.kind == DECISION:
        return _decision(state, found, stopped_by(found))
    if here.kind == SERVICE:
        (node,) = here.nodes
        text = f"{state.nodes[node].name} to hand over its place in the metadata service (see: ringlog service show)"
        return WaitingFor(text, (), _called_off(found))
    if here.kind == TABLET_TRACK:
        return _tablets(state, found)
    if here.kind == TURN:
        return _turn(state, found)
    wrong = complaints(state, acks, found)
    if here.kind == ACKNOWLEDGEMENTS:
        missed = explain(gate(state, found), witnesses_of(state, acks), state.nodes)
        text = "; ".join([missed, *_told(wrong, here.nodes)])
        return WaitingFor(text, here.nodes, _ways_out(state, found, here.nodes))
    if here.kind == GENERATION:
        return _generation(state, found, now)
    if here.kind == PUBLICATION:
        return WaitingFor(f"generation {found.generation} in the change topics")
    if here.kind == STREAMS:
        names = ", ".join(state.nodes[node].name for node in here.nodes)
        text = f"{names} to stream {'its' if len(here.nodes) == 1 else 'their'} rows"
        vain = [f"{state.nodes[node].name} asked {in_vain(state, one)}" for node, one in tries(state, found, acks)]
        text = "; ".join([text, *_told(wrong, here.nodes), *vain])
        return WaitingFor(text, here.nodes, _ways_out(state, found, here.nodes))
    return WaitingFor(COORDINATOR)


def _generation(state: ClusterState, found: Operation, now: Micros | None) -> WaitingFor:
    text = "the commit of its CDC generation" + (f" {found.generation}" if found.generation else "")
    left = () if now is None else left_ahead(state, now)
    if left and now is not None:
        text = "; ".join([f"{text}, which must start later than a clock left it", *(one.text for one in left)])
        return WaitingFor(text, (), (*ways_of(left, now), *_called_off(found)))
    return WaitingFor(text)


def _told(wrong: tuple[tuple[NodeId, str], ...], nodes: tuple[NodeId, ...]) -> list[str]:
    """What those who are waited for have said wrongly, with the code that it has."""
    return [f"bad_field: {text}" for node, text in wrong if node in nodes]


def tries(state: ClusterState, found: Operation, acks: Mapping[str, NodeAck]) -> tuple[tuple[NodeId, FailedTries], ...]:
    """(node, stream that it has asked for in vain) of an operation in flight, in its present stage, sorted."""
    since = counts_from(found)
    told = [(node, one) for node, ack in acks.items() if is_vouched_for(ack, state) for one in ack.tries]
    return tuple((node, one) for node, one in sorted(told, key=repr) if (one.operation, one.since) == (found.id, since))


def in_vain(state: ClusterState, one: FailedTries) -> str:
    """Failed tries in words."""
    source = state.nodes[one.source].name if one.source in state.nodes else one.source
    most = setting(state, "stream_tries_max")
    return f"{source} {one.count} of {most} times in vain since {when(one.at)}: {one.reason}"


def _decision(state: ClusterState, found: Operation, failures: tuple[Failure, ...]) -> WaitingFor:
    who = tuple(sorted({failure.node for failure in failures if failure.node in state.nodes}))
    failed = "; ".join(told(state, failure) for failure in failures)
    again = f"when that is mended, have it tried again: ringlog operation retry {found.id} --reason …"
    text = f"an operator's decision since epoch {failures[0].epoch}: {failed}"
    return WaitingFor(text, who, (again, *_called_off(found)))


def _tablets(state: ClusterState, found: Operation) -> WaitingFor:
    node = parting_of(found)
    if node and (tables := tables_on(state, node)):
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        text = f"the balancer to take the tablets of {tables[0]}{more} away from {state.nodes[node].name}"
        return WaitingFor(text, (), ("how it goes on, and why not: ringlog balance status", *_called_off(found)))
    tablets, one = next(transitions(state))
    text = f"tablets on their way to arrive, the first is {tablets.table}/{one.tablet} ({one.stage})"
    why = f"what that one waits for: ringlog tablet explain {tablets.table} {one.tablet}"
    return WaitingFor(text, (), (why, *_called_off(found)))


def _turn(state: ClusterState, found: Operation) -> WaitingFor:
    text = f"its turn: one of {', '.join(other.id for other in waits_behind(state, found))} to end"
    more = 'ringlog submit \'{"command": "ChangeSettings", "settings": {"operations_concurrent_max": …}}\''
    return WaitingFor(text, (), (f"more at once: {more}", *_called_off(found)))


def _called_off(found: Operation) -> tuple[str, ...]:
    if has_reached(found, POINT_OF_NO_RETURN):
        return ()
    return (f"call it off: ringlog operation cancel {found.id} --reason …",)


def _ways_out(state: ClusterState, found: Operation, nodes: tuple[NodeId, ...]) -> tuple[str, ...]:
    """What helps if the nodes that are waited for do not come back by themselves."""
    down = [state.nodes[node].name for node in nodes if state.nodes[node].down]
    parting = parting_of(found)
    ways = [f"start it again: {', '.join(down)} {'was' if len(down) == 1 else 'were'} declared down"] if down else []
    if parting in nodes and (has_reached(found, POINT_OF_NO_RETURN) or not state.nodes[parting].down):
        name = state.nodes[parting].name
        go_on = f"ringlog node down {name} --reason …"
        if name in down and has_reached(found, POINT_OF_NO_RETURN):
            go_on = f"ringlog node assassinate {name} (reads of others may miss rows)"
        ways.append(f"if {name} is gone for good, go on without it: {go_on}")
    if not has_reached(found, POINT_OF_NO_RETURN):
        ways += _called_off(found)
        others = [state.nodes[node].name for node in nodes if node != parting and node != found.node]
        if others:
            name = next((one for one in down if one in others), others[0])
            known = "" if name in down else f"ringlog node down {name} --reason …, "
            ways.append(f"then, if {name} is gone for good: {known}ringlog node replace NEW {name}, or remove {name}")
    else:
        ways.append("too late to call it off: it goes on when enough of them are back")
        ways += [_without(state, found, node) for node in nodes if node != parting]
    return tuple(ways)


def _without(state: ClusterState, found: Operation, node: NodeId) -> str:
    """How an operation that only goes forward learns that a node is gone for good."""
    name = state.nodes[node].name
    known = "" if state.nodes[node].down else f"ringlog node down {name} --reason …, then "
    few = outnumbered(state, replace(found, ignored=(*found.ignored, node)))
    loss = " --admit-loss (too few others know that it went on: reads of others may miss rows)" if few else ""
    return f"if {name} is gone for good: {known}ringlog operation retry {found.id} --ignore {name} --reason …{loss}"


# ------------------------------------------------------------------------------------------------------- tablets


def tablet_waiting(state: ClusterState, tablets: TabletMap, tablet: Tablet, acks: Mapping[str, NodeAck]) -> WaitingFor:
    """What a tablet in transition waits for in its stage, given the nodes' last acknowledgements."""
    assert tablet.transition is not None, "a settled tablet waits for nothing"
    here = tablet_waits(state, tablets, tablet, acks)
    if here.kind == COORDINATING:
        return WaitingFor(COORDINATOR)
    if here.kind == ACKNOWLEDGEMENTS:
        acked = {one.node: min(one.applied, one.drained) for one in witnesses_of(state, acks)}
        text = explain(awaited(tablets, tablet, state.nodes, acked, is_anywhere(state, tablets.table)), (), state.nodes)
    elif here.kind == SURVIVORS:
        text = f"{', '.join(state.nodes[node].name for node in here.nodes)} to be up: too few others know every row"
    else:
        work = STAGES[tablet.transition.stage].work.value
        text = f"{', '.join(state.nodes[node].name for node in here.nodes)} to report that its work ({work}) is done"
        own = session(tablets.table, tablet.index, tablet.transition)
        text = "; ".join([text, *_told(session_complaints(state, acks, own), here.nodes)])
    return WaitingFor(text, here.nodes, _tablet_ways_out(state, tablets, tablet, here.nodes))


def _tablet_ways_out(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, nodes: tuple[NodeId, ...]
) -> tuple[str, ...]:
    """What helps if those who are waited for do not come back by themselves."""
    assert tablet.transition is not None, "who waits is in transition"
    down = [state.nodes[node].name for node in nodes if state.nodes[node].down]
    ways = [f"start it again: {', '.join(down)} {'was' if len(down) == 1 else 'were'} declared down"] if down else []
    stage = tablet.transition.stage
    if STAGES[stage].back and stage != WRITE_BOTH_READ_NEW:
        one = {"table": tablets.table, "tablet": tablet.index, "reason": "…"}
        command = json.dumps({"command": "RevertTablets", "tablets": [one]}, ensure_ascii=False)
        ways.append(f"turn it back: ringlog submit '{command}'")
    asks = stage == SALVAGED and down and not kind_of(tablet.transition).admits_loss
    if asks or missed(tablet, state.nodes):
        ways.append(f"go on without: ringlog zone reset {zone_of(state, tablets.table)} --admit-loss")
    for name in (state.nodes[node].name for node in nodes):
        if name in down:
            ways.append(f"if {name} is gone for good: ringlog node assassinate {name} (rows that only it has are lost)")
        else:
            ways.append(f"if {name} is gone for good: ringlog node down {name} --reason …")
    return tuple(ways)
