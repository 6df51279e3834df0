"""Rebalances of zone partitions: trigger, switch, cancel, restart and reset.

Decisions are pure functions of one partition (``zones.rebalance``, with their tables). The commands name the partitions
and the state that they were decided on, and reject invalid requests. The result of a decision is the partition's
``status``.

A request may arrive twice, late, or from an instance that is not active. So each names its basis. A trigger, a restart
and a reset name the epoch of their *cause*, and only a newer cause than the last one counts. A switch names the
*revisions* of the keys that it writes. A cancel, and its end, name the revision of ``pending`` that is cancelled. So a
repeated request is rejected, or changes nothing.

At most ``zone_moves_max`` partitions of all zones have pending steps at once. A trigger leaves the others unchanged,
with their cause unseen, so the same trigger, sent again, reaches them later. For the same reason a restart and a reset
record their cause separately, so that a change of the zone that no trigger has acted on is not lost.

If a zone places keyspaces, a step counts as applied, and a cancel as finished, only when the tablets of the partition
are where they belong (``zones.data``). A reset starts their salvage at once (``zones.salvage``). If the salvage may
lose rows, an operator must admit the loss; otherwise the rejection names it. The salvage keeps the admission: without
it, later deaths cause no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from ringlog.kernel.commands.placement.tablets import TABLETS_MAX
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX, broken_field, cause_rule
from ringlog.kernel.model.modes import UNPAUSED, ZONES
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.zones import (
    PARTITIONS_MAX,
    Zone,
    ZonePartition,
    ZoneRevisions,
    ZoneStep,
    mode_of,
    partition_key,
)
from ringlog.kernel.values import Command, Epoch, Value, replace
from ringlog.kernel.zones.change import partitions_of, with_partitions, zone_named
from ringlog.kernel.zones.data import awaits_return, awaits_step, maps_in
from ringlog.kernel.zones.distribution import is_alive, kept, targets
from ringlog.kernel.zones.queue import is_same
from ringlog.kernel.zones.rebalance import (
    ALREADY_NEW,
    RESULTS,
    cancel_finished,
    cancelled,
    outdated_keys,
    restarted,
    switched,
    triggered,
)
from ringlog.kernel.zones.resets import AUTOMATIC, MANUAL, RESET_MODES, members, reset, voters_needed
from ringlog.kernel.zones.salvage import may_lose, refused_salvage, salvaged

CODES: Final = {
    "already_pending": "The partition is migrating. Wait, or cancel the migration.",
    "awaits_data": "Tablets of the partition have not arrived on the nodes of the step, or have not moved back.",
    "may_lose_data": "The reset may lose rows or registers. To accept that, pass `--admit-loss`.",
    "moves_limit": "The maximum number of zone partitions is migrating.",
    "no_cancel": "The partition has no open cancellation with this revision.",
    "not_high_availability": "Automatic resets need a zone in mode high_availability.",
    "not_pending": "The configuration is not the next pending step of the partition.",
    "nothing_pending": "The partition is not migrating.",
    "nothing_survives": "No live node has, or can have, the data of the partition.",
    "nothing_to_return_to": "The partition has no configuration to return to, or its reset has started.",
    "outdated_revision": "The partition changed after the request was made.",
    "partition_healthy": "The partition has a majority and needs no reset.",
    "quorum_needed": "Too few voters of the partition would remain without these nodes.",
    "unknown_zone_partition": "The zone does not have a partition with this number.",
}

REPORTED_MAX: Final = 100_000
"""The most copies that one entry reports."""


class TriggerRebalance(Command):
    """Start the rebalance of partitions of a zone."""

    PAUSED_BY = ZONES
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]
    cause: Annotated[int, "Epoch of the change that requires the rebalance."]
    partitions: Annotated[tuple[int, ...], "Numbers of partitions. Empty: all."] = ()


def decide_trigger_rebalance(state: ClusterState, command: TriggerRebalance, context: EntryContext) -> Decision:
    """Trigger each partition by the conditions of ``zones.rebalance``. Reject if all have acted on the cause, or none
    may move now.
    """
    if (broken := broken_field(cause_rule(state, command.cause))) is not None:
        return broken
    found = _named(state, command.zone, command.partitions)
    if isinstance(found, Rejected):
        return found
    zone, partitions = found
    if not zone.nodes:
        return Rejected("no_data_nodes", f"zone: {zone.name} has no data nodes: its partitions stay where they are")
    due = [one for one in partitions if one.change < command.cause]
    if not due:
        return Rejected("outdated_cause", f"cause: epoch {command.cause}, or a later one, was already processed")
    wanted = targets(state, zone, [kept(one) for one in due], [one.number for one in due])
    room = _room(state)
    changed = []
    for before, target in zip(due, wanted, strict=True):
        after = None if target is None else triggered(before, target, command.cause, context.epoch)
        if after is None or (room <= 0 and after.pending and not before.pending):
            continue
        room -= bool(after.pending) - bool(before.pending)
        changed.append(after)
    if not changed and all(target is None for target in wanted):
        return Rejected("no_data_nodes", f"zone: none of the data nodes of {zone.name} is alive")
    if not changed:
        return Rejected(
            "moves_limit", "partitions: zone_moves_max partitions are migrating; retry when some of them have arrived"
        )
    return with_partitions(state, context, zone, changed)


class SwitchStable(Command):
    """Record that the group of a partition has applied its next configuration."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    zone: Annotated[str, "Name of the zone."]
    partition: Annotated[int, "Number of the partition."]
    applied: Annotated[tuple[str, ...], "Ids of the nodes in the configuration that the group has applied."]
    learners: Annotated[tuple[str, ...], "Ids of those nodes that do not vote."]
    revisions: Annotated[ZoneRevisions, "Revisions of the keys that the request is based on."]


