"""The plan of a join, from the canonical layouts before and after it.

With C the canonical layout of the token map M, and N that of M with the new tokens: ranges are split at the new
tokens; then

- **start**: the new node enters the write groups of the ranges that it has in N and not in C;
- **middle**: it enters their read groups, and the replica whose place it takes leaves them, in one swap;
- **finish**: that replica leaves the write groups too. The live placement is N then.

Only ranges whose clockwise walk meets a new token before it has enough replicas change: they are found by walking
back from each new token, so the cost grows with tokens times factor, not with the ring.

Rows of a gained range come from the replica whose place is taken: with those the new group knows all that the old
group knew, member for member. Where nobody leaves (fewer nodes than replicas before), they come from the range's
first reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringlog.kernel.commands.model import Replication
from ringlog.kernel.ownership.deltas import touched
from ringlog.kernel.ownership.placements import (
    Ring,
    group_at,
    natural,
    replications_in_use,
    ring_of,
)
from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.state import Change, ClusterState, Deltas, LockedRange, Node, Plan, Source
from ringlog.kernel.values import NodeId, Token


def plan_join(state: ClusterState, node: NodeId, tokens: tuple[Token, ...]) -> Plan:
    """The plan by which registered ``node`` gets unowned ``tokens``, on the token map of ``state``."""
    nodes: Mapping[NodeId, Node] = state.nodes
    before = ring_of(state.token_owners, nodes)
    after = ring_of(state.token_owners.update(dict.fromkeys(tokens, node)), nodes)
    gained: list[Change] = []
    lost: list[Change] = []
    sources: list[Source] = []
    for key, replication in replications_in_use(state):
        for end in _ends_gained(replication, after, node, tokens):
            start = after.tokens[index_at(after.tokens, end) - 1]
            old, new = natural(replication, before, end), natural(replication, after, end)
            leaving = tuple(replica for replica in old if replica not in new)
            assert node in new, "only gained ranges are planned"
            assert len(leaving) <= 1, "at most one replica gives way"
            gained.append(Change(key, start, end, node))
            lost.extend(Change(key, start, end, replica) for replica in leaving)
            sources.extend(Source(key, start, end, giver, node) for giver in (leaving or old)[:1])
    return Plan(
        split_at=tuple(sorted(tokens)),
        start=Deltas(write_added=tuple(gained)),
        middle=Deltas(read_added=tuple(gained), read_removed=tuple(lost)),
        finish=Deltas(write_removed=tuple(lost)),
        sources=tuple(sources),
    )


def locks_of(state: ClusterState, plan: Plan) -> tuple[LockedRange, ...]:
    """The ranges, as they are before the split, that ``plan`` splits or whose groups it changes; by setting and end."""
    locks = []
    for key, placement in sorted(state.placements.items()):
        if not placement.ends:
            continue
        ends = {end for (_, end), _ in touched(key, plan.start, plan.middle, plan.finish)}
        for end in sorted({group_at(placement, token).end for token in ends.union(plan.split_at)}):
            group = group_at(placement, end)
            locks.append(LockedRange(key, group.start, group.end, group.changed))
    return tuple(locks)


def _ends_gained(replication: Replication, ring: Ring, node: NodeId, tokens: tuple[Token, ...]) -> list[Token]:
    """The range ends of ``ring`` whose walk meets one of the node's new tokens among its first ``factor`` owners."""
    ends: set[Token] = set()
    for token in tokens:
        others: set[NodeId] = set()
        for end in _backwards(ring, token):
            owner = ring.owners[end]
            if owner != node:
                others.add(owner)
            if len(others) >= replication.factor:
                break
            ends.add(end)
    return sorted(ends)


def _backwards(ring: Ring, token: Token) -> Iterator[Token]:
    """All tokens of ``ring``, counter-clockwise from ``token``, each once."""
    first = index_at(ring.tokens, token)
    for step in range(len(ring.tokens)):
        yield ring.tokens[first - step]
