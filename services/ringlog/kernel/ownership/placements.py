"""Placements: for every replication setting in use, who reads and who writes each range.

The **canonical** layout of a setting is a pure function of the token map. For SimpleStrategy: the tokens of the
normal nodes cut the ring into ranges ``(previous, token]``; a range belongs to the owner of its end and, clockwise
from there, to the next distinct nodes until the factor is reached (to fewer where there are fewer nodes). The
**live** placement is the canonical one while nothing is in flight; operations lead from one canonical layout to the
next by splits and deltas.

Invariants: the reads of a range are part of its writes; members of a group stand in the order in which a clockwise
walk from the range's end meets them (tokens of nodes that are moving in included); ``ends`` repeats the ends of
``ranges``.

Splitting or merging ranges is no change of membership: the parts keep ``since`` of every replica and ``changed`` of
the range, for nobody who planned a request on the whole range is wrong about a part of it. Only deltas stamp epochs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ringlog.kernel.commands.model import Replication
from ringlog.kernel.ring.ranges import Range, index_at, ranges_between
from ringlog.kernel.state import ClusterState, Node, Placement, RangeGroup, Replica
from ringlog.kernel.values import Epoch, NodeId, Token

STRATEGIES = ("simple",)


@dataclass(frozen=True, slots=True)
class Ring:
    """All tokens in ascending order, their owners and the directory: what a layout is computed from."""

    tokens: tuple[Token, ...]
    owners: Mapping[Token, NodeId]
    nodes: Mapping[NodeId, Node]

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
    assert all(owner in nodes for owner in owners.values()), "only registered nodes own tokens"
    return Ring(tuple(sorted(owners)), owners, nodes)


def replication_key(replication: Replication) -> str:
    """The key of a setting in ``ClusterState.placements``: keyspaces with equal settings share one placement."""
    return f"{replication.strategy}:{replication.factor}"


def replications_in_use(state: ClusterState) -> tuple[tuple[str, Replication], ...]:
    """(key, setting) of every setting that a keyspace uses, by key."""
    used = {replication_key(keyspace.replication): keyspace.replication for keyspace in state.keyspaces.values()}
    return tuple(sorted(used.items(), key=lambda item: item[0]))


# -------------------------------------------------------------------------------------------- canonical layout


def natural(replication: Replication, ring: Ring, end: Token) -> tuple[NodeId, ...]:
    """The replicas of the range that ends at ``end``, owner first."""
    assert replication.strategy in STRATEGIES, replication.strategy
    replicas: list[NodeId] = []
    for node in ring.walk(end):
        replicas.append(node)
        if len(replicas) == replication.factor:
            break
    return tuple(replicas)


def canonical(
    replication: Replication, owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node], epoch: Epoch
) -> tuple[RangeGroup, ...]:
    """The canonical layout of a token map, every replica a member since ``epoch``; empty for an empty map."""
    ring = ring_of(owners, nodes)
    groups = []
    for start, end in ranges_between(ring.tokens):
        replicas = tuple(Replica(node, epoch) for node in natural(replication, ring, end))
        groups.append(RangeGroup(start, end, replicas, replicas, epoch))
    return tuple(groups)


def new_placement(
    replication: Replication, owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node], epoch: Epoch
) -> Placement:
    """The placement of a setting that is in use from ``epoch`` on; ``owners``: the token map of the normal nodes."""
    ranges = canonical(replication, owners, nodes, epoch)
    return Placement(replication_key(replication), ranges, tuple(group.end for group in ranges))


# ------------------------------------------------------------------------------------------------------ lookup


def placement_of_keyspace(state: ClusterState, keyspace: str) -> Placement | None:
    """The live placement of a keyspace, or None if there is no such keyspace."""
    found = state.keyspaces.get(keyspace)
    return None if found is None else state.placements.get(replication_key(found.replication))


def group_at(placement: Placement, token: Token) -> RangeGroup:
    """The range that holds ``token``, with its groups. O(log n); the placement has ranges."""
    return placement.ranges[index_at(placement.ends, token)]


def nodes_of(replicas: Iterable[Replica]) -> tuple[NodeId, ...]:
    """The node ids of a group, in its order."""
    return tuple(replica.node for replica in replicas)


def read_ranges_of(placement: Placement, node: NodeId) -> tuple[Range, ...]:
    """The ranges that ``node`` serves reads of, by end."""
    return tuple((group.start, group.end) for group in placement.ranges if node in nodes_of(group.read))


def write_ranges_of(placement: Placement, node: NodeId) -> tuple[Range, ...]:
    """The ranges that ``node`` takes writes of, by end."""
    return tuple((group.start, group.end) for group in placement.ranges if node in nodes_of(group.write))


# ---------------------------------------------------------------------------------------------- split and merge


def split(placement: Placement, tokens: Iterable[Token]) -> Placement:
    """The placement with a range end at each of ``tokens``; groups, ``since`` and ``changed`` stay.

    A placement without ranges (an empty token map) gets ranges that nobody serves yet.
    """
    ranges, ends = list(placement.ranges), list(placement.ends)
    for token in sorted(set(tokens).difference(ends)):
        if not ends:
            ranges.append(RangeGroup(token, token, (), (), 0))
            ends.append(token)
            continue
        host = index_at(ends, token)
        lower = replace(ranges[host], end=token)
        ranges[host] = replace(ranges[host], start=token)
        place = bisect_left(ends, token)
        ranges.insert(place, lower)
        ends.insert(place, token)
    return Placement(placement.key, tuple(ranges), tuple(ends))


def merge(placement: Placement, tokens: Iterable[Token]) -> Placement:
    """The placement without the range ends at ``tokens``: each such range joins the next one, its equal.

    The inverse of ``split``: it may remove the last range only when nobody serves it.
    """
    ranges, ends = list(placement.ranges), list(placement.ends)
    for token in sorted(set(tokens).intersection(ends)):
        gone = index_at(ends, token)
        group, follower = ranges[gone], (gone + 1) % len(ends)
        if follower == gone:
            assert not group.write, "a served range has no neighbour to merge with"
        else:
            other = ranges[follower]
            assert (group.read, group.write) == (other.read, other.write), "only equal neighbours merge"
            changed = max(group.changed, other.changed)
            ranges[follower] = replace(other, start=group.start, changed=changed)
        del ranges[gone], ends[gone]
    return Placement(placement.key, tuple(ranges), tuple(ends))
