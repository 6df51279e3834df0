"""Placements: for every replication setting in use, the readers and writers of each range.

The **canonical** layout of a setting is a pure function of token map and directory (``ownership.strategies``). The
tokens split the ring into ranges ``(previous, token]``, each with the replicas that the strategy chooses. The **live**
placement is the canonical one while no operation is in flight; operations lead from one canonical layout to the next by
splits, deltas and merges. The placement of EntireStrategy is one range, never split.

The members of a group have the order of a clockwise walk from the range's end (joining nodes at their coming tokens).
``invariants.ring`` has the invariants of ranges and groups.

Splitting a range does not change membership: the parts keep ``since`` of every replica and ``changed`` of the range,
because a request planned on the whole range is right for each part. When two ranges merge, every replica keeps the
later ``since``: it has not been a member longer for the whole merged range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ringlog.kernel.columns.blocks import Blocks, in_blocks, items_at, with_more
from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.state import ClusterState, Node, Placement, RangeGroup, Replica
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.ownership.kinds import ENTIRE, strategy_of
from ringlog.kernel.ownership.strategies import ends_of, natural, replication_key, ring_of
from ringlog.kernel.ownership.token_maps import in_order_of, merged
from ringlog.kernel.ring.ranges import Range, ranges_between
from ringlog.kernel.values import Epoch, NodeId, Replication, Token, replace

_Cuts = tuple[list[Token], tuple[Token, ...], Mapping[int, Sequence[Token]], list[int]]
"""The tokens that split ranges, all ends afterwards, the tokens by position of their range, and the changed positions.

The first range wraps: tokens after the last end split it first.
"""

_cut: Final = IdentityCache[tuple[Token, ...], tuple[tuple[Token, ...], _Cuts]](2)
"""Ends to the tokens that split them, and the result. All settings but one are split at the same tokens and share the
result's ends as one object.
"""


def placement_key(keyspace: Keyspace) -> str:
    """Return the key of a keyspace's ranges in ``ClusterState.placements``, also while its replication changes."""
    return keyspace.placement or replication_key(keyspace.replication)


def replications_in_use(state: ClusterState) -> tuple[tuple[str, Replication], ...]:
    """Return (key, setting) of every token ring setting that a keyspace uses, by key."""
    settings = [keyspace.replication for keyspace in state.keyspaces.values()]
    used = {replication_key(setting): setting for setting in settings if strategy_of(setting).in_ring}
    return tuple(sorted(used.items(), key=lambda item: item[0]))


# -------------------------------------------------------------------------------------------- canonical layout


def canonical(
    replication: Replication, owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node], epoch: Epoch
) -> tuple[RangeGroup, ...]:
    """Return the canonical layout of a token map, every replica a member since ``epoch``; empty for an empty map."""
    ring = ring_of(owners, nodes)
    # One object for each node, not for each node and range: rings have hundreds of thousands of those.
    members = {node: Replica(node, epoch) for node in ring.nodes}
    groups = []
    for start, end in ranges_between(ends_of(replication, ring.tokens)):
        replicas = tuple(members[node] for node in natural(replication, ring, end))
        groups.append(RangeGroup(start, end, replicas, replicas, epoch))
    return tuple(groups)


def new_placement(
    replication: Replication, owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node], epoch: Epoch
) -> Placement:
    """Return the placement of a setting in use since ``epoch``; ``owners``: the token map of the normal nodes."""
    ranges = canonical(replication, owners, nodes, epoch)
    assert bool(ranges) == bool(owners), "a placement has ranges if and only if there are tokens"
    ends = tuple(group.end for group in ranges)
    tokens = in_order_of(owners)[0]
    return Placement(replication_key(replication), in_blocks(ranges), tokens if ends == tokens else ends)


# ------------------------------------------------------------------------------------------------------ lookup


def placement_of_keyspace(state: ClusterState, keyspace: str) -> Placement | None:
    """Return the live placement of a keyspace, or None for an unknown keyspace."""
    found = state.keyspaces.get(keyspace)
    return None if found is None else state.placements.get(placement_key(found))


def group_at(placement: Placement, token: Token) -> RangeGroup:
    """Return the range that holds ``token``, with its groups. O(log n); the placement must have ranges."""
    ends, ranges = placement.ends, placement.ranges
    index = bisect_left(ends, token)  # ``index_at``, inlined: every request comes here
    if index == len(ends):
        index = 0
    return ranges.at_place(index) if isinstance(ranges, Blocks) else ranges[index]


def nodes_of(replicas: Iterable[Replica]) -> tuple[NodeId, ...]:
    """Return the node ids of a group, in its order."""
    return tuple(replica.node for replica in replicas)


