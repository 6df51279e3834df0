"""The waits of a partition, and whether an agent can end them: for operators, and for the end of simulated runs.

==========  ======================================================  ==================================================
code        a partition waits for                                   stuck
==========  ======================================================  ==================================================
voters      a quorum of its group's voters, or a majority of the    unless its zone resets it to living nodes with all
            nodes with its data                                     its tablets
copies      reports of living nodes about their data, before a      no: a node that never reports must be declared
            reset                                                   down
answers     reports of nodes about its step or its cancel           if too few of these nodes are alive
rows        nodes without which no node knows every row of a        always: they must return, or an operator must
            tablet, or a move of a tablet could not end             admit the loss in a reset
room        nodes that must get a tablet, and cannot get one now    if one of them is down or has left
operation   an operation that blocks the moves of tablets           if it waits for an operator
tablets     tablets in transition                                   if one of them needs a dead node
begin       tablets whose move may start                            no: the rebalancer requests it
step        nothing: all reports and tablets are there              no: the rebalancer records the step
trigger     a trigger for the last change                           no: the rebalancer requests it
place       a data node that can have it                            always: nodes must join, or match its filter
gone        nothing: it is settled, on nodes that have left         always: a cancel reverted it to them
misplaced   nothing: it is settled, not where its zone puts it      always: a cancel or a reset left it there
==========  ======================================================  ==================================================

A partition is *stuck* if no agent can end its wait, only returning nodes or an operator. The log says which nodes are
alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.model.zones import Zone, ZonePartition, mode_of
from ringlog.kernel.movements.tablet_admission import needed
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.gates import blocked_by, must_report, waited_for
from ringlog.kernel.tablets.gates import unmet_gate as awaited_by_tablet
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, is_draining
from ringlog.kernel.tablets.stages import MIGRATION, REBUILD
from ringlog.kernel.tablets.steps import begun
from ringlog.kernel.values import NodeId, Value, replace
from ringlog.kernel.zones.data import goal_of, holders, maps_in, misplaced, takers
from ringlog.kernel.zones.distribution import data_nodes, is_alive, kept, targets
from ringlog.kernel.zones.queue import is_same
from ringlog.kernel.zones.resets import has_quorum, is_viable, members, restarts_from_survivor, survives
from ringlog.protocol.coordinator.tablet_steps import revert_reason
from ringlog.protocol.rebalancer.zone_groups import (
    COPY,
    SessionReports,
    added_nodes,
    awaiting_return,
    previous_nodes,
    session,
    unanswered_nodes,
)
from ringlog.protocol.rebalancer.zone_tablets import Ends, is_migration, next_ends

VOTERS: Final = "voters"
COPIES: Final = "copies"
ANSWERS: Final = "answers"
ROWS: Final = "rows"
ROOM: Final = "room"
OPERATION: Final = "operation"
TABLETS: Final = "tablets"
BEGIN: Final = "begin"
STEP: Final = "step"
TRIGGER: Final = "trigger"
PLACE: Final = "place"
GONE: Final = "gone"
MISPLACED: Final = "misplaced"


class ZoneWait(Value):
    """One wait of a partition. ``nodes``: the nodes that it waits for, by id. ``what``: tablets, or operations."""

    code: str
    nodes: tuple[NodeId, ...] = ()
    what: tuple[str, ...] = ()
    is_stuck: bool = False


def waits_of(
    state: ClusterState, partition: ZonePartition, reports: SessionReports, *, has_tables: bool = True
) -> tuple[ZoneWait, ...]:
    """Return all waits of a partition, in the order of the table; empty: it is settled where it belongs.

    Args:
        has_tables: False if the zone is known to place no tables. Then tablets are not searched.
    """
    return tuple(_waits(state, partition, reports, has_tables))


def _waits(state: ClusterState, one: ZonePartition, reports: SessionReports, has_tables: bool) -> Iterator[ZoneWait]:
    zone, can_proceed = state.zones[one.zone], True
    if one.reached is not None and not is_viable(state, zone, one) and not restarts_from_survivor(state, one):
        group = members(one) if has_quorum(state, zone, one) else one.reached.peers
        lost = tuple(node for node in group if not is_alive(state, node))
        resets = mode_of(zone).resets_itself and survives(state, one)
        yield ZoneWait(VOTERS, lost, is_stuck=not resets)
        if resets and (unsaid := without_copy(state, one, reports)):
            yield ZoneWait(COPIES, unsaid)
        if resets and (held := _blocking_operations(state)) and any(True for _ in maps_in(state, one.zone)):
            yield _operation_wait(held)
        can_proceed = False
    silent = awaited_nodes(one, reports)
    if silent:
        yield ZoneWait(ANSWERS, silent, is_stuck=_lacks_reporters(state, one))
    data = tuple(_data(state, one)) if has_tables else ()
    yield from data
    if one.pending and can_proceed and not silent and not data:
        yield ZoneWait(STEP)
    elif not one.pending and one.change < zone.changed:
        yield ZoneWait(TRIGGER) if _has_place(state, one) else ZoneWait(PLACE, zone.nodes, is_stuck=True)
    elif not one.pending and (left := left_nodes(state, one)):
        yield ZoneWait(GONE, left, is_stuck=True)
    elif not one.pending and can_proceed and off_target(state, zone, [one]):
        is_due = mode_of(zone).asks_the_living and one.change < zone.liveness
        yield ZoneWait(TRIGGER) if is_due else ZoneWait(MISPLACED, is_stuck=True)


def off_target(state: ClusterState, zone: Zone, partitions: Sequence[ZonePartition]) -> list[int]:
    """Return the numbers of the partitions that are not where they belong, and are not on the way there."""
    if not partitions:
        return []
    wanted = targets(state, zone, [kept(one) for one in partitions], [one.number for one in partitions])
    goals = (one.planned or (one.pending[-1] if one.pending else one.stable) for one in partitions)
    return [
        one.number
        for one, goal, target in zip(partitions, goals, wanted, strict=True)
        if target is not None and not is_same(goal, target)
    ]


def without_copy(state: ClusterState, one: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Return the living nodes of a partition without a majority that have not reported their data, by id."""
    reported = reports.get(session(one, COPY), {})
    nodes = () if one.reached is None else one.reached.nodes
    return tuple(node for node in nodes if is_alive(state, node) and node not in reported)


