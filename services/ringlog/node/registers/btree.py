"""Sorted pairs of bytes as an immutable value: a B+ tree whose changes share all that they do not touch.

Keys and values are byte strings, kept in leaves of at most ``LEAF_MAX`` pairs; above them nodes of at most
``NODE_MAX`` children. A change copies the way from the root to one leaf, O(log n) small tuples, and leaves the tree
that it began with as it was: a holder of that one has a snapshot for nothing. To cut an interval out costs its two
edges, whatever lies between; to list one costs what is listed.

Pairs are byte strings, which the cyclic garbage collector does not look at, nor at tuples of them: it walks one object
for some fifty pairs. A million cells as values would be walked by each full collection, while everybody waits.

Invariants: keys ascend; no node is empty; all leaves are at one depth; ``count`` is the number of pairs below; of the
children of a node the one at ``at`` has the keys from ``lows[at]`` up to, without it, ``lows[at + 1]`` (``lows[0]`` is
never looked at). Nodes may be poorly filled after cuts: nothing is moved together again but by ``built``.

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
    """Pairs: ``keys`` ascend, each has its value at the same place."""

    __slots__ = ("count", "keys", "values")

    def __init__(self, keys: tuple[bytes, ...], values: tuple[bytes, ...]) -> None:
        self.keys = keys
        self.values = values
        self.count = len(keys)


class Inner:
    """Children of one kind, ascending."""

    __slots__ = ("children", "count", "lows")

    def __init__(self, lows: tuple[bytes, ...], children: tuple[Node, ...], count: int) -> None:
        self.lows = lows
        self.children = children
        self.count = count


Node = Leaf | Inner

EMPTY = Leaf((), ())
"""The empty tree: the only node without a pair."""


def find(node: Node, key: bytes) -> bytes | None:
    """The value of a key."""
    while isinstance(node, Inner):
        node = node.children[bisect_right(node.lows, key, 1) - 1]
    at = bisect_left(node.keys, key)
    return node.values[at] if at < node.count and node.keys[at] == key else None


def put(root: Node, key: bytes, value: bytes) -> Node:
    """The tree with this value of the key."""
    made = _put(root, key, value)
    return made[0] if len(made) == 1 else _above(made)


def cut(root: Node, low: bytes, high: bytes) -> Node:
    """The tree without the keys from ``low`` up to, without it, ``high``; the same one if it has none there."""
    if low >= high:
        return root
    found = _cut(root, low, high)
    if found is None:
        return EMPTY
    while isinstance(found, Inner) and len(found.children) == 1:
        found = found.children[0]
    return found


def leaves(node: Node, low: bytes = b"") -> Iterator[Leaf]:
    """The leaves in ascending order, from the one on in which ``low`` would be."""
    if isinstance(node, Leaf):
        if node.count:
            yield node
        return
    first = bisect_right(node.lows, low, 1) - 1
    yield from leaves(node.children[first], low)
    for child in node.children[first + 1 :]:
        yield from leaves(child)


def between(node: Node, low: bytes, high: bytes) -> Iterator[Pair]:
    """The pairs from ``low`` up to, without it, ``high``."""
    for leaf in leaves(node, low):
        keys = leaf.keys
        first = bisect_left(keys, low) if keys[0] < low else 0
        last = bisect_left(keys, high) if keys[-1] >= high else leaf.count
        yield from zip(keys[first:last], leaf.values[first:last], strict=True)
        if last < leaf.count:
            return


def built(pairs: Iterable[tuple[Sequence[bytes], Sequence[bytes]]]) -> Node:
    """The tree of ascending keys and their values, which come in portions. Takes no time to speak of for each pair."""
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
    """The node with the pair, or the two that it became."""
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
    """What is left of a node: the same one if nothing goes, None if everything does."""
    if isinstance(node, Leaf):
        first, last = bisect_left(node.keys, low), bisect_left(node.keys, high)
        if first == last:
            return node
        left = Leaf(node.keys[:first] + node.keys[last:], node.values[:first] + node.values[last:])
        return left if left.count else None
    lows, children = node.lows, node.children
    first, last = bisect_right(lows, low, 1) - 1, bisect_left(lows, high, 1) - 1
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
    """A key that is not above those of the node, and above those of the nodes before."""
    return node.keys[0] if isinstance(node, Leaf) else node.lows[0]
