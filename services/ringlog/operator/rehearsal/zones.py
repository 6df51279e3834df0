"""Zones in a rehearsal: their partitions, and groups that apply pending steps and move their data at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringlog.kernel.commands.placement.rebalances import SwitchStable
from ringlog.kernel.model.outcome import Outcome, OutcomeKind, Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import Zone, ZonePartition, partition_key
from ringlog.kernel.values import Command
from ringlog.kernel.zones.change import partitions_of, zone_named
from ringlog.operator.views.zones import zone_view
from ringlog.protocol.rebalancer.zone_tablets import migrations

Json = dict[str, Any]
SWITCHES_MAX = 1_000_000


def shown_zone(state: ClusterState, name: str) -> Json | Rejected:
    """Answer ``show zone``."""
    zone = zone_named(state, name)
    return zone if isinstance(zone, Rejected) else zone_view(state, zone)


def switch_of(partition: ZonePartition) -> SwitchStable:
    """Return the command that a partition's group submits after it applied the next step."""
    step = partition.pending[0]
    return SwitchStable(partition.zone, partition.number, step.nodes, step.learners, partition.revisions)


def switched(
    state: Callable[[], ClusterState],
    name: str,
    number: int | None,
    apply: Callable[[Command], Outcome],
    settle: Callable[[], None],
) -> Json | Rejected:
    """Apply the next step of a partition (``do switch``). Without a number, apply all steps of all partitions.

    Tablets of zones are moved first, as far as the log accepts it; ``settle`` completes their transitions.
    """
    zone = zone_named(state(), name)
    if isinstance(zone, Rejected):
        return zone
    stages: list[str] = []

    def once(number: int) -> Rejected | None:
        while (moves := migrations(state())) is not None and apply(moves).kind is OutcomeKind.APPLIED:
            settle()
        outcome = apply(switch_of(state().zone_partitions[partition_key(name, number)]))
        if outcome.kind is not OutcomeKind.APPLIED:
            return Rejected(outcome.code, outcome.detail)
        stages.append(state().zone_partitions[partition_key(name, number)].status)
        return None

    if number is not None:
        wrong = _no_step(state(), zone, number) or once(number)
        if wrong is not None:
            return wrong
    while number is None and len(stages) < SWITCHES_MAX:
        waiting = [one.number for one in partitions_of(state(), zone) if one.pending]
        if not waiting:
            break
        for one in waiting:
            if (wrong := once(one)) is not None:
                return wrong
    return {"done": "switch", "epoch": state().epoch, "stages": stages}


def _no_step(state: ClusterState, zone: Zone, number: int) -> Rejected | None:
    partition = state.zone_partitions.get(partition_key(zone.name, number))
    if partition is None:
        return Rejected("unknown_zone_partition", f"partition: {zone.name} has no partition {number}")
    return (
        None if partition.pending else Rejected("nothing_pending", f"partition: {zone.name}/{number} is not migrating")
    )
