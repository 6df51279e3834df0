"""Streams of many tokens at once, on numpy arrays: the lookup table of the CDC pipeline.

Flat arrays hold the ranges and streams of several generations one after the other. Offsets mark the start of a
generation and the first stream of a range. The table is read-only: it can be broadcast and shared by threads. Its
results equal those of ``acceptance.stream_of``, which the tests use as the oracle. Python loops run only over
generations, never over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.model.stream_id import STREAM_ID_BYTES
from ringlog.kernel.ring.vectors import CHUNK_ROWS, HALF, I64, shards_of
from ringlog.kernel.values import TOKEN_MAX, GenerationRange

_ID = np.dtype(f"V{STREAM_ID_BYTES}")
"""A stream id as one opaque element, so that numpy gathers its 16 bytes at once."""

SLOTS_PER_RANGE = 4
SLOTS_MAX = 1 << 20
STEPS_MAX = 16


class StreamTable:
    """The streams of several generations, given by their ranges and numbered from 0 in that order.

    ``streams``: all ids, (total, 16) ``uint8``, by generation, range and slot. A generation without ranges (its streams
    are forgotten) only has its number.
    """

    __slots__ = ("_rings", "streams")

    def __init__(self, generations: Sequence[Sequence[GenerationRange]]) -> None:
        joined = b"".join(stream for ranges in generations for described in ranges for stream in described.streams)
        self.streams: NDArray[np.uint8] = np.frombuffer(joined, dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
        rings: list[_Ring | None] = []
        first = 0
        for ranges in generations:
            ring = _Ring(ranges, first) if ranges else None
            first += ring.total if ring is not None else 0
            rings.append(ring)
        assert first == len(self.streams), "each stream belongs to a range"
        self._rings = tuple(rings)

    def locate(self, tokens: I64, generation: NDArray[Any] | int) -> I64:
        """Return the rows of ``streams`` (``int64``) of ``tokens`` (``int64``) in the generations of these indexes.

        ``generation`` is an integer array as long as ``tokens``, or one index for all. Raise ``IndexError`` for an
        index that is not in the table or has no streams. Remove rejected writes first, as they have no generation.
        """
        assert np.ndim(generation) == 0 or np.shape(generation) == np.shape(tokens), "each token has a generation"
        if isinstance(generation, int):
            low = high = generation
        elif not len(tokens):
            return np.empty(0, dtype=np.int64)
        else:
            low, high = int(generation.min()), int(generation.max())
        if low < 0 or high >= len(self._rings):
            raise IndexError(f"generation indexes must lie between 0 and {len(self._rings) - 1}, not {low} to {high}")
        located = np.empty(len(tokens), dtype=np.int64)
        if low == high:
            self._ring(low).locate(np.ascontiguousarray(tokens), located)
            return located
        for index in range(low, high + 1):
            rows = np.flatnonzero(generation == index)
            if len(rows):
                part = np.empty(len(rows), dtype=np.int64)
                self._ring(index).locate(tokens[rows], part)
                located[rows] = part
        return located

    def _ring(self, index: int) -> _Ring:
        ring = self._rings[index]
        if ring is None:
            raise IndexError(f"the streams of generation {index} are pruned")
        return ring

    def route(self, tokens: I64, generation: NDArray[Any] | int) -> NDArray[np.uint8]:
        """Return the stream ids, (n, 16) ``uint8`` and contiguous, of ``tokens`` in generations as in ``locate``."""
        ids = self.streams.view(_ID)[:, 0] if len(self.streams) else np.empty(0, dtype=_ID)
        return ids.take(self.locate(tokens, generation)).view(np.uint8).reshape(-1, STREAM_ID_BYTES)


class _Ring:
    """The ranges of one generation; its ``total`` streams start at row ``first`` of the table.

    A lookup table with equal slots of the ring, a few per range, finds a token's range. A slot has the first range that
    can hold its tokens; from there the search mostly takes no step or one. That is ten times as fast as bisection,
    which jumps through the ends. If tokens are so uneven that a slot has many ends, bisection is used.
    """

    __slots__ = ("_ends", "_first", "_ignore_msb", "_low", "_shards", "_shift", "total")

    def __init__(self, ranges: Sequence[GenerationRange], first: int) -> None:
        ends = np.array([described.end for described in ranges], dtype=np.int64)
        counts = np.array([len(described.streams) for described in ranges], dtype=np.int64)
        ignore_msb = np.array([described.ignore_msb for described in ranges], dtype=np.int64)
        assert (ends[:-1] < ends[1:]).all(), "range ends ascend"
        self.total = int(counts.sum())
        # A token above the last end belongs to range 0. An additional entry at the end stands in for it, so no index
        # wraps.
        self._ends = np.append(ends, TOKEN_MAX)
        self._first = np.append(first + np.cumsum(counts) - counts, first)
        self._shards = _one_or_each(np.append(counts, counts[:1]))
        self._ignore_msb = _one_or_each(np.append(ignore_msb, ignore_msb[:1]))
        bits = min(len(ends) * SLOTS_PER_RANGE, SLOTS_MAX).bit_length()
        self._shift = np.uint64(64 - bits)
        slot_starts = ((np.arange(1 << bits, dtype=np.uint64) << self._shift) ^ HALF).view(np.int64)
        low = np.searchsorted(ends, slot_starts)
        # Bounds the steps of a lookup: uneven tokens would make the search linear.
        self._low = low if np.diff(low, append=len(ends)).max() <= STEPS_MAX else None

    def locate(self, tokens: I64, out: I64) -> None:
        """Write the table's rows of the streams of ``tokens`` into ``out``."""
        for at in range(0, len(tokens), CHUNK_ROWS):
            chunk = tokens[at : at + CHUNK_ROWS]
            place = self._place(chunk)
            shards = self._shards if isinstance(self._shards, int) else self._shards.take(place)
            ignore_msb = self._ignore_msb if isinstance(self._ignore_msb, int) else self._ignore_msb.take(place)
            located = shards_of(chunk, shards, ignore_msb)
            located += self._first.take(place)
            out[at : at + CHUNK_ROWS] = located

    def _place(self, tokens: I64) -> I64:
        """Return the number of ends below each token: its range, or the entry after the last one for range 0."""
        if self._low is None:
            return np.searchsorted(self._ends[:-1], tokens)
        place = self._low.take((tokens.view(np.uint64) ^ HALF) >> self._shift)
        below = self._ends.take(place) < tokens
        place += below
        rows = np.flatnonzero(below)
        while len(rows):
            rows = rows[self._ends.take(place.take(rows)) < tokens.take(rows)]
            place[rows] += 1
        return place


def _one_or_each(values: I64) -> int | I64:
    """Return the common value, or the array: most clusters have the same number of shards everywhere."""
    return int(values[0]) if (values == values[0]).all() else values