def decide_switch_stable(state: ClusterState, command: SwitchStable, context: EntryContext) -> Decision:
    """Record the applied step, if it is pending on the revisions that were seen. A recorded step changes nothing."""
    found = _one(state, command.zone, command.partition)
    if isinstance(found, Rejected):
        return found
    zone, partition = found
    applied = _step(command)
    if applied is None:
        return Rejected("bad_field", "learners: must be some of the nodes in applied, not all, each once")
    if not partition.pending:
        if is_same(applied, partition.stable):
            return Accepted(state)
        return Rejected("nothing_pending", f"partition: {zone.name}/{partition.number} is not migrating")
    if keys := outdated_keys(partition, command.revisions):
        return Rejected("outdated_revision", f"revisions: {', '.join(keys)} of {zone.name}/{partition.number} changed")
    if not is_same(applied, partition.pending[0]):
        return Rejected("not_pending", f"applied: is not the next step of {zone.name}/{partition.number}")
    if (early := awaits_step(state, partition)) is not None:
        return early
    after = switched(partition, _calculated(state, zone, partition), context.epoch)
    return with_partitions(state, context, zone, [after])


class CancelRebalance(Command):
    """Cancel the pending rebalance of a partition."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]
    partition: Annotated[int, "Number of the partition."]
    pending_revision: Annotated[int, "Revision of pending that the cancel applies to."]
    reason: Annotated[str, "Reason, in free text."] = ""


def decide_cancel_rebalance(state: ClusterState, command: CancelRebalance, context: EntryContext) -> Decision:
    """Record a cancel of the pending steps of this revision. The group answers with FinishCancel."""
    if len(command.reason) > REASON_LENGTH_MAX:
        return Rejected("bad_field", f"reason: must be at most {REASON_LENGTH_MAX} characters")
    found = _one(state, command.zone, command.partition)
    if isinstance(found, Rejected):
        return found
    zone, partition = found
    where = f"{zone.name}/{partition.number}"
    if not partition.pending:
        return Rejected("nothing_pending", f"partition: {where} is not migrating")
    if command.pending_revision != partition.revisions.pending:
        return Rejected(
            "outdated_revision", f"pending_revision: the revision of {where} is {partition.revisions.pending}"
        )
    if partition.cancel is not None:
        return Accepted(state)
    if partition.reached is None or partition.pending[0].forced:
        return Rejected("nothing_to_return_to", f"partition: {where} has no configuration to return to")
    return with_partitions(state, context, zone, [cancelled(partition, command.reason)])


class FinishCancel(Command):
    """Record the answer of a partition's group to a cancel."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    zone: Annotated[str, "Name of the zone."]
    partition: Annotated[int, "Number of the partition."]
    pending_revision: Annotated[int, "Revision of pending that was cancelled."]
    result: Annotated[str, "rolled_back, already_old, or already_new (the step was applied, and counts)."]


def decide_finish_cancel(state: ClusterState, command: FinishCancel, context: EntryContext) -> Decision:
    """Settle the partition on the old or the new configuration. Its planned target follows."""
    if command.result not in RESULTS:
        return Rejected("bad_field", f"result: must be one of {', '.join(RESULTS)}")
    found = _one(state, command.zone, command.partition)
    if isinstance(found, Rejected):
        return found
    zone, partition = found
    if partition.cancel is None or partition.cancel.revision != command.pending_revision:
        return Rejected("no_cancel", f"pending_revision: no cancellation of {command.pending_revision} is open")
    early = (awaits_step if command.result == ALREADY_NEW else awaits_return)(state, partition)
    if early is not None:
        return early
    calculated = _calculated(state, zone, partition)
    after = cancel_finished(partition, command.result, calculated, context.epoch)
    return with_partitions(state, context, zone, [after])


