"""Access to a byte buffer eight bytes at a time, and checks that are faster on words than on bytes.

Reading a word takes the 8 bytes from a position on, also at the last byte of interest. Buffers therefore have at least
8 more bytes at their end (``ringlog_cdc.columnar.scan.PADDING``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
"""Array types of this package. Their shape is (n,) unless stated otherwise."""
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
Flags = NDArray[np.bool_]

WORD = 8
"""Bytes of a word."""
KEEP = np.array([(1 << 8 * size) - 1 for size in range(WORD + 1)], dtype=np.uint64)
"""Number of bytes to the mask that keeps that many leading bytes of a little-endian word."""

HIGH_BITS = np.uint64(0x8080808080808080)
"""Highest bit of each byte: set in bytes that are not ASCII, and in all but the last byte of an Avro number."""


def words_of(data: U8) -> U64:
    """Return the 8 bytes at each position of the buffer as little-endian numbers, shape (len(data) - 7,).

    The result is an overlapping view without a copy. Index it directly: ``take`` would copy the whole view first.
    """
    return np.ndarray((len(data) - WORD + 1,), dtype="<u8", buffer=data, strides=(1,))


def rows_of(data: U8, start: I64, width: int) -> U8:
    """Copy ``width`` bytes from each start. Returns shape (n, width)."""
    # One void item of ``width`` bytes per position: fancy indexing then copies whole rows, not bytes.
    windows = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    found: U8 = windows[start].view(np.uint8).reshape(-1, width)
    return found


def is_ascii(data: U8, start: I64, length: I64) -> Flags:
    """Return True for each span without a byte above 0x7F. ``data`` has 8 more bytes after the last span."""
    words = words_of(data)
    found: Flags = np.ones(len(start), dtype=bool)
    # Spans of one length need no masks per row. Names of one table are the usual case.
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
    """Return the common value of all lengths, or None if they differ. Returns 0 for an empty array."""
    if not len(lengths):
        return 0
    return int(lengths[0]) if (lengths == lengths[0]).all() else None


def low_bits(words: U64) -> U64:
    """Join the low 7 bits of each word's 8 bytes into one 56-bit number."""
    found = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    # Each round closes the gaps between neighbours: 7-bit groups become 14-bit, then 28-bit, then one 56-bit number.
    # Three rounds replace a loop over eight bytes.
    for width, mask in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        low = found & np.uint64(mask)
        high = (found ^ low) >> np.uint64(width)
        found = low | high
    return found
