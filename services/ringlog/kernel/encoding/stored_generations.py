"""Generations in a snapshot: each is stored as its difference from the previous one.

Every join makes a generation that describes the whole ring again, and each stays until its rows have expired. In a ring
of 16,000 ranges the generations of two joins differ in the ranges of a few tokens, and in 38 random bits of each stream
id. The rest of an id is its range's position, and a token that follows from the range. A range takes 124 bytes in
canonical form. Here it takes five bytes for each stream id, its row if it is new, and a token if that differs.

=========  ==================================================================================
records    the canonical bytes of the generations, without the ranges that follow
ranges     for each generation with valid ranges in columns, as little-endian int64:
           its index, and the numbers of each of these:
``runs``   of unchanged ranges of the previous one: the first, and their number
``new``    ranges: end, ignored bits, number of streams
``other``  streams whose token differs from that of the same stream before: index, token
``random`` streams: five bytes each, big-endian
=========  ==================================================================================

``read_generations`` is total: for any bytes it returns generations or raises ``StateUndecodable``. Whether they are the
stored ones is verified by their digest, which covers the canonical bytes (``canonical_chunks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.encoding.decoder import StateUndecodable, decode_part
from ringlog.kernel.encoding.encoder import encode, layout_of
from ringlog.kernel.generations.canonical import size_of_canonical
from ringlog.kernel.generations.packed import PackedRanges, as_ranges
from ringlog.kernel.model.state import Generation
from ringlog.kernel.model.stream_id import INDEX_BITS, RANDOM_BITS, VERSION
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX, SHARDS_MAX
from ringlog.kernel.values import replace

I64 = NDArray[np.int64]

_INT64: Final = np.dtype("<i8")
_PLACE: Final = np.uint64(INDEX_BITS + 4)
_RANDOM_BYTES: Final = 5
assert RANDOM_BITS <= 8 * _RANDOM_BYTES, "the random bits of an id fit into its bytes"
assert RANDOM_BITS + int(_PLACE) == 64, "the random bits of an id are all above those of its place"


class _Ring(NamedTuple):
    """Ranges in columns, with the token of each stream. ``starts``: the first stream of each range."""

    ends: I64
    ignored: I64
    counts: I64
    tokens: I64

    @property
    def starts(self) -> I64:
        return self.counts.cumsum() - self.counts


_NONE: Final = _Ring(*(np.empty(0, np.int64) for _ in range(4)))


def stored_generations(generations: Sequence[Generation]) -> bytes:
    """Return the bytes that ``read_generations`` reads. ``generations`` must not be empty."""
    assert generations, "only parts with generations are stored"
    rings = [_ring_of(generation) for generation in generations]
    left = zip(generations, rings, strict=True)
    records = encode(tuple(one if ring is None else replace(one, ranges=()) for one, ring in left))
    parts = [len(records).to_bytes(8, "little"), records]
    before = _NONE
    for place, ring in enumerate(rings):
        if ring is not None:
            parts += _written(place, before, ring, generations[place].ranges)
            before = ring
    return b"".join(parts)


def read_generations(data: bytes) -> tuple[Generation, ...]:
    """Return the generations from ``stored_generations``. Raise StateUndecodable, and nothing else."""
    size = int.from_bytes(data[:8], "little")
    found: list[Generation] = list(decode_part("generations", data[8 : 8 + size]))
    if not found:
        raise StateUndecodable("stored generations: the part is empty")
    reader, before, last = _Reader(data, 8 + size), _NONE, -1
    try:
        while reader.at < len(data):
            place, runs, new, other, streams = reader.integers(5, 1)[0].tolist()
            if not last < place < len(found) or found[place].ranges:
                raise ValueError("the ranges belong to no generation")
            columns = reader.integers(2, runs), reader.integers(3, new), reader.integers(2, other)
            random = reader.take(_RANDOM_BYTES * streams)
            ring = _read(before, *columns, streams)
            ids = _ids(ring, random)
            ranges = as_ranges(PackedRanges(ring.ends, ring.ignored, ring.counts, ids))
            found[place] = replace(found[place], ranges=ranges)
            before, last = ring, place
    except (ValueError, IndexError, OverflowError) as error:
        raise StateUndecodable(f"stored generations, offset {reader.at}: {error}") from error
    return tuple(found)


def canonical_chunks(generations: Sequence[Generation]) -> Iterator[bytes]:
    """Yield ``encode`` of their tuple in chunks: the whole may be a gigabyte."""
    parts = [(_around(one), size_of_ranges(one)) for one in generations]
    sizes = [len(before) + size + len(after) for (before, after), size in parts]
    marks = [b"R%d:" % size for size in sizes]
    yield b"L%d:" % (sum(sizes) + sum(map(len, marks)))
    for mark, ((before, after), size), generation in zip(marks, parts, generations, strict=True):
        yield mark + before
        ranges = encode(generation.ranges)
        assert len(ranges) == size, "the size in the header matches the bytes that follow"
        yield ranges
        yield after


def size_of_ranges(generation: Generation) -> int:
    """Return the number of bytes of the encoded ranges."""
    ranges: Any = generation.ranges
    return size_of_canonical(ranges) if isinstance(ranges, PackedRanges) else len(encode(ranges))


def _around(generation: Generation) -> tuple[bytes, bytes]:
    """Return the bytes of its record before and after the value of the ranges."""
    class_name, layout = layout_of(Generation)
    before, after = class_name, b""
    for name, encoded, default in layout:
        item = getattr(generation, name)
        if name == "ranges":
            before, after = before + after + encoded, b""
        elif type(item) is not type(default) or item != default:
            after += encoded + encode(item)
    return before, after


# ------------------------------------------------------------------------------------------------------ columns


def _ring_of(generation: Generation) -> _Ring | None:
    """Return the columns of a generation, or None if a reader could not reproduce them."""
    ranges: Any = generation.ranges
    if not isinstance(ranges, PackedRanges) or not bool((ranges.ends[1:] > ranges.ends[:-1]).all()):
        return None
    words = np.frombuffer(ranges.streams, ">u8").reshape(-1, 2)
    ring = _Ring(ranges.ends, ranges.ignored, ranges.counts, words[:, 0].astype(np.uint64).view(np.int64))
    # Only the random bits are stored: the low bits of each id must follow from the position of its range.
    is_valid = ((words[:, 1] & ((np.uint64(1) << _PLACE) - np.uint64(1))) == _places(ring)).all()
    return ring if is_valid else None


def _places(ring: _Ring) -> NDArray[np.uint64]:
    """Return the low bits of each id: the position of its range and the version."""
    places = np.repeat(np.arange(len(ring.ends), dtype=np.uint64), ring.counts)
    return places << np.uint64(4) | np.uint64(VERSION)


def _ids(ring: _Ring, random: bytes) -> bytes:
    """Return the stream ids."""
    assert len(random) == _RANDOM_BYTES * len(ring.tokens), "each stream has random bits"
    wide = np.zeros((len(ring.tokens), 8), np.uint8)
    wide[:, 8 - _RANDOM_BYTES :] = np.frombuffer(random, np.uint8).reshape(-1, _RANDOM_BYTES)
    words = np.empty((len(ring.tokens), 2), ">u8")
    words[:, 0] = ring.tokens.view(np.uint64)
    words[:, 1] = wide.view(">u8")[:, 0] << _PLACE | _places(ring)
    return words.tobytes()


def _written(place: int, before: _Ring, ring: _Ring, ranges: Any) -> list[bytes]:
    at = np.searchsorted(before.ends, ring.ends)
    stays = at < len(before.ends)
    near = np.where(stays, at, 0)
    if len(before.ends):
        for name in ("ends", "ignored", "counts"):
            stays &= getattr(before, name)[near] == getattr(ring, name)
    kept = near[stays]
    # Kept ranges with consecutive positions make one run.
    begins = np.ones(len(kept), bool)
    begins[1:] = kept[1:] != kept[:-1] + 1
    firsts = np.flatnonzero(begins)
    runs = np.stack((kept[firsts], np.diff(np.append(firsts, len(kept)))), axis=1)
    new = np.stack((ring.ends, ring.ignored, ring.counts), axis=1)[~stays]
    # The writer runs the reader's reconstruction and stores the tokens that it gets wrong.
    again = _arranged(before, kept, new)
    assert np.array_equal(again.ends, ring.ends), "each range is either unchanged or new"
    assert len(again.tokens) == len(ring.tokens), "each range has as many streams as before"
    differ = np.flatnonzero(again.tokens != ring.tokens)
    other = np.stack((differ, ring.tokens[differ]), axis=1)
    words = np.frombuffer(ranges.streams, np.uint8).reshape(-1, 16)[:, 8:].copy().view(">u8") >> _PLACE
    random = words.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - _RANDOM_BYTES :]
    head = np.array((place, len(runs), len(new), len(other), len(ring.tokens)))
    return [*(part.astype(_INT64).tobytes() for part in (head, runs, new, other)), random.tobytes()]


def _read(before: _Ring, runs: I64, new: I64, other: I64, streams: int) -> _Ring:
    """Return the ring of these columns. Raise ValueError or IndexError for invalid ones.

    ``streams``: the number of streams with random bytes in the data. It bounds the arrays with an element per stream,
    so a hostile count cannot allocate memory.
    """
    firsts, stops = runs[:, 0], runs[:, 0] + runs[:, 1]
    if (runs < 0).any() or (firsts >= stops).any() or (firsts[1:] < stops[:-1]).any():
        raise ValueError("the runs do not ascend")
    if len(stops) and stops[-1] > len(before.ends):
        raise ValueError("a run exceeds the previous ranges")
    sizes = runs[:, 1]
    within = np.arange(int(sizes.sum())) - np.repeat(sizes.cumsum() - sizes, sizes)
    if (new[:, 1:] < (0, 1)).any() or (new[:, 1:] > (IGNORE_MSB_MAX, SHARDS_MAX)).any():
        raise ValueError("a range has invalid ignored bits or number of streams")
    kept = np.repeat(firsts, sizes) + within
    if before.counts[kept].sum() + new[:, 2].sum() != streams:
        raise ValueError("the number of streams does not match")
    ring = _arranged(before, kept, new)
    if not len(ring.ends) or (ring.ends[1:] <= ring.ends[:-1]).any():
        raise ValueError("the range ends do not ascend")
    if (other[:, 0] < 0).any():
        raise IndexError("a token belongs to no stream")
    ring.tokens[other[:, 0]] = other[:, 1]
    return ring


def _arranged(before: _Ring, kept: I64, new: I64) -> _Ring:
    """Return kept and new ranges by end. Streams of a new range have token 0, the others their previous token."""
    picked: Callable[[I64, int], I64] = lambda column, at: np.concatenate((column[kept], new[:, at]))  # noqa: E731
    ends, ignored, counts = picked(before.ends, 0), picked(before.ignored, 1), picked(before.counts, 2)
    first = np.concatenate((before.starts[kept], np.full(len(new), len(before.tokens))))
    order = np.argsort(ends, kind="stable")
    ends, ignored, counts, first = ends[order], ignored[order], counts[order], first[order]
    within = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
    at = np.repeat(first, counts)
    # New ranges point to the appended zero, one past the last token: one gather serves both kinds.
    tokens = np.append(before.tokens, 0)[np.where(at == len(before.tokens), at, at + within)]
    return _Ring(ends, ignored, counts, tokens)


class _Reader:
    """Bytes and the read position. Raise ValueError if they end too early."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= len(self.data) - self.at:
            raise ValueError(f"{size} more bytes are expected")
        self.at += size
        return self.data[self.at - size : self.at]

    def integers(self, width: int, rows: int) -> I64:
        """Return the next numbers, in rows."""
        return np.frombuffer(self.take(8 * width * rows), _INT64).astype(np.int64).reshape(-1, width)