class RestartReplicas(Command):
    """Rebuild replicas of a partition: their nodes are removed from the group, then added again."""

    PAUSED_BY = ZONES
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]
    partition: Annotated[int, "Number of the partition."]
    nodes: Annotated[tuple[str, ...], "Ids of nodes that have replicas of the partition."]
    cause: Annotated[int, "Epoch of the event that led to this request."]


def decide_restart_replicas(state: ClusterState, command: RestartReplicas, context: EntryContext) -> Decision:
    """Start to make replicas again, if the partition is settled and enough of its voters stay alive meanwhile."""
    if (broken := broken_field(cause_rule(state, command.cause))) is not None:
        return broken
    found = _one(state, command.zone, command.partition)
    if isinstance(found, Rejected):
        return found
    zone, partition = found
    where, nodes, stable = f"{zone.name}/{partition.number}", frozenset(command.nodes), partition.stable
    if stable is None or not nodes or len(nodes) < len(command.nodes) or not nodes <= set(stable.nodes):
        names = ", ".join(sorted(state.nodes[node].name for node in (stable.nodes if stable is not None else ())))
        return Rejected("bad_field", f"nodes: must be some of those that have {where} ({names or 'none'}), each once")
    if max(partition.change, partition.reset_cause) >= command.cause:
        return Rejected("outdated_cause", f"cause: epoch {command.cause}, or a later one, was already processed")
    if partition.pending:
        return Rejected("already_pending", f"partition: {where} is migrating")
    if _room(state) <= 0:
        return Rejected("moves_limit", "partition: zone_moves_max partitions are migrating")
    left = sum(is_alive(state, node) for node in stable.peers if node not in nodes)
    needed = 1 if mode_of(zone).resets_itself else voters_needed(zone, len(stable.peers))
    (target,) = targets(state, zone, [kept(partition)], [partition.number])
    after = restarted(partition, nodes, target, command.cause, context.epoch) if left >= needed else None
    if after is None:
        return Rejected(
            "quorum_needed", f"nodes: without them, {left} voters of {where} are alive; {needed} are needed"
        )
    return with_partitions(state, context, zone, [after])


class ZoneCopy(Value):
    """The data of one partition on one node."""

    partition: Annotated[int, "Number of the partition."]
    node: Annotated[str, "Id of the node."]
    log: Annotated[int, "Length of the node's log of the partition."]


