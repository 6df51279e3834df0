"""Bytes eight at a time: views of a buffer as words, and what is seen faster that way than byte by byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
Flags = NDArray[np.bool_]

WORD = 8
KEEP = np.array([(1 << 8 * size) - 1 for size in range(WORD + 1)], dtype=np.uint64)
"""Masks of a word's first bytes, by their number."""

HIGH_BITS = np.uint64(0x8080808080808080)


def words_of(data: U8) -> U64:
    """The 8 bytes from each place of a buffer on, as a little-endian number; a view (``take`` would copy all of it)."""
    return np.ndarray((len(data) - WORD + 1,), dtype="<u8", buffer=data, strides=(1,))


def rows_of(data: U8, start: I64, width: int) -> U8:
    """(n, width): that number of bytes from each of these places on."""
    windows = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    found: U8 = windows[start].view(np.uint8).reshape(-1, width)
    return found


def is_ascii(data: U8, start: I64, length: I64) -> Flags:
    """True where no byte has its highest bit set; there are 8 bytes more behind the last."""
    words = words_of(data)
    found: Flags = np.ones(len(start), dtype=bool)
    size = same(length)
    if size is not None:
        for begin in range(0, size, WORD):
            found &= words[start + begin] & (KEEP[min(size - begin, WORD)] & HIGH_BITS) == 0
        return found
    for begin in range(0, int(length.max()), WORD):
        rows = np.flatnonzero(length > begin)
        left = np.minimum(length[rows] - begin, WORD)
        found[rows] &= words[start[rows] + begin] & KEEP.take(left) & HIGH_BITS == 0
    return found


def same(lengths: I64) -> int | None:
    """The length that all have; None if they differ."""
    if not len(lengths):
        return 0
    return int(lengths[0]) if (lengths == lengths[0]).all() else None


def low_bits(words: U64) -> U64:
    """The low 7 bits of each of a word's 8 bytes, put together: 56 bits."""
    found = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    for width, mask in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        low = found & np.uint64(mask)
        high = (found ^ low) >> np.uint64(width)
        found = low | high
    return found
