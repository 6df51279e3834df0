"""Replication strategies: the nodes of the range that ends at a token, as a pure function of ring and directory.

All strategies walk the ring clockwise from the range's end, meet each node at its tokens, and take or skip it:

- **simple**: the first ``factor`` distinct nodes.
- **network**, for each datacenter separately. With a factor: ``min(factor, nodes there)`` nodes, each from another rack
  as long as there are more racks. The earliest ``factor - racks`` further nodes may repeat a rack. With a list of
  racks: the first node met in each of them.
- **entire**: every node.

Only nodes that own tokens count. The taken nodes depend only on the set of nodes met, not on their order. So a walk
that began earlier is at least as full as one that began later. The planner depends on that.

Source: Cassandra's SimpleStrategy, NetworkTopologyStrategy, EntireStrategy; ScyllaDB's rack lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from ringlog.kernel.model.state import Node
from ringlog.kernel.ownership.kinds import names_datacenters, strategy_of
from ringlog.kernel.ownership.token_maps import in_order_of, with_tokens
from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.values import TOKEN_MAX, DatacenterReplication, NodeId, Replication, Token

ENTIRE_END: Token = TOKEN_MAX
"""The end of the one range of an entire placement."""

_FIRST_OWNERS: Final = 64
"""Number of owners whose racks are checked before all are counted."""

Census = Mapping[str, Mapping[str, int]]
"""Datacenter to rack to number of nodes that own tokens."""

Limits = tuple[int, int, frozenset[str]]
"""For a datacenter: its number of replicas, how many of them may repeat a rack, and the listed racks."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The input of a layout: tokens in ascending order, their owners, the number of tokens of each owner, the
    directory.
    """

    tokens: Sequence[Token]
    owners: Mapping[Token, NodeId]
    counts: Mapping[NodeId, int]
    nodes: Mapping[NodeId, Node]
    place_cache: dict[NodeId, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """Datacenter and rack of nodes that were looked up."""
    _cached: dict[str, Mapping[str, int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _limits: dict[Replication, Mapping[str, Limits]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.owners), "each token has an owner"

    def racks(self, datacenter: str) -> Mapping[str, int]:
        """Return the number of owners in each rack of a datacenter, counted on the first call."""
        if not self._cached:
            self._cached.update({"": {}, **census_of(self.counts, self.nodes)})
        return self._cached.get(datacenter, {})

    def has_racks(self, datacenter: str, count: int) -> bool:
        """Return True if owners are in at least ``count`` racks of a datacenter. A few owners usually show it."""
        if not self._cached and len(self.counts) > _FIRST_OWNERS:
            met: set[str] = set()
            for node in islice(self.counts, _FIRST_OWNERS):
                where, rack = self.place(node)
                if where == datacenter:
                    met.add(rack)
                    if len(met) >= count:
                        return True
        return len(self.racks(datacenter)) >= count

    def limits(self, replication: Replication) -> Mapping[str, Limits]:
        """Return the limits of a setting for each of its datacenters that has nodes."""
        found = self._limits.get(replication)
        if found is None:
            every = {one.datacenter: self._limits_in(one) for one in replication.datacenters}
            found = self._limits[replication] = {name: limits for name, limits in every.items() if limits[0] > 0}
        return found

    def _limits_in(self, local: DatacenterReplication) -> Limits:
        if not local.racks and self.has_racks(local.datacenter, local.factor):
            return local.factor, 0, frozenset()  # no count is needed
        return _limits_of(local, self.racks(local.datacenter))

    def changed(self, gone: Iterable[Token], come: Mapping[Token, NodeId]) -> Ring:
        """Return the ring without the tokens ``gone``, and with the tokens ``come``, which are new or get another
        owner.
        """
        after = with_tokens(self.tokens, self.owners, self.counts, gone, come)
        return Ring(*after, self.nodes, self.place_cache)

    def place(self, node: NodeId) -> tuple[str, str]:
        """Return datacenter and rack of a node, cached: the same few nodes are looked up again and again."""
        found = self.place_cache.get(node)
        if found is None:
            known = self.nodes[node]
            found = self.place_cache[node] = known.datacenter, known.rack
        return found


def ring_of(owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node]) -> Ring:
    """Return the ring of a token map; ``nodes`` has every owner."""
    tokens, owners, counts = in_order_of(owners)
    assert all(map(nodes.__contains__, counts)), "only registered nodes own tokens"
    return Ring(tokens, owners, counts, nodes)


def census_of(members: Iterable[NodeId], nodes: Mapping[NodeId, Node]) -> Census:
    """Return the number of ``members`` in each rack."""
    counted: dict[str, dict[str, int]] = {}
    for member in members:
        node = nodes[member]
        racks = counted.setdefault(node.datacenter, {})
        racks[node.rack] = racks.get(node.rack, 0) + 1
    return counted


# ------------------------------------------------------------------------------------------------------- settings


def replication_key(replication: Replication) -> str:
    """Return the key of a setting in ``ClusterState.placements``: keyspaces with equal settings share one placement."""
    if names_datacenters(replication):
        parts = (f"{one.datacenter}={'+'.join(one.racks) or one.factor}" for one in replication.datacenters)
        return f"{replication.strategy}:{','.join(parts)}"
    strategy = strategy_of(replication)
    if strategy.by_zone:
        return f"{replication.strategy}:{replication.zone}"
    return f"{replication.strategy}:{replication.factor}" if strategy.has_factor else replication.strategy


def ends_of(replication: Replication, tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Return the range ends of a layout on a ring with these ascending tokens."""
    if strategy_of(replication).is_everywhere:
        return (ENTIRE_END,) if tokens else ()
    return tuple(tokens)


