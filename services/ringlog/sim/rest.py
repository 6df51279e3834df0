"""What may never come: the lost, tablets that nobody moves, and what has to come all the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes, gate
from ringlog.kernel.operations.stages import REQUESTED
from ringlog.kernel.state import ClusterState, Operation, in_order
from ringlog.kernel.tablets.stages import nodes_of
from ringlog.kernel.tablets.track import is_draining, may_begin, transitions
from ringlog.kernel.zones.data import elsewhere, goal_of, holders, takers
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.model import HIGH_AVAILABILITY, ZonePartition
from ringlog.kernel.zones.resets import has_quorum

if TYPE_CHECKING:
    from ringlog.sim.actors.node import SimNode


def helpless(operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """True if somebody who is to get or to give rows does not run and never will: only a cancel ends it."""
    giving = operation.plan.sources if operation.stage in REPORTED_STAGES else ()
    wanted = (*gaining_nodes(operation), *(source.source for source in giving))
    return any(node not in nodes or not nodes[node].lives for node in wanted)


def waits_for_lost(state: ClusterState, operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """True if no quorum of some group is left that could acknowledge: an operator must decide what to give up."""
    living = {node for node, found in nodes.items() if found.lives}
    return any(len(living.intersection(need.members)) < need.need for need in gate(state, operation).needs)


def waits_for_tablets(state: ClusterState, operation: Operation, nodes: Mapping[str, SimNode]) -> bool:
    """True if nobody moves the tablets of the node that leaves, or somebody is lost who has one in transition."""
    if operation.stage != REQUESTED:
        return False
    lost = {node for node, found in nodes.items() if not found.lives}
    return is_draining(state, operation) or any(
        lost.intersection(nodes_of((*tablets.replicas(one.tablet), *one.next))) for tablets, one in transitions(state)
    )


def unended_tablets(state: ClusterState, nodes: Mapping[str, SimNode]) -> list[str]:
    """The tablets in transition of which nobody is lost: what is tried in vain is turned back."""
    lost = {node for node, found in nodes.items() if not found.lives}
    return [
        f"{tablets.table}/{one.tablet} is in {one.stage}"
        for tablets, one in transitions(state)
        if not lost.intersection(nodes_of((*tablets.replicas(one.tablet), *one.next)))
    ]


def unended_zones(state: ClusterState, nodes: Mapping[str, SimNode]) -> list[str]:
    """The partitions that wait for nobody who is lost: their steps, cancels and automatic resets have to come."""
    runs = {node for node, found in nodes.items() if found.lives and node in state.nodes}
    runs = {node for node in runs if state.nodes[node].state != "left"}
    found = []
    for key, one in in_order(state.zone_partitions):
        if one.pending and _may_go_on(one, runs) and _data_may_go_on(state, one, runs):
            found.append(f"partition {key} is on its way to {one.pending[0].nodes}")
        if state.zones[one.zone].mode == HIGH_AVAILABILITY and one.reached is not None:
            alive = [node for node in one.reached.nodes if is_alive(state, node)]
            forced = bool(one.pending) and one.pending[0].forced
            lost = not has_quorum(state, state.zones[one.zone], one) and not forced
            if lost and alive and runs.issuperset(alive):
                found.append(f"partition {key} has lost its majority, and {alive} are alive")
    return found


def _data_may_go_on(state: ClusterState, one: ZonePartition, runs: set[str]) -> bool:
    """True if nobody has, or is to have, a tablet of the partition who is lost, or cannot get one; if a majority of
    those who have it are alive, so that its rows can be had; and if no operation holds tablets up.
    """
    goal, able = goal_of(one), takers(state)
    for _, tablet in elsewhere(state, one, goal):
        to = () if tablet.transition is None else tablet.transition.next
        lacking, there = goal.must - holders(tablet), nodes_of(tablet.replicas)
        if 2 * sum(is_alive(state, node) for node in there) <= len(there) or may_begin(state) is not None:
            return False
        if not (runs.issuperset({*goal.must, *there, *nodes_of(to)}) and lacking <= able):
            return False
    return True


def _may_go_on(one: ZonePartition, runs: set[str]) -> bool:
    """True if enough members run for the step, or to turn back."""
    step, old = one.pending[0], one.reached
    if step.forced or old is None:
        return runs.issuperset(step.nodes)
    if 2 * len(runs.intersection(old.peers)) <= len(old.peers):
        return False
    comes = set(step.nodes) - set(old.nodes)
    return one.cancel is not None or (
        runs.issuperset(comes) and 2 * len(runs.intersection(step.peers)) > len(step.peers)
    )
