"""An immutable sorted map of byte strings: a B+ tree whose versions share all unchanged nodes.

Leaves contain at most ``LEAF_MAX`` pairs, inner nodes at most ``NODE_MAX`` children. A change copies the path from the
root to one leaf, O(log n) small tuples, and does not modify the old tree. So keeping an old root is a free snapshot.
Cutting an interval costs only its two edges, regardless of its content. Listing an interval costs the listed pairs.

Pairs are byte strings because the cyclic garbage collector tracks neither them nor tuples of them. It visits one object
for about fifty pairs. With a million cell objects, each full collection would visit all of them and stall requests.

Invariants:

- Keys ascend. All leaves have the same depth. Only ``EMPTY`` has no pairs.
- ``count`` is the number of pairs in the subtree.
- Child ``i`` contains the keys in ``[lows[i], lows[i + 1])``. ``lows[0]`` is never compared.

Nodes may be sparsely filled after cuts: only ``built`` merges nodes.

Source: Comer, "The Ubiquitous B-Tree"; path copying as in Driscoll, Sarnak, Sleator, Tarjan, "Making data structures
persistent".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

LEAF_MAX = 64
NODE_MAX = 128

Pair = tuple[bytes, bytes]


class Leaf:
    """A leaf: ascending keys, and the value of each at the same index."""

    __slots__ = ("count", "keys", "values")

    def __init__(self, keys: tuple[bytes, ...], values: tuple[bytes, ...]) -> None:
        self.keys = keys
        self.values = values
        self.count = len(keys)


class Inner:
    """An inner node: ascending children of the same kind."""

    __slots__ = ("children", "count", "lows")

    def __init__(self, lows: tuple[bytes, ...], children: tuple[Node, ...], count: int) -> None:
        self.lows = lows
        self.children = children
        self.count = count


Node = Leaf | Inner

EMPTY = Leaf((), ())
"""The empty tree: the only node without pairs."""


def find(node: Node, key: bytes) -> bytes | None:
    """Return the value of a key, or None."""
    while isinstance(node, Inner):
        node = node.children[bisect_right(node.lows, key, 1) - 1]
    at = bisect_left(node.keys, key)
    return node.values[at] if at < node.count and node.keys[at] == key else None


def put(root: Node, key: bytes, value: bytes) -> Node:
    """Return the tree with ``value`` for ``key``."""
    made = _put(root, key, value)
    return made[0] if len(made) == 1 else _above(made)


def cut(root: Node, low: bytes, high: bytes) -> Node:
    """Return the tree without the keys in ``[low, high)``. Return the same object if it has none."""
    if low >= high:
        return root
    found = _cut(root, low, high)
    if found is None:
        return EMPTY
    # A root with one child would only add depth.
    while isinstance(found, Inner) and len(found.children) == 1:
        found = found.children[0]
    return found


def leaves(node: Node, low: bytes = b"") -> Iterator[Leaf]:
    """Yield the leaves in ascending order, starting with the leaf that would contain ``low``."""
    if isinstance(node, Leaf):
        if node.count:
            yield node
        return
    first = bisect_right(node.lows, low, 1) - 1
    yield from leaves(node.children[first], low)
    for child in node.children[first + 1 :]:
        yield from leaves(child)


def between(node: Node, low: bytes, high: bytes) -> Iterator[Pair]:
    """Yield the pairs with keys in ``[low, high)``."""
    for leaf in leaves(node, low):
        keys = leaf.keys
        first = bisect_left(keys, low) if keys[0] < low else 0
        last = bisect_left(keys, high) if keys[-1] >= high else leaf.count
        yield from zip(keys[first:last], leaf.values[first:last], strict=True)
        if last < leaf.count:
            return


def built(pairs: Iterable[tuple[Sequence[bytes], Sequence[bytes]]]) -> Node:
    """Build a tree from portions of ascending keys and their values, in O(n)."""
    size = LEAF_MAX * 3 // 4
    level: list[Node] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    for some_keys, some_values in pairs:
        keys += some_keys
        values += some_values
        whole = len(keys) - len(keys) % size
        level += [Leaf(tuple(keys[at : at + size]), tuple(values[at : at + size])) for at in range(0, whole, size)]
        del keys[:whole], values[:whole]
    if keys:
        level.append(Leaf(tuple(keys), tuple(values)))
    width = NODE_MAX * 3 // 4
    while len(level) > 1:
        level = [_above(level[at : at + width]) for at in range(0, len(level), width)]
    return level[0] if level else EMPTY


def _put(node: Node, key: bytes, value: bytes) -> tuple[Node, ...]:
    """Return the node with the pair, or the two nodes after a split."""
    if isinstance(node, Leaf):
        return _put_into(node, key, value)
    lows, children = node.lows, node.children
    at = bisect_right(lows, key, 1) - 1
    child = children[at]
    made = _put(child, key, value)
    count = node.count - child.count + made[0].count
    children = children[:at] + made + children[at + 1 :]
    if len(made) == 1:
        return (Inner(lows, children, count),)
    count += made[1].count
    lows = (*lows[: at + 1], _low(made[1]), *lows[at + 1 :])
    if len(children) <= NODE_MAX:
        return (Inner(lows, children, count),)
    half = len(children) // 2
    below = sum(one.count for one in children[:half])
    return Inner(lows[:half], children[:half], below), Inner(lows[half:], children[half:], count - below)


def _put_into(leaf: Leaf, key: bytes, value: bytes) -> tuple[Node, ...]:
    keys, values = leaf.keys, leaf.values
    at = bisect_left(keys, key)
    if at < leaf.count and keys[at] == key:
        return (Leaf(keys, (*values[:at], value, *values[at + 1 :])),)
    keys = (*keys[:at], key, *keys[at:])
    values = (*values[:at], value, *values[at:])
    if len(keys) <= LEAF_MAX:
        return (Leaf(keys, values),)
    half = len(keys) // 2
    return Leaf(keys[:half], values[:half]), Leaf(keys[half:], values[half:])


def _cut(node: Node, low: bytes, high: bytes) -> Node | None:
    """Return the remaining node: the same object if nothing was removed, None if nothing remains."""
    if isinstance(node, Leaf):
        first, last = bisect_left(node.keys, low), bisect_left(node.keys, high)
        if first == last:
            return node
        left = Leaf(node.keys[:first] + node.keys[last:], node.values[:first] + node.values[last:])
        return left if left.count else None
    lows, children = node.lows, node.children
    first, last = bisect_right(lows, low, 1) - 1, bisect_left(lows, high, 1) - 1
    # Only the first and last affected child can keep pairs. All children in between are dropped unread.
    edges = [(at, _cut(children[at], low, high)) for at in sorted({first, last})]
    if last - first < 2 and all(kept is children[at] for at, kept in edges):
        return node
    kept = tuple((lows[at], one) for at, one in edges if one is not None)
    lows = (*lows[:first], *(at for at, _ in kept), *lows[last + 1 :])
    children = (*children[:first], *(one for _, one in kept), *children[last + 1 :])
    return Inner(lows, children, sum(one.count for one in children)) if children else None


def _above(children: Sequence[Node]) -> Inner:
    return Inner(tuple(map(_low, children)), tuple(children), sum(one.count for one in children))


def _low(node: Node) -> bytes:
    """Return a lower bound of the node's keys that is above all keys of earlier siblings."""
    return node.keys[0] if isinstance(node, Leaf) else node.lows[0]
