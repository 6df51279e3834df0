"""``cdc$time``: a version-1 UUID that encodes a write timestamp exactly, made for many rows at once.

The time part counts 100 ns since 1582-10-15, so microseconds fit without loss. The low half is not drawn but derived
from the row's identity, so that a row written twice is the same row: with ``mix`` the finaliser of SplitMix64,

- a write with a mutation id (16 bytes, two big-endian halves ``a``, ``b``): ``mix(mix(a) ^ b)``
- any other: ``mix(mix(topic ^ partition) ^ offset)``, ``topic`` the first 8 bytes (big-endian) of the SHA-256 of its
  name

and then the two highest bits are set to ``10``, the variant of the UUID standard.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

UUID_EPOCH_100NS = 0x01B21DD213814000
"""100 ns steps from 1582-10-15 to 1970-01-01."""

_VARIANT_MASK = np.uint64(0x3FFFFFFFFFFFFFFF)
_VARIANT = np.uint64(0x8000000000000000)


def mix(values: U64) -> U64:
    """The finaliser of SplitMix64: a bijection of 64-bit numbers that spreads neighbouring ones."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def topic_number(topic: str) -> int:
    """The number that stands for a topic in identities without a mutation id."""
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:8], "big")


def high_halves(timestamps: I64) -> I64:
    """The first 8 bytes of each UUID as a big-endian signed number; ``timestamps`` in microseconds."""
    steps = (timestamps * 10 + UUID_EPOCH_100NS).view(np.uint64)
    low = (steps & np.uint64(0xFFFFFFFF)) << np.uint64(32)
    middle = ((steps >> np.uint64(32)) & np.uint64(0xFFFF)) << np.uint64(16)
    high = ((steps >> np.uint64(48)) & np.uint64(0x0FFF)) | np.uint64(0x1000)
    halves: U64 = low | middle | high
    return halves.view(np.int64)


def low_halves(topic: int, partitions: NDArray[Any], offsets: I64, mutation_ids: U64, has_id: NDArray[np.bool_]) -> I64:
    """The last 8 bytes of each UUID likewise; ``mutation_ids`` has shape (n, 2) and counts where ``has_id`` is true."""
    chosen = mix(mix(np.uint64(topic) ^ partitions.astype(np.uint64)) ^ offsets.view(np.uint64))
    if has_id.any():
        named = mix(mix(mutation_ids[:, 0]) ^ mutation_ids[:, 1])
        chosen = np.where(has_id, named, chosen)
    return ((chosen & _VARIANT_MASK) | _VARIANT).view(np.int64)
