"""The payload of a frame in a node's files: a record and its cells, packed.

Decoding an object of ``JournalRecord`` for each cell made reading a large image slow, because it creates a value of
every field. So cells are stored in the encoding of the tree (``ringlog.node.registers.cells``), many in one payload::

    b"C"   length of the record (4 bytes)   the record   number of cells (4)   length of each key (4)   of each cell (4)
    the keys   the cells

All numbers are big-endian. The record is a single object without cells. Length 0 means that there are only cells.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from ringlog.kernel.values import replace
from ringlog.node.registers.cells import are_wellformed, bytes_of, bytes_of_cell
from ringlog.wire.data import JournalRecord, pack, unpack
from ringlog.wire.errors import WireError

_TAG = b"C"
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">cI")
NOTHING = JournalRecord()

Unpacked = tuple[JournalRecord, Sequence[bytes], Sequence[bytes]]
"""A record without cells, the encoded registers, and their encoded cells."""


def encode_record(record: JournalRecord) -> bytes:
    """Encode a record with its cells. Raises WireError if a field does not fit."""
    keys, values = _cells_of(record)
    return encode_parts(replace(record, cells=()) if keys else record, keys, values)


def encode_parts(record: JournalRecord, keys: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """Encode a record without cells, and cells that are already encoded. Raises WireError if a field does not fit."""
    head = b"" if record == NOTHING else pack(record)
    count = len(keys)
    lengths = struct.pack(f">{1 + 2 * count}I", count, *map(len, keys), *map(len, values))
    return b"".join((_HEAD.pack(_TAG, len(head)), head, lengths, *keys, *values))


def decode_record(payload: bytes) -> Unpacked:
    """Decode a payload. Raises WireError."""
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
