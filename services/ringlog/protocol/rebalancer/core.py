"""Proposals of the rebalancer: the next step of each zone and partition, as soon as its condition holds.

``propose`` is a pure function of the state, the nodes' reports about partitions (``protocol.rebalancer.zone_groups``)
and the expired timers (``protocol.rebalancer.data_nodes``). The commands, in the order of proposal:

=================  ====================================================================================================
command            condition
=================  ====================================================================================================
SetDataNodes       A timer of the zone has expired.
ResetPartitions    The zone is highly available, and a partition has no living quorum of voters or no living majority
                   of its data. Each of its living nodes has reported its data, and no earlier reset continues from a
                   living survivor.
FinishCancel       A cancel is open, and its step is applied (``already_new``) or undone (``rolled_back``).
SwitchStable       The pending step is applied.
CancelRebalance    A coming node reports that its replica can never follow, or has left. If another target is planned,
                   also: a coming node or too many voters of the step are dead, or a node cannot get its tablets.
TriggerRebalance   A change affects where partitions belong, and some have not acted on it. Also, a settled partition
                   has a node that has left. In a highly available zone also, a data node was declared down or up.
MigrateTablets     Tablets of zones are not where their partitions need them (``protocol.rebalancer.zone_tablets``).
=================  ====================================================================================================

Each candidate is decided with the rule that the fold applies, and only accepted ones are proposed. A request names a
cause or a revision. So a request that is repeated, late, or made by a replaced instance is rejected or changes nothing.
An instance that takes over knows all that the one before knew: the state, and the last report of each node, which the
topic keeps.

Source: Apache Ignite 3, design of the rebalance (placement driver), with the corrections of decision 68.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from ringlog.kernel.values import Command, NodeId, Value
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.data import awaits_step, maps_in
from ringlog.kernel.zones.distribution import is_alive, kept, targets
from ringlog.kernel.zones.rebalance import ALREADY_NEW, ROLLED_BACK
from ringlog.kernel.zones.resets import AUTOMATIC, is_viable, members, restarts_from_survivor, survives
from ringlog.protocol.controller import Proposal, Rejection, decided_now, is_accepted, proposal_of
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES, IdleZones, next_idle_zones
from ringlog.protocol.rebalancer.zone_groups import (
    COPY,
    SessionReports,
    added_nodes,
    awaiting_return,
    failed_nodes,
    failure_causes,
    session,
    unanswered_nodes,
)
from ringlog.protocol.rebalancer.zone_tablets import SUBJECT, migrations
from ringlog.protocol.rebalancer.zone_waits import (
    blocking_dead_nodes,
    left_nodes,
    off_target,
    unfillable,
    waits_of,
    without_copy,
)

ROLE: Final = "rebalancer"
ROUND_MAX: Final = 256
"""The most requests from one state. The next round uses a newer one."""


class RebalancerView(Value):
    """The input of one round. ``data_nodes``: commands of expired timers. ``idle``: idle zones of the last round."""

    state: ClusterState
    reports: SessionReports
    data_nodes: tuple[SetDataNodes, ...] = ()
    idle: IdleZones = NO_IDLE_ZONES


def idle_zones(view: RebalancerView) -> IdleZones:
    """Return the zones that need no look until they change."""
    state = view.state
    return next_idle_zones(view.idle, state, lambda zone: bool(_automatic_reset(view, zone) or _trigger(state, zone)))


def propose(view: RebalancerView) -> tuple[Proposal, ...]:
    """Return the commands that would be applied now, in the order of submission."""
    return tuple(islice(_proposals(view), ROUND_MAX))


def _proposals(view: RebalancerView) -> Iterator[Proposal]:
    for subject, command in _steps(view):
        if is_accepted(view.state, command):
            yield proposal_of(ROLE, view.state, subject, command)


def _steps(view: RebalancerView) -> Iterator[tuple[str, Command]]:
    """Yield (subject, command) for all candidates."""
    state = view.state
    yield from ((command.zone, command) for command in view.data_nodes)
    changing = {command.zone for command in view.data_nodes}
    for name, zone in _active_zones(view):
        lost = _automatic_reset(view, zone)
        if lost is not None:
            yield name, lost
        for partition in partitions_of(state, zone) if zone.moving else ():
            if partition.pending and (lost is None or partition.number not in lost.partitions):
                for command in _next_command(view, partition):
                    yield partition_key(name, partition.number), command
        triggered = _trigger(state, zone)
        if triggered is not None and name not in changing:
            yield name, triggered
    if (moves := migrations(state, view.idle.zones)) is not None:
        yield SUBJECT, moves


def _active_zones(view: RebalancerView) -> Iterator[tuple[str, Zone]]:
    """Yield the zones that are not idle, by name."""
    return ((name, view.state.zones[name]) for name in sorted(view.state.zones) if name not in view.idle.zones)


def _next_command(view: RebalancerView, partition: ZonePartition) -> Iterator[Command]:
    """Yield the next command about a partition with pending steps, if there is one."""
    name, number, revision = partition.zone, partition.number, partition.revisions.pending
    applied = not unanswered_nodes(partition, view.reports)
    if partition.cancel is not None:
        if applied and awaits_step(view.state, partition) is None:
            yield FinishCancel(name, number, revision, ALREADY_NEW)
        elif not awaiting_return(partition, view.reports):
            yield FinishCancel(name, number, revision, ROLLED_BACK)
    elif applied and awaits_step(view.state, partition) is None:
        step = partition.pending[0]
        yield SwitchStable(name, number, step.nodes, step.learners, partition.revisions)
    elif broken := failed_nodes(partition, view.reports):
        why = ", ".join(failure_causes(partition, view.reports))
        why = f"the replica on {', '.join(_names(view.state, broken))} cannot follow the partition: {why}"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])
    elif gone_for_good := [node for node in added_nodes(partition) if view.state.nodes[node].state == "left"]:
        why = f"{', '.join(_names(view.state, gone_for_good))} cannot follow: it left the cluster"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])
    elif partition.planned is not None and (dead := _blocking_node_names(view.state, partition)):
        why = f"{', '.join(dead)} cannot follow, and another target is planned"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])


def _blocking_node_names(state: ClusterState, partition: ZonePartition) -> list[str]:
    """Return the names of the nodes that the pending step waits for although they cannot answer."""
    return _names(state, {*blocking_dead_nodes(state, partition), *unfillable(state, partition)})


def _names(state: ClusterState, nodes: Iterable[NodeId]) -> list[str]:
    return sorted(state.nodes[node].name for node in nodes)


def _automatic_reset(view: RebalancerView, zone: Zone) -> ResetPartitions | None:
    """Return the reset of the partitions without a majority, if the zone resets partitions automatically."""
    state, numbers, copies = view.state, [], list[ZoneCopy]()
    if not mode_of(zone).resets_itself:
        return None
    for partition in partitions_of(state, zone):
        if partition.reached is None or is_viable(state, zone, partition) or restarts_from_survivor(state, partition):
            continue
        if survives(state, partition) and not without_copy(state, partition, view.reports):
            reported = view.reports.get(session(partition, COPY), {})
            numbers.append(partition.number)
            having = [node for node in members(partition) if node in reported]
            copies += [ZoneCopy(partition.number, node, reported[node].rows) for node in having]
    tables = sum(1 for _ in maps_in(state, zone.name)) if numbers else 0
    # One entry starts the salvage of a bounded number of tablets. The other partitions follow with the next round.
    numbers = numbers[: max(1, SALVAGED_MAX // max(1, tables))]
    copies = [one for one in copies if one.partition in numbers]
    return ResetPartitions(zone.name, tuple(numbers), AUTOMATIC, state.epoch, tuple(copies)) if numbers else None


def _trigger(state: ClusterState, zone: Zone) -> TriggerRebalance | None:
    """Return the trigger for partitions that have not acted on the last change of the zone or of its nodes."""
    if not zone.nodes:
        return None
    partitions = list(partitions_of(state, zone))
    numbers = _placeable(state, zone, [one for one in partitions if one.change < zone.changed])
    if numbers:
        return TriggerRebalance(zone.name, zone.changed, () if len(numbers) == zone.partitions else tuple(numbers))
    left = [one for one in partitions if not one.pending and left_nodes(state, one)]
    followed = partitions if mode_of(zone).asks_the_living else []
    for cause, found in ((zone.liveness, followed), (state.changed.get("nodes", 0), left)):
        older = [one for one in found if one.change < cause and is_viable(state, zone, one)]
        if numbers := off_target(state, zone, older):
            return TriggerRebalance(zone.name, cause, tuple(numbers))
    return None


def _placeable(state: ClusterState, zone: Zone, partitions: Sequence[ZonePartition]) -> list[int]:
    """Return the numbers of the partitions that have a target.

    The log rejects a trigger of the others alone while their nodes are down. It must not block the triggers that
    follow.
    """
    if not mode_of(zone).asks_the_living:
        return [one.number for one in partitions]
    wanted = targets(state, zone, [kept(one) for one in partitions], [one.number for one in partitions])
    return [one.number for one, target in zip(partitions, wanted, strict=True) if target is not None]


def _has_nodes(zone: Zone) -> bool:
    """Return whether every change of the zone surely gives its partitions a target."""
    return bool(zone.nodes) and not mode_of(zone).asks_the_living


def rejections(view: RebalancerView) -> Iterator[Rejection]:
    """Yield the data nodes that a zone cannot have, and the partitions that are stuck, for operators."""
    state = view.state
    for command in view.data_nodes:
        if isinstance(refused := decided_now(state, command), Rejected):
            yield Rejection(command.zone, type(command).__name__, refused.code, refused.detail)
    for _, zone in _active_zones(view):
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
