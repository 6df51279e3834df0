"""The ranges of a generation from their bytes, all at once: a large cluster has sixteen thousand in each join.

An item is a number of one to ten bytes (the range's end), ignored bits and number of streams in a byte each, the ids of
the streams, and a zero. Ends ascend, so most items are as long as the one before. Such a *stretch* is a table of bytes,
of which columns are read; where ranges have different numbers of streams, items are found one by one, and read at these
places. All is done on arrays, which hold what comes of it (``kernel.generations.packed``). Ranges that are few, not
canonical, or too large for a byte are read one by one, to the same values or the same refusal.
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
"""Bytes of a number of 64 bits: seven bits in each, and one that says whether it goes on."""

_EIGHT_GO_ON: Final = 0x8080808080808080
_GOES_ON: Final = np.uint64(_EIGHT_GO_ON)
_LAST_BITS: Final = np.array([2 ** (8 * size - 1) for size in range(1, 9)], dtype=np.uint64)
"""The bit that says so of each of eight bytes."""

_EQUAL_ROWS_FROM: Final = 4
"""This many items of one length are taken for the beginning of a stretch; more, when that was in vain."""

_WORTH: Final = 64
"""Shorter ones are found one by one as quickly."""

_STRETCH: Final = 4_096
"""At most as many items are looked at together."""


def ranges_reader(items: Mapping[str, Any], one_by_one: Read) -> Read:
    """A reader of an array of ``items``, the schema of a range; ``one_by_one``: the general one."""
    assert [field["name"] for field in items["fields"]] == ["end", "ignore_msb", "streams"], "the order of an item"

    def read(body: bytes, at: int) -> tuple[Any, int]:
        try:
            found = _packed_at(body, at)
        except (IndexError, ValueError):
            found = None
        return one_by_one(body, at) if found is None else found

    return read


_Columns = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8], bytes]
"""Of some items the ends, the bytes with ignored bits and with the number of streams, each twice that, and the ids."""


def _packed_at(body: bytes, at: int) -> tuple[PackedRanges, int] | None:
    """The ranges and the position behind them; None of what is to be read one by one, IndexError of some of it."""
    count, at = number_at(body, at)
    if not PACKED_FROM <= count <= len(body) - at:
        return None
    found: list[_Columns] = []
    single: list[tuple[int, int]] = []
    before: list[int] = []
    left, step, alike, enough = count, 0, 0, _EQUAL_ROWS_FROM
    while left:
        size, length = _size_at(body, at)
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
        return None  # negative, or longer than a byte
    ids = b"".join([columns[3] for columns in found])
    return PackedRanges(ends, (ignored >> 1).astype(np.int64), (counts >> 1).astype(np.int64), ids), at + 1


def _size_at(body: bytes, at: int) -> tuple[int, int]:
    """How many bytes the end of an item has, and how many all of it; checked by who reads them."""
    if int.from_bytes(body[at : at + 8], "little") & _EIGHT_GO_ON == _EIGHT_GO_ON:  # nearly all tokens
        size = 10 if body[at + 8] > 0x7F else 9
    else:
        size = 1
        while body[at + size - 1] > 0x7F:
            size += 1
    return size, size + 3 + STREAM_ID_BYTES // 2 * body[at + size + 1]  # twice the number of streams


def _stretch(body: bytes, at: int, most: int, size: int, length: int) -> tuple[_Columns | None, int]:
    """The items from there on that are like the first one, of ``most`` at most, and their number. That one's end has
    ``size`` bytes, and all of it ``length``. None instead of items that are to be read one by one.
    """

    def column(place: int, kind: str = "u1") -> NDArray[Any]:
        return np.ndarray((most,), kind, body, at + place, (length,))

    if not most or size > _LONGEST or not body[at + size + 1]:
        raise IndexError("it is cut off, or is none")
    streams = column(size + 1)
    low = column(0, "<u8").astype(np.uint64)
    inside = (1 << 8 * min(size, 8)) - 1
    goes_on = _EIGHT_GO_ON & ((1 << 8 * min(size - 1, 8)) - 1)
    is_like = ((low & np.uint64(_EIGHT_GO_ON & inside)) == np.uint64(goes_on)) & (streams == streams[0])
    for place in range(8, size):
        is_like &= (column(place) > 0x7F) == (place < size - 1)
    most = most if is_like.all() else int(is_like.argmin())
    if not most:
        return None, 0  # the end of the first one goes on for too long
    tops = column(size - 1)
    if column(length - 1).any() or (size > 1 and not tops.all()) or (size == _LONGEST and tops.max() > 1):
        return None, most
    low = _squeezed(low[:most] & np.uint64(inside & ~_EIGHT_GO_ON))
    for place in range(8, size):
        low |= (column(place).astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    ids = column(size + 2, f"V{length - size - 3}").tobytes()
    return (_unfolded(low), column(size), column(size + 1), ids), most


def _scattered(body: bytes, items: Sequence[tuple[int, int]]) -> _Columns | None:
    """The items at these positions and of these lengths; None if one is to be read by itself."""
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
    """The stretches and the single items in their order; ``before``: how many of these are before each stretch."""
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
    """The numbers that begin there and how many bytes each has; 0 of one that is not canonical.

    The first eight bytes are taken as a word: the lowest clear bit of those that say "goes on" ends the number.
    """
    low = _windows(data, 8)[starts].view("<u8")[:, 0].astype(np.uint64)
    ninth, tenth = data[starts + 8].astype(np.uint64), data[starts + 9].astype(np.uint64)
    stops = ~low & _GOES_ON
    stop = stops & (np.uint64(0) - stops)  # 0: none of the eight bytes ends it
    is_long, is_longest = stop == 0, (stop == 0) & (ninth > 0x7F)
    sizes = np.where(is_long, np.where(is_longest, 10, 9), np.searchsorted(_LAST_BITS, stop) + 1)
    low &= stop + stop - np.uint64(1)  # nothing behind the last byte; all of them, where none of the eight is the last
    low = _squeezed(low & ~_GOES_ON)
    low |= np.where(is_long, (ninth & np.uint64(0x7F)) << np.uint64(56), np.uint64(0))
    low |= np.where(is_longest, tenth << np.uint64(63), np.uint64(0))
    tops = data[starts + sizes - 1]
    sizes[((sizes > 1) & (tops == 0)) | (is_longest & (tenth > 1))] = 0
    return _unfolded(low), sizes


def _squeezed(low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Seven bits of each of eight bytes, side by side."""
    for width, mask in ((1, 0x7F007F007F007F00), (2, 0x3FFF00003FFF0000), (4, 0x0FFFFFFF00000000)):
        upper = low & np.uint64(mask)
        low ^= upper
        low |= upper >> np.uint64(width)
    return low


def _unfolded(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Numbers with a sign, of those in which it is the lowest bit."""
    return ((numbers >> np.uint64(1)) ^ (np.uint64(0) - (numbers & np.uint64(1)))).view(np.int64)


def _ids(data: NDArray[np.uint8], firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> bytes:
    """The ids of all streams: ``counts`` of each range, from ``firsts`` on."""
    if counts.max() > 1:
        before = counts.cumsum() - counts
        firsts = np.repeat(firsts - STREAM_ID_BYTES * before, counts) + STREAM_ID_BYTES * np.arange(counts.sum())
    return _windows(data, STREAM_ID_BYTES)[firsts].tobytes()


def _windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """At each position, the bytes from there on."""
    return np.lib.stride_tricks.sliding_window_view(data, size)
