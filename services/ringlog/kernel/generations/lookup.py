"""Which generation operates at a time, and which of its streams a token belongs to: the scalar definition.

A generation operates from its timestamp (included) to the next one's (excluded). Within it a token belongs to the
range with the first end at or above it (range 0 if there is none), and there to the stream in the slot of its shard.
The ranges are those of the ring, or the tablets of the row's table, if the generation describes it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ringlog.kernel.generations.tablet_streams import described_as, ranges_of
from ringlog.kernel.ring.shards import shard_of
from ringlog.kernel.state import Generation
from ringlog.kernel.values import GenerationRange, Micros, Token


def generation_at(generations: Sequence[Generation], at: Micros) -> Generation | None:
    """The one of ``generations`` (by ascending timestamp) that operates at ``at``; None before the first."""
    index = index_at(tuple(generation.timestamp for generation in generations), at)
    return generations[index] if index >= 0 else None


def index_at(timestamps: Sequence[Micros], at: Micros) -> int:
    """The index in ascending ``timestamps`` of the generation that operates at ``at``; -1 before the first."""
    return bisect_right(timestamps, at) - 1


def range_of(ranges: Sequence[GenerationRange], token: Token) -> int:
    """The index of the range (of ``ranges`` by ascending end, not empty) that holds ``token``."""
    index = bisect_left(ranges, token, key=lambda described: described.end)
    return index if index < len(ranges) else 0


def stream_of(generation: Generation, token: Token, table: str = "") -> bytes:
    """The 16-byte id of the stream to which ``token`` belongs in ``generation``; ``table``: id of the row's table."""
    own = described_as(generation.tables, table)
    ranges = generation.ranges if own is None else ranges_of(generation.timestamp, own)
    described = ranges[range_of(ranges, token)]
    return described.streams[shard_of(token, len(described.streams), described.ignore_msb)]