def impossible(replication: Replication, census: Census) -> str:
    """Return why the counted nodes cannot hold every replica; empty if they can."""
    count = sum(nodes for racks in census.values() for nodes in racks.values())
    if strategy_of(replication).is_everywhere:
        return "" if count else "no normal node would remain"
    if not replication.datacenters:
        if replication.factor <= count:
            return ""
        return f"{replication.factor} replicas need as many normal nodes, the cluster has {count}"
    for local in replication.datacenters:
        racks = census.get(local.datacenter, {})
        if missing := [rack for rack in local.racks if rack not in racks]:
            return f"rack {missing[0]} of {local.datacenter} has no normal node"
        if local.factor > sum(racks.values()):
            here = f"in {local.datacenter}, which has {sum(racks.values())}"
            return f"{local.factor} replicas need as many normal nodes {here}"
    return ""


# -------------------------------------------------------------------------------------------------------- filling


class Filling(Protocol):
    """The replicas of one range while a walk meets one node after the other.

    ``full``: no further node would be taken.
    """

    full: bool

    def accept(self, node: NodeId) -> bool:
        """Take the node or skip it; return True if it was taken. A node that was met before is skipped."""


def filling(replication: Replication, ring: Ring) -> Filling:
    """Return the empty group of any range of ``ring``."""
    strategy = strategy_of(replication)
    assert strategy.in_ring, replication
    if strategy.has_datacenters:
        return _Network(ring.limits(replication), ring)
    return _Distinct(replication.factor if strategy.has_factor else len(ring.nodes))


def natural(replication: Replication, ring: Ring, end: Token) -> tuple[NodeId, ...]:
    """Return the replicas of the range that ends at ``end``, in the order of a clockwise walk."""
    group = filling(replication, ring)
    tokens, owners, accept = ring.tokens, ring.owners, group.accept
    if group.full or not tokens:
        return ()
    replicas: list[NodeId] = []
    first = index_at(tokens, end)
    for index in range(first - len(tokens), first):  # below 0: the tokens from ``first`` on
        node = owners[tokens[index]]
        if accept(node):
            replicas.append(node)
            if group.full:
                break
    return tuple(replicas)


