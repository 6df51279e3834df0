"""Work that may stay unfinished at the end of a run, because nodes are lost or tablets are not moved, and
other work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState, Operation, in_order
from ringlog.kernel.model.tablet_map import TabletMap, Transition
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes, gate
from ringlog.kernel.operations.stages import REQUESTED
from ringlog.kernel.service import GATED, GONE, MEMBER, in_recovery, next_step
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.mutual_exclusion import is_draining, transitions
from ringlog.kernel.tablets.stages import nodes_of
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.resets import is_viable
from ringlog.kernel.zones.salvage import refused_salvage
from ringlog.protocol.rebalancer import zone_waits
from ringlog.protocol.rebalancer.zone_groups import SessionReports, failed_nodes, previous_nodes
from ringlog.protocol.rebalancer.zone_waits import ZoneWait, waits_of

BEHIND, NOBODY = "moves_limit", "no_data_nodes"
"""The kernel's codes for a trigger that waits for other moves, and for one without data nodes. Neither is repeated."""

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode


def helpless(operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """Return True if a node that gains or gives rows does not run and never will. Only a cancel ends such
    an operation.
    """
    giving = operation.plan.sources if operation.stage in REPORTED_STAGES else ()
    wanted = (*gaining_nodes(operation), *(source.source for source in giving))
    return any(node not in nodes or not nodes[node].starts for node in wanted)


def waits_for_lost(state: ClusterState, operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """Return True if a group has no live quorum to acknowledge. An operator must decide which data to give up."""
    living = {node for node, found in nodes.items() if found.starts}
    return any(len(living.intersection(need.members)) < need.need for need in gate(state, operation).needs)


def waits_for_tablets(state: ClusterState, operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """Return True if no process moves the leaving node's tablets, or a tablet migrates that need not arrive."""
    if operation.stage != REQUESTED:
        return False
    return is_draining(state, operation) or any(
        not _must_end(state, tablets, one, nodes) for tablets, one in transitions(state)
    )


def unended_tablets(state: ClusterState, nodes: Mapping[str, SimNode]) -> list[str]:
    """Return the tablets in transition that must end: failed attempts end with a revert."""
    return [
        f"{tablets.table}/{one.tablet} is in {one.stage}"
        for tablets, one in transitions(state)
        if _must_end(state, tablets, one, nodes)
    ]


def _must_end(state: ClusterState, tablets: TabletMap, one: Transition, nodes: Mapping[str, SimNode]) -> bool:
    """Return False if a node of the tablet is lost, or if it is salvaged without a majority and without admitted loss.

    A salvage of this kind waits for a majority to be declared up, or for an operator.
    """
    lost = {node for node, found in nodes.items() if not found.starts}
    has_lost = lost.intersection(nodes_of((*tablets.replicas(one.tablet), *one.next)))
    return not has_lost and not missed(tablets.tablet(one.tablet), state.nodes)


def unended_service(state: ClusterState, nodes: Mapping[str, SimNode]) -> list[str]:
    """Return the next step of the metadata service, unless it needs a lost node."""
    step = next_step(state)
    if step is None:
        return []
    group = [node for node in state.service if node != step.node or step.to != GONE]
    living = [node for node in group if node in nodes and nodes[node].starts]
    needed = len(group) // 2 + 1 if group and step.to in GATED and in_recovery(state) is None else 0
    if len(living) < needed or (step.to == MEMBER and step.node not in living):
        return []
    return [f"{step.node} is not {step.to} yet in the metadata service"]


def unended_zones(state: ClusterState, words: SessionReports, nodes: Mapping[str, SimNode]) -> list[str]:
    """Return the unfinished waits of partitions (``protocol.rebalancer.zone_waits``) that must end.

    These are reports of running nodes, moves that may begin, steps to record, and automatic resets. Migrating tablets
    and operations are covered elsewhere.
    """
    runs = {node for node, found in nodes.items() if found.starts and node in state.nodes}
    runs = {node for node in runs if state.nodes[node].state != "left"}
    stands = any(True for _ in transitions(state))
    found = []
    for key, one in in_order(state.zone_partitions):
        waits = waits_of(state, one, words)
        assert waits or not one.pending, "a pending partition has a reason to wait"
        for wait in waits:
            if _has_to_come(state, one, wait, runs, stands):
                found.append(f"partition {key} waits for {wait}")
        if one.pending and one.cancel is None and previous_nodes(one) and (broken := failed_nodes(one, words)):
            found.append(f"partition {key} waits for {broken}, whose replicas have failed")
    return found


def _has_to_come(state: ClusterState, one: ZonePartition, wait: ZoneWait, runs: set[str], stands: bool) -> bool:
    """Return True if the wait needs no lost node. ``stands``: tablets are in transition, and others may
    wait for them.
    """
    match wait.code:
        case zone_waits.ANSWERS | zone_waits.COPIES:
            return bool(runs.intersection(wait.nodes))
        case zone_waits.BEGIN:
            return not stands
        case zone_waits.VOTERS:
            alive = [node for node in one.reached.nodes if is_alive(state, node)] if one.reached is not None else []
            return not wait.is_stuck and runs.issuperset(alive) and refused_salvage(state, one) is None
        case zone_waits.STEP:
            return True
        case zone_waits.TRIGGER:
            zone = state.zones[one.zone]
            cause = zone.changed if one.change < zone.changed else zone.liveness
            return _refused(state, TriggerRebalance(one.zone, cause, (one.number,))) != BEHIND
        case zone_waits.PLACE:
            return _refused(state, TriggerRebalance(one.zone, state.zones[one.zone].changed, (one.number,))) != NOBODY
        case zone_waits.GONE:
            return _left_later(state, one)
        case _:
            return False


def _left_later(state: ClusterState, one: ZonePartition) -> bool:
    """Return True if a partition may be triggered because one of its nodes left after its last change.

    Otherwise the partition was reverted to that node.
    """
    cause = state.changed.get("nodes", 0)
    if one.change >= cause or not is_viable(state, state.zones[one.zone], one):
        return False
    return _refused(state, TriggerRebalance(one.zone, cause, (one.number,))) not in (BEHIND, NOBODY)


def _refused(state: ClusterState, command: TriggerRebalance) -> str:
    """Return the kernel's rejection code for the command now, or empty text."""
    found = decide(state, command, EntryContext(state.epoch + 1, "", state.time))
    return found.code if isinstance(found, Rejected) else ""
