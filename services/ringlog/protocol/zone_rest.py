"""The zones of which nothing is to be asked, so that a look at the state costs what has changed.

A zone *rests* if each of its partitions has acted on its last change, has nothing pending, a quorum alive and nobody
who has left, and the tablets where it has them. Who looks again keeps what rested, by identity: a decision about a
partition makes another value of its zone, and one about a tablet another map of its table. A node that dies, comes back
or leaves concerns the zones whose partitions or data nodes are on it. With other recoveries all are looked at anew.

Invariant: nothing would be asked for, and nothing is stuck, of a zone that rests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from ringlog.kernel.state import ClusterState, Node
from ringlog.kernel.values import NodeId
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.distribution import is_alive
from ringlog.kernel.zones.model import Zone
from ringlog.kernel.zones.resets import members
from ringlog.protocol.zone_waits import waits_of

Look = tuple[object, ...]
"""What a zone was when it was looked at: itself, and the maps of its tables."""


@dataclass(frozen=True, slots=True)
class RestingZones:
    """The zones that rest. ``on``: the nodes that each of them has to do with; ``under``: the nodes, and the
    recoveries, that this was found with.
    """

    zones: Mapping[str, Look] = field(default_factory=dict)
    on: Mapping[str, frozenset[NodeId]] = field(default_factory=dict)
    under: tuple[Map[NodeId, Node], object] = (Map(), None)


NOTHING_RESTS: Final = RestingZones()


def rested(before: RestingZones, state: ClusterState, is_asked: Callable[[Zone], bool]) -> RestingZones:
    """Those that rest in a newer state; ``is_asked``: something is to be asked of a zone."""
    known = before.zones if before.under[1] is state.recoveries else {}
    others = _other_nodes(before.under[0], state.nodes)
    dead = frozenset(node for node in state.nodes if not is_alive(state, node))
    found, on = {}, {}
    for name, look in _looks(state).items():
        zone = state.zones[name]
        has = before.on[name] if _same(known.get(name, ()), look) else None
        is_known = has is not None and others.isdisjoint(has)
        if not is_known and (
            zone.moving or not zone.nodes or is_asked(zone) or any(_may_wait(state, zone, look, dead))
        ):
            continue
        found[name] = look
        on[name] = has or frozenset(zone.nodes).union(*map(members, partitions_of(state, zone)))
    return RestingZones(found, on, (state.nodes, state.recoveries))


def _other_nodes(before: Map[NodeId, Node], now: Map[NodeId, Node]) -> frozenset[NodeId]:
    """The nodes of which something changed."""
    if before is now:
        return frozenset()
    return frozenset(node for node, found in now.items() if before.get(node) is not found)


def _may_wait(state: ClusterState, zone: Zone, look: Look, dead: frozenset[NodeId]) -> Iterator[bool]:
    """Of each partition whether it waits for something. Without tables, and without the dead, none does that has
    nothing pending and has acted on what changed.
    """
    for one in partitions_of(state, zone) if dead or len(look) > 1 else ():
        if len(look) > 1 or not dead.isdisjoint(members(one)):
            yield bool(waits_of(state, one, {}, has_tables=len(look) > 1))


def _looks(state: ClusterState) -> dict[str, Look]:
    found: dict[str, Look] = {name: (zone,) for name, zone in state.zones.items()}
    placed = {name: one.replication.zone for name, one in state.keyspaces.items() if one.replication.zone}
    for name, tablets in sorted(state.tablets.items()) if placed else ():
        if zone := placed.get(name.partition(".")[0]):
            found[zone] = (*found[zone], tablets)
    return found


def _same(one: Look, other: Look) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
