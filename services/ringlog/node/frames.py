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

Files of before (their magic ends in 1) have frames with a CRC alone, and are only read.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

MAGIC, FIRST_MAGIC = b"RLCELLS2", b"RLCELLS1"
FRAME_BYTES_MAX = 64 * 1024 * 1024
KEY_BYTES = 16
_MARK = b"\xd7\x4c"
_SEAL_BYTES = 8
_FILE = struct.Struct(f">8s{KEY_BYTES}sQ{_SEAL_BYTES}s")
_HEAD = struct.Struct(f">2sIQI{_SEAL_BYTES}s")
_FIRST = struct.Struct(">2sIQI")
HEAD_BYTES = _FILE.size
"""What an empty file has."""


class JournalDamaged(Exception):
    """The disk does not hold what was acknowledged; the text says where."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The payloads of a file in order, and where the last whole frame ends: 0 if not even the file's head is whole.

    ``is_first``: the file is of the first format, written before registers were checked where they come in.
    """

    payloads: tuple[bytes, ...]
    end: int
    is_first: bool = False


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
    if data[: len(FIRST_MAGIC)] == FIRST_MAGIC:
        return _scan(data, name, may_be_torn, _FirstFormat(), len(FIRST_MAGIC), 0)
    if len(data) < len(MAGIC) and may_be_torn:
        return Scanned((), 0)  # the first format had its name before its head
    sealer = sealer_of(data, name)
    return _scan(data, name, may_be_torn, sealer, HEAD_BYTES, sealer.born(data) or 0)


class _Format(Protocol):
    def payload(self, data: bytes, at: int) -> bytes | None: ...
    def proof(self, data: bytes, at: int) -> int | None: ...
    def size(self, payload: bytes) -> int: ...


def _scan(data: bytes, name: str, may_be_torn: bool, form: _Format, at: int, born: int) -> Scanned:
    payloads = []
    while at < len(data):
        payload = form.payload(data, at)
        if payload is None:
            if not may_be_torn or _was_synced(data, at, form):
                raise JournalDamaged(f"{name} is damaged at byte {at} of {len(data)}")
            break
        payloads.append(payload)
        at += form.size(payload)
    if at < born:
        raise JournalDamaged(f"{name} has {at} bytes of {born} that were there from the beginning")
    return Scanned(tuple(payloads), at, isinstance(form, _FirstFormat))


def _was_synced(data: bytes, broken: int, form: _Format) -> bool:
    """True if a later frame tells that the byte at ``broken`` was on the disk."""
    at = data.find(_MARK, broken + 1)
    while at >= 0:
        synced = form.proof(data, at)
        if synced is not None and synced > broken:
            return True
        at = data.find(_MARK, at + 1)
    return False


class _FirstFormat:
    """Frames of before: mark, length, synced, CRC-32 over length, synced and payload."""

    def payload(self, data: bytes, at: int) -> bytes | None:
        if at + _FIRST.size > len(data):
            return None
        mark, length, synced, total = _FIRST.unpack_from(data, at)
        begin = at + _FIRST.size
        if mark != _MARK or length > FRAME_BYTES_MAX or begin + length > len(data) or synced > at:
            return None
        payload = data[begin : begin + length]
        return payload if zlib.crc32(payload, zlib.crc32(struct.pack(">IQ", length, synced))) == total else None

    def proof(self, data: bytes, at: int) -> int | None:
        """Nothing but a whole frame can be distinguished from a value."""
        return None if self.payload(data, at) is None else _FIRST.unpack_from(data, at)[2]

    def size(self, payload: bytes) -> int:
        return _FIRST.size + len(payload)
