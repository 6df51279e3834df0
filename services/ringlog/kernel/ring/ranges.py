"""Ranges of the token ring: ``(start, end]``, wrapping when ``start >= end``.

``(t, t]`` is the whole ring. A sorted tuple of n distinct tokens splits the ring into n ranges, each named by its end;
the first one wraps (it starts at the last token). Every lookup is a bisection over those ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ringlog.kernel.values import Token

Range = tuple[Token, Token]
"""``(start, end]``."""


def in_range(token: Token, start: Token, end: Token) -> bool:
    """Return True if ``token`` is in ``(start, end]``."""
    if start < end:
        return start < token <= end
    return token > start or token <= end


def index_at(ends: Sequence[Token], token: Token) -> int:
    """Return the index of the range that holds ``token``, given all range ends (at least one), ascending. O(log n)."""
    assert ends, "an empty ring has no ranges"
    index = bisect_left(ends, token)
    return index if index < len(ends) else 0


def ranges_between(ends: Sequence[Token]) -> tuple[Range, ...]:
    """Return the ranges between ascending distinct ``ends``, in that order; the first one wraps."""
    return tuple((ends[index - 1], end) for index, end in enumerate(ends))


def overlap(one: Range, other: Range) -> bool:
    """Return True if a token is in both ranges. Then the end of one of them is in the other."""
    return in_range(one[1], *other) or in_range(other[1], *one)
