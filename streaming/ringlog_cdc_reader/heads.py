"""Vectorized parsing of the leading fields of CDC rows: everything the protocol core needs, without decoding the rest.

The fields that identify a row (stream, generation, time, number, table, source, timestamp) come first in the schema
``ringlog.cdc.CdcRow``. ``ringlog_cdc.columnar.scan`` reads them from many records at once, and key and cells stay
bytes.

Invariants:

* ``ringlog.wire.records.decode_cdc_row`` is the definition. For each record this module either agrees with it or marks
  the record *doubtful*, and the caller decodes it with the definition.
* A record is doubtful if it is not canonical Avro, has another schema, or has a name that is not ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ringlog.client.cdc.errors import UnreadableRecord
from ringlog.kernel.values import Value
from ringlog.wire.avro.codec import HEADER_BYTES, header
from ringlog.wire.errors import WireError
from ringlog.wire.records import CDC_ROW, CdcRow, decode_cdc_row
from ringlog_cdc.columnar.mutations import grouped
from ringlog_cdc.columnar.record_keys import buffers
from ringlog_cdc.columnar.scan import PADDING, ByteSpan, Cursor, padded
from ringlog_cdc.columnar.words import I64, U8, Flags, is_ascii, rows_of
from ringlog_schemas import by_fingerprint

NAMES_MAX = 64
"""Most distinct names of tables and topics per batch. Records with further names are decoded one by one."""
EPOCH_FIELD = ("epoch", "long")
"""(name, kind) of the last field. Schemas with another one are not read here."""
FIRST_FIELDS = (
    ("stream_id", "fixed"),
    ("generation", "long"),
    ("time", "fixed"),
    ("batch_seq_no", "int"),
    ("operation", "int"),
    ("ttl", "null or long"),
    ("end_of_batch", "boolean"),
    ("keyspace", "string"),
    ("table", "string"),
    ("mutation_id", "null or fixed"),
    ("source_topic", "string"),
    ("source_partition", "int"),
    ("source_offset", "long"),
    ("timestamp", "long"),
)
"""(name, kind) of the fields read here, in order. Schemas with other leading fields are not read here."""


class RowHead(NamedTuple):
    """The leading fields of a row, and the record that it comes from (``offset``, ``value``)."""

    stream_id: bytes
    time: bytes
    generation: int
    batch_seq_no: int
    end_of_batch: bool
    keyspace: str
    table: str
    source_topic: str
    source_partition: int
    source_offset: int
    timestamp: int
    offset: int
    value: bytes

    def row(self, partition: int) -> CdcRow:
        """Decode the whole row. Raises UnreadableRecord, which names ``partition`` and offset."""
        return decoded(self.value, partition, self.offset)


def decoded(value: bytes, partition: int, offset: int) -> CdcRow:
    """Decode the row of a record.

    Raises:
        UnreadableRecord: The value is not a CDC row. The error names partition and offset.
    """
    try:
        return decode_cdc_row(value)
    except WireError as error:
        raise UnreadableRecord(partition, offset, str(error)) from error


class Front(Value):
    """``FIRST_FIELDS`` of n records as columns, each of shape (n,). Values of doubtful records are meaningless.

    Attributes:
        cursor: Position of each record after these fields, and which records are sound.
        stream: Start of the 16 bytes of the stream id in the buffer.
        time: Start of the 16 bytes of the time UUID in the buffer.
        ttl: Seconds; 0 unless ``has_ttl``.
        names: Spans of keyspace, table and source topic.
        source: Source partition and source offset.
        timestamp: Microseconds.
    """

    cursor: Cursor
    stream: I64
    generation: I64
    time: I64
    number: I64
    operation: I64
    ttl: I64
    has_ttl: Flags
    last: Flags
    names: tuple[ByteSpan, ByteSpan, ByteSpan]
    source: tuple[I64, I64]
    timestamp: I64


def front(values: Sequence[bytes]) -> Front:
    """Parse the leading fields of at least one record."""
    ends = np.cumsum([len(value) for value in values])
    data: U8 = np.frombuffer(b"".join(values) + bytes(PADDING), dtype=np.uint8)
    return _front(data, np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1])), ends)


def front_of(values: pa.Array) -> Front:
    """Parse the leading fields of a binary array without nulls."""
    data, places = buffers(values)
    first = int(places[0])
    # Offsets of a sliced array do not start at 0.
    places = places - first
    return _front(padded(data[first : first + int(places[-1])]), places[:-1], places[1:])


def _front(data: U8, starts: I64, ends: I64) -> Front:
    """Parse records ``data[starts:ends]``. The buffer has ``PADDING`` bytes after the last record."""
    known = _known(data, starts, ends)
    # Records of unknown schemas start at their end: every read fails there, so they stay doubtful.
    cursor = Cursor(data, np.where(known, starts + HEADER_BYTES, ends), ends)
    cursor.expect(known)
    stream = cursor.skip(16)
    generation = cursor.number()
    time = cursor.skip(16)
    number, operation = cursor.number(), cursor.number()
    has_ttl = cursor.null_or()
    part = cursor.where(has_ttl)
    # Only records with a value have bytes to read here, so a sub-cursor advances those alone.
    ttl = part.number()
    part.give_back()
    last = cursor.byte()
    cursor.expect(last <= 1)
    keyspace, table = cursor.sized(), cursor.sized()
    cursor.skip(np.where(cursor.null_or(), 16, 0))
    topic = cursor.sized()
    source, timestamp = (cursor.number(), cursor.number()), cursor.number()
    # Names are compared as bytes. ASCII is valid UTF-8 and has one encoding, so decoding cannot fail later.
    for text in (keyspace, table, topic):
        cursor.expect(is_ascii(data, text.start, text.length))
    return Front(
        cursor=cursor,
        stream=stream.start,
        generation=generation,
        time=time.start,
        number=number,
        operation=operation,
        ttl=part.spread(ttl),
        has_ttl=has_ttl,
        last=last == 1,
        names=(keyspace, table, topic),
        source=source,
        timestamp=timestamp,
    )


def heads(values: Sequence[bytes], offsets: Sequence[int]) -> list[RowHead | None]:
    """Return the head of each record, or None for a record that needs the definition.

    Args:
        values: Record values, n of them.
        offsets: Their offsets, n of them.
    """
    if not values:
        return []
    found = front(values)
    cursor = found.cursor
    names = [_grouped(cursor, text) for text in found.names]
    columns = (
        _sixteen(cursor.data, found.stream),
        _sixteen(cursor.data, found.time),
        found.generation.tolist(),
        found.number.tolist(),
        found.last.tolist(),
        *names,
        found.source[0].tolist(),
        found.source[1].tolist(),
        found.timestamp.tolist(),
        offsets,
        values,
    )
    # One zip turns columns into rows, without a loop in Python.
    rows = map(RowHead._make, zip(*columns, strict=True))
    return [head if sound else None for head, sound in zip(rows, cursor.sound.tolist(), strict=True)]


def head_of(row: CdcRow, offset: int, value: bytes) -> RowHead:
    """Return the head of a row that was decoded by the definition."""
    return RowHead(
        row.stream_id,
        row.time,
        row.generation,
        row.batch_seq_no,
        row.end_of_batch,
        row.keyspace,
        row.table,
        row.source_topic,
        row.source_partition,
        row.source_offset,
        row.timestamp,
        offset,
        value,
    )


@cache
def known_headers() -> tuple[bytes, ...]:
    """Return the record headers of all known schemas that start with ``FIRST_FIELDS`` and end with the epoch."""
    found = []
    for fingerprint, schema in sorted(by_fingerprint().items()):
        if schema.full_name == CDC_ROW:
            fields = [(field["name"], _kind(field["type"])) for field in schema.json["fields"]]
            if (*fields[: len(FIRST_FIELDS)], fields[-1]) == (*FIRST_FIELDS, EPOCH_FIELD):
                found.append(header(fingerprint))
    return tuple(found)


def _kind(type_: object) -> str:
    """Return a field type as text, in the notation of ``FIRST_FIELDS``."""
    if isinstance(type_, list):
        return " or ".join(_kind(item) for item in type_)
    return str(type_["type"] if isinstance(type_, dict) else type_)


def _known(data: U8, starts: I64, ends: I64) -> Flags:
    """Return True for each record that starts with a known header."""
    marks = rows_of(data, starts, HEADER_BYTES)
    known: Flags = np.zeros(len(starts), dtype=bool)
    for mark in known_headers():
        known |= (marks == np.frombuffer(mark, dtype=np.uint8)).all(axis=1)
    return known & (ends - starts >= HEADER_BYTES)


def _grouped(cursor: Cursor, span: ByteSpan) -> list[str]:
    """Return the name of each record, decoding each distinct name once.

    Records beyond ``NAMES_MAX`` names become doubtful.
    """
    rows = np.flatnonzero(cursor.sound)
    codes, contents = grouped(cursor.data, span, rows, NAMES_MAX)
    found = np.full(len(cursor.at), -1, dtype=np.int64)
    found[rows] = codes
    cursor.expect(found >= 0)
    # The empty name at the end serves code -1, which indexes from the end.
    names = [*(content.decode() for content in contents), ""]
    return [names[code] for code in found.tolist()]


def _sixteen(data: U8, starts: I64) -> list[bytes]:
    """Return the 16 bytes at each start.

    Meaningless for doubtful records, whose start may be too close to the buffer's end.
    """
    found = rows_of(data, np.minimum(starts, len(data) - 16), 16).tobytes()
    return [found[at : at + 16] for at in range(0, len(found), 16)]
