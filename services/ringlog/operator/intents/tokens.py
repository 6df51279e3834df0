"""Which tokens a node asks for when its author says only how many: unowned, balanced, the same for the same seed.

What a node has to hold is decided among its **peers**, whose tokens alone count:

- under SimpleStrategy all nodes of the ring;
- under NetworkTopologyStrategy the nodes of its datacenter; where that has racks, not more than replicas, every rack
  holds a replica of everything, and only the nodes of its rack share with it.

Among peers without tokens the tokens are spread evenly, from a drawn offset. Else each token takes, from the peer that
owns most, a slice of that peer's largest range: as much as a token of the newcomer should own in the end, so that a
newcomer with as many tokens as the others ends up with about their share. Tokens that operations in flight have asked
for count as theirs. Pure: the ring as it will be, and random bytes, are all it depends on.

Source: the idea of Cassandra's token allocation for a replication factor; the way to choose is our own, and simpler.
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
"""How many tokens there are."""

USUAL_FACTOR = 3
"""The replicas in a datacenter, as long as no keyspace says how many."""


def allocate(state: ClusterState, node: NodeId, count: int, seed: bytes) -> tuple[Token, ...]:
    """``count`` tokens for a node that joins or moves, in ascending order; fewer only if the ring is that full.

    Who moves is asked to move anywhere: its present tokens count as nobody's, and may be chosen again. An unknown node
    is taken for one that has all others for peers.
    """
    owners = {token: owner for token, owner in target_owners(state).items() if owner != node}
    peers = _peers(state, node, set(owners.values()))
    if peers is None:
        return choose_tokens(owners, count, SeededDraw(seed))
    among = {token: owner for token, owner in owners.items() if owner in peers}
    return choose_tokens(among, count, SeededDraw(seed), owners)


def _peers(state: ClusterState, node: NodeId, members: set[NodeId]) -> set[NodeId] | None:
    """Those of ``members`` who share with the node what there is to hold; None: all."""
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
    """``count`` tokens in ascending order that balance ``owners``; none of them is there or in ``taken``.

    Fewer only if the ring is that full.
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
        if largest >= -1:
            continue
        cut = min(slice_size, -largest - 1)
        while cut > 1 and _moved(end, largest + cut) in taken:
            cut -= 1
        if (token := _moved(end, largest + cut)) not in taken:
            chosen.append(token)
        heappush(ranges[owner], (largest + cut, end))
        heappush(richest, (left + cut, owner))
    return tuple(sorted(chosen))


def _spread(count: int, offset: int, taken: Container[Token]) -> tuple[Token, ...]:
    """Tokens at equal distances from ``offset`` on; the next free one where one is taken."""
    chosen: set[Token] = set()
    for slot in range(count):
        token = _moved(TOKEN_MIN, offset + RING * slot // count)
        while token in taken or token in chosen:
            token = _moved(token, 1)
        chosen.add(token)
    return tuple(sorted(chosen))


def _sizes(owners: Mapping[Token, NodeId]) -> list[int]:
    """Number of tokens in the range that ends at each token, in token order."""
    tokens = sorted(owners)
    first = tokens[0] - tokens[-1] + RING
    return [first, *(high - low for low, high in pairwise(tokens))]


def _moved(token: Token, by: int) -> Token:
    """The token ``by`` steps further on the ring."""
    moved = TOKEN_MIN + (token - TOKEN_MIN + by) % RING
    assert TOKEN_MIN <= moved <= TOKEN_MAX
    return moved
