"""For whom or what an operation waits, and what an operator can do about it.

It counts what the coordinator counts: acknowledgements of registered nodes of this cluster, and reports of the nodes
that get rows. Nothing here decides anything; the ways out are those that the rules of the log allow, each as the
command to type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringlog.kernel.commands.model import Witness
from ringlog.kernel.operations.gates import explain, gate, missing
from ringlog.kernel.operations.progress import unreported, waits_behind
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    POINT_OF_NO_RETURN,
    PUBLISH_CDC_GENERATION,
    REQUESTED,
    has_reached,
)
from ringlog.kernel.state import ClusterState, Operation
from ringlog.kernel.values import NodeId
from ringlog.wire.records import NodeAck

COORDINATOR = "the coordinator"


@dataclass(frozen=True, slots=True)
class Waiting:
    """``text``: in words. ``nodes``: who is waited for; of a quorum not all may be needed. ``ways_out``: what to do."""

    text: str
    nodes: tuple[NodeId, ...] = ()
    ways_out: tuple[str, ...] = ()


def waiting(state: ClusterState, found: Operation, acks: Mapping[str, NodeAck]) -> Waiting:
    """What an operation in flight waits for, given the nodes' last acknowledgements."""
    if found.stage == REQUESTED:
        return _turn(state, found)
    acks = {node: ack for node, ack in acks.items() if node in state.nodes and ack.cluster_id == state.cluster_id}
    witnesses = [Witness(node, ack.applied, ack.drained) for node, ack in sorted(acks.items())]
    here = gate(state, found)
    if nodes := missing(here, witnesses):
        return Waiting(explain(here, witnesses, state.nodes), nodes, _ways_out(state, found, nodes))
    if found.stage == COMMIT_CDC_GENERATION:
        return Waiting("the commit of its CDC generation" + (f" {found.generation}" if found.generation else ""))
    if found.stage == PUBLISH_CDC_GENERATION:
        return Waiting(f"generation {found.generation} in the change topics")
    reports = [report for node, ack in acks.items() for report in ack.reports if report.node == node]
    if nodes := unreported(found, reports):
        names = ", ".join(state.nodes[node].name for node in nodes)
        text = f"{names} to stream {'its' if len(nodes) == 1 else 'their'} rows"
        return Waiting(text, nodes, _ways_out(state, found, nodes))
    return Waiting(COORDINATOR)


def _turn(state: ClusterState, found: Operation) -> Waiting:
    ahead = waits_behind(state, found)
    if not ahead:
        return Waiting(COORDINATOR)
    text = f"its turn: one of {', '.join(other.id for other in ahead)} to end"
    more = 'ringlog submit \'{"command": "ChangeSettings", "settings": {"operations_concurrent_max": …}}\''
    return Waiting(text, (), (f"more at once: {more}", *_called_off(found)))


def _called_off(found: Operation) -> tuple[str, ...]:
    if has_reached(found, POINT_OF_NO_RETURN):
        return ()
    return (f"call it off: ringlog operation cancel {found.id} --reason …",)


def _ways_out(state: ClusterState, found: Operation, nodes: tuple[NodeId, ...]) -> tuple[str, ...]:
    """What helps if the nodes that are waited for do not come back by themselves."""
    down = [state.nodes[node].name for node in nodes if state.nodes[node].down]
    parting = found.replaced or (found.node if found.gone and not found.tokens else "")
    ways = [f"start it again: {', '.join(down)} {'was' if len(down) == 1 else 'were'} declared down"] if down else []
    if parting in nodes:
        name = state.nodes[parting].name
        ways.append(f"if {name} is gone for good, go on without it: ringlog node down {name} --reason …")
    if not has_reached(found, POINT_OF_NO_RETURN):
        ways += _called_off(found)
        others = [state.nodes[node].name for node in nodes if node != parting and node != found.node]
        if others:
            name = next((one for one in down if one in others), others[0])
            known = "" if name in down else f"ringlog node down {name} --reason …, "
            ways.append(f"then, if {name} is gone for good: {known}ringlog node replace NEW {name}, or remove {name}")
    elif not ways:
        ways.append("too late to call it off: it goes on when enough of them are back")
    return tuple(ways)
