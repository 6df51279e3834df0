"""Vectorized decoding of the ranges of a CDC generation: in a large cluster each join contains 16,000 of them.

An item begins with the range's end, a number of one to ten bytes. The ignored bits and the number of streams follow, in
one byte each, then the ids of the streams and a zero.

Ends ascend, so most items are as long as the previous one. A sequence of items of the same length is a *stretch*. It is
viewed as a table of bytes, and its columns are decoded together. Ranges with different numbers of streams are located
one by one, and then decoded together from these positions. The result stays in arrays (``kernel.generations.packed``).

Invariant: this returns the same values as the general reader, or None. The general reader then handles the bytes. This
applies to short arrays, to bytes that are not canonical, and to values that do not fit into a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.generations.packed import PACKED_FROM, PackedRanges
from ringlog.kernel.model.stream_id import STREAM_ID_BYTES
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX
from ringlog.kernel.values import TOKEN_MIN
from ringlog.wire.avro.reading import Read, number_at

_LONGEST: Final = 10
"""Maximum bytes of a 64-bit number: seven bits in each byte, and one continuation bit."""

_EIGHT_GO_ON: Final = 0x8080808080808080
_GOES_ON: Final = np.uint64(_EIGHT_GO_ON)
"""The continuation bits of eight bytes."""
_LAST_BITS: Final = np.array([2 ** (8 * size - 1) for size in range(1, 9)], dtype=np.uint64)
"""The continuation bit of each of eight bytes."""

_EQUAL_ROWS_FROM: Final = 4
"""Number of consecutive items with equal length that start a stretch. It grows after each short stretch."""

_WORTH: Final = 64
"""Minimum length of a stretch that is faster than locating its items one by one."""

_STRETCH: Final = 4_096
"""Maximum number of items in a stretch."""


def ranges_reader(items: Mapping[str, Any], one_by_one: Read) -> Read:
    """Return a reader of an array of ranges. ``items`` is the schema of a range, ``one_by_one`` the general reader."""
    assert [field["name"] for field in items["fields"]] == ["end", "ignore_msb", "streams"], "the columns' order"

    def read(body: bytes, at: int) -> tuple[Any, int]:
        try:
            found = _packed_at(body, at)
        except (IndexError, ValueError):
            found = None
        return one_by_one(body, at) if found is None else found

    return read


_Columns = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8], bytes]
"""Columns of some items: ends, ignored bits (doubled), numbers of streams (doubled), and ids.

The doubled values are the zigzag encoding of small positive numbers.
"""


def _packed_at(body: bytes, at: int) -> tuple[PackedRanges, int] | None:
    """Return the ranges and the position after them. None or IndexError: use the general reader."""
    count, at = number_at(body, at)
    if not PACKED_FROM <= count <= len(body) - at:
        return None
    found: list[_Columns] = []
    single: list[tuple[int, int]] = []
    before: list[int] = []
    left, step, alike, enough = count, 0, 0, _EQUAL_ROWS_FROM
    while left:
        size, length = _size_at(body, at)
        # Count consecutive items of equal length. Too few of them are noted in ``single`` and decoded later.
        alike, step = (alike + 1 if length == step else 0), length
        if alike < enough:
            single.append((at, length))
            at, left = at + length, left - 1
            continue
        columns, more = _stretch(body, at, min(left, _STRETCH, (len(body) - at) // length), size, length)
        if columns is None:
            return None
        found.append(columns)
        before.append(len(single))
        # ``before`` records the place of each stretch among the single items. A short stretch raises the threshold, so
        # that alternating lengths do not cause many short stretches.
        alike, enough = 0, enough if more > _WORTH else 4 * enough
        at, left = at + more * length, left - more
    if body[at] != 0:
        return None
    if single:
        if (scattered := _scattered(body, single)) is None:
            return None
        found = _between(found, before, scattered)
    ends, ignored, counts = (np.concatenate([columns[which] for columns in found]) for which in range(3))
    if ends.min() < TOKEN_MIN or ((ignored | counts) & 0x81).any() or ignored.max() > 2 * IGNORE_MSB_MAX:
        return None  # A set lowest bit is a negative number, and a set highest bit continues the number.
    ids = b"".join([columns[3] for columns in found])
    return PackedRanges(ends, (ignored >> 1).astype(np.int64), (counts >> 1).astype(np.int64), ids), at + 1


def _size_at(body: bytes, at: int) -> tuple[int, int]:
    """Return the byte lengths of an item's end and of the whole item. The caller checks the contents."""
    if int.from_bytes(body[at : at + 8], "little") & _EIGHT_GO_ON == _EIGHT_GO_ON:  # nearly all tokens
        size = 10 if body[at + 8] > 0x7F else 9
    else:
        size = 1
        while body[at + size - 1] > 0x7F:
            size += 1
    return size, size + 3 + STREAM_ID_BYTES // 2 * body[at + size + 1]  # doubled number of streams


