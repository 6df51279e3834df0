"""``cdc$time``: a version-1 UUID that encodes the write timestamp exactly.

Its time part counts 100 ns since 1582-10-15, so microseconds fit without loss. The low half is derived from the row's
identity instead of being random, so a row that is written twice is the same row. With ``mix``, the finalizer of
SplitMix64:

* a write with a mutation id (16 bytes, two big-endian halves ``a`` and ``b``): ``mix(mix(a) ^ b)``
* any other write: ``mix(mix(topic ^ partition) ^ offset)``, where ``topic`` is the first 8 bytes (big-endian) of the
  SHA-256 of the topic name

The two highest bits are then set to ``10``, the variant of RFC 4122. ``ringlog_cdc.bulk.routing`` computes the same for
many writes at once.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

UUID_EPOCH_100NS: Final = 0x01B21DD213814000
"""Steps of 100 ns from 1582-10-15 to 1970-01-01."""
MIX_FIRST, MIX_SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Factors of SplitMix64's finalizer."""
VARIANT_MASK, VARIANT = 0x3FFFFFFFFFFFFFFF, 0x8000000000000000
_WORD: Final = (1 << 64) - 1


def mix(value: int) -> int:
    """Apply the finalizer of SplitMix64, a bijection of 64-bit numbers that spreads neighbours."""
    value = ((value ^ (value >> 30)) * MIX_FIRST) & _WORD
    value = ((value ^ (value >> 27)) * MIX_SECOND) & _WORD
    return value ^ (value >> 31)


@lru_cache(maxsize=16)
def topic_number(topic: str) -> int:
    """Return the number of a topic in identities of writes without a mutation id."""
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:8], "big")


def cdc_time(topic: str, partition: int, offset: int, mutation_id: str | None, timestamp: int) -> bytes:
    """Return the 16 bytes of ``cdc$time``.

    Args:
        topic: Name of the mutations topic.
        partition: Source partition.
        offset: Source offset.
        mutation_id: Id of the write, a UUID. None: the position identifies it.
        timestamp: Timestamp of the row, microseconds.
    """
    steps = (timestamp * 10 + UUID_EPOCH_100NS) & _WORD
    # RFC 4122 stores the lowest 32 bits of the time first, then the middle 16, then the highest 12 after the version.
    high = (steps & 0xFFFFFFFF) << 32 | ((steps >> 32) & 0xFFFF) << 16 | (steps >> 48) & 0x0FFF | 0x1000
    if mutation_id is None:
        low = mix(mix(topic_number(topic) ^ partition) ^ offset)
    else:
        name = int(mutation_id.replace("-", ""), 16)
        low = mix(mix(name >> 64) ^ (name & _WORD))
    return high.to_bytes(8, "big") + (low & VARIANT_MASK | VARIANT).to_bytes(8, "big")
