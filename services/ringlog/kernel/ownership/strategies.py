"""Replication strategies: which nodes hold the range that ends at a token, as a pure function of ring and directory.

All strategies walk the ring clockwise from the range's end, meet each node at its tokens, and take or pass over it:

- **simple**: the first ``factor`` distinct nodes;
- **network**, for each datacenter by itself: with a factor, ``min(factor, nodes there)`` of them, each from a rack of
  its own as long as there are such; ``factor - racks`` may repeat a rack, the earliest ones met. With a list of
  racks, the first node met in each of them;
- **entire**: every node.

Only nodes that own tokens count. Which nodes are taken depends on the set of nodes met alone, not on their order; so a
walk that began earlier is never less full than one that began later. The planner rests on that.

Source: Cassandra's SimpleStrategy, NetworkTopologyStrategy, EntireStrategy; ScyllaDB's rack lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ringlog.kernel.ownership.token_maps import in_order_of, with_tokens
from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.state import Node
from ringlog.kernel.values import TOKEN_MAX, DatacenterReplication, NodeId, Replication, Token

SIMPLE: Final = "simple"
NETWORK: Final = "network"
ENTIRE: Final = "entire"
STRATEGIES: Final = (SIMPLE, NETWORK, ENTIRE)
"""Those that place ranges of the token ring."""

TABLETS: Final = "tablets"
"""Tables have maps of their own (``kernel.tablets``); of the ring they use nothing."""

ZONE: Final = "zone"
"""So they have here: a tablet for each partition of a zone, on the nodes that have the partition."""

IN_TABLETS: Final = (TABLETS, ZONE)
"""Strategies of keyspaces whose tables have maps of their own."""

ENTIRE_END: Token = TOKEN_MAX
"""The end of the one range of an entire placement."""

Census = Mapping[str, Mapping[str, int]]
"""Datacenter to rack to number of nodes that own tokens."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Tokens in ascending order, their owners, the directory and how many owners each rack has: what a layout is
    computed from.
    """

    tokens: Sequence[Token]
    owners: Mapping[Token, NodeId]
    nodes: Mapping[NodeId, Node]
    census: Census

    def changed(self, gone: Iterable[Token], come: Mapping[Token, NodeId]) -> Ring:
        """The ring without the tokens that are ``gone``, and with those that ``come`` or get another owner."""
        tokens, owners = with_tokens(self.tokens, self.owners, gone, come)
        return Ring(tokens, owners, self.nodes, census_of(set(owners.values()), self.nodes))

    def within(self, datacenter: str) -> Ring:
        """The ring of one datacenter's nodes."""
        members = {node for node, found in self.nodes.items() if found.datacenter == datacenter}
        owners = {token: owner for token in self.tokens if (owner := self.owners[token]) in members}
        census = {datacenter: self.census[datacenter]} if datacenter in self.census else {}
        assert bool(owners) == bool(census), "who is counted owns tokens"
        return Ring(tuple(owners), owners, self.nodes, census)

    def walk(self, end: Token) -> Iterator[NodeId]:
        """The distinct owners met clockwise from the first token at or after ``end``."""
        if not self.tokens:
            return
        first = index_at(self.tokens, end)
        seen: set[NodeId] = set()
        for step in range(len(self.tokens)):
            owner = self.owners[self.tokens[(first + step) % len(self.tokens)]]
            if owner not in seen:
                seen.add(owner)
                yield owner


def ring_of(owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node]) -> Ring:
    """The ring of a token map; ``nodes`` holds every owner."""
    tokens, owners = in_order_of(owners)
    members = set(owners.values())
    assert all(owner in nodes for owner in members), "only registered nodes own tokens"
    return Ring(tokens, owners, nodes, census_of(members, nodes))


def census_of(members: Iterable[NodeId], nodes: Mapping[NodeId, Node]) -> Census:
    """How many of ``members`` there are in each rack."""
    counted: dict[str, dict[str, int]] = {}
    for member in members:
        node = nodes[member]
        racks = counted.setdefault(node.datacenter, {})
        racks[node.rack] = racks.get(node.rack, 0) + 1
    return counted


# ------------------------------------------------------------------------------------------------------- settings


def replication_key(replication: Replication) -> str:
    """The key of a setting in ``ClusterState.placements``: keyspaces with equal settings share one placement."""
    match replication.strategy:
        case "network" | "tablets" if replication.strategy == NETWORK or replication.datacenters:
            parts = (f"{one.datacenter}={'+'.join(one.racks) or one.factor}" for one in replication.datacenters)
            return f"{replication.strategy}:{','.join(parts)}"
        case "entire":
            return ENTIRE
        case "zone":
            return f"{ZONE}:{replication.zone}"
        case _:
            return f"{replication.strategy}:{replication.factor}"