class ResetPartitions(Command):
    """Recover partitions that have lost their majority, each from one surviving replica."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    zone: Annotated[str, "Name of the zone."]
    partitions: Annotated[tuple[int, ...], "Numbers of partitions. Empty: all that have lost their majority."]
    mode: Annotated[str, "manual (restore the number of replicas) or automatic (keep the living replicas only)."]
    cause: Annotated[int, "Epoch of the event that led to this request."]
    copies: Annotated[tuple[ZoneCopy, ...], "Nodes that have data of the partitions."]
    admits_loss: Annotated[bool, "Reset even if rows or registers may be lost. Automatic resets always do."] = False


SALVAGED_MAX: Final = TABLETS_MAX
"""The most tablets whose salvage one entry starts. The tablets of one partition are always allowed."""


def decide_reset_partitions(state: ClusterState, command: ResetPartitions, context: EntryContext) -> Decision:
    """Reset all named partitions, or none. Without names, reset those that can be reset, at least one."""
    if (broken := _broken_reset(state, command)) is not None:
        return broken
    found = _named(state, command.zone, command.partitions)
    if isinstance(found, Rejected):
        return found
    zone, partitions = found
    if command.mode == AUTOMATIC and not mode_of(zone).resets_itself:
        return Rejected("not_high_availability", f"mode: {zone.name} is {zone.mode}")
    logs: dict[int, dict[str, int]] = {}
    for copy in command.copies:
        logs.setdefault(copy.partition, {})[copy.node] = copy.log
    changed: list[ZonePartition] = []
    refused: Rejected | None = None
    for before in partitions:
        acted = max(before.change, before.reset_cause)
        if acted >= command.cause:
            after: ZonePartition | Rejected = Rejected("outdated_cause", f"epoch {acted} was already processed")
        else:
            own = logs.get(before.number, {})
            after = _reset(state, zone, before, own, command, context.epoch)
        if isinstance(after, ZonePartition):
            changed.append(after)
            continue
        told = Rejected(after.code, f"partitions: {zone.name}/{before.number}: {after.detail}")
        if command.partitions or after.code == "may_lose_data":
            return told
        refused = refused or told
    if not changed:
        assert refused is not None, "a zone has partitions"
        return refused
    if len(changed) > 1 and len(changed) * sum(1 for _ in maps_in(state, zone.name)) > SALVAGED_MAX:
        return Rejected(
            "too_large", f"partitions: the partitions have more than {SALVAGED_MAX:,} tablets; name fewer partitions"
        )
    tablets, admits = dict[str, TabletMap](), command.admits_loss or mode_of(zone).resets_itself
    for one in changed:
        assert len(one.pending[0].peers) == 1, "a reset begins with one survivor"
        with_those = replace(state, tablets=state.tablets.update(tablets))
        tablets |= salvaged(with_those, one, one.pending[0].peers[0], admits, context.epoch)
    if tablets:
        state = advance(state, context.epoch, tablets=state.tablets.update(tablets))
    return with_partitions(state, context, zone, changed)


def _reset(
    state: ClusterState,
    zone: Zone,
    before: ZonePartition,
    logs: Mapping[str, int],
    command: ResetPartitions,
    epoch: Epoch,
) -> ZonePartition | Rejected:
    """Return one partition after its reset, or the rejection."""
    after = reset(state, zone, before, logs, command.mode, command.cause, epoch)
    if isinstance(after, Rejected):
        return after
    if (busy := refused_salvage(state, before)) is not None:
        return busy
    if command.mode == MANUAL and not command.admits_loss and (lost := may_lose(state, before)):
        return Rejected("may_lose_data", f"the reset may lose {lost}; start the nodes, or admit the loss")
    return after


def _broken_reset(state: ClusterState, command: ResetPartitions) -> Rejected | None:
    broken = broken_field(
        (command.mode in RESET_MODES, "mode", f"must be {' or '.join(RESET_MODES)}"),
        cause_rule(state, command.cause),
        (len(command.copies) <= REPORTED_MAX, "copies", f"must be at most {REPORTED_MAX:,}; send it in parts"),
        (all(copy.log >= 0 for copy in command.copies), "copies", "must have log lengths of 0 or more"),
    )
    if broken is not None:
        return broken
    unknown = next((copy.node for copy in command.copies if copy.node not in state.nodes), None)
    return None if unknown is None else Rejected("unknown_node", f"copies: {unknown} is not registered")


# -------------------------------------------------------------------------------------------------------- shared


def _named(state: ClusterState, name: str, numbers: tuple[int, ...]) -> tuple[Zone, list[ZonePartition]] | Rejected:
    """Return a zone and the partitions of these numbers; without numbers, all partitions."""
    zone = zone_named(state, name)
    if isinstance(zone, Rejected):
        return zone
    if len(set(numbers)) < len(numbers) or len(numbers) > PARTITIONS_MAX:
        return Rejected("bad_field", f"partitions: must name at most {PARTITIONS_MAX:,}, each once")
    if not numbers:
        return zone, list(partitions_of(state, zone))
    found = []
    for number in numbers:
        one = _one(state, name, number)
        if isinstance(one, Rejected):
            return one
        found.append(one[1])
    return zone, found


def _room(state: ClusterState) -> int:
    """Return how many more partitions may have pending steps."""
    return setting(state, "zone_moves_max") - sum([other.moving for other in state.zones.values()])


def _one(state: ClusterState, name: str, number: int) -> tuple[Zone, ZonePartition] | Rejected:
    zone = zone_named(state, name)
    if isinstance(zone, Rejected):
        return zone
    if not 0 <= number < zone.partitions:
        detail = f"partition: {name} has partitions 0 to {zone.partitions - 1}, no {number}"
        return Rejected("unknown_zone_partition", detail)
    return zone, state.zone_partitions[partition_key(name, number)]


def _step(command: SwitchStable) -> ZoneStep | None:
    """Return the applied configuration; None if the command does not name one."""
    nodes, learners = set(command.applied), set(command.learners)
    if not learners < nodes or len(nodes) < len(command.applied) or len(learners) < len(command.learners):
        return None
    return ZoneStep(tuple(sorted(nodes - learners)), tuple(sorted(learners)))


def _calculated(state: ClusterState, zone: Zone, partition: ZonePartition) -> ZoneStep | None:
    """Return the target of a partition, if a switch needs it."""
    if not partition.reduce and not partition.append:
        return None
    return targets(state, zone, [kept(partition)], [partition.number])[0]


def default_copies(state: ClusterState, partitions: Iterable[ZonePartition]) -> tuple[ZoneCopy, ...]:
    """Return the copies to assume if no node was asked: all living members have the same data."""
    return tuple(
        ZoneCopy(partition.number, node, 0)
        for partition in partitions
        for node in members(partition)
        if is_alive(state, node)
    )
