"""What a partition of a zone waits for, and whether that ends by itself: one table, for operators, and for the end of
simulated runs.

==========  ======================================================  ==================================================
code        a partition waits for                                   it is stuck
==========  ======================================================  ==================================================
voters      a quorum of the voters of its group, or a majority of    unless its zone resets by itself, from who is alive
            those who have its data
copies      words of nodes that are alive on what they have, before  no: who never will is to be declared down
            its zone resets it
answers     words of nodes on its step, or on the way back          if too few of those who are asked are alive
rows        nodes without which nobody knows every row of a tablet, always: they must come back, or in a reset somebody
            or without which its next move could not end            must admit the loss
room        nodes that must get a tablet, and are given none now    if one of them is down, or has left
operation   an operation, beside which no tablet may begin to move  if it stands still until an operator decides
tablets     tablets that are on their way                           if one of them needs somebody who is dead
begin       tablets that may begin to move                          no: the rebalancer asks for it
step        nothing: all have answered, and the data are there      no: the rebalancer records it
trigger     what changed to be acted on                             no: the rebalancer asks for it
place       a node where it belongs: no data node could have it     always: nodes must come, or match its filter
gone        nothing: it is at rest, on nodes that have left         always: it was turned back to them
misplaced   nothing: it is at rest, not where its zone puts it      always: a cancel or a reset left it there
==========  ======================================================  ==================================================

*Stuck* is what no agent ends: only nodes that come back, or an operator. Who is alive is what the log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.model.zones import Zone, ZonePartition, mode_of
from ringlog.kernel.movements.tablet_admission import needed
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.gates import awaited as awaited_by_tablet
from ringlog.kernel.tablets.gates import blocked_by, must_report, waited_for
from ringlog.kernel.tablets.groups import missed
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere, is_draining
from ringlog.kernel.tablets.stages import MIGRATION, REBUILD
from ringlog.kernel.tablets.steps import begun
from ringlog.kernel.values import NodeId
from ringlog.kernel.zones.data import elsewhere, goal_of, holders, maps_in, takers
from ringlog.kernel.zones.distribution import data_nodes, is_alive, kept, targets
from ringlog.kernel.zones.queue import is_same
from ringlog.kernel.zones.resets import can_go_on, has_quorum, members, restarts_from_survivor, survives
from ringlog.protocol.coordinator.tablet_steps import revert_reason
from ringlog.protocol.rebalancer.zone_groups import COPY, SessionReports, awaited, before, coming, not_returned, session
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


@dataclass(frozen=True, slots=True)
class ZoneWait:
    """One thing that a partition waits for. ``nodes``: for whom, by id; ``what``: tablets, or an operation."""

    code: str
    nodes: tuple[NodeId, ...] = ()
    what: tuple[str, ...] = ()
    is_stuck: bool = False


def waits_of(
    state: ClusterState, partition: ZonePartition, reports: SessionReports, *, has_tables: bool = True
) -> tuple[ZoneWait, ...]:
    """All that a partition waits for, in the order of the table; empty: it is at rest where it belongs. ``has_tables``
    False: its zone is known to place none, so that nobody looks for them.
    """
    return tuple(_waits(state, partition, reports, has_tables))


def _waits(state: ClusterState, one: ZonePartition, reports: SessionReports, has_tables: bool) -> Iterator[ZoneWait]:
    zone, goes_on = state.zones[one.zone], True
    if one.reached is not None and not can_go_on(state, zone, one) and not restarts_from_survivor(state, one):
        group = members(one) if has_quorum(state, zone, one) else one.reached.peers
        lost = tuple(node for node in group if not is_alive(state, node))
        resets = mode_of(zone).resets_itself and survives(state, one)
        yield ZoneWait(VOTERS, lost, is_stuck=not resets)
        if resets and (unsaid := without_copy(state, one, reports)):
            yield ZoneWait(COPIES, unsaid)
        if resets and (held := _held_up(state)) and any(True for _ in maps_in(state, one.zone)):
            yield _waits_for(held)
        goes_on = False
    silent = silent_of(one, reports)
    if silent:
        yield ZoneWait(ANSWERS, silent, is_stuck=_cut_off(state, one))
    data = tuple(_data(state, one)) if has_tables else ()
    yield from data
    if one.pending and goes_on and not silent and not data:
        yield ZoneWait(STEP)
    elif not one.pending and one.change < zone.changed:
        yield ZoneWait(TRIGGER) if _has_place(state, one) else ZoneWait(PLACE, zone.nodes, is_stuck=True)
    elif not one.pending and (left := gone(state, one)):
        yield ZoneWait(GONE, left, is_stuck=True)
    elif not one.pending and goes_on and off_target(state, zone, [one]):
        is_due = mode_of(zone).asks_the_living and one.change < zone.liveness
        yield ZoneWait(TRIGGER) if is_due else ZoneWait(MISPLACED, is_stuck=True)


def off_target(state: ClusterState, zone: Zone, partitions: Sequence[ZonePartition]) -> list[int]:
    """The numbers of those that neither are, nor are on their way, where they belong by now."""
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
    """The nodes that are alive and have not said what they have of a partition that has lost its majority, by id."""
    reported = reports.get(session(one, COPY), {})
    nodes = () if one.reached is None else one.reached.nodes
    return tuple(node for node in nodes if is_alive(state, node) and node not in reported)


def _has_place(state: ClusterState, one: ZonePartition) -> bool:
    """True if some data node can have a partition."""
    zone = state.zones[one.zone]
    nodes = data_nodes(state, zone)
    if not mode_of(zone).asks_the_living or all(is_alive(state, node.id) for node in nodes):
        return bool(nodes)
    return targets(state, zone, [one.stable], [one.number])[0] is not None


def silent_of(partition: ZonePartition, reports: SessionReports) -> tuple[NodeId, ...]:
    """Whose words a partition waits for, by id."""
    if not partition.pending:
        return ()
    return (awaited if partition.cancel is None else not_returned)(partition, reports)


def hopeless(state: ClusterState, partition: ZonePartition) -> tuple[NodeId, ...]:
    """Who the pending step waits for in vain, by id: the dead that it brings in, and those without whom its voters have
    no majority.
    """
    dead = {node for node in coming(partition) if not is_alive(state, node)}
    return tuple(sorted(dead.union(_lost(state, partition.pending[0].peers))))


def _cut_off(state: ClusterState, partition: ZonePartition) -> bool:
    """True if too few of those whose words a partition waits for are alive."""
    old = before(partition) and partition.reached is not None and _lost(state, partition.reached.peers)
    return bool(old or (partition.cancel is None and hopeless(state, partition)))


def _lost(state: ClusterState, peers: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """The dead of a group, if they are half of it."""
    group = tuple(peers)
    dead = tuple(node for node in group if not is_alive(state, node))
    return dead if dead and 2 * len(dead) >= len(group) else ()


def gone(state: ClusterState, partition: ZonePartition) -> tuple[NodeId, ...]:
    """The nodes of what is stable that have left, by id."""
    nodes = () if partition.stable is None else partition.stable.nodes
    return tuple(node for node in nodes if state.nodes[node].state == "left")


def _held_up(state: ClusterState) -> list[Operation]:
    """The operations beside which no tablet may begin to move."""
    return [other for other in in_flight(state) if not is_draining(state, other)]


def _waits_for(held: Sequence[Operation]) -> ZoneWait:
    return ZoneWait(OPERATION, what=tuple(other.id for other in held), is_stuck=any(map(stopped_by, held)))


# ---------------------------------------------------------------------------------------------------------- data


def unfillable(state: ClusterState, partition: ZonePartition) -> tuple[NodeId, ...]:
    """The nodes to which a partition must bring data now, and that are given none, by id."""
    return _unfillable(state, partition, [tablet for _, tablet in elsewhere(state, partition, goal_of(partition))])


def _unfillable(state: ClusterState, partition: ZonePartition, tablets: Iterable[Tablet]) -> tuple[NodeId, ...]:
    goal, able, found = goal_of(partition), takers(state), set[NodeId]()
    for tablet in tablets:
        lacking = goal.must - holders(tablet)
        if goal.forward or next_ends(state, tablet, goal, able) is None:
            found |= lacking - able
    return tuple(sorted(found))


def _data(state: ClusterState, one: ZonePartition) -> Iterator[ZoneWait]:
    """What the tablets of a partition wait for that are not where it has them."""
    goal = goal_of(one)
    begin, moving = list[str](), list[str]()
    unknown, dead = set[NodeId](), set[NodeId]()
    found = list(elsewhere(state, one, goal))
    if not found:
        return
    able = takers(state)
    for tablets, tablet in found:
        name = f"{tablets.table}/{tablet.index}"
        if lost := missed(tablet, state.nodes):
            unknown.update(lost)
        elif tablet.transition is not None:
            moving.append(name)
            dead.update(_never(state, tablets, tablet))
        elif (ends := next_ends(state, tablet, goal, able)) is not None:
            away = _needed_dead(state, tablets, tablet, ends)
            unknown.update(away)
            begin += [] if away else [name]
    if unknown:
        yield ZoneWait(ROWS, tuple(sorted(unknown)), is_stuck=True)
    if full := _unfillable(state, one, [tablet for _, tablet in found]):
        yield ZoneWait(ROOM, full, is_stuck=not all(is_alive(state, node) for node in full))
    held = _held_up(state) if begin else []
    if held:
        yield _waits_for(held)
    if moving:
        yield ZoneWait(TABLETS, tuple(sorted(dead)), tuple(moving), is_stuck=bool(dead))
    if begin and not held:
        yield ZoneWait(BEGIN, what=tuple(begin))


def _needed_dead(state: ClusterState, tablets: TabletMap, tablet: Tablet, ends: Ends) -> tuple[NodeId, ...]:
    """The dead without whom the next move of a tablet cannot begin: without them too few would know every row, or
    some stage of the move could not end. Admission refuses the move for the same reasons.
    """
    goes, comes = ends
    there = tuple(one for one in tablet.replicas if one != goes)
    wanted = there if comes is None else (*there, TabletReplica(comes, 0, 0))
    kind = MIGRATION if is_migration(state, ends) else REBUILD
    moved = replace(tablet, transition=begun(kind.name, tablet, wanted, state.epoch))
    unknown = () if kind is MIGRATION else needed(state, tablets.table, moved)
    return unknown or blocked_by(state, tablets, moved)


def _never(state: ClusterState, tablets: TabletMap, tablet: Tablet) -> set[NodeId]:
    """The dead whom a tablet in transition waits for in its stage, whatever the others say; nobody if it turns back."""
    assert tablet.transition is not None, "it is on its way"
    if revert_reason(state, tablets.table, tablet):
        return set()
    living = {node: state.epoch for node in state.nodes if is_alive(state, node)}
    unmet = awaited_by_tablet(state, tablets, tablet, living)
    silent = must_report(tablet, state.nodes, is_anywhere(state, tablets.table))
    return {node for node in (*waited_for(unmet), *silent) if not is_alive(state, node)}