def first_met(replication: Replication, ring: Ring, end: Token, ends: Iterable[Token]) -> Iterator[tuple[NodeId, ...]]:
    """Yield ``natural`` for each of ``ends``, which follow each other counter-clockwise from ``end``.

    ``ends`` must include every token of the ring in between. The setting must satisfy ``is_first_met``: a group is the
    first nodes that a walk meets, in a datacenter one of each rack. So the owner of an end moves to the front, and the
    rest is the group of the next end clockwise.
    """
    by_rack = strategy_of(replication).has_datacenters
    here = replication.datacenters[0].datacenter if by_rack else ""
    place, owners, most = ring.place, ring.owners, replication.factor
    slots, group = _first_at(ring, end, here, most)
    found = tuple(group)
    for token in ends:
        node = owners.get(token)
        if node is not None:
            datacenter, rack = place(node) if by_rack else ("", node)
            if datacenter == here and (not group or group[0] != node):
                if rack in slots:
                    at = slots.index(rack)
                    del slots[at], group[at]
                slots.insert(0, rack)
                group.insert(0, node)
                del slots[most:], group[most:]
                found = tuple(group)
        yield found


def _first_at(ring: Ring, end: Token, datacenter: str, most: int) -> tuple[list[str], list[NodeId]]:
    """Return the first ``most`` nodes that a walk from ``end`` meets, and their distinct slots.

    The slot is the rack if ``datacenter`` is set, else the node id.
    """
    tokens, owners, places, place = ring.tokens, ring.owners, ring.place_cache, ring.place
    slots: list[str] = []
    group: list[NodeId] = []
    first = index_at(tokens, end) if tokens and most else 0
    for index in range(first - len(tokens), first):  # below 0: the tokens from ``first`` on
        node = slot = owners[tokens[index]]
        if datacenter:
            where, slot = places.get(node) or place(node)
            if where != datacenter:
                continue
        if slot not in slots:
            slots.append(slot)
            group.append(node)
            if len(group) == most:
                break
    return slots, group


def is_first_met(replication: Replication, ring: Ring) -> bool:
    """Return True if a group is the first ``factor`` nodes that a walk meets; in one datacenter, one of each rack."""
    strategy = strategy_of(replication)
    # A forced keyspace may name datacenters although its strategy ignores them.
    if not (strategy.has_datacenters and replication.datacenters):
        return strategy.is_anywhere
    local, *others = replication.datacenters
    return not others and not local.racks and ring.has_racks(local.datacenter, local.factor)


class _Distinct:
    """A group with a number of distinct nodes."""

    __slots__ = ("_left", "_met", "full")

    def __init__(self, count: int) -> None:
        self._left = count
        self._met: set[NodeId] = set()
        self.full = count <= 0

    def accept(self, node: NodeId) -> bool:
        if node in self._met or self._left <= 0:
            return False
        self._met.add(node)
        self._left -= 1
        self.full = self._left <= 0
        return True


class _Network:
    """A group with each datacenter filled separately; a full one is dropped."""

    __slots__ = ("_cached", "_met", "_open", "_place", "full")

    def __init__(self, limits: Mapping[str, Limits], ring: Ring) -> None:
        self._cached, self._place = ring.place_cache, ring.place
        self._met: set[NodeId] = set()
        self._open = {name: _Local(*limit) for name, limit in limits.items()}
        self.full = not self._open

    def accept(self, node: NodeId) -> bool:
        if node in self._met:
            return False
        datacenter, rack = self._cached.get(node) or self._place(node)
        local = self._open.get(datacenter)
        if local is None:
            return False
        self._met.add(node)
        taken = local.accept(rack)
        if local.left == 0:
            del self._open[datacenter]
            self.full = not self._open
        return taken


def _limits_of(local: DatacenterReplication, racks: Mapping[str, int]) -> Limits:
    """Return the limits of a datacenter; ``racks``: the number of nodes in each."""
    listed = frozenset(local.racks)
    if listed:
        return len(listed.intersection(racks)), 0, listed
    return min(local.factor, sum(racks.values())), max(0, local.factor - len(racks)), listed


class _Local:
    """The replicas of one datacenter. ``left``: the number still to take."""

    __slots__ = ("_listed", "_racks", "_repeats", "left")

    def __init__(self, left: int, repeats: int, listed: frozenset[str]) -> None:
        self.left = left
        self._repeats = repeats
        self._listed = listed
        self._racks: set[str] = set()

    def accept(self, rack: str) -> bool:
        if rack not in self._racks and (not self._listed or rack in self._listed):
            self._racks.add(rack)
        elif self._repeats > 0:
            self._repeats -= 1
        else:
            return False
        self.left -= 1
        return True
