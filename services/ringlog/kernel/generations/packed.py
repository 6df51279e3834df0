"""The ranges of a generation in columns: every replica stores them for a large ring, and few readers need single
ranges.

A generation describes the whole ring again, with a range and its stream ids for each token. The fold needs little of
that: whether the ranges are valid, their digest, and whether their ends are the tokens. Columns answer this for all
ranges at once, in a tenth of the memory of separate objects.

``PackedRanges`` replaces a tuple of ``GenerationRange``. Code that encodes or publishes single ranges gets the tuple.
Only ranges of the right shape are packed: ends are tokens, ignored bits and stream numbers are within their bounds, ids
have 16 bytes. Invalid data stays a tuple, and ``check`` describes its error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, cast, overload

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.columns.lazy_tuple import LazyTuple
from ringlog.kernel.model.stream_id import STREAM_ID_BYTES
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX, SHARDS_MAX
from ringlog.kernel.values import GenerationRange, Token, is_token

Ranges = tuple[GenerationRange, ...]

PACKED_FROM: Final = 64
"""Minimum number of ranges to pack: fewer are faster one by one."""

assert IGNORE_MSB_MAX << 32 | SHARDS_MAX < 1 << 63, "``digest_of`` hashes both as one word"
assert SHARDS_MAX < 1 << 32, "the number of streams fits into the low half of that word"


class PackedRanges(LazyTuple[GenerationRange]):
    """At least one range, in read-only columns.

    ``ends``, ``ignored``, ``counts`` (of streams): ``int64``, one element per range. ``streams``: all ids, by range and
    slot.
    """

    __slots__ = ("counts", "ends", "ignored", "streams")

    def __init__(self, ends: NDArray[Any], ignored: NDArray[Any], counts: NDArray[Any], streams: bytes) -> None:
        assert len(ends) == len(ignored) == len(counts) > 0, "columns of ranges have the same length"
        assert len(streams) == STREAM_ID_BYTES * int(counts.sum()), "the ids of all streams are present"
        self.ends = ends
        self.ignored = ignored
        self.counts = counts
        self.streams = streams
        self._made = None

    def _make(self) -> Ranges:
        ids = [self.streams[at : at + STREAM_ID_BYTES] for at in range(0, len(self.streams), STREAM_ID_BYTES)]
        stops = self.counts.cumsum()
        bounds = zip((stops - self.counts).tolist(), stops.tolist(), strict=True)
        own = (tuple(ids[start:stop]) for start, stop in bounds)
        return tuple(map(GenerationRange, self.ends.tolist(), self.ignored.tolist(), own))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, at: int) -> GenerationRange: ...
    @overload
    def __getitem__(self, at: slice) -> Ranges: ...
    def __getitem__(self, at: int | slice) -> GenerationRange | Ranges:
        if self._made is None and at in (0, -1):  # checks of part edges need only these
            ids = STREAM_ID_BYTES * int(self.counts[at])
            own = self.streams[:ids] if at == 0 else self.streams[-ids:]
            streams = tuple(own[start : start + STREAM_ID_BYTES] for start in range(0, ids, STREAM_ID_BYTES))
            return GenerationRange(int(self.ends[at]), int(self.ignored[at]), streams)
        return super().__getitem__(at)

    def _equals(self, other: LazyTuple[GenerationRange]) -> bool:
        assert isinstance(other, PackedRanges), "only values of the same class are compared"
        same = self.streams == other.streams and len(self) == len(other)
        return same and all(map(np.array_equal, self._columns(), other._columns()))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.ends, self.ignored, self.counts


def packed(ranges: Sequence[GenerationRange]) -> PackedRanges | None:
    """Return the ranges in columns; None if there are none, or one has a wrong shape."""
    if isinstance(ranges, PackedRanges):
        return ranges
    ends = [described.end for described in ranges]
    ignored = [described.ignore_msb for described in ranges]
    counts = [len(described.streams) for described in ranges]
    streams = [stream for described in ranges for stream in described.streams]
    if not (
        (ends and is_token(min(ends)) and is_token(max(ends)))
        and (min(ignored) >= 0 and max(ignored) <= IGNORE_MSB_MAX)
        and (min(counts) >= 1 and max(counts) <= SHARDS_MAX)
        and set(map(len, streams)) == {STREAM_ID_BYTES}
    ):
        return None
    bounds, bits, numbers = (np.array(column, dtype=np.int64) for column in (ends, ignored, counts))
    return PackedRanges(bounds, bits, numbers, b"".join(streams))


def to_stored(ranges: Ranges) -> Ranges:
    """Return the ranges as a state stores them: packed if there are many."""
    columns = packed(ranges) if len(ranges) >= PACKED_FROM else None
    return ranges if columns is None else as_ranges(columns)


def as_ranges(columns: PackedRanges) -> Ranges:
    """Return the same object, typed as a tuple of ranges: fields of states and commands have that type."""
    return cast(Ranges, columns)


def concatenated(parts: Sequence[Sequence[GenerationRange]]) -> Ranges:
    """Return all ranges of the parts, in their order; packed if all parts are."""
    if len(parts) == 1:
        return cast(Ranges, parts[0])
    columns = [part for part in parts if isinstance(part, PackedRanges)]
    if len(columns) < len(parts):
        return tuple(chain.from_iterable(parts))
    ends, ignored, counts = map(np.concatenate, zip(*(part._columns() for part in columns), strict=True))
    assert len(ends) == sum(map(len, parts)), "no range is lost"
    return as_ranges(PackedRanges(ends, ignored, counts, b"".join([part.streams for part in columns])))


def ends_of(ranges: Sequence[GenerationRange]) -> list[Token]:
    """Return the end of each range."""
    if isinstance(ranges, PackedRanges):
        return cast(list[Token], ranges.ends.tolist())
    return [described.end for described in ranges]


def no_ends(ranges: Sequence[GenerationRange], tokens: Sequence[Token]) -> list[Token]:
    """Return the ``tokens`` that are not the end of a range."""
    if isinstance(ranges, PackedRanges):
        # A token above the last end has the index after it, which does not exist: it is compared with the last end.
        places = np.searchsorted(ranges.ends, np.array(tokens, dtype=np.int64))
        there = ranges.ends[np.minimum(places, len(ranges) - 1)].tolist()
        return [token for token, end in zip(tokens, there, strict=True) if token != end]
    return sorted(set(tokens).difference(described.end for described in ranges))


def streams_in(ranges: Sequence[GenerationRange]) -> int:
    """Return the number of streams of all ranges."""
    if isinstance(ranges, PackedRanges):
        return len(ranges.streams) // STREAM_ID_BYTES
    return sum([len(described.streams) for described in ranges])


def digest_of(columns: PackedRanges) -> str:
    """Return the hex SHA-256 of the ranges: for each a head of 16 bytes (end, ignored bits, number of streams), then
    its ids.

    So the hashed data consists of words of 16 bytes, one per range and one per stream.
    """
    heads = np.empty((len(columns), 2), dtype=">u8")
    heads[:, 0] = columns.ends.view(np.uint64)
    heads[:, 1] = (columns.ignored << 32 | columns.counts).view(np.uint64)
    ids = np.frombuffer(columns.streams, dtype=">u8").reshape(-1, 2)
    streams = int(columns.counts[0])
    if (columns.counts == streams).all():  # all machines have the same shards: no scatter is needed
        rows = np.empty((len(heads), 1 + streams, 2), dtype=">u8")
        rows[:, 0], rows[:, 1:] = heads, ids.reshape(-1, streams, 2)
        return hashlib.sha256(rows.data).hexdigest()
    places = np.arange(len(columns)) + columns.counts.cumsum() - columns.counts
    words = np.empty((len(heads) + len(ids), 2), dtype=">u8")
    assert places[-1] + 1 + columns.counts[-1] == len(words), "the streams of the last range are the last words"
    words[places] = heads
    others = np.ones(len(words), dtype=bool)
    others[places] = False
    words[others] = ids
    return hashlib.sha256(words.data).hexdigest()
