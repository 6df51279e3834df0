"""What the protocol looks at of many CDC rows at once, without decoding the rest of them.

The fields that say what a row is (stream, generation, time, number, table, source, timestamp) come first in the
schema ``ringlog.cdc.CdcRow``, so its columns are read by ``ringlog_cdc.columnar.scan`` from a batch of records, and a
row's key and cells stay bytes until somebody wants them. A record that is not canonical there, of another schema or
with a name that is not ASCII is decoded whole by ``ringlog.wire.records.decode_cdc_row``, which is the definition; of
all others both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ringlog.client.cdc.errors import UnreadableRecord
from ringlog.wire.avro.codec import HEADER_BYTES, header
from ringlog.wire.errors import WireError
from ringlog.wire.records import CDC_ROW, CdcRow, decode_cdc_row
from ringlog_cdc.columnar.mutations import grouped
from ringlog_cdc.columnar.routing import buffers
from ringlog_cdc.columnar.scan import PADDING, ByteSpan, Cursor, padded
from ringlog_cdc.columnar.words import I64, U8, Flags, is_ascii, rows_of
from ringlog_schemas import by_fingerprint

NAMES_MAX = 64
"""At most N names of tables and topics in a batch of records; what has another one is decoded whole."""
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
"""The fields that are read here, in their order, with their kinds; a schema that begins otherwise is not read here."""


class RowHead(NamedTuple):
    """A row as the protocol sees it, and the record that it is of."""

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
        """All of it; ``partition`` is for the error. Raises Unreadable."""
        return decoded(self.value, partition, self.offset)


def decoded(value: bytes, partition: int, offset: int) -> CdcRow:
    """The row of a record. Raises Unreadable, which names its place."""
    try:
        return decode_cdc_row(value)
    except WireError as error:
        raise UnreadableRecord(partition, offset, str(error)) from error


@dataclass(frozen=True, slots=True)
class Front:
    """``FIRST_FIELDS`` of n records as columns, and a cursor behind them; doubtful ones say nothing. ``stream`` and
    ``time``: where their 16 bytes begin.
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
    """The front of one record or more."""
    ends = np.cumsum([len(value) for value in values])
    data: U8 = np.frombuffer(b"".join(values) + bytes(PADDING), dtype=np.uint8)
    return _front(data, np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1])), ends)


def front_of(values: pa.Array) -> Front:
    """The same of a binary array without nulls."""
    data, places = buffers(values)
    first = int(places[0])
    places = places - first
    return _front(padded(data[first : first + int(places[-1])]), places[:-1], places[1:])


def _front(data: U8, starts: I64, ends: I64) -> Front:
    known = _known(data, starts, ends)
    cursor = Cursor(data, np.where(known, starts + HEADER_BYTES, ends), ends)
    cursor.expect(known)
    stream = cursor.skip(16)
    generation = cursor.number()
    time = cursor.skip(16)
    number, operation = cursor.number(), cursor.number()
    has_ttl = cursor.null_or()
    part = cursor.where(has_ttl)
    ttl = part.number()
    part.give_back()
    last = cursor.byte()
    cursor.expect(last <= 1)
    keyspace, table = cursor.sized(), cursor.sized()
    cursor.skip(np.where(cursor.null_or(), 16, 0))
    topic = cursor.sized()
    source, timestamp = (cursor.number(), cursor.number()), cursor.number()
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
    """The head of each record; None where it must be decoded whole."""
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
    rows = map(RowHead._make, zip(*columns, strict=True))
    return [head if sound else None for head, sound in zip(rows, cursor.sound.tolist(), strict=True)]


def head_of(row: CdcRow, offset: int, value: bytes) -> RowHead:
    """The head of a row that was decoded whole."""
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
    """Headers of the schemas that begin with ``FIRST_FIELDS``."""
    found = []
    for fingerprint, schema in sorted(by_fingerprint().items()):
        if schema.full_name == CDC_ROW:
            fields = [(field["name"], _kind(field["type"])) for field in schema.json["fields"]]
            if tuple(fields[: len(FIRST_FIELDS)]) == FIRST_FIELDS:
                found.append(header(fingerprint))
    return tuple(found)


def _kind(type_: object) -> str:
    if isinstance(type_, list):
        return " or ".join(_kind(item) for item in type_)
    return str(type_["type"] if isinstance(type_, dict) else type_)


def _known(data: U8, starts: I64, ends: I64) -> Flags:
    """Where a record begins with a header of those schemas."""
    marks = rows_of(data, starts, HEADER_BYTES)
    known: Flags = np.zeros(len(starts), dtype=bool)
    for mark in known_headers():
        known |= (marks == np.frombuffer(mark, dtype=np.uint8)).all(axis=1)
    return known & (ends - starts >= HEADER_BYTES)


def _grouped(cursor: Cursor, span: ByteSpan) -> list[str]:
    """A name for each record; those with names beyond ``NAMES_MAX`` others become doubtful."""
    rows = np.flatnonzero(cursor.sound)
    codes, contents = grouped(cursor.data, span, rows, NAMES_MAX)
    found = np.full(len(cursor.at), -1, dtype=np.int64)
    found[rows] = codes
    cursor.expect(found >= 0)
    names = [*(content.decode() for content in contents), ""]
    return [names[code] for code in found.tolist()]


def _sixteen(data: U8, starts: I64) -> list[bytes]:
    """16 bytes from each place on; nothing of meaning where the buffer ends before."""
    found = rows_of(data, np.minimum(starts, len(data) - 16), 16).tobytes()
    return [found[at : at + 16] for at in range(0, len(found), 16)]
