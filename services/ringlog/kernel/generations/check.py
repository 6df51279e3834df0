"""Validity rules of the data of a generation, checked before the data enters the state.

A part can be checked alone except for its edges: the start of its first range, and the position of that range in the
whole. ``broken_part`` checks a part when it arrives; ``broken_whole`` checks the edges when all parts have arrived.

Rules: ends are tokens and ascend. Each range has 1 to 4096 streams. An id has version 1, the position of its range as
index, and a token inside its range. The ids of a range differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringlog.kernel.generations.packed import PackedRanges, packed
from ringlog.kernel.model.stream_id import INDEX_BITS, RANGES_MAX, STREAM_ID_BYTES, VERSION
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX, SHARDS_MAX
from ringlog.kernel.values import GenerationRange, Token, is_token

_PLACE_BITS = INDEX_BITS + 4
_ID = f"S{STREAM_ID_BYTES}"


def broken_part(ranges: Sequence[GenerationRange]) -> str | None:
    """Return the first rule that a part breaks alone, in words with the range's end, or None."""
    first = _first_index(ranges)
    if first is None:
        return "must hold at least one range, with 16-byte stream ids"
    if _is_valid(packed(ranges), first):
        return None
    return _first_broken(ranges, first)


def _first_broken(ranges: Sequence[GenerationRange], first: int) -> str | None:
    """Return the first broken rule in words: this scalar loop defines the rules."""
    before: Token | None = None
    for position, described in enumerate(ranges, start=first):
        broken = _broken_shape(described) or _broken_streams(described, position, before)
        if broken is not None:
            return f"range {position} that ends at {described.end}: {broken}"
        if before is not None and described.end <= before:
            return f"range {position} that ends at {described.end}: ends must ascend, the previous end is {before}"
        before = described.end
    return None


def _is_valid(columns: PackedRanges | None, first: int) -> bool:
    """Return True only if no rule is broken. All ranges are checked at once, since nearly every part is valid."""
    if columns is None:
        return False
    bounds, counts = columns.ends, columns.counts
    fields = np.frombuffer(columns.streams, dtype=">u8").reshape(-1, 2)
    places = np.repeat(np.arange(first, first + len(bounds), dtype=np.uint64), counts) << np.uint64(4)
    if (fields[:, 1] & np.uint64((1 << _PLACE_BITS) - 1) != places | np.uint64(VERSION)).any():
        return False
    # Ids of two ranges differ, because they contain the range's position. The S dtype drops trailing zero bytes, which
    # is safe here: an id ends with its version, which is not zero.
    if counts.max() > 1 and len(set(np.frombuffer(columns.streams, dtype=_ID).tolist())) < len(fields):
        return False
    # The start of the first range is in the previous part: ``broken_whole`` checks its tokens.
    tokens = fields[:, 0].astype(np.int64)[counts[0] :]
    starts, stops = np.repeat(bounds[:-1], counts[1:]), np.repeat(bounds[1:], counts[1:])
    return bool((bounds[:-1] < bounds[1:]).all() and (starts < tokens).all() and (tokens <= stops).all())


def broken_whole(parts: Sequence[Sequence[GenerationRange]]) -> str | None:
    """Return the first rule broken at the edges of parts (each valid alone) in their order, or None."""
    position = 0
    before = parts[-1][-1].end
    for number, ranges in enumerate(parts):
        head = ranges[0]
        if _first_index(ranges) != position:
            return f"part {number} must begin with range {position}, its streams begin with {_first_index(ranges)}"
        if number > 0 and head.end <= before:
            return f"part {number} begins at or before the end of the previous part, {before}"
        broken = _broken_streams(head, position, before)
        if broken is not None:
            return f"range {position} that ends at {head.end}: {broken}"
        position += len(ranges)
        before = ranges[-1].end
    return None


def _first_index(ranges: Sequence[GenerationRange]) -> int | None:
    """Return the index in the first stream id of a part: the position of its first range in the whole."""
    if not ranges or not ranges[0].streams or len(ranges[0].streams[0]) != STREAM_ID_BYTES:
        return None
    return int.from_bytes(ranges[0].streams[0][8:], "big") >> 4 & (RANGES_MAX - 1)


def _broken_shape(described: GenerationRange) -> str | None:
    streams = described.streams
    if not is_token(described.end):
        return "the end is not a token"
    if not 0 <= described.ignore_msb <= IGNORE_MSB_MAX:
        return f"ignore_msb must be between 0 and {IGNORE_MSB_MAX}"
    if not 1 <= len(streams) <= SHARDS_MAX:
        return f"there must be 1 to {SHARDS_MAX} streams"
    if any(len(stream) != STREAM_ID_BYTES for stream in streams):
        return f"stream ids must have {STREAM_ID_BYTES} bytes"
    if len(set(streams)) < len(streams):
        return "a stream id appears twice"
    return None


def _broken_streams(described: GenerationRange, position: int, before: Token | None) -> str | None:
    """Return the broken rule of one range's ids, or None. Without ``before``, its start, tokens are not checked."""
    fields = np.frombuffer(b"".join(described.streams), dtype=">u8").reshape(-1, 2)
    if (fields[:, 1] & np.uint64((1 << _PLACE_BITS) - 1) != position << 4 | VERSION).any():
        return f"each stream id must have index {position} and version {VERSION}"
    if before is None:
        return None
    for token in fields[:, 0].astype(np.int64).tolist():
        if not in_range(token, before, described.end) or not is_token(token):
            return f"token {token} of a stream lies outside the range, which starts at {before}"
    return None
