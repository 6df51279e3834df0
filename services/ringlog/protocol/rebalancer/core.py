"""What the rebalancer asks for: the next step of each zone and partition, as soon as its condition holds.

A pure function of the state, of what nodes say of partitions (``protocol.rebalancer.zone_groups``) and of the timers
that are over (``protocol.rebalancer.data_nodes``). In this order:

=================  ====================================================================================================
command            when
=================  ====================================================================================================
SetDataNodes       a timer of the zone is over
ResetPartitions    the zone is highly available, a partition has no quorum of voters, or no majority of its data, alive,
                   and each of its nodes that are alive has said what it has; not while it begins anew from a node that
                   is alive
FinishCancel       a cancel is open, and the step is applied (``already_new``), or undone (``rolled_back``)
SwitchStable       the step is applied
CancelRebalance    a node that the step brings in says that its replica can never follow it, or has left; or that node
                   is not alive, or of the voters after the step too few are, or a node cannot get tablets that it must
                   have, and another target is planned: so that this one's turn comes
TriggerRebalance   something has changed where partitions belong, and some of them have not acted on it. That is also a
                   node that has left a partition which is at rest; in a highly available zone a data node that is up
                   again, or down
MigrateTablets     tablets of zones are not where their partitions have them (``protocol.rebalancer.zone_tablets``)
=================  ====================================================================================================

Each candidate is tried with the rule that the fold will apply; only what would be accepted is proposed. A request names
what it was decided on (a cause, a revision), so one that comes twice, late, or from an instance that was replaced is
refused, or changes nothing. An instance that takes over knows all that the one before it knew: the state, and the last
word of each node, which the topic keeps.

Source: Ignite 3's design of the rebalance (the placement driver), with the corrections of decision 68.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ringlog.kernel.commands.placement.rebalances import (
    SALVAGED_MAX,
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    SwitchStable,
    TriggerRebalance,
    ZoneCopy,
)
from ringlog.kernel.commands.placement.zones import SetDataNodes
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import Zone, ZonePartition, mode_of, partition_key
from ringlog.kernel.values import Command, NodeId
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.data import awaits_step, maps_in
from ringlog.kernel.zones.distribution import is_alive, kept, targets
from ringlog.kernel.zones.rebalance import ALREADY_NEW, ROLLED_BACK
from ringlog.kernel.zones.resets import AUTOMATIC, can_go_on, members, restarts_from_survivor, survives
from ringlog.protocol.controller import Proposal, Rejection, decided_now, is_accepted, proposal_of
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES, IdleZones, next_idle_zones
from ringlog.protocol.rebalancer.zone_groups import (
    COPY,
    SessionReports,
    awaited,
    causes,
    coming,
    failed,
    not_returned,
    session,
)
from ringlog.protocol.rebalancer.zone_tablets import SUBJECT, migrations
from ringlog.protocol.rebalancer.zone_waits import gone, hopeless, off_target, unfillable, waits_of, without_copy

ROLE: Final = "rebalancer"
ROUND_MAX: Final = 256
"""At most this number of requests are made of one state: the next ones are made of a newer one."""


@dataclass(frozen=True, slots=True)
class RebalancerView:
    """What an instance knows."""

    state: ClusterState
    reports: SessionReports
    data_nodes: tuple[SetDataNodes, ...] = ()
    rest: IdleZones = NO_IDLE_ZONES


def idle_zones(view: RebalancerView) -> IdleZones:
    """The zones that need not be looked at until they change; ``view.rest``: those of the look before."""
    state = view.state
    return next_idle_zones(view.rest, state, lambda zone: bool(_lost(view, zone) or _triggered(state, zone)))


def propose(view: RebalancerView) -> tuple[Proposal, ...]:
    """What can go on now, in the order in which to ask."""
    return tuple(islice(_proposals(view), ROUND_MAX))


def _proposals(view: RebalancerView) -> Iterator[Proposal]:
    for subject, command in _steps(view):
        if is_accepted(view.state, command):
            yield proposal_of(ROLE, view.state, subject, command)


def _steps(view: RebalancerView) -> Iterator[tuple[str, Command]]:
    """(subject, command)."""
    state = view.state
    yield from ((command.zone, command) for command in view.data_nodes)
    changing = {command.zone for command in view.data_nodes}
    for name, zone in _awake(view):
        lost = _lost(view, zone)
        if lost is not None:
            yield name, lost
        for partition in partitions_of(state, zone) if zone.moving else ():
            if partition.pending and (lost is None or partition.number not in lost.partitions):
                for command in _on_its_way(view, partition):
                    yield partition_key(name, partition.number), command
        triggered = _triggered(state, zone)
        if triggered is not None and name not in changing:
            yield name, triggered
    if (moves := migrations(state, view.rest.zones)) is not None:
        yield SUBJECT, moves


def _awake(view: RebalancerView) -> Iterator[tuple[str, Zone]]:
    """The zones that do not rest, by name."""
    return ((name, view.state.zones[name]) for name in sorted(view.state.zones) if name not in view.rest.zones)


def _on_its_way(view: RebalancerView, partition: ZonePartition) -> Iterator[Command]:
    """The next command about a partition that has something pending, if there is one."""
    name, number, revision = partition.zone, partition.number, partition.revisions.pending
    applied = not awaited(partition, view.reports)
    if partition.cancel is not None:
        if applied and awaits_step(view.state, partition) is None:
            yield FinishCancel(name, number, revision, ALREADY_NEW)
        elif not not_returned(partition, view.reports):
            yield FinishCancel(name, number, revision, ROLLED_BACK)
    elif applied and awaits_step(view.state, partition) is None:
        step = partition.pending[0]
        yield SwitchStable(name, number, step.nodes, step.learners, partition.revisions)
    elif broken := failed(partition, view.reports):
        why = ", ".join(causes(partition, view.reports))
        why = f"the replica on {', '.join(_names(view.state, broken))} can never follow it: {why}"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])
    elif gone_for_good := [node for node in coming(partition) if view.state.nodes[node].state == "left"]:
        why = f"{', '.join(_names(view.state, gone_for_good))} cannot follow: left for good"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])
    elif partition.planned is not None and (dead := _helpless(view.state, partition)):
        why = f"{', '.join(dead)} cannot follow, and another target is planned"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])


def _helpless(state: ClusterState, partition: ZonePartition) -> list[str]:
    """The names of those whom the pending step waits for in vain."""
    return _names(state, {*hopeless(state, partition), *unfillable(state, partition)})


def _names(state: ClusterState, nodes: Iterable[NodeId]) -> list[str]:
    return sorted(state.nodes[node].name for node in nodes)


def _lost(view: RebalancerView, zone: Zone) -> ResetPartitions | None:
    """The reset of the partitions that have lost their majority, if the zone resets by itself."""
    state, numbers, copies = view.state, [], list[ZoneCopy]()
    if not mode_of(zone).resets_itself:
        return None
    for partition in partitions_of(state, zone):
        if partition.reached is None or can_go_on(state, zone, partition) or restarts_from_survivor(state, partition):
            continue
        if survives(state, partition) and not without_copy(state, partition, view.reports):
            reported = view.reports.get(session(partition, COPY), {})
            numbers.append(partition.number)
            having = [node for node in members(partition) if node in reported]
            copies += [ZoneCopy(partition.number, node, reported[node].rows) for node in having]
    tables = sum(1 for _ in maps_in(state, zone.name)) if numbers else 0
    numbers = numbers[: max(1, SALVAGED_MAX // max(1, tables))]
    copies = [one for one in copies if one.partition in numbers]
    return ResetPartitions(zone.name, tuple(numbers), AUTOMATIC, state.epoch, tuple(copies)) if numbers else None


def _triggered(state: ClusterState, zone: Zone) -> TriggerRebalance | None:
    """The trigger of what changed last, for the partitions that have not acted on it."""
    if not zone.nodes:
        return None
    partitions = list(partitions_of(state, zone))
    numbers = _placeable(state, zone, [one for one in partitions if one.change < zone.changed])
    if numbers:
        return TriggerRebalance(zone.name, zone.changed, () if len(numbers) == zone.partitions else tuple(numbers))
    left = [one for one in partitions if not one.pending and gone(state, one)]
    followed = partitions if mode_of(zone).asks_the_living else []
    for cause, found in ((zone.liveness, followed), (state.changed.get("nodes", 0), left)):
        older = [one for one in found if one.change < cause and can_go_on(state, zone, one)]
        if numbers := off_target(state, zone, older):
            return TriggerRebalance(zone.name, cause, tuple(numbers))
    return None


def _placeable(state: ClusterState, zone: Zone, partitions: Sequence[ZonePartition]) -> list[int]:
    """The numbers of those that some node can have. A trigger of the others alone is refused as long as their nodes are
    down, and must not hold up what follows.
    """
    if not mode_of(zone).asks_the_living:
        return [one.number for one in partitions]
    wanted = targets(state, zone, [kept(one) for one in partitions], [one.number for one in partitions])
    return [one.number for one, target in zip(partitions, wanted, strict=True) if target is not None]


def _has_nodes(zone: Zone) -> bool:
    """True if what changed for a zone surely leads somewhere."""
    return bool(zone.nodes) and not mode_of(zone).asks_the_living


def rejections(view: RebalancerView) -> Iterator[Rejection]:
    """Report to operators the data nodes that a zone cannot have, and the partitions that are stuck."""
    state = view.state
    for command in view.data_nodes:
        if isinstance(refused := decided_now(state, command), Rejected):
            yield Rejection(command.zone, type(command).__name__, refused.code, refused.detail)
    for _, zone in _awake(view):
        misplaced = frozenset(off_target(state, zone, [one for one in partitions_of(state, zone) if not one.pending]))
        for partition in partitions_of(state, zone):
            rests = not partition.pending and (partition.change >= zone.changed or _has_nodes(zone))
            rests = rests and partition.number not in misplaced
            if rests and all(is_alive(state, node) for node in members(partition)):
                continue
            stuck = [one for one in waits_of(state, partition, view.reports) if one.is_stuck]
            if stuck:
                kind: type[Command] = FinishCancel if partition.cancel is not None else SwitchStable
                kind = kind if partition.pending else TriggerRebalance
                names = ", ".join(_names(state, {node for one in stuck for node in one.nodes}))
                detail = f"waits for {', '.join(one.code for one in stuck)}" + (f" ({names})" if names else "")
                detail += f": ringlog zone show {zone.name}"
                yield Rejection(partition_key(zone.name, partition.number), kind.__name__, "gate_not_met", detail)