def ends_of(replication: Replication, tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The ends of the ranges into which a layout cuts a ring with these ascending tokens."""
    if replication.strategy == ENTIRE:
        return (ENTIRE_END,) if tokens else ()
    return tuple(tokens)


def impossible(replication: Replication, census: Census) -> str:
    """Why nodes that are counted so cannot hold every replica; empty if they can."""
    count = sum(nodes for racks in census.values() for nodes in racks.values())
    if replication.strategy == ENTIRE:
        return "" if count else "there would be no node left"
    if not replication.datacenters:
        if replication.factor <= count:
            return ""
        return f"{replication.factor} replicas need as many normal nodes, there are {count}"
    for local in replication.datacenters:
        racks = census.get(local.datacenter, {})
        if missing := [rack for rack in local.racks if rack not in racks]:
            return f"rack {missing[0]} of {local.datacenter} has no normal node"
        if local.factor > sum(racks.values()):
            here = f"in {local.datacenter}, there are {sum(racks.values())}"
            return f"{local.factor} replicas need as many normal nodes {here}"
    return ""


# -------------------------------------------------------------------------------------------------------- filling


class Filling(Protocol):
    """The replicas of one range while a walk meets one node after the other."""

    def offer(self, node: NodeId) -> bool:
        """Take the node or pass it over; True if it was taken. A node that was met before is passed over."""

    @property
    def full(self) -> bool:
        """True once no further node would be taken."""


def filling(replication: Replication, ring: Ring) -> Filling:
    """The empty group of any range of ``ring``."""
    assert replication.strategy in STRATEGIES, replication.strategy
    if replication.strategy == NETWORK:
        return _Network(replication, ring)
    return _Distinct(replication.factor if replication.strategy == SIMPLE else len(ring.nodes))


def natural(replication: Replication, ring: Ring, end: Token) -> tuple[NodeId, ...]:
    """The replicas of the range that ends at ``end``, in the order in which a walk meets them."""
    group = filling(replication, ring)
    replicas: list[NodeId] = []
    if not group.full:
        for node in ring.walk(end):
            if group.offer(node):
                replicas.append(node)
                if group.full:
                    break
    return tuple(replicas)


class _Distinct:
    """A number of distinct nodes."""

    __slots__ = ("_left", "_met")

    def __init__(self, count: int) -> None:
        self._left = count
        self._met: set[NodeId] = set()

    def offer(self, node: NodeId) -> bool:
        if node in self._met or self._left <= 0:
            return False
        self._met.add(node)
        self._left -= 1
        return True

    @property
    def full(self) -> bool:
        return self._left <= 0


class _Network:
    """Every datacenter by itself; one that is filled is dropped."""

    __slots__ = ("_met", "_nodes", "_open")

    def __init__(self, replication: Replication, ring: Ring) -> None:
        self._nodes = ring.nodes
        self._met: set[NodeId] = set()
        self._open = {
            local.datacenter: _Local(local, ring.census[local.datacenter])
            for local in replication.datacenters
            if ring.census.get(local.datacenter)
        }
        for name, local in list(self._open.items()):
            if local.left <= 0:
                del self._open[name]

    def offer(self, node: NodeId) -> bool:
        found = self._nodes[node]
        local = self._open.get(found.datacenter)
        if local is None or node in self._met:
            return False
        self._met.add(node)
        taken = local.offer(found.rack)
        if local.left == 0:
            del self._open[found.datacenter]
        return taken

    @property
    def full(self) -> bool:
        return not self._open


class _Local:
    """The replicas of one datacenter. ``left``: how many are still to be taken."""

    __slots__ = ("_listed", "_racks", "_repeats", "left")

    def __init__(self, local: DatacenterReplication, racks: Mapping[str, int]) -> None:
        self._listed = frozenset(local.racks)
        self._racks: set[str] = set()
        if self._listed:
            self.left = len(self._listed.intersection(racks))
            self._repeats = 0
        else:
            self.left = min(local.factor, sum(racks.values()))
            self._repeats = max(0, local.factor - len(racks))

    def offer(self, rack: str) -> bool:
        if rack not in self._racks and (not self._listed or rack in self._listed):
            self._racks.add(rack)
        elif self._repeats > 0:
            self._repeats -= 1
        else:
            return False
        self.left -= 1
        return True
