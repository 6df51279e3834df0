"""Tokens and shards of many keys at once, on numpy arrays: the hot path of the CDC pipeline.

Keys have the layout of an Arrow binary array: one flat ``uint8`` buffer and ``n + 1`` ascending offsets into it. Key i
is ``data[offsets[i]:offsets[i + 1]]``. Python loops run only over blocks of 16 bytes within the longest key and over
chunks of rows that fit the processor's cache, never over rows. The results equal those of ``murmur3.token_of`` and
``shards.shard_of``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.ring.murmur3 import BLOCK, C1, C2, FINAL_1, FINAL_2
from ringlog.kernel.values import TOKEN_MAX

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

CHUNK_ROWS = 16384
"""Rows hashed together: their working arrays (128 KiB each) stay in the processor's cache."""

_C1, _C2 = np.uint64(C1), np.uint64(C2)
_FINAL_1, _FINAL_2 = np.uint64(FINAL_1), np.uint64(FINAL_2)
_FIVE = np.uint64(5)
_ADD_1, _ADD_2 = np.uint64(0x52DCE729), np.uint64(0x38495AB5)
_SIGN_BITS = np.uint64(0x8080808080808080)
_BYTE = np.uint64(0xFF)
HALF = np.uint64(1 << 63)
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_LOWEST = np.int64(-(1 << 63))

_KEEP = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
_KEEP_FIRST = _KEEP[np.minimum(np.arange(BLOCK), 8)]
_KEEP_SECOND = _KEEP[np.maximum(np.arange(BLOCK) - 8, 0)]
"""Masks by tail length (0-15): the bytes of the tail's first and second word that belong to the key."""


assert all(
    int(first).bit_count() + int(second).bit_count() == 8 * length
    for length, (first, second) in enumerate(zip(_KEEP_FIRST, _KEEP_SECOND, strict=True))
), "the masks of a tail keep exactly its bytes"


def tokens_of(data: NDArray[np.uint8], offsets: NDArray[Any]) -> I64:
    """Return the tokens (``int64``, one per key) of keys in one buffer; ``offsets`` is any integer array of n + 1
    entries.

    Raise ``ValueError`` if the offsets descend or leave the buffer.
    """
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    if not len(offsets) or offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("offsets must ascend within the buffer; there is one more than keys")
    first, last = int(offsets[0]), int(offsets[-1])
    # A word may be read past the end of the last key. Those bytes are masked out, but the memory must exist.
    padded = np.zeros(last - first + BLOCK, dtype=np.uint8)
    padded[: last - first] = data[first:last]
    # Keys start at any byte, so the view has one overlapping word per byte (stride 1): words[i] starts at byte i.
    words = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    offsets = offsets - first
    tokens = np.empty(len(offsets) - 1, dtype=np.int64)
    for low in range(0, len(tokens), CHUNK_ROWS):
        high = min(low + CHUNK_ROWS, len(tokens))
        _hash_chunk(words, offsets[low : high + 1], tokens[low:high])
    return tokens


def shards_of(tokens: I64, shards: int | NDArray[Any], ignore_msb: int | NDArray[Any]) -> I64:
    """Return the shards (``int64``) of tokens; ``shards`` (1 to 2**32 - 1), ``ignore_msb`` (0-63): number or array."""
    count = np.asarray(shards, dtype=np.uint64)
    shift = np.asarray(ignore_msb, dtype=np.uint64)
    biased = tokens.view(np.uint64) ^ HALF
    biased <<= shift
    # The high half of a 64 x 32 bit product, in two steps that fit into 64 bits: numpy has no 128-bit integers.
    low = biased & _LOW_32
    low *= count
    low >>= _32
    biased >>= _32
    biased *= count
    biased += low
    biased >>= _32
    return biased.view(np.int64)


def _hash_chunk(words: U64, offsets: I64, out: I64) -> None:
    """Hash the keys between ``offsets`` into ``out``; ``words[i]`` is the little-endian word that starts at byte i."""
    assert len(offsets) == len(out) + 1, "there is one offset more than keys"
    lengths = offsets[1:] - offsets[:-1]
    h1 = np.zeros(len(out), dtype=np.uint64)
    h2 = np.zeros(len(out), dtype=np.uint64)
    scratch = np.empty(len(out), dtype=np.uint64)
    longest = int(lengths.max())
    if longest >= BLOCK:
        _mix_blocks(words, offsets[:-1], lengths // BLOCK, h1, h2)
    tail = lengths & (BLOCK - 1)
    at = offsets[1:] - tail
    # If no key has more than 8 bytes, the second word of every tail is zero, and mixing in zero changes nothing.
    if longest > 8:
        k2 = words[at + 8] & _KEEP_SECOND[tail]
        _sign_extend(k2)
        _mix(k2, _C2, 33, _C1, scratch)
        h2 ^= k2
    k1 = words[at]
    k1 &= _KEEP_FIRST[tail]
    _sign_extend(k1)
    _mix(k1, _C1, 31, _C2, scratch)
    h1 ^= k1
    h1 ^= lengths.view(np.uint64)
    h2 ^= lengths.view(np.uint64)
    h1 += h2
    h2 += h1
    _avalanche(h1, scratch)
    _avalanche(h2, scratch)
    h1 += h2
    out[:] = h1.view(np.int64)
    out[out == _LOWEST] = TOKEN_MAX


def _mix_blocks(words: U64, starts: I64, blocks: I64, h1: U64, h2: U64) -> None:
    """Mix the whole 16-byte blocks of each key into its two halves: block by block, over the keys that have it."""
    assert len(starts) == len(blocks) == len(h1) == len(h2), "columns of keys have the same length"
    for block in range(int(blocks.max())):
        rows = np.flatnonzero(blocks > block)
        at = starts[rows] + block * BLOCK
        scratch = np.empty(len(rows), dtype=np.uint64)
        a, b = h1[rows], h2[rows]
        k1, k2 = words[at], words[at + 8]
        _mix(k1, _C1, 31, _C2, scratch)
        a ^= k1
        _rotate(a, 27, scratch)
        a += b
        a *= _FIVE
        a += _ADD_1
        _mix(k2, _C2, 33, _C1, scratch)
        b ^= k2
        _rotate(b, 31, scratch)
        b += a
        b *= _FIVE
        b += _ADD_2
        h1[rows], h2[rows] = a, b


def _sign_extend(word: U64) -> None:
    """Change words as if each byte were sign-extended: a byte is inverted for each lower byte with its top bit set."""
    signs = word & _SIGN_BITS
    if not signs.any():
        return
    signs <<= np.uint64(1)  # the top bit of byte j becomes the lowest of byte j + 1; that of the last byte is dropped
    # A prefix XOR over the eight bytes in three doubling steps, instead of a loop over byte pairs.
    for by in (8, 16, 32):
        signs ^= signs << np.uint64(by)
    signs *= _BYTE
    word ^= signs


def _mix(word: U64, first: np.uint64, turn: int, second: np.uint64, scratch: U64) -> None:
    word *= first
    _rotate(word, turn, scratch)
    word *= second


def _rotate(word: U64, by: int, scratch: U64) -> None:
    np.right_shift(word, np.uint64(64 - by), out=scratch)
    word <<= np.uint64(by)
    word |= scratch


def _avalanche(word: U64, scratch: U64) -> None:
    np.right_shift(word, np.uint64(33), out=scratch)
    word ^= scratch
    word *= _FINAL_1
    np.right_shift(word, np.uint64(33), out=scratch)
    word ^= scratch
    word *= _FINAL_2
    np.right_shift(word, np.uint64(33), out=scratch)
    word ^= scratch
