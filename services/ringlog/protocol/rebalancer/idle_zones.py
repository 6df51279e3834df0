"""The zones of which nothing is to be asked, so that a look at the state costs what has changed.

A zone *rests* if each of its partitions has acted on its last change, is where it belongs, has nothing pending, a
quorum alive and nobody who has left, and the tablets where it has them. Who looks again keeps what rested, by identity:
a decision about a partition makes another value of its zone, and one about a tablet another map of its table. A node
that dies, comes back or leaves concerns the zones whose partitions or data nodes are on it. With other recoveries all
are looked at anew.

Invariant: nothing would be asked for, and nothing is stuck, of a zone that rests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.zones import Zone
from ringlog.kernel.values import NodeId
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.resets import members
from ringlog.protocol.rebalancer.zone_waits import off_target, waits_of

ZoneInputs = tuple[object, ...]
"""What a zone was when it was looked at: itself, and the maps of its tables."""


@dataclass(frozen=True, slots=True)
class IdleZones:
    """The zones that rest. ``on``: the nodes that each of them has to do with; ``under``: the nodes, and the
    recoveries, that this was found with.
    """

    zones: Mapping[str, ZoneInputs] = field(default_factory=dict)
    on: Mapping[str, frozenset[NodeId]] = field(default_factory=dict)
    under: tuple[Map[NodeId, Node], object] = (Map(), None)


NO_IDLE_ZONES: Final = IdleZones()


def next_idle_zones(before: IdleZones, state: ClusterState, is_asked: Callable[[Zone], bool]) -> IdleZones:
    """Those that rest in a newer state; ``is_asked``: something is to be asked of a zone."""
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
    """The nodes of which something changed."""
    if before is now:
        return frozenset()
    return frozenset(node for node, found in now.items() if before.get(node) is not found)


def _may_wait(state: ClusterState, zone: Zone, inputs: ZoneInputs, dead: frozenset[NodeId]) -> Iterator[bool]:
    """Of each partition whether it waits for something. Without tables, and without the dead, none does that has
    nothing pending, has acted on what changed, and is where it belongs.
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