def _stretch(body: bytes, at: int, most: int, size: int, length: int) -> tuple[_Columns | None, int]:
    """Return the columns of a stretch, and its number of items (at most ``most``).

    The first item's end has ``size`` bytes, and the whole item ``length``. None instead of columns: use the general
    reader.
    """

    def column(place: int, kind: str = "u1") -> NDArray[Any]:
        # A view with stride ``length``: the byte at ``place`` of every item, without a copy.
        return np.ndarray((most,), kind, body, at + place, (length,))

    if not most or size > _LONGEST or not body[at + size + 1]:
        raise IndexError("the record is cut off or invalid")
    streams = column(size + 1)
    low = column(0, "<u8").astype(np.uint64)
    # ``inside`` masks the first eight bytes of an end. ``goes_on`` has the continuation bits of all of its bytes but
    # the last, so an item belongs to the stretch if it has exactly these bits.
    inside = (1 << 8 * min(size, 8)) - 1
    goes_on = _EIGHT_GO_ON & ((1 << 8 * min(size - 1, 8)) - 1)
    is_like = ((low & np.uint64(_EIGHT_GO_ON & inside)) == np.uint64(goes_on)) & (streams == streams[0])
    for place in range(8, size):
        is_like &= (column(place) > 0x7F) == (place < size - 1)
    most = most if is_like.all() else int(is_like.argmin())
    if not most:
        return None, 0  # the first end has too many bytes
    # Not canonical: an item without its final zero, a number with a zero as its last byte, or more than 64 bits.
    tops = column(size - 1)
    if column(length - 1).any() or (size > 1 and not tops.all()) or (size == _LONGEST and tops.max() > 1):
        return None, most
    low = _squeezed(low[:most] & np.uint64(inside & ~_EIGHT_GO_ON))
    for place in range(8, size):
        low |= (column(place).astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    ids = column(size + 2, f"V{length - size - 3}").tobytes()
    return (_unfolded(low), column(size), column(size + 1), ids), most


def _scattered(body: bytes, items: Sequence[tuple[int, int]]) -> _Columns | None:
    """Return the columns of the items at these positions with these lengths. None: use the general reader."""
    data = np.frombuffer(body, dtype=np.uint8)
    starts, lengths = np.array(items, dtype=np.int64).T
    ends, sizes = _numbers(data, starts)
    places = starts + sizes
    ignored, counts = data[places], data[places + 1]
    lasts = places + 2 + STREAM_ID_BYTES // 2 * counts.astype(np.int64)
    if (lasts + 1 != starts + lengths).any() or data[lasts].any() or not counts.all() or (counts & 1).any():
        return None
    return ends, ignored, counts, _ids(data, places + 2, counts.astype(np.int64) >> 1)


def _between(stretches: Sequence[_Columns], before: Sequence[int], single: _Columns) -> list[_Columns]:
    """Merge stretches and single items in their order. ``before`` counts the single items before each stretch."""
    ends, ignored, counts, ids = single
    lengths = STREAM_ID_BYTES // 2 * counts.astype(np.int64)
    places = np.append(0, lengths.cumsum()).tolist()
    found, first = [], 0
    for last, columns in zip((*before, len(ends)), (*stretches, None), strict=True):
        own = slice(first, last)
        found.append((ends[own], ignored[own], counts[own], ids[places[first] : places[last]]))
        found += () if columns is None else (columns,)
        first = last
    return found


def _numbers(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers at these positions and their byte lengths, 0 for a number that is not canonical.

    The first eight bytes are loaded as one word. The lowest clear continuation bit ends the number.
    """
    low = _windows(data, 8)[starts].view("<u8")[:, 0].astype(np.uint64)
    ninth, tenth = data[starts + 8].astype(np.uint64), data[starts + 9].astype(np.uint64)
    stops = ~low & _GOES_ON
    stop = stops & (np.uint64(0) - stops)  # lowest clear continuation bit; 0: the number has more than eight bytes
    is_long, is_longest = stop == 0, (stop == 0) & (ninth > 0x7F)
    sizes = np.where(is_long, np.where(is_longest, 10, 9), np.searchsorted(_LAST_BITS, stop) + 1)
    low &= stop + stop - np.uint64(1)  # clear the bytes after the last one; keep all if stop is 0
    low = _squeezed(low & ~_GOES_ON)
    low |= np.where(is_long, (ninth & np.uint64(0x7F)) << np.uint64(56), np.uint64(0))
    low |= np.where(is_longest, tenth << np.uint64(63), np.uint64(0))
    tops = data[starts + sizes - 1]
    sizes[((sizes > 1) & (tops == 0)) | (is_longest & (tenth > 1))] = 0
    return _unfolded(low), sizes


def _squeezed(low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the low seven bits of each of eight bytes, packed together.

    Each step joins pairs of groups: 7 to 14, 14 to 28, 28 to 56 bits.
    """
    for width, mask in ((1, 0x7F007F007F007F00), (2, 0x3FFF00003FFF0000), (4, 0x0FFFFFFF00000000)):
        upper = low & np.uint64(mask)
        low ^= upper
        low |= upper >> np.uint64(width)
    return low


def _unfolded(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Decode zigzag numbers: the lowest bit is the sign."""
    return ((numbers >> np.uint64(1)) ^ (np.uint64(0) - (numbers & np.uint64(1)))).view(np.int64)


def _ids(data: NDArray[np.uint8], firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> bytes:
    """Return the ids of all streams: ``counts`` ids of each range, from the position in ``firsts`` on."""
    if counts.max() > 1:
        before = counts.cumsum() - counts
        # Position of every id: the range's first id, plus the number of the id within its range.
        firsts = np.repeat(firsts - STREAM_ID_BYTES * before, counts) + STREAM_ID_BYTES * np.arange(counts.sum())
    return _windows(data, STREAM_ID_BYTES)[firsts].tobytes()


def _windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return a view of the ``size`` bytes at each position, without a copy."""
    return np.lib.stride_tricks.sliding_window_view(data, size)
