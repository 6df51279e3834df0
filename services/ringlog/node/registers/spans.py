"""Parts of the token ring, by keyspace, cut into intervals that do not wrap: a register lies in them, or it does not.

The ring's ranges are ``(start, end]`` and may wrap; they come in any number, in any order, and may touch or overlap.
Here they are what a sorted store can be cut by: of each keyspace ascending intervals of tokens, both ends included,
with a gap between any two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Token
from ringlog.wire.data import Key

LOWEST: Token = TOKEN_MIN - 1
"""Never the token of a name, but any number of 64 bits may come as one."""
WHOLE: Range = (TOKEN_MAX, TOKEN_MAX)
"""All tokens."""

Span = tuple[str, Token, Token]
"""Keyspace, first and last token."""


class Spans:
    """Immutable. Iterates over its spans in ascending order."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Mapping[str, Iterable[Range]]) -> None:
        self._firsts: dict[str, tuple[Token, ...]] = {}
        self._lasts: dict[str, tuple[Token, ...]] = {}
        for keyspace in sorted(ranges):
            intervals = _joined(ranges[keyspace])
            if intervals:
                self._firsts[keyspace] = tuple(first for first, _ in intervals)
                self._lasts[keyspace] = tuple(last for _, last in intervals)

    def __iter__(self) -> Iterator[Span]:
        for keyspace, firsts in self._firsts.items():
            for first, last in zip(firsts, self._lasts[keyspace], strict=True):
                yield keyspace, first, last

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, key: Key) -> bool:
        lasts = self._lasts.get(key.keyspace)
        if lasts is None:
            return False
        at = bisect_left(lasts, key.token)
        return at < len(lasts) and self._firsts[key.keyspace][at] <= key.token


NOWHERE = Spans({})


def _joined(ranges: Iterable[Range]) -> list[tuple[Token, Token]]:
    """Ascending intervals that hold the tokens of the ranges, with gaps between them."""
    cut = []
    for start, end in ranges:
        if start < end:
            cut.append((start + 1, end))
        else:  # it wraps; where both are one it is the whole ring
            cut.append((LOWEST, end))
            if start < TOKEN_MAX:
                cut.append((start + 1, TOKEN_MAX))
    cut.sort()
    found: list[tuple[Token, Token]] = []
    for first, last in cut:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found
