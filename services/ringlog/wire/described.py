"""The ranges of a generation from their bytes, all at once: a large cluster has sixteen thousand in each join.

An item is a number of one to ten bytes (the range's end), ignored bits and number of streams in a byte each, the ids of
the streams, and a zero. Ends ascend, so most items are as long as the one before: where items begin is found by
*stretches* of equal ones, or one by one where ranges have different numbers of streams. The rest is done on arrays,
which hold what comes of it (``kernel.generations.packed``). Ranges that are few, not canonical, or too large for a byte
are read one by one, to the same values or the same refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.generations.packed import PACKED_FROM, PackedRanges
from ringlog.kernel.generations.stream_id import STREAM_ID_BYTES
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX
from ringlog.kernel.values import TOKEN_MIN
from ringlog.wire.reading import Read, number_at

_LONGEST: Final = 10
"""Bytes of a number of 64 bits: seven bits in each, and one that says whether it goes on."""

_EIGHT_GO_ON: Final = 0x8080808080808080
_GOES_ON: Final = np.uint64(_EIGHT_GO_ON)
_LAST_BITS: Final = np.array([2 ** (8 * size - 1) for size in range(1, 9)], dtype=np.uint64)
"""The bit that says so of each of eight bytes."""

_ALIKE_FROM: Final = 4
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
        except IndexError:
            found = None
        return one_by_one(body, at) if found is None else found

    return read


def _packed_at(body: bytes, at: int) -> tuple[PackedRanges, int] | None:
    """The ranges and the position behind them; None of what is to be read one by one, IndexError of some of it."""
    count, at = number_at(body, at)
    if not PACKED_FROM <= count <= len(body) - at:
        return None
    data = np.frombuffer(body + bytes(_LONGEST), dtype=np.uint8)
    starts, at = _starts(body, data, at, count)
    if body[at] != 0:
        return None
    ends, sizes = _numbers(data, starts)
    places = starts + sizes
    ignored, counts = data[places].astype(np.int64), data[places + 1].astype(np.int64)
    lasts = places + 2 + STREAM_ID_BYTES // 2 * counts
    if not (
        np.array_equal(lasts + 1, np.append(starts[1:], at))
        and not data[lasts].any()
        and ends.min() >= TOKEN_MIN
        and not ((ignored | counts) & 0x81).any()  # negative, or longer than a byte
        and ignored.max() <= 2 * IGNORE_MSB_MAX
        and counts.min() > 0
    ):
        return None
    counts >>= 1
    return PackedRanges(ends, ignored >> 1, counts, _ids(data, places + 2, counts)), at + 1


def _starts(body: bytes, data: NDArray[np.uint8], at: int, count: int) -> tuple[NDArray[np.int64], int]:
    """Where ``count`` items begin, from ``at`` on, and the position behind them; checked by who knows their sizes.

    ``data``: the bytes of ``body``, and some more.
    """
    found: list[NDArray[np.int64]] = []
    single: list[int] = []
    left, step, alike, enough = count, 0, 0, _ALIKE_FROM
    while left:
        if int.from_bytes(body[at : at + 8], "little") & _EIGHT_GO_ON == _EIGHT_GO_ON:  # nearly all tokens
            size = 10 if body[at + 8] > 0x7F else 9
        else:
            size = 1
            while body[at + size - 1] > 0x7F:
                size += 1
        length = size + 3 + STREAM_ID_BYTES // 2 * body[at + size + 1]  # twice the number of streams
        alike, step = (alike + 1 if length == step else 0), length
        if alike < enough:
            single.append(at)
            at, left = at + length, left - 1
            continue
        more = min(left, _STRETCH, (len(body) - at) // length)
        if not more:
            raise IndexError("the last item is cut off")
        rows = data[at : at + more * length].reshape(more, length)
        is_like = (rows[:, size - 1] < 0x80) & (rows[:, size + 1] == body[at + size + 1])
        is_like &= (rows[:, : size - 1] > 0x7F).all(axis=1)
        more = more if is_like.all() else int(is_like.argmin())
        found += [np.array(single, dtype=np.int64), np.arange(at, at + more * length, length, dtype=np.int64)]
        single, alike, enough = [], 0, enough if more > _WORTH else 4 * enough
        at, left = at + more * length, left - more
    return np.concatenate([*found, np.array(single, dtype=np.int64)]), at


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
    low &= ~_GOES_ON
    for width, mask in ((1, 0x7F007F007F007F00), (2, 0x3FFF00003FFF0000), (4, 0x0FFFFFFF00000000)):
        upper = low & np.uint64(mask)
        low ^= upper
        low |= upper >> np.uint64(width)
    low |= np.where(is_long, (ninth & np.uint64(0x7F)) << np.uint64(56), np.uint64(0))
    low |= np.where(is_longest, tenth << np.uint64(63), np.uint64(0))
    tops = data[starts + sizes - 1]
    sizes[((sizes > 1) & (tops == 0)) | (is_longest & (tenth > 1))] = 0
    return ((low >> np.uint64(1)) ^ (np.uint64(0) - (low & np.uint64(1)))).view(np.int64), sizes


def _ids(data: NDArray[np.uint8], firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> bytes:
    """The ids of all streams: ``counts`` of each range, from ``firsts`` on."""
    if counts.max() > 1:
        before = counts.cumsum() - counts
        firsts = np.repeat(firsts - STREAM_ID_BYTES * before, counts) + STREAM_ID_BYTES * np.arange(counts.sum())
    return _windows(data, STREAM_ID_BYTES)[firsts].tobytes()


def _windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """At each position, the bytes from there on."""
    return np.lib.stride_tricks.sliding_window_view(data, size)