def _has_place(state: ClusterState, one: ZonePartition) -> bool:
    """Return whether some data node can have the partition."""
    zone = state.zones[one.zone]
    nodes = data_nodes(state, zone)
    if not mode_of(zone).asks_the_living or all(is_alive(state, node.id) for node in nodes):
        return bool(nodes)
    return targets(state, zone, [one.stable], [one.number])[0] is not None


def awaited_nodes(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Return the nodes whose reports a partition waits for, by id."""
    if not partition.pending:
        return ()
    return (unanswered_nodes if partition.cancel is None else awaiting_return)(partition, reports)


def blocking_dead_nodes(state: ClusterState, partition: ZonePartition) -> tuple[NodeId, ...]:
    """Return the dead nodes that block the pending step, by id: coming ones, and voters if too few are alive."""
    dead = {node for node in added_nodes(partition) if not is_alive(state, node)}
    return tuple(sorted(dead.union(_lost_majority(state, partition.pending[0].peers))))


def _lacks_reporters(state: ClusterState, partition: ZonePartition) -> bool:
    """Return whether too few of the nodes whose reports a partition waits for are alive."""
    old = previous_nodes(partition) and partition.reached is not None and _lost_majority(state, partition.reached.peers)
    return bool(old or (partition.cancel is None and blocking_dead_nodes(state, partition)))


def _lost_majority(state: ClusterState, peers: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Return the dead of a group if they are half of it or more; otherwise none."""
    group = tuple(peers)
    dead = tuple(node for node in group if not is_alive(state, node))
    return dead if dead and 2 * len(dead) >= len(group) else ()


def left_nodes(state: ClusterState, partition: ZonePartition) -> tuple[NodeId, ...]:
    """Return the nodes of the stable configuration that have left, by id."""
    nodes = () if partition.stable is None else partition.stable.nodes
    return tuple(node for node in nodes if state.nodes[node].state == "left")


def _blocking_operations(state: ClusterState) -> list[Operation]:
    """Return the operations that block the moves of tablets."""
    return [other for other in in_flight(state) if not is_draining(state, other)]


def _operation_wait(held: Sequence[Operation]) -> ZoneWait:
    return ZoneWait(OPERATION, what=tuple(other.id for other in held), is_stuck=any(map(stopped_by, held)))


# ---------------------------------------------------------------------------------------------------------- data


def unfillable(state: ClusterState, partition: ZonePartition) -> tuple[NodeId, ...]:
    """Return the nodes that must get data of a partition now, and cannot get any, by id."""
    return _unfillable(state, partition, [tablet for _, tablet in misplaced(state, partition, goal_of(partition))])


def _unfillable(state: ClusterState, partition: ZonePartition, tablets: Iterable[Tablet]) -> tuple[NodeId, ...]:
    goal, able, found = goal_of(partition), takers(state), set[NodeId]()
    for tablet in tablets:
        lacking = goal.must - holders(tablet)
        if goal.forward or next_ends(state, tablet, goal, able) is None:
            found |= lacking - able
    return tuple(sorted(found))


def _data(state: ClusterState, one: ZonePartition) -> Iterator[ZoneWait]:
    """Yield the waits for tablets of a partition that are not in place."""
    goal = goal_of(one)
    begin, moving = list[str](), list[str]()
    unknown, dead = set[NodeId](), set[NodeId]()
    found = list(misplaced(state, one, goal))
    if not found:
        return
    able = takers(state)
    for tablets, tablet in found:
        name = f"{tablets.table}/{tablet.index}"
        if lost := missed(tablet, state.nodes):
            unknown.update(lost)
        elif tablet.transition is not None:
            moving.append(name)
            dead.update(_blocking_dead(state, tablets, tablet))
        elif (ends := next_ends(state, tablet, goal, able)) is not None:
            away = _needed_dead(state, tablets, tablet, ends)
            unknown.update(away)
            begin += [] if away else [name]
    if unknown:
        yield ZoneWait(ROWS, tuple(sorted(unknown)), is_stuck=True)
    if full := _unfillable(state, one, [tablet for _, tablet in found]):
        yield ZoneWait(ROOM, full, is_stuck=not all(is_alive(state, node) for node in full))
    held = _blocking_operations(state) if begin else []
    if held:
        yield _operation_wait(held)
    if moving:
        yield ZoneWait(TABLETS, tuple(sorted(dead)), tuple(moving), is_stuck=bool(dead))
    if begin and not held:
        yield ZoneWait(BEGIN, what=tuple(begin))


def _needed_dead(state: ClusterState, tablets: TabletMap, tablet: Tablet, ends: Ends) -> tuple[NodeId, ...]:
    """Return the dead nodes that block the next move of a tablet.

    Without them too few nodes would know every row, or some stage of the move could not end. The log rejects the move
    for the same reasons.
    """
    goes, comes = ends
    there = tuple(one for one in tablet.replicas if one != goes)
    wanted = there if comes is None else (*there, TabletReplica(comes, 0, 0))
    kind = MIGRATION if is_migration(state, ends) else REBUILD
    moved = replace(tablet, transition=begun(kind.name, tablet, wanted, state.epoch))
    unknown = () if kind is MIGRATION else needed(state, tablets.table, moved)
    return unknown or blocked_by(state, tablets, moved)


def _blocking_dead(state: ClusterState, tablets: TabletMap, tablet: Tablet) -> set[NodeId]:
    """Return the dead nodes that the present stage of a tablet needs; none if the tablet reverts."""
    assert tablet.transition is not None, "the tablet is migrating"
    if revert_reason(state, tablets.table, tablet):
        return set()
    # Assume that every living node acknowledges and reports. The nodes that are still awaited then never answer.
    living = {node: state.epoch for node in state.nodes if is_alive(state, node)}
    unmet = awaited_by_tablet(state, tablets, tablet, living)
    silent = must_report(tablet, state.nodes, is_anywhere(state, tablets.table))
    return {node for node in (*waited_for(unmet), *silent) if not is_alive(state, node)}
