"""Frames of a journal's file: how bytes that were written whole are distinguished from a torn end, and from damage.

A file begins with a head of its own, and then has frames::

    head    magic (8 bytes)   key (16)   born (8)   seal (8)
    frame   mark (2 bytes)   length (4)   synced (8)   CRC-32 of the payload (4)   seal (8)   payload

all numbers big-endian. ``synced`` says how much of this file was on the disk for certain when the frame was written;
``born``, how much was there before the file got its name.

The first frame that is not whole ends what can be read. Is it the torn end of a write that nobody was promised, or
damage to something that was? A power cut may leave any part of what was not synced, in any order. So what stands
further on proves nothing by itself; but a frame whose ``synced`` lies beyond the broken place was begun when that place
had reached the disk: then it is damage, and to cut the file there would lose writes that were acknowledged. Damage to
the last batch cannot be distinguished from a torn one; that is the price of not writing everything twice.

Payloads hold what applications wrote, which may be anything, also the bytes of a journal. So each file has a random key
that never leaves it, and the seal is a keyed hash (BLAKE2b) over the frame's head and its place: a value cannot look
like a frame of the file that it stands in.

``write_frames`` syncs a whole file before the file gets its name.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ringlog.files import sync_folder

MAGIC = b"RLCELLS1"
FRAME_BYTES_MAX = 64 * 1024 * 1024
KEY_BYTES = 16
_MARK = b"\xd7\x4c"
_SEAL_BYTES = 8
_FILE = struct.Struct(f">8s{KEY_BYTES}sQ{_SEAL_BYTES}s")
_HEAD = struct.Struct(f">2sIQI{_SEAL_BYTES}s")
HEAD_BYTES = _FILE.size
"""What an empty file has."""


class JournalDamaged(Exception):
    """The disk does not hold what was acknowledged; the text says where."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The payloads of a file in order, and where the last whole frame ends."""

    payloads: tuple[bytes, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Sealer:
    """Makes the frames of one file, whose ``key`` it has."""

    key: bytes

    @staticmethod
    def new() -> Sealer:
        """For a new file."""
        return Sealer(os.urandom(KEY_BYTES))

    def head(self, born: int = 0) -> bytes:
        """How the file begins; ``born``: how many of its bytes, these included, are there before it has its name."""
        return _FILE.pack(MAGIC, self.key, born, self._seal(0, struct.pack(">Q", born)))

    def frame(self, payload: bytes, synced: int, at: int) -> bytes:
        """The bytes of the frame that begins at ``at``; ``synced``: how much of its file is on the disk."""
        assert len(payload) <= FRAME_BYTES_MAX, len(payload)
        total = zlib.crc32(payload)
        return _HEAD.pack(_MARK, len(payload), synced, total, self._of(at, len(payload), synced, total)) + payload

    def born(self, data: bytes) -> int | None:
        """``born`` of a file's head; None if the head is not whole."""
        _, _, born, seal = _FILE.unpack_from(data)
        return born if seal == self._seal(0, struct.pack(">Q", born)) else None

    def proof(self, data: bytes, at: int) -> int | None:
        """``synced`` of the frame whose head is at a place, whatever became of its payload."""
        if at + _HEAD.size > len(data):
            return None
        mark, length, synced, total, seal = _HEAD.unpack_from(data, at)
        return synced if mark == _MARK and seal == self._of(at, length, synced, total) else None

    def payload(self, data: bytes, at: int) -> bytes | None:
        """The payload of the whole frame at a place."""
        if self.proof(data, at) is None:
            return None
        _, length, _, total, _ = _HEAD.unpack_from(data, at)
        found = data[at + _HEAD.size : at + _HEAD.size + length]
        return found if len(found) == length and zlib.crc32(found) == total else None

    def read(self, file: int, at: int) -> bytes | None:
        """The payload of the whole frame at a place of an open file. Raises OSError."""
        head = os.pread(file, _HEAD.size, at)
        if len(head) < _HEAD.size:
            return None
        mark, length, synced, total, seal = _HEAD.unpack(head)
        if mark != _MARK or seal != self._of(at, length, synced, total):
            return None
        found = os.pread(file, length, at + _HEAD.size)
        return found if len(found) == length and zlib.crc32(found) == total else None

    def size(self, payload: bytes) -> int:
        """Bytes of the payload's frame."""
        return _HEAD.size + len(payload)

    def _of(self, at: int, length: int, synced: int, total: int) -> bytes:
        return self._seal(at, struct.pack(">IQI", length, synced, total))

    def _seal(self, at: int, data: bytes) -> bytes:
        return blake2b(struct.pack(">Q", at) + data, digest_size=_SEAL_BYTES, key=self.key).digest()


def sealer_of(data: bytes, name: str) -> Sealer:
    """That of a file that begins so. Raises JournalDamaged, with ``name``."""
    if data[: len(MAGIC)] == MAGIC and len(data) >= HEAD_BYTES:
        found = Sealer(_FILE.unpack_from(data)[1])
        if found.born(data) is not None:
            return found
    raise JournalDamaged(f"{name} does not begin as a journal does")


def scan(data: bytes, name: str, may_be_torn: bool) -> Scanned:
    """What a file holds. ``may_be_torn``: it is the last one, at whose end a write may have been cut.

    Raises JournalDamaged, with ``name``.
    """
    sealer = sealer_of(data, name)
    born = sealer.born(data) or 0
    payloads, at = [], HEAD_BYTES
    while at < len(data):
        payload = sealer.payload(data, at)
        if payload is None:
            if not may_be_torn or _was_synced(data, at, sealer):
                raise JournalDamaged(f"{name} is damaged at byte {at} of {len(data)}")
            break
        payloads.append(payload)
        at += sealer.size(payload)
    if at < born:
        raise JournalDamaged(f"{name} has {at} bytes of {born} that were there from the beginning")
    return Scanned(tuple(payloads), at)


def _was_synced(data: bytes, broken: int, sealer: Sealer) -> bool:
    """True if a later frame tells that the byte at ``broken`` was on the disk."""
    at = data.find(_MARK, broken + 1)
    while at >= 0:
        synced = sealer.proof(data, at)
        if synced is not None and synced > broken:
            return True
        at = data.find(_MARK, at + 1)
    return False


SLICE_BYTES = 1024 * 1024
PAUSE_S_MAX = 0.25
FRESH = ".new"

Pause = Callable[[float], object]
"""Waits at most N seconds."""


def write_frames(path: Path, payloads: Iterable[bytes], pause: Pause = lambda _: None) -> int:
    """Have a file of these payloads on the disk, whole before it has its name; its size. Raises OSError.

    ``pause`` is called between slices, with the time that the last one took.
    """
    fresh = path.with_suffix(FRESH)
    sealer = Sealer.new()
    part, size, begun = bytearray(sealer.head()), 0, time.monotonic()
    with fresh.open("wb", buffering=0) as out:
        for payload in payloads:
            part += sealer.frame(payload, 0, size + len(part))
            if len(part) >= SLICE_BYTES:
                size += write_whole(out.fileno(), part)
                os.fdatasync(out.fileno())
                pause(min(time.monotonic() - begun, PAUSE_S_MAX))
                part, begun = bytearray(), time.monotonic()
        size += write_whole(out.fileno(), part)
        out.seek(0)
        write_whole(out.fileno(), sealer.head(born=size))
        os.fsync(out.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
    return size


def write_whole(file: int, data: bytes | bytearray) -> int:
    """Write it all; its size. Raises OSError."""
    out = memoryview(data)
    while out:
        out = out[os.write(file, out) :]
    return len(data)
