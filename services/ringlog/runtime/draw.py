"""Sources of random bits for authors: the operating system, or a seed.

Both are adapters of the port ``ringlog.protocol.effects.Draw``.
"""

from __future__ import annotations

import os
import threading
from hashlib import blake2b

from ringlog.protocol.effects import Draw
from ringlog.wire.avro.mapping import uuid_text

DRAWN_AT_ONCE = 4_096
"""Bytes that are read from the operating system in one call."""


class SystemDraw:
    """Random bytes of the operating system. Safe from threads.

    Bytes are read in advance. A system call releases the interpreter lock, and an author that makes hundreds of ids
    would wait for the lock hundreds of times. A forked process must create its own instance.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._taken = 0

    def take(self, count: int) -> bytes:
        """Return ``count`` random bytes. No byte is returned twice."""
        if count < 0:
            raise ValueError(f"negative count: {count}")
        with self._lock:
            begin, self._taken = self._taken, self._taken + count
            if self._taken > len(self._bytes):
                self._bytes = os.urandom(max(count, DRAWN_AT_ONCE))
                begin, self._taken = 0, count
            return self._bytes[begin : self._taken]


class SeededDraw:
    """A deterministic byte sequence for a seed, for rehearsals, tests and simulations."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._drawn = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes of the sequence.

        Bytes are generated in blocks of 64. Unused bytes of a block are dropped.
        """
        if count < 0:
            raise ValueError(f"negative count: {count}")
        out = b""
        while len(out) < count:
            out += blake2b(self._seed + self._drawn.to_bytes(8, "big"), person=b"ringlog-draw").digest()
            self._drawn += 1
        return out[:count]


def draw_uuid(draw: Draw) -> str:
    """Return a version-4 UUID made of drawn bits."""
    number = int.from_bytes(draw.take(16), "big")
    # Set the version (4 bits) and the variant (2 bits).
    number = number & ~(0xF << 76) | 4 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return uuid_text(number.to_bytes(16, "big"))
