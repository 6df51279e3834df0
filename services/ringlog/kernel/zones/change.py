"""Writes of a zone and its partitions into the next state. Only this module counts the partitions that move."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from immutables import Map

from ringlog.kernel.model.outcome import Accepted, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.zones import Zone, ZoneLink, ZonePartition, ZoneStep, mode_of, partition_key
from ringlog.kernel.values import Epoch, NodeId, replace


def zone_named(state: ClusterState, name: str) -> Zone | Rejected:
    """Return the zone of that name, or ``unknown_zone``."""
    return state.zones.get(name) or Rejected("unknown_zone", f"zone: there is no zone {name}")


def partitions_of(state: ClusterState, zone: Zone) -> Iterator[ZonePartition]:
    """Yield the partitions of a zone, by number."""
    return (state.zone_partitions[partition_key(zone.name, number)] for number in range(zone.partitions))


def with_liveness(state: ClusterState, node: NodeId, epoch: Epoch) -> Map[str, Zone]:
    """Return the zones after a data node was declared down or up. A zone whose targets depend on liveness records
    ``epoch`` as ``liveness``.
    """
    concerned = [
        replace(zone, liveness=epoch)
        for zone in state.zones.values()
        if mode_of(zone).asks_the_living and has_data_node(zone, node)
    ]
    return state.zones.update({zone.name: zone for zone in concerned}) if concerned else state.zones


def with_capacity(state: ClusterState, node: NodeId, epoch: Epoch) -> Map[str, Zone]:
    """Return the zones after a data node's capacity changed. Targets depend on capacity, so its zones record ``epoch``
    as ``changed``.
    """
    concerned = [replace(zone, changed=epoch) for zone in state.zones.values() if has_data_node(zone, node)]
    return state.zones.update({zone.name: zone for zone in concerned}) if concerned else state.zones


def has_data_node(zone: Zone, node: NodeId) -> bool:
    """Return whether the node is a data node of the zone."""
    place = bisect_left(zone.nodes, node)
    return zone.nodes[place : place + 1] == (node,)


def new_partition(zone: Zone, number: int, stable: ZoneStep | None, context: EntryContext) -> ZonePartition:
    """Return a new partition whose configuration is ``stable``. None: no node has the partition yet."""
    fresh = ZonePartition(zone.name, number, stable, stable)
    if stable is None:
        return fresh
    return with_chain(replace(fresh, revisions=replace(fresh.revisions, stable=context.epoch)), zone, context)


def with_chain(partition: ZonePartition, zone: Zone, context: EntryContext) -> ZonePartition:
    """Return the partition with a chain if its zone resets partitions itself, without one otherwise."""
    wanted = mode_of(zone).resets_itself and partition.stable is not None
    if wanted == bool(partition.chain):
        return partition
    nodes = () if partition.stable is None else partition.stable.nodes
    return replace(partition, chain=(ZoneLink(nodes, context.epoch),) if wanted else ())


def with_partitions(
    state: ClusterState,
    context: EntryContext,
    zone: Zone,
    changed: Iterable[ZonePartition],
    removed: Iterable[str] = (),
) -> Accepted:
    """Return the state with this zone and these of its partitions, and without the partitions under the keys
    ``removed``.
    """
    moving, items = zone.moving, {}
    for one in changed:
        key = partition_key(one.zone, one.number)
        before = state.zone_partitions.get(key)
        moving += bool(one.pending) - (before is not None and bool(before.pending))
        items[key] = with_chain(one, zone, context)
    after = state.zone_partitions.update(items)
    for key in removed:
        moving -= bool(after[key].pending)
        after = after.delete(key)
    assert 0 <= moving <= zone.partitions, "the number of moving partitions is between 0 and all"
    zones = state.zones.set(zone.name, replace(zone, moving=moving))
    return Accepted(advance(state, context.epoch, zones=zones, zone_partitions=after))
