"""Tokens for a node that requests only a number of them: free, balanced, and deterministic for a seed.

Only the tokens of the node's **peers** count, the nodes that share its data:

- under SimpleStrategy, all nodes of the ring;
- under NetworkTopologyStrategy, the nodes of its datacenter. If the datacenter has at most as many racks as replicas,
every rack has a replica of every row, and only the nodes of its rack are peers.

If no peer has tokens, the tokens are spread evenly from a random offset. Otherwise each token takes a slice of the
largest range of the peer that owns most. A slice is the final share of one token, so that a new node with as many
tokens as the others gets about an equal share. Tokens that operations in flight have requested count as their
requester's. The result depends only on the future ring and the random bytes.

Source: the idea of Cassandra's token allocation for a replication factor, with a simpler choice of tokens.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, NodeId, Token
from ringlog.protocol.effects import Draw
from ringlog.runtime.draw import SeededDraw

RING = 2**64 - 1
"""The number of tokens."""

USUAL_FACTOR = 3
"""The assumed replicas in a datacenter if no keyspace sets the number."""


def allocate(state: ClusterState, node: NodeId, count: int, seed: bytes) -> tuple[Token, ...]:
    """Return ``count`` tokens for a node that joins or moves, in ascending order; fewer only if the ring is full.

    The present tokens of a moving node count as free and may be chosen again. All nodes are peers of an unknown node.
    """
    owners = {token: owner for token, owner in target_owners(state).items() if owner != node}
    peers = _peers(state, node, set(owners.values()))
    if peers is None:
        return choose_tokens(owners, count, SeededDraw(seed))
    among = {token: owner for token, owner in owners.items() if owner in peers}
    return choose_tokens(among, count, SeededDraw(seed), owners)


def _peers(state: ClusterState, node: NodeId, members: set[NodeId]) -> set[NodeId] | None:
    """Return the ``members`` that share the node's data; None if all do."""
    own = state.nodes.get(node)
    settings = [keyspace.replication for keyspace in state.keyspaces.values()]
    if own is None or (settings and all(strategy_of(setting).is_anywhere for setting in settings)):
        return None
    local = {member for member in members if state.nodes[member].datacenter == own.datacenter}
    racks = {own.rack, *(state.nodes[member].rack for member in local)}
    locals_ = [one for setting in settings if strategy_of(setting).in_ring for one in setting.datacenters]
    factors = [one.factor for one in locals_ if one.datacenter == own.datacenter]
    if 1 < len(racks) <= max(factors, default=USUAL_FACTOR):
        return {member for member in local if state.nodes[member].rack == own.rack}
    return local


def choose_tokens(
    owners: Mapping[Token, NodeId], count: int, draw: Draw, taken: Container[Token] = ()
) -> tuple[Token, ...]:
    """Return ``count`` new tokens that balance ``owners``, in ascending order; fewer only if the ring is full.

    ``taken``: other tokens that must not be chosen.
    """
    offset = int.from_bytes(draw.take(8), "big")
    if not owners:
        return _spread(count, offset, taken)
    slice_size = max(1, RING // ((len(set(owners.values())) + 1) * count))
    sizes = _sizes(owners)
    owned: dict[NodeId, int] = {}
    ranges: dict[NodeId, list[tuple[int, Token]]] = {}
    for (token, owner), size in zip(sorted(owners.items()), sizes, strict=True):
        owned[owner] = owned.get(owner, 0) + size
        ranges.setdefault(owner, []).append((-size, token))
    for heap in ranges.values():
        heapify(heap)
    richest = [(-size, owner) for owner, size in owned.items()]
    heapify(richest)
    chosen: list[Token] = []
    while richest and len(chosen) < count:
        left, owner = heappop(richest)
        largest, end = heappop(ranges[owner])
        # A range of one token cannot be cut. The owner leaves the heap, because this is its largest range.
        if largest >= -1:
            continue
        cut = min(slice_size, -largest - 1)
        # The token at the cut is taken by a node that is not a peer: choose the nearest free one before it.
        while cut > 1 and _moved(end, largest + cut) in taken:
            cut -= 1
        if (token := _moved(end, largest + cut)) not in taken:
            chosen.append(token)
        heappush(ranges[owner], (largest + cut, end))
        heappush(richest, (left + cut, owner))
    return tuple(sorted(chosen))


def _spread(count: int, offset: int, taken: Container[Token]) -> tuple[Token, ...]:
    """Return tokens at equal distances from ``offset``. A taken token is replaced by the next free one."""
    chosen: set[Token] = set()
    for slot in range(count):
        token = _moved(TOKEN_MIN, offset + RING * slot // count)
        while token in taken or token in chosen:
            token = _moved(token, 1)
        chosen.add(token)
    return tuple(sorted(chosen))


def _sizes(owners: Mapping[Token, NodeId]) -> list[int]:
    """Return the number of tokens in the range that ends at each token, in token order."""
    tokens = sorted(owners)
    first = tokens[0] - tokens[-1] + RING
    return [first, *(high - low for low, high in pairwise(tokens))]


def _moved(token: Token, by: int) -> Token:
    """Return the token ``by`` steps further on the ring."""
    moved = TOKEN_MIN + (token - TOKEN_MIN + by) % RING
    assert TOKEN_MIN <= moved <= TOKEN_MAX
    return moved