def read_ranges_of(placement: Placement, node: NodeId) -> tuple[Range, ...]:
    """Return the ranges whose reads ``node`` serves, by end."""
    return tuple((group.start, group.end) for group in placement.ranges if node in nodes_of(group.read))


# ---------------------------------------------------------------------------------------------- split and merge


def split(placement: Placement, tokens: Iterable[Token]) -> Placement:
    """Return the placement with a range end at each of ``tokens``; groups, ``since`` and ``changed`` stay.

    A placement without ranges (an empty token map) gets ranges without replicas.
    """
    old = placement.ends
    if placement.key == ENTIRE.name:
        return placement
    new, ends, cut, places = _cuts_of(old, tuple(tokens))
    if not new:
        return placement
    if not old:
        ranges = tuple(RangeGroup(start, end, (), (), 0) for start, end in ranges_between(ends))
        return Placement(placement.key, ranges, ends)
    behind = cut.get(len(old), ())
    hosts = items_at(placement.ranges, places)
    parts = [_parts(host, cut.get(place, ())) for place, host in zip(places, hosts, strict=True)]
    if behind:
        *last, first = _parts(hosts[0], behind)
        parts[-1] = [*parts[-1], *last] if len(old) > 1 else parts[-1]
        parts[0] = [*_parts(first, cut.get(0, ())), *(last if len(old) == 1 else ())]
    ranges = with_more(placement.ranges, places, parts)
    assert len(ranges) == len(ends) == len(old) + len(new), "each new token splits one range"
    return Placement(placement.key, ranges, ends)


def _parts(host: RangeGroup, tokens: Iterable[Token]) -> list[RangeGroup]:
    """Return a range split at these tokens, in the order of a clockwise walk through it."""
    parts = []
    start = host.start
    for end in tokens:
        assert end != host.end, "a split token is not the end of its range"
        parts.append(replace(host, start=start, end=end))
        start = end
    return [*parts, replace(host, start=start)]


def _cuts_of(old: tuple[Token, ...], tokens: tuple[Token, ...]) -> _Cuts:
    known = _cut.get(old)
    if known is None or known[0] != tokens:
        new = [token for token in sorted(set(tokens)) if not _is_end(old, token)]
        cut: dict[int, list[Token]] = {}
        for token in new:
            cut.setdefault(bisect_left(old, token), []).append(token)
        places = {*cut, 0, len(old) - 1} - {len(old)} if len(old) in cut else cut
        known = _cut.put(old, (tokens, (new, tuple(merged(old, new)), cut, sorted(places))))
    return known[1]


def merge(placement: Placement, tokens: Iterable[Token]) -> Placement:
    """Return the placement without the range ends at ``tokens``: each such range joins the next one with the same
    members.

    The last range may be removed only if it has no replicas.
    """
    old = placement.ends
    gone = [] if placement.key == ENTIRE.name else [token for token in sorted(set(tokens)) if _is_end(old, token)]
    if not gone:
        return placement
    ranges, dropped = placement.ranges, set[int]()
    wider: dict[int, RangeGroup] = {}
    for token in gone:
        index = bisect_left(old, token)
        dropped.add(index)
        if len(dropped) == len(old):
            assert not wider.get(index, ranges[index]).write, "the last range with members is not removed"
            break
        follower = (index + 1) % len(old)
        while follower in dropped:
            follower += 1
        assert follower < len(old), "the following range exists"
        group, other = (wider.get(at, ranges[at]) for at in (index, follower))
        read, write = later_since(other.read, group.read), later_since(other.write, group.write)
        wider[follower] = RangeGroup(group.start, other.end, read, write, max(group.changed, other.changed))
    places = sorted(dropped.union(wider))
    kept = with_more(ranges, places, [() if at in dropped else (wider[at],) for at in places])
    assert len(kept) + len(gone) == len(old), "each removed token merges two ranges"
    return Placement(placement.key, kept, tuple(end for at, end in enumerate(old) if at not in dropped))


def _is_end(ends: Sequence[Token], token: Token) -> bool:
    index = bisect_left(ends, token)
    return index < len(ends) and ends[index] == token


def later_since(group: tuple[Replica, ...], other: tuple[Replica, ...]) -> tuple[Replica, ...]:
    """Return ``group``, each member with the later of its two epochs; ``other`` has the same members."""
    if group == other:
        return group
    since = {replica.node: replica.since for replica in other}
    assert {replica.node for replica in group} == since.keys(), "only equal neighbours merge"
    return tuple(Replica(replica.node, max(replica.since, since[replica.node])) for replica in group)
