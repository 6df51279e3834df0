"""What a frame of a node's files holds: a record, and its cells beside it, packed.

A single object of ``JournalRecord`` for each cell is what made reading a large image slow: most of the time went into
making values of every field. Cells are kept as the tree has them instead (``ringlog.node.registers.cells``), many in
one piece::

    b"C"   length of the record (4 bytes)   the record   number of cells (4)   length of each key (4)   of each cell (4)
    the keys   the cells

all numbers big-endian; the record is a single object without cells, or has the length 0: there is nothing but cells.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ringlog.node.registers.cells import are_wellformed, bytes_of, bytes_of_cell
from ringlog.wire.data import JournalRecord, pack, unpack
from ringlog.wire.errors import WireError

_TAG = b"C"
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">cI")
NOTHING = JournalRecord()

Unpacked = tuple[JournalRecord, Sequence[bytes], Sequence[bytes]]
"""A record without cells; the registers and the cells that belong to it, as the tree has them."""


def packed(record: JournalRecord) -> bytes:
    """The payload of a record. Raises WireError if a field does not fit."""
    keys, values = _cells_of(record)
    return joined(replace(record, cells=()) if keys else record, keys, values)


def joined(record: JournalRecord, keys: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """The payload of a record without cells, and of cells as the tree has them. Raises WireError as ``packed`` does."""
    head = b"" if record == NOTHING else pack(record)
    count = len(keys)
    lengths = struct.pack(f">{1 + 2 * count}I", count, *map(len, keys), *map(len, values))
    return b"".join((_HEAD.pack(_TAG, len(head)), head, lengths, *keys, *values))


def unpacked(payload: bytes) -> Unpacked:
    """What a payload holds. Raises WireError."""
    if payload[:1] != _TAG:
        raise WireError("not_decodable", f"{len(payload)} bytes of cells", "no tag")
    try:
        _, length = _HEAD.unpack_from(payload)
        at = _HEAD.size + length
        (count,) = _LENGTH.unpack_from(payload, at)
        lengths = struct.unpack_from(f">{2 * count}I", payload, at + _LENGTH.size)
    except struct.error as short:
        raise WireError("not_decodable", f"{len(payload)} bytes of cells", str(short)) from short
    record = unpack(JournalRecord, payload[_HEAD.size : at]) if length else NOTHING
    places = list(accumulate(lengths, initial=at + _LENGTH.size + 8 * count))
    if places[-1] != len(payload):
        raise WireError("trailing_bytes", f"{len(payload)} bytes of cells", f"{places[-1]}, by their lengths")
    parts = [payload[begin:end] for begin, end in pairwise(places)]
    keys, values = parts[:count], parts[count:]
    if not are_wellformed(keys, values):
        raise WireError("not_decodable", f"{len(payload)} bytes of cells", "registers and cells as a tree has them")
    return record, keys, values


def _cells_of(record: JournalRecord) -> tuple[list[bytes], list[bytes]]:
    try:
        return [bytes_of(key) for key, _ in record.cells], [bytes_of_cell(cell) for _, cell in record.cells]
    except (struct.error, OverflowError, AssertionError, ValueError) as wrong:
        raise WireError("not_encodable", "ringlog.data.JournalRecord.cells", str(wrong)) from wrong
