"""Frames of a journal file, which distinguish complete writes from a torn end and from damage.

A file has a head, followed by frames::

    head    magic (8 bytes)   key (16)   born (8)   seal (8)
    frame   mark (2 bytes)   length (4)   synced (8)   CRC-32 of the payload (4)   seal (8)   payload

All numbers are big-endian. ``synced`` is the size of the file that was certainly on disk when the frame was written.
``born`` is the size that was on disk before the file got its name.

Reading stops at the first invalid frame. This may be the torn end of a write that was never acknowledged, or damage to
acknowledged data. A power cut may keep any part of the unsynced bytes, in any order, so bytes after the invalid frame
prove nothing alone. A valid later frame whose ``synced`` lies beyond the invalid place proves that this place was on
disk. Then the file is damaged, and cutting it there would lose acknowledged writes. Damage to the last batch looks like
a torn write. Avoiding this ambiguity would require writing everything twice.

Payloads contain application data, which may be any bytes, even those of a journal. So each file has a random key that
never leaves it. The seal is a keyed hash (BLAKE2b) over the head and the position of the frame. No application value
can imitate a frame of the file that contains it.

``write_frames`` syncs a complete file before the file gets its name.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

from ringlog.files import sync_folder
from ringlog.kernel.values import Value

MAGIC = b"RLCELLS1"
FRAME_BYTES_MAX = 64 * 1024 * 1024
KEY_BYTES = 16
_MARK = b"\xd7\x4c"
_SEAL_BYTES = 8
_FILE = struct.Struct(f">8s{KEY_BYTES}sQ{_SEAL_BYTES}s")
_HEAD = struct.Struct(f">2sIQI{_SEAL_BYTES}s")
HEAD_BYTES = _FILE.size
"""The size of an empty file."""


class JournalDamaged(Exception):
    """The disk lacks data that was acknowledged. The message names the file and the position."""


class Scanned(Value):
    """The payloads of a file in order, and the end of the last valid frame."""

    payloads: tuple[bytes, ...]
    end: int


class Sealer(Value):
    """Encodes and verifies the frames of one file by its key."""

    key: bytes

    @staticmethod
    def new() -> Sealer:
        """Return a sealer with a random key, for a new file."""
        return Sealer(os.urandom(KEY_BYTES))

    def head(self, born: int = 0) -> bytes:
        """Return the head of the file.

        Args:
            born: The size, including this head, that is on disk before the file gets its name.
        """
        return _FILE.pack(MAGIC, self.key, born, self._seal(0, struct.pack(">Q", born)))

    def frame(self, payload: bytes, synced: int, at: int) -> bytes:
        """Return the frame of a payload at position ``at``.

        Args:
            synced: The size of the file that is on disk.
        """
        assert len(payload) <= FRAME_BYTES_MAX, len(payload)
        total = zlib.crc32(payload)
        return _HEAD.pack(_MARK, len(payload), synced, total, self._of(at, len(payload), synced, total)) + payload

    def born(self, data: bytes) -> int | None:
        """Return ``born`` of a file's head, or None if the head is invalid."""
        _, _, born, seal = _FILE.unpack_from(data)
        return born if seal == self._seal(0, struct.pack(">Q", born)) else None

    def proof(self, data: bytes, at: int) -> int | None:
        """Return ``synced`` of the frame head at a position, or None if the head is invalid. Ignores the payload."""
        if at + _HEAD.size > len(data):
            return None
        mark, length, synced, total, seal = _HEAD.unpack_from(data, at)
        return synced if mark == _MARK and seal == self._of(at, length, synced, total) else None

    def payload(self, data: bytes, at: int) -> bytes | None:
        """Return the payload of the frame at a position, or None if the frame is invalid."""
        if self.proof(data, at) is None:
            return None
        _, length, _, total, _ = _HEAD.unpack_from(data, at)
        found = data[at + _HEAD.size : at + _HEAD.size + length]
        return found if len(found) == length and zlib.crc32(found) == total else None

    def read(self, file: int, at: int) -> bytes | None:
        """Read the payload of the frame at a position of an open file. Raises OSError.

        Returns None if the frame is invalid.
        """
        head = os.pread(file, _HEAD.size, at)
        if len(head) < _HEAD.size:
            return None
        mark, length, synced, total, seal = _HEAD.unpack(head)
        if mark != _MARK or seal != self._of(at, length, synced, total):
            return None
        found = os.pread(file, length, at + _HEAD.size)
        return found if len(found) == length and zlib.crc32(found) == total else None

    def size(self, payload: bytes) -> int:
        """Return the size of the payload's frame."""
        return _HEAD.size + len(payload)

    def _of(self, at: int, length: int, synced: int, total: int) -> bytes:
        return self._seal(at, struct.pack(">IQI", length, synced, total))

    def _seal(self, at: int, data: bytes) -> bytes:
        return blake2b(struct.pack(">Q", at) + data, digest_size=_SEAL_BYTES, key=self.key).digest()


def sealer_of(data: bytes, name: str) -> Sealer:
    """Return the sealer of a file that begins with ``data``. Raises JournalDamaged."""
    if data[: len(MAGIC)] == MAGIC and len(data) >= HEAD_BYTES:
        found = Sealer(_FILE.unpack_from(data)[1])
        if found.born(data) is not None:
            return found
    raise JournalDamaged(f"{name} has no header of a journal")


def scan(data: bytes, name: str, may_be_torn: bool) -> Scanned:
    """Return the payloads of a file. Raises JournalDamaged.

    Args:
        may_be_torn: True for the last file, whose end may be an incomplete write.
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
    # The first ``born`` bytes were synced before the file got its name, so they cannot be a torn end.
    if at < born:
        raise JournalDamaged(f"{name} has {at} of its first {born} bytes")
    return Scanned(tuple(payloads), at)


def _was_synced(data: bytes, broken: int, sealer: Sealer) -> bool:
    """Return True if a later frame proves that the byte at ``broken`` was on disk."""
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
"""Waits at most this number of seconds."""


def write_frames(path: Path, payloads: Iterable[bytes], pause: Pause = lambda _: None) -> int:
    """Write a file of these payloads and return its size. Raises OSError.

    The file gets its name once it is complete and synced.

    Args:
        pause: Called between slices with the duration of the last one, so that other writers get the disk.
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
        # The head says how large the file is, so it is written after the last frame.
        out.seek(0)
        write_whole(out.fileno(), sealer.head(born=size))
        os.fsync(out.fileno())
    fresh.replace(path)
    # The new name is durable only after the folder is synced.
    sync_folder(path.parent)
    return size


def write_whole(file: int, data: bytes | bytearray) -> int:
    """Write all bytes and return their number. Raises OSError."""
    out = memoryview(data)
    while out:
        out = out[os.write(file, out) :]
    return len(data)
