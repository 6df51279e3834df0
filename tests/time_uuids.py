"""Version-1 UUIDs for CDC rows that tests create without the job."""

from __future__ import annotations

from hashlib import blake2b

TICKS_TO_1970 = 0x01B21DD213814000
"""100 ns ticks from 1582-10-15 to 1970-01-01."""


def timeuuid(timestamp_us: int, identity: bytes) -> bytes:
    """Return 16 bytes: the time part is exactly ``timestamp_us``, the low 64 bits are a hash of ``identity``."""
    ticks = timestamp_us * 10 + TICKS_TO_1970
    assert 0 <= ticks < 2**60, "microseconds that a version-1 UUID can hold"
    low = int.from_bytes(blake2b(identity, digest_size=8).digest(), "big")
    low = (low & (2**62 - 1)) | 2**63
    high = ((ticks & 0xFFFFFFFF) << 32) | ((ticks >> 32 & 0xFFFF) << 16) | 0x1000 | (ticks >> 48)
    return ((high << 64) | low).to_bytes(16, "big")
