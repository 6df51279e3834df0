"""Zones: created, altered, triggered, cancelled, reset. Only the profile of zones uses them, because in other profiles
no process applies pending steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    ResetPartitions,
    RestartReplicas,
    TriggerRebalance,
    default_copies,
)
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, DropZone, SetDataNodes
from ringlog.kernel.model.state import STAYS, ClusterState, in_order
from ringlog.kernel.model.zones import HIGH_AVAILABILITY, NEVER, STRONG, Zone
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.resets import MANUAL
from ringlog_sim.checks.base import DrawCommand, Family
from ringlog_sim.checks.placement.zone_decisions import ZoneDecisions
from ringlog_sim.checks.placement.zones import ZonesCheck
from ringlog_sim.devices.world import Chance
from ringlog_sim.stories.zones import HIGH_ZONE, OF_DATA, RESET, STRONG_ZONE, WIDE, WIDE_ZONE, WIDEN

REPLICAS_MAX, PARTITIONS_MAX = 4, 3
"""Few, because a run has few nodes."""


def _zone(state: ClusterState, chance: Chance) -> Zone | None:
    zones = [zone for _, zone in in_order(state.zones)]
    return chance.pick(zones) if zones else None


def _alive(state: ClusterState) -> list[str]:
    """Return the nodes that are up and have joined. Others cannot be data nodes."""
    return [node for node, found in in_order(state.nodes) if is_alive(state, node) and found.state in STAYS]


def _create(state: ClusterState, chance: Chance) -> CreateZone | None:
    nodes = _alive(state)
    if not nodes:
        return None
    return CreateZone(
        chance.pick(["z1", "z2"]),
        tuple(nodes),
        chance.between(1, PARTITIONS_MAX),
        chance.between(1, min(REPLICAS_MAX, len(nodes))),
        scale_up=chance.pick([0, 0, 1]),
        scale_down=chance.pick([0, 1, NEVER]),
        mode=chance.pick([STRONG, STRONG, HIGH_AVAILABILITY]),
    )


def _strong(state: ClusterState, chance: Chance) -> CreateZone | None:
    """Return a zone that may place keyspaces, on some of the joined nodes."""
    nodes = [node for node in _alive(state) if state.nodes[node].state == "normal"]
    if not nodes:
        return None
    some = tuple(nodes[: chance.between(1, len(nodes))])
    replicas = chance.between(1, min(3, len(some)))
    return CreateZone(OF_DATA, some, chance.between(1, PARTITIONS_MAX), replicas, scale_down=chance.pick([0, 1, NEVER]))


def _high(state: ClusterState, chance: Chance) -> CreateZone | None:
    """Return a highly available zone on all joined nodes. It continues after the loss of a majority."""
    nodes = tuple(node for node in _alive(state) if state.nodes[node].state == "normal")
    if not nodes:
        return None
    mode, replicas = HIGH_AVAILABILITY, min(chance.pick([2, 3, 4, 4]), len(nodes))
    return CreateZone(OF_DATA, nodes, chance.between(1, PARTITIONS_MAX), replicas, mode=mode)


def _wide(state: ClusterState, chance: Chance) -> CreateZone | None:
    """Return a strong zone on all joined nodes, with three voters."""
    nodes = tuple(node for node in _alive(state) if state.nodes[node].state == "normal")
    if len(nodes) < WIDE:
        return None
    return CreateZone(OF_DATA, nodes, chance.between(1, 2), WIDE, quorum=2, scale_down=NEVER)


def _reset_data(state: ClusterState, chance: Chance) -> ResetPartitions | None:
    """Return a manual reset of the partitions of the zone that places a keyspace. It may admit a loss."""
    zone = state.zones.get(OF_DATA)
    if zone is None:
        return None
    copies = default_copies(state, partitions_of(state, zone))
    return ResetPartitions(OF_DATA, (), MANUAL, state.epoch, copies, admits_loss=chance.happens(0.3))


def _widen(state: ClusterState, chance: Chance) -> AlterZone | None:
    """Return a change to as many replicas as there are data nodes, so that two of four may remain."""
    zone = state.zones.get(OF_DATA)
    return None if zone is None else AlterZone(OF_DATA, replicas=min(REPLICAS_MAX, len(zone.nodes)))


def _shift(state: ClusterState, chance: Chance) -> SetDataNodes | None:
    """Return other data nodes for a zone that places keyspaces, with a new cause."""
    used = sorted({one.replication.zone for one in state.keyspaces.values()} - {""})
    nodes = tuple(node for node in _alive(state) if state.nodes[node].state == "normal" and chance.happens(0.7))
    return SetDataNodes(chance.pick(used), nodes, state.epoch) if used and nodes else None


def _alter(state: ClusterState, chance: Chance) -> AlterZone | None:
    zone = _zone(state, chance)
    if zone is None:
        return None
    match chance.weighted((("replicas", 6), ("partitions", 2), ("waits", 2), ("mode", 1))):
        case "replicas":
            return AlterZone(zone.name, replicas=chance.between(1, min(REPLICAS_MAX, max(1, len(zone.nodes)))))
        case "partitions":
            return AlterZone(zone.name, partitions=chance.between(1, PARTITIONS_MAX))
        case "waits":
            return AlterZone(zone.name, scale_up=chance.pick([0, 1, 2]), scale_down=chance.pick([0, 1, NEVER]))
        case _:
            return AlterZone(zone.name, mode=chance.pick([STRONG, HIGH_AVAILABILITY]))


def _drop(state: ClusterState, chance: Chance) -> DropZone | None:
    zone = _zone(state, chance)
    return None if zone is None else DropZone(zone.name)


def _data_nodes(state: ClusterState, chance: Chance) -> SetDataNodes | None:
    """Return some of the live nodes as data nodes, sometimes with an old cause."""
    zone = _zone(state, chance)
    if zone is None:
        return None
    nodes = tuple(node for node in _alive(state) if chance.happens(0.7))
    return SetDataNodes(zone.name, nodes, chance.pick([state.epoch, state.epoch, 1]))


def _trigger(state: ClusterState, chance: Chance) -> TriggerRebalance | None:
    zone = _zone(state, chance)
    if zone is None:
        return None
    return TriggerRebalance(zone.name, chance.pick([zone.changed, state.epoch, max(1, state.epoch - 5)]))


def _cancel(state: ClusterState, chance: Chance) -> CancelRebalance | None:
    """Return a cancel of a pending step, sometimes with an earlier revision."""
    moving = [one for _, one in in_order(state.zone_partitions) if one.pending]
    if not moving:
        return None
    one = chance.pick(moving)
    return CancelRebalance(one.zone, one.number, one.revisions.pending - chance.pick([0, 0, 0, 1]), "not now")


def _reset(state: ClusterState, chance: Chance) -> ResetPartitions | None:
    zone = _zone(state, chance)
    if zone is None:
        return None
    copies = default_copies(state, partitions_of(state, zone))
    return ResetPartitions(zone.name, (), MANUAL, state.epoch, copies, admits_loss=chance.happens(0.3))


def _restart(state: ClusterState, chance: Chance) -> RestartReplicas | None:
    """Return a restart of a partition, with three replicas if there is one.

    Sometimes the partition is moving, or too many of its nodes restart.
    """
    found = [one for _, one in in_order(state.zone_partitions) if one.stable is not None]
    if not found:
        return None
    one = chance.pick([one for one in found if one.stable is not None and len(one.stable.nodes) > 2] or found)
    nodes = () if one.stable is None else one.stable.nodes
    count = min(len(nodes), chance.pick([1, 1, 1, 2]))
    return RestartReplicas(one.zone, one.number, nodes[:count] if chance.happens(0.5) else nodes[-count:], state.epoch)


PLACING: Final[Mapping[str, DrawCommand]] = {
    STRONG_ZONE: _strong,
    HIGH_ZONE: _high,
    WIDE_ZONE: _wide,
    WIDEN: _widen,
    "Shift": _shift,
    RESET: _reset_data,
}
"""Additional commands in runs with a zone that places a keyspace."""

DRAWN: Final[Mapping[str, DrawCommand]] = {
    "CreateZone": _create,
    "AlterZone": _alter,
    "DropZone": _drop,
    "SetDataNodes": _data_nodes,
    "TriggerRebalance": _trigger,
    "CancelRebalance": _cancel,
    "ResetPartitions": _reset,
    "RestartReplicas": _restart,
}
"""The operators' commands in runs with zones."""

FAMILY = Family(
    name="zones",
    commands=dict.fromkeys((*DRAWN, "SwitchStable", "FinishCancel")),
    checks=(ZonesCheck, ZoneDecisions),
)
