"""Where authors take random bits from: the system, or a seed (``ringlog.protocol.effects`` is the port)."""

from __future__ import annotations

import os
import threading
from hashlib import blake2b

from ringlog.protocol.effects import Draw
from ringlog.wire.avro.mapping import uuid_text

DRAWN_AT_ONCE = 4_096


class SystemDraw:
    """The operating system's source. Safe from threads.

    Bytes are taken out of it in advance: a question to the system gives other threads the interpreter, and an author
    that makes hundreds of ids would get it back late, hundreds of times. A forked process must make its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._taken = 0

    def take(self, count: int) -> bytes:
        """Random bytes, none of them twice."""
        if count < 0:
            raise ValueError(f"negative count: {count}")
        with self._lock:
            begin, self._taken = self._taken, self._taken + count
            if self._taken > len(self._bytes):
                self._bytes = os.urandom(max(count, DRAWN_AT_ONCE))
                begin, self._taken = 0, count
            return self._bytes[begin : self._taken]


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
