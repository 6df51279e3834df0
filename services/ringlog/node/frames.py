"""Frames of a journal's file: how bytes that were written whole are told from a torn end, and from damage.

A file begins with eight bytes of its own; each frame after them is

    mark (2 bytes)   length (4)   synced (8)   CRC-32 (4)   payload

all numbers big-endian, the sum over length, synced and payload. ``synced`` says how much of this file was on the disk
for certain when the frame was written.

The first frame that is not whole ends what can be read. Is it the torn end of a write that nobody was promised, or
damage to something that was? A power cut may leave any part of what was not synced, in any order. So a whole frame
further on proves nothing by itself; but one whose ``synced`` lies beyond the broken place was written after that place
had reached the disk: then it is damage, and to cut the file there would lose writes that were acknowledged. Damage to
the very last batch cannot be told from a torn one; that is the price of not writing everything twice.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAGIC = b"RLCELLS1"
FRAME_BYTES_MAX = 64 * 1024 * 1024
_MARK = b"\xd7\x4c"
_HEAD = struct.Struct(">2sIQI")


class JournalDamaged(Exception):
    """The disk does not hold what was acknowledged; the text says where."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The payloads of a file in order, and where the last whole frame ends: 0 if not even the file's head is whole."""

    payloads: tuple[bytes, ...]
    end: int


def frame(payload: bytes, synced: int) -> bytes:
    """The bytes of one frame; ``synced``: how much of its file is on the disk."""
    assert len(payload) <= FRAME_BYTES_MAX, len(payload)
    return _HEAD.pack(_MARK, len(payload), synced, _sum(len(payload), synced, payload)) + payload


def scan(data: bytes, name: str, may_be_torn: bool) -> Scanned:
    """What a file holds. ``may_be_torn``: it is the last one, at whose end a write may have been cut.

    Raises JournalDamaged, with ``name``.
    """
    if data[: len(MAGIC)] != MAGIC:
        if may_be_torn and len(data) <= len(MAGIC):
            return Scanned((), 0)
        raise JournalDamaged(f"{name} does not begin as a journal does")
    payloads = []
    at = len(MAGIC)
    while at < len(data):
        found = _frame_at(data, at)
        if found is None:
            if not may_be_torn or _was_synced(data, at):
                raise JournalDamaged(f"{name} is damaged at byte {at} of {len(data)}")
            break
        payload, _ = found
        payloads.append(payload)
        at += _HEAD.size + len(payload)
    return Scanned(tuple(payloads), at)


def _frame_at(data: bytes, at: int) -> tuple[bytes, int] | None:
    """(payload, synced) of the whole frame at a place."""
    if at + _HEAD.size > len(data):
        return None
    mark, length, synced, total = _HEAD.unpack_from(data, at)
    begin = at + _HEAD.size
    if mark != _MARK or length > FRAME_BYTES_MAX or begin + length > len(data) or synced > at:
        return None
    payload = data[begin : begin + length]
    return (payload, synced) if _sum(length, synced, payload) == total else None


def _was_synced(data: bytes, broken: int) -> bool:
    """True if a later frame tells that the byte at ``broken`` was on the disk."""
    at = data.find(_MARK, broken + 1)
    while at >= 0:
        found = _frame_at(data, at)
        if found is not None and found[1] > broken:
            return True
        at = data.find(_MARK, at + 1)
    return False


def _sum(length: int, synced: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack(">IQ", length, synced)))
