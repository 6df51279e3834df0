"""Where authors take random bits from: the system, or a seed (``ringlog.protocol.draw`` is the port)."""

from __future__ import annotations

import os
from hashlib import blake2b

from ringlog.protocol.draw import Draw
from ringlog.wire.mapping import uuid_text


class SystemDraw:
    """The operating system's source."""

    def take(self, count: int) -> bytes:
        """Random bytes."""
        return os.urandom(count)


class SeededDraw:
    """The same bytes in the same order for the same seed: rehearsals, tests, simulations."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._drawn = 0

    def take(self, count: int) -> bytes:
        """The next bytes of the seed's sequence, 64 at a time."""
        if count < 0:
            raise ValueError(f"negative count: {count}")
        out = b""
        while len(out) < count:
            out += blake2b(self._seed + self._drawn.to_bytes(8, "big"), person=b"ringlog-draw").digest()
            self._drawn += 1
        return out[:count]


def draw_uuid(draw: Draw) -> str:
    """A version-4 UUID of drawn bits."""
    number = int.from_bytes(draw.take(16), "big")
    number = number & ~(0xF << 76) | 4 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return uuid_text(number.to_bytes(16, "big"))
