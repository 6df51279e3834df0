"""What the rebalancer asks for: the next step of each zone and partition, as soon as its condition holds.

A pure function of the state, of what nodes say of partitions (``protocol.zone_groups``) and of the timers that are over
(``protocol.data_nodes``). In this order:

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
                   node that has left a partition which is at rest; in a highly available zone one that is up again, or
                   down
MigrateTablets     tablets of zones are not where their partitions have them (``protocol.zone_tablets``)
=================  ====================================================================================================

Each candidate is tried with the rule that the fold will apply; only what would be accepted is proposed. A request names
what it was decided on (a cause, a revision), so one that comes twice, late, or from an instance that was replaced is
refused, or changes nothing. An instance that takes over knows all that the one before it knew: the state, and the last
word of each node, which the topic keeps.

Source: Ignite 3's design of the rebalance (the placement driver), with the corrections of decision 68.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ringlog.kernel.commands.rebalances import (
    SALVAGED_MAX,
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    SwitchStable,
    TriggerRebalance,
    ZoneCopy,
)
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.commands.zones import SetDataNodes
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, NodeId
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.data import awaits_step, maps_in
from ringlog.kernel.zones.distribution import is_alive, kept, targets
from ringlog.kernel.zones.model import Zone, ZonePartition, mode_of, partition_key
from ringlog.kernel.zones.queue import is_same
from ringlog.kernel.zones.rebalance import ALREADY_NEW, ROLLED_BACK
from ringlog.kernel.zones.resets import AUTOMATIC, begins_anew, can_go_on, members, survives
from ringlog.protocol.coordinator_core import Proposal, Refusal, is_accepted, proposal_of
from ringlog.protocol.zone_groups import COPY, Words, awaited, causes, coming, failed, not_returned, session
from ringlog.protocol.zone_rest import NOTHING_RESTS, RestingZones, rested
from ringlog.protocol.zone_tablets import SUBJECT, migrations
from ringlog.protocol.zone_waits import gone, hopeless, unfillable, waits_of, without_copy

ROLE: Final = "rebalancer"
ROUND_MAX: Final = 256
"""At most this number of requests are made of one state: the next ones are made of a newer one."""


@dataclass(frozen=True, slots=True)
class RebalancerView:
    """What an instance knows."""

    state: ClusterState
    words: Words
    due: tuple[SetDataNodes, ...] = ()
    rest: RestingZones = NOTHING_RESTS


def rest_of(known: RebalancerView) -> RestingZones:
    """The zones that need not be looked at until they change; ``known.rest``: those of the look before."""
    state = known.state
    return rested(known.rest, state, lambda zone: bool(_lost(known, zone) or _triggered(state, zone)))


def propose(known: RebalancerView) -> tuple[Proposal, ...]:
    """What can go on now, in the order in which to ask."""
    return tuple(islice(_proposals(known), ROUND_MAX))


def _proposals(known: RebalancerView) -> Iterator[Proposal]:
    for subject, command in _steps(known):
        if is_accepted(known.state, command):
            yield proposal_of(ROLE, known.state, subject, command)


def _steps(known: RebalancerView) -> Iterator[tuple[str, Command]]:
    """(subject, command)."""
    state = known.state
    yield from ((command.zone, command) for command in known.due)
    changing = {command.zone for command in known.due}
    for name, zone in _awake(known):
        lost = _lost(known, zone)
        if lost is not None:
            yield name, lost
        for partition in partitions_of(state, zone) if zone.moving else ():
            if partition.pending and (lost is None or partition.number not in lost.partitions):
                for command in _on_its_way(known, partition):
                    yield partition_key(name, partition.number), command
        triggered = _triggered(state, zone)
        if triggered is not None and name not in changing:
            yield name, triggered
    if (moves := migrations(state, known.rest.zones)) is not None:
        yield SUBJECT, moves


def _awake(known: RebalancerView) -> Iterator[tuple[str, Zone]]:
    """The zones that do not rest, by name."""
    return ((name, known.state.zones[name]) for name in sorted(known.state.zones) if name not in known.rest.zones)


def _on_its_way(known: RebalancerView, partition: ZonePartition) -> Iterator[Command]:
    """The next command about a partition that has something pending, if there is one."""
    name, number, revision = partition.zone, partition.number, partition.revisions.pending
    applied = not awaited(partition, known.words)
    if partition.cancel is not None:
        if applied and awaits_step(known.state, partition) is None:
            yield FinishCancel(name, number, revision, ALREADY_NEW)
        elif not not_returned(partition, known.words):
            yield FinishCancel(name, number, revision, ROLLED_BACK)
    elif applied and awaits_step(known.state, partition) is None:
        step = partition.pending[0]
        yield SwitchStable(name, number, step.nodes, step.learners, partition.revisions)
    elif broken := failed(partition, known.words):
        why = ", ".join(causes(partition, known.words))
        why = f"the replica on {', '.join(_names(known.state, broken))} can never follow it: {why}"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])
    elif gone_for_good := [node for node in coming(partition) if known.state.nodes[node].state == "left"]:
        why = f"{', '.join(_names(known.state, gone_for_good))} cannot follow: left for good"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])
    elif partition.planned is not None and (dead := _helpless(known.state, partition)):
        why = f"{', '.join(dead)} cannot follow, and another target is planned"
        yield CancelRebalance(name, number, revision, why[:REASON_LENGTH_MAX])


def _helpless(state: ClusterState, partition: ZonePartition) -> list[str]:
    """The names of those whom the pending step waits for in vain."""
    return _names(state, {*hopeless(state, partition), *unfillable(state, partition)})


def _names(state: ClusterState, nodes: Iterable[NodeId]) -> list[str]:
    return sorted(state.nodes[node].name for node in nodes)


def _lost(known: RebalancerView, zone: Zone) -> ResetPartitions | None:
    """The reset of the partitions that have lost their majority, if the zone resets by itself."""
    state, numbers, copies = known.state, [], list[ZoneCopy]()
    if not mode_of(zone).resets_itself:
        return None
    for partition in partitions_of(state, zone):
        if partition.reached is None or can_go_on(state, zone, partition) or begins_anew(state, partition):
            continue
        if survives(state, partition) and not without_copy(state, partition, known.words):
            said = known.words.get(session(partition, COPY), {})
            numbers.append(partition.number)
            having = [node for node in members(partition) if node in said]
            copies += [ZoneCopy(partition.number, node, said[node].rows) for node in having]
    tables = sum(1 for _ in maps_in(state, zone.name)) if numbers else 0
    numbers = numbers[: max(1, SALVAGED_MAX // max(1, tables))]
    copies = [one for one in copies if one.partition in numbers]
    return ResetPartitions(zone.name, tuple(numbers), AUTOMATIC, state.epoch, tuple(copies)) if numbers else None


def _triggered(state: ClusterState, zone: Zone) -> TriggerRebalance | None:
    """The trigger of what changed last, for the partitions that have not acted on it."""
    if not zone.nodes:
        return None
    partitions = list(partitions_of(state, zone))
    numbers = [one.number for one in partitions if one.change < zone.changed]
    if numbers:
        return TriggerRebalance(zone.name, zone.changed, () if len(numbers) == zone.partitions else tuple(numbers))
    cause = state.changed.get("nodes", 0)
    older = [one for one in partitions if one.change < cause]
    if not mode_of(zone).asks_the_living:
        older = [one for one in older if not one.pending and gone(state, one)]
    older = [one for one in older if can_go_on(state, zone, one)]
    if not older:
        return None
    wanted = targets(state, zone, [kept(one) for one in older], [one.number for one in older])
    numbers = []
    for one, target in zip(older, wanted, strict=True):
        goal = one.planned or (one.pending[-1] if one.pending else one.stable)
        if target is not None and not is_same(goal, target):
            numbers.append(one.number)
    return TriggerRebalance(zone.name, cause, tuple(numbers)) if numbers else None


def _has_nodes(zone: Zone) -> bool:
    """True if what changed for a zone surely leads somewhere."""
    return bool(zone.nodes) and not mode_of(zone).asks_the_living


def refusals(known: RebalancerView) -> Iterator[Refusal]:
    """The partitions that are stuck: operators should hear of it."""
    state = known.state
    for _, zone in _awake(known):
        for partition in partitions_of(state, zone):
            rests = not partition.pending and (partition.change >= zone.changed or _has_nodes(zone))
            if rests and all(is_alive(state, node) for node in members(partition)):
                continue
            stuck = [one for one in waits_of(state, partition, known.words) if one.is_stuck]
            if stuck:
                kind: type[Command] = FinishCancel if partition.cancel is not None else SwitchStable
                kind = kind if partition.pending else TriggerRebalance
                who = ", ".join(_names(state, {node for one in stuck for node in one.nodes}))
                detail = f"waits for {', '.join(one.code for one in stuck)}" + (f" ({who})" if who else "")
                detail += f": ringlog zone show {zone.name}"
                yield Refusal(partition_key(zone.name, partition.number), kind.__name__, "gate_not_met", detail)
