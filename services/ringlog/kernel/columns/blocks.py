"""Long tuples that change a little between states, stored in blocks that states share.

A large cluster has sixteen thousand ranges for each replication setting, and a step of an operation changes a hundred
of them. Copying all the others would cost more than the step. ``Blocks`` replaces a tuple and is equal to it, with the
same encoding and digest. A change copies the list of blocks and the changed blocks; the other blocks are shared. Blocks
have at most ``BLOCK_MAX`` items; a longer block is split.

The settings of a cluster are split at the same tokens and change in the same ranges, one after the other. So equally
split tuples share one object with the starts of their blocks, and the blocks of a list of positions are looked up once
for all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final, TypeVar, cast, overload

from ringlog.kernel.columns.lazy_tuple import IdentityCache

T = TypeVar("T")

BLOCK: Final = 64
"""Number of items in a new block."""

BLOCK_MAX: Final = 2 * BLOCK
BLOCKS_FROM: Final = 8 * BLOCK
"""Minimum number of items for blocks: copying fewer is as fast."""

Starts = tuple[int, ...]
"""The position of the first item of each block, and the number of all items."""

Reached = tuple[Sequence[tuple[int, int]], Sequence[int]]
"""For each position its block and its index in the block, then each of these blocks once."""

_reached: Final = IdentityCache[Sequence[int], tuple[Starts, Reached]](8)
"""Positions to the starts of blocks that they were looked up in, and the result."""

_grown: Final = IdentityCache[Starts, tuple[Sequence[int], Sequence[int], Starts]](4)
"""Starts of blocks to the replaced positions, the number of replacements for each, and the new starts."""


class Blocks(Sequence[T]):
    """Items in their order. ``blocks`` is never modified and has no empty block."""

    __slots__ = ("_starts", "blocks")

    def __init__(self, blocks: Iterable[tuple[T, ...]], starts: Starts | None = None) -> None:
        """Take the blocks, and their ``starts`` if these are known."""
        self.blocks = tuple(blocks)
        self._starts = starts or (0, *accumulate(map(len, self.blocks)))
        assert len(self._starts) == len(self.blocks) + 1, "each block has a start"
        assert all(self.blocks), "no block is empty"
        assert not self.blocks or self._starts[-2] + len(self.blocks[-1]) == self._starts[-1], (
            "the last block ends at the end of the sequence"
        )

    def _place(self, at: int) -> tuple[int, int]:
        """Return the number of the block that has the item, and the start of that block."""
        if not 0 <= at < len(self):
            raise IndexError(at)
        number = bisect_right(self._starts, at) - 1
        return number, self._starts[number]

    def _reach(self, places: Sequence[int]) -> Reached:
        """Return the blocks and indices of ascending positions. The caller must never modify ``places``: it is a cache
        key.
        """
        starts, known = self._starts, _reached.get(places)
        if known is not None and known[0] is starts:
            return known[1]
        assert not places or 0 <= places[0] <= places[-1] < starts[-1], "positions are within the sequence"
        found: list[tuple[int, int]] = []
        numbers: list[int] = []
        before, end = -1, 0
        for at in places:
            assert at > before, "positions ascend"
            if at >= end:
                number = bisect_right(starts, at) - 1
                numbers.append(number)
                end = starts[number + 1]
            found.append((number, at - starts[number]))
            before = at
        return _reached.put(places, (starts, (found, numbers)))[1]

    def picked(self, places: Sequence[int]) -> list[T]:
        """Return the items at ascending positions."""
        blocks = self.blocks
        return [blocks[number][at] for number, at in self._reach(places)[0]]

    def with_items(self, places: Sequence[int], items: Sequence[T]) -> Blocks[T]:
        """Return a copy with other ``items`` at ascending positions."""
        assert len(places) == len(items), "each position gets one item"
        where, numbers = self._reach(places)
        opened = {number: list(self.blocks[number]) for number in numbers}
        for (number, at), item in zip(where, items, strict=True):
            opened[number][at] = item
        blocks = list(self.blocks)
        for number, block in opened.items():
            blocks[number] = tuple(block)
        changed: Blocks[T] = Blocks.__new__(Blocks)  # the number of items stays, so do the starts
        changed.blocks, changed._starts = tuple(blocks), self._starts
        return changed

    def with_more(self, places: Sequence[int], instead: Sequence[Sequence[T]]) -> Blocks[T]:
        """Return a copy with zero or more items ``instead`` of the item at each of the ascending positions."""
        assert len(places) == len(instead), "each position gets a replacement"
        blocks: list[tuple[T, ...]] = []
        seen, last, grown, block = 0, -1, 0, list[T]()
        for (number, at), items in zip(self._reach(places)[0], instead, strict=True):
            if number != last:
                blocks += _cut(block)
                blocks += self.blocks[seen:number]
                seen, last, grown, block = number + 1, number, 0, list(self.blocks[number])
            block[at + grown : at + grown + 1] = items
            grown += len(items) - 1
        blocks += _cut(block)
        blocks += self.blocks[seen:]
        # The settings of a cluster grow alike. Their copies must share one object of starts, or _reached never hits
        # again.
        counts, known = list(map(len, instead)), _grown.get(self._starts)
        if known is not None and known[0] == places and known[1] == counts:
            return Blocks(blocks, known[2])
        changed = Blocks(blocks)
        assert len(changed) == len(self) + sum(counts) - len(counts), "only the items at these positions are replaced"
        _grown.put(self._starts, (places, counts, changed._starts))
        return changed

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        if at < 0:
            at += len(self)
        number, start = self._place(at)
        return self.blocks[number][at - start]

    def at_place(self, at: int) -> T:
        """Return the item at an existing position, without a check: every request looks up its range here."""
        number = bisect_right(self._starts, at) - 1
        return self.blocks[number][at - self._starts[number]]

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.blocks)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Blocks):
            return self.blocks == other.blocks or tuple(self) == tuple(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def in_blocks(items: Sequence[T]) -> tuple[T, ...]:
    """Return the items typed as the tuple that they replace, in blocks if there are many."""
    if not isinstance(items, Blocks) and len(items) >= BLOCKS_FROM:
        parts = (tuple(items[at : at + BLOCK]) for at in range(0, len(items), BLOCK))
        items = Blocks(parts, _even_starts(len(items), BLOCK))
    return cast(tuple[T, ...], items if isinstance(items, Blocks) else tuple(items))


def items_at(items: Sequence[T], places: Sequence[int]) -> list[T]:
    """Return the items at ascending positions."""
    return items.picked(places) if isinstance(items, Blocks) else [items[at] for at in places]


def with_items(items: Sequence[T], places: Sequence[int], others: Sequence[T]) -> tuple[T, ...]:
    """Return a copy with ``others`` at ascending positions."""
    items = in_blocks(items)
    if isinstance(items, Blocks):
        return in_blocks(items.with_items(places, others))
    changed = list(items)
    for at, item in zip(places, others, strict=True):
        changed[at] = item
    return tuple(changed)


def with_more(items: Sequence[T], places: Sequence[int], instead: Sequence[Sequence[T]]) -> tuple[T, ...]:
    """Return a copy with zero or more items ``instead`` of the item at each of the ascending positions."""
    items = in_blocks(items)
    if isinstance(items, Blocks):
        return in_blocks(items.with_more(places, instead))
    changed = list(items)
    for at, more in zip(reversed(places), reversed(instead), strict=True):
        changed[at : at + 1] = more
    return tuple(changed)


def unshared_items(before: Sequence[T], after: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the items of each sequence that are in no shared block, in order; all if a sequence has no blocks."""
    if not (isinstance(before, Blocks) and isinstance(after, Blocks)):
        return before, after
    was, now = set(map(id, before.blocks)), set(map(id, after.blocks))
    gone = [item for block in before.blocks if id(block) not in now for item in block]
    return gone, [item for block in after.blocks if id(block) not in was for item in block]


def taken_over(before: Sequence[T], after: Sequence[T]) -> Iterator[tuple[int | None, Sequence[T]]]:
    """Yield ``after`` in parts, each with the position of the same block in ``before``; None: a new block."""
    if not (isinstance(before, Blocks) and isinstance(after, Blocks)):
        yield None, after
        return
    known = dict(zip(map(id, before.blocks), before._starts[:-1], strict=True))
    for block in after.blocks:
        yield known.get(id(block)), block


@lru_cache(maxsize=4)
def _even_starts(count: int, size: int) -> Starts:
    """Return the starts of blocks of ``size`` for ``count`` items; the last block may be shorter."""
    return (*range(0, count, size), count)


def _cut(items: list[T]) -> Iterable[tuple[T, ...]]:
    """Return one block, several if it is too long, or none without items."""
    if len(items) <= BLOCK_MAX:
        return (tuple(items),) if items else ()
    return (tuple(items[at : at + BLOCK]) for at in range(0, len(items), BLOCK))
