"""The ranges of a generation from their bytes, all at once: a large cluster has sixteen thousand in each join.

An item is a number of one to ten bytes (the range's end), ignored bits and number of streams in a byte each, the ids of
the streams, and a zero. One loop finds where items begin; the rest is done on arrays, which hold what comes of it
(``kernel.generations.packed``). Ranges that are few, not canonical, or too large for a byte are read one by one, to the
same values or the same refusal.
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

_GOES_ON: Final = 0x8080808080808080


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
    begin, heads = at, []
    for _ in range(count):
        heads.append(at)
        if int.from_bytes(body[at : at + 8], "little") & _GOES_ON == _GOES_ON:  # nearly all tokens have 9 bytes or 10
            at += 10 if body[at + 8] > 0x7F else 9
        else:
            while body[at] > 0x7F:
                at += 1
            at += 1
        at += 3 + STREAM_ID_BYTES // 2 * body[at + 1]  # twice the number of streams
    if body[at] != 0:
        return None
    data = np.frombuffer(body[begin:at] + bytes(_LONGEST), dtype=np.uint8)
    starts = np.array(heads, dtype=np.int64) - begin
    ends, sizes = _numbers(data, starts)
    places = starts + sizes
    ignored, counts = data[places].astype(np.int64), data[places + 1].astype(np.int64)
    lasts = places + 2 + STREAM_ID_BYTES // 2 * counts
    if not (
        np.array_equal(lasts + 1, np.append(starts[1:], at - begin))
        and not data[lasts].any()
        and ends.min() >= TOKEN_MIN
        and not ((ignored | counts) & 0x81).any()  # negative, or longer than a byte
        and ignored.max() <= 2 * IGNORE_MSB_MAX
        and counts.min() > 0
    ):
        return None
    is_id = np.ones(at - begin, dtype=bool)
    for place in range(_LONGEST):
        is_id[starts[place < sizes] + place] = False
    for of_each in (places, places + 1, lasts):
        is_id[of_each] = False
    return PackedRanges(ends, ignored >> 1, counts >> 1, data[: at - begin][is_id].tobytes()), at + 1


def _numbers(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers that begin there and how many bytes each has; 0 of one that is not canonical."""
    numbers = np.zeros(len(starts), dtype=np.uint64)
    sizes = np.zeros(len(starts), dtype=np.int64)
    goes_on = np.ones(len(starts), dtype=bool)
    for place in range(_LONGEST):
        byte = data[starts + place]
        sizes[goes_on & (byte < 0x80) & ((byte > 0) if place else goes_on)] = place + 1
        numbers |= np.where(goes_on, byte & 0x7F, 0).astype(np.uint64) << np.uint64(7 * place)
        if place < _LONGEST - 1:
            goes_on &= byte > 0x7F
    sizes[goes_on & (byte > 1)] = 0
    return ((numbers >> np.uint64(1)) ^ (np.uint64(0) - (numbers & np.uint64(1)))).view(np.int64), sizes
