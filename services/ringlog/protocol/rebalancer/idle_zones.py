"""Idle zones: zones that need no request, so that the cost of a round follows from the changes, not from all zones.

A zone is *idle* if each of its partitions is settled where it belongs and has acted on the last change. Each partition
also has a living quorum, no node that has left, and its tablets in place.

The next round keeps an idle zone if its inputs are the same objects. A decision about a partition makes another value
of its zone, and one about a tablet makes another map of its table. A node that dies, returns or leaves affects the
zones that have it as a data node or in a partition. A changed set of recoveries affects all zones.

Invariant: an idle zone needs no request, and none of its partitions is stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from immutables import Map

from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.zones import Zone
from ringlog.kernel.values import NodeId, Value, field
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.resets import members
from ringlog.protocol.rebalancer.zone_waits import off_target, waits_of

ZoneInputs = tuple[object, ...]
"""The objects that the result for a zone depends on: the zone, and the maps of its tables."""


class IdleZones(Value):
    """The idle zones with their inputs. ``on``: the nodes of each zone. ``under``: the state's nodes and recoveries."""

    zones: Mapping[str, ZoneInputs] = field(default_factory=dict)
    on: Mapping[str, frozenset[NodeId]] = field(default_factory=dict)
    under: tuple[Map[NodeId, Node], object] = (Map(), None)


NO_IDLE_ZONES: Final = IdleZones()


def next_idle_zones(before: IdleZones, state: ClusterState, is_asked: Callable[[Zone], bool]) -> IdleZones:
    """Return the idle zones of a newer state.

    Args:
        is_asked: returns whether a zone itself needs a request.
    """
    earlier_inputs = before.zones if before.under[1] is state.recoveries else {}
    others = _other_nodes(before.under[0], state.nodes)
    dead = frozenset(node for node in state.nodes if not is_alive(state, node))
    found, on = {}, {}
    for name, inputs in _inputs(state).items():
        zone = state.zones[name]
        has = before.on[name] if _same(earlier_inputs.get(name, ()), inputs) else None
        is_unchanged = has is not None and others.isdisjoint(has)
        if not is_unchanged and (
            zone.moving or not zone.nodes or is_asked(zone) or any(_may_wait(state, zone, inputs, dead))
        ):
            continue
        found[name] = inputs
        on[name] = has or frozenset(zone.nodes).union(*map(members, partitions_of(state, zone)))
    return IdleZones(found, on, (state.nodes, state.recoveries))


def _other_nodes(before: Map[NodeId, Node], now: Map[NodeId, Node]) -> frozenset[NodeId]:
    """Return the nodes that changed."""
    if before is now:
        return frozenset()
    return frozenset(node for node, found in now.items() if before.get(node) is not found)


def _may_wait(state: ClusterState, zone: Zone, inputs: ZoneInputs, dead: frozenset[NodeId]) -> Iterator[bool]:
    """Yield for each partition whether it waits for something.

    The caller knows that no partition has pending steps or an open change. So without tables and dead nodes, only a
    misplaced partition can wait, and the others need no look.
    """
    yield bool(off_target(state, zone, list(partitions_of(state, zone))))
    for one in partitions_of(state, zone) if dead or len(inputs) > 1 else ():
        if len(inputs) > 1 or not dead.isdisjoint(members(one)):
            yield bool(waits_of(state, one, {}, has_tables=len(inputs) > 1))


def _inputs(state: ClusterState) -> dict[str, ZoneInputs]:
    found: dict[str, ZoneInputs] = {name: (zone,) for name, zone in state.zones.items()}
    placed = {name: one.replication.zone for name, one in state.keyspaces.items() if one.replication.zone}
    for name, tablets in sorted(state.tablets.items()) if placed else ():
        if zone := placed.get(name.partition(".")[0]):
            found[zone] = (*found[zone], tablets)
    return found


def _same(one: ZoneInputs, other: ZoneInputs) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
