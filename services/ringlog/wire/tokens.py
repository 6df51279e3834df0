"""Which tokens a node asks for when its author says only how many: unowned, balanced, the same for the same draw.

In an empty ring the tokens are spread evenly, from a drawn offset. Else each token takes, from the node that owns most,
a slice of that node's largest range: as much as a token of the newcomer should own in the end, so that a newcomer with
as many tokens as the others ends up with about their share. Tokens that operations in flight have asked for count as
theirs. Pure: the ring as it will be, and random bytes, are all it depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, NodeId, Token
from ringlog.wire.draw import Draw

RING = 2**64 - 1
"""How many tokens there are."""


def choose_tokens(owners: Mapping[Token, NodeId], count: int, draw: Draw) -> tuple[Token, ...]:
    """``count`` tokens in ascending order, none of them in ``owners``; fewer only if the ring is that full."""
    offset = int.from_bytes(draw.take(8), "big")
    if not owners:
        return tuple(sorted({TOKEN_MIN + (offset + RING * slot // count) % RING for slot in range(count)}))
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
        taken = min(slice_size, -largest - 1)
        chosen.append(_moved(end, largest + taken))
        heappush(ranges[owner], (largest + taken, end))
        heappush(richest, (left + taken, owner))
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
