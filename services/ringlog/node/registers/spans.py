"""Token ranges of keyspaces as disjoint intervals that do not wrap around the ring.

The ring's ranges are ``(start, end]``. They may wrap, overlap, touch, and come in any number and order. A sorted store
needs intervals instead: for each keyspace ascending intervals of tokens, both ends included, with a gap between
neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Token
from ringlog.wire.data import Key

LOWEST: Token = TOKEN_MIN - 1
"""Never the token of a name, but a message may contain any 64-bit number as a token."""
WHOLE: Range = (TOKEN_MAX, TOKEN_MAX)
"""All tokens."""

Span = tuple[str, Token, Token]
"""Keyspace, first and last token."""


class Spans:
    """An immutable set of tokens by keyspace. Iterates over its spans in ascending order."""

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


NO_SPANS = Spans({})


def _joined(ranges: Iterable[Range]) -> list[tuple[Token, Token]]:
    """Return ascending intervals that contain the tokens of the ranges, with gaps between them."""
    cut = []
    for start, end in ranges:
        if start < end:
            cut.append((start + 1, end))
        else:  # The range wraps. If both ends are equal, it is the whole ring.
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
