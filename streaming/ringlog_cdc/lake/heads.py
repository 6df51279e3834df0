"""Identifying fields of encoded CDC rows as columns: table, generation, position of the write in the source.

The identity of a row is the position of its write in the mutations topic, the timestamp of its part of the write, and
its number among the rows of that timestamp. It is a function of the input, and the same in topic and lake.

``ringlog_cdc_reader.heads`` parses the fields. If a record is doubtful there, all records of the batch are decoded by
the definition. Bytes that are not a row raise BadRow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ringlog.kernel.values import Value
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, decode_cdc_row
from ringlog_cdc.columnar.mutations import grouped
from ringlog_cdc.columnar.scan import NUMBER_BYTES_MAX, ByteSpan, Cursor
from ringlog_cdc.columnar.words import rows_of
from ringlog_cdc.errors import CdcError
from ringlog_cdc_reader.heads import NAMES_MAX, Front, front_of

I64 = NDArray[np.int64]
TOKEN_BYTES = 8
"""Bytes of the token at the start of a stream id."""


class BadRow(CdcError):
    """Bytes in the CDC topic, or from the routing, that are not a CDC row."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "bad_row",
            f"the value of a record is not a CDC row: {why}",
            "allow only CDC writers to write to the CDC topic: ringlog cdc grant",
        )


class Heads(Value):
    """Identifying fields of n rows, each of shape (n,).

    Attributes:
        tables: ``keyspace.table``.
        topics: Source topic.
        generations: Start of the generation, microseconds.
        tokens: First half of the stream id.
        numbers: ``cdc$batch_seq_no``.
        operations: ``cdc$operation``.
        partitions: Source partition.
        offsets: Source offset.
        timestamps: Microseconds.
        lasts: ``cdc$end_of_batch``.
        epochs: Epoch of the table version that reads the row. 0: unknown.
    """

    tables: pa.Array
    topics: pa.Array
    generations: I64
    tokens: I64
    numbers: I64
    operations: I64
    partitions: I64
    offsets: I64
    timestamps: I64
    lasts: NDArray[np.bool_]
    epochs: I64


def heads_of(values: pa.Array) -> Heads:
    """Parse the heads of encoded rows (binary, no nulls).

    Raises:
        BadRow: A value is not a CDC row.
    """
    return heads_in(front_of(values), values) if len(values) else _of_rows([])


def heads_in(found: Front, values: pa.Array) -> Heads:
    """Return the heads of at least one row whose leading fields were parsed.

    Raises:
        BadRow: A value is not a CDC row.
    """
    names = [_texts(found, span) for span in found.names]
    epochs = _last_numbers(found.cursor)
    if not found.cursor.sound.all():
        return _of_rows([decoded(value) for value in values.to_pylist()])
    return Heads(
        tables=pc.binary_join_element_wise(names[0], names[1], "."),
        topics=names[2],
        generations=found.generation,
        # Big-endian bytes to native numbers.
        tokens=rows_of(found.cursor.data, found.stream, TOKEN_BYTES).view(">i8").astype(np.int64).ravel(),
        numbers=found.number,
        operations=found.operation,
        partitions=found.source[0],
        offsets=found.source[1],
        timestamps=found.timestamp,
        lasts=found.last,
        epochs=epochs,
    )


def _last_numbers(cursor: Cursor) -> I64:
    """Return the number at the end of each record: its epoch. Other records become doubtful.

    The byte before the epoch ends an empty array, so it is 0. The bytes of a number, except its last one, are at least
    0x80.
    """
    start = np.maximum(cursor.end - 1, 0)
    for _ in range(NUMBER_BYTES_MAX):
        start = start - (cursor.data[np.maximum(start - 1, 0)] >= 0x80)
    last = Cursor(cursor.data, np.maximum(start, 0), cursor.end)
    epochs = last.number()
    cursor.expect(last.sound & (last.at == last.end))
    return epochs


def _texts(found: Front, span: ByteSpan) -> pa.Array:
    """Return the text of each span, decoding each distinct one once.

    Records beyond ``NAMES_MAX`` texts become doubtful.
    """
    rows = np.flatnonzero(found.cursor.sound)
    codes, contents = grouped(found.cursor.data, span, rows, NAMES_MAX)
    known = np.full(len(span.start), -1, dtype=np.int64)
    known[rows] = codes
    found.cursor.expect(known >= 0)
    return pa.array([*(content.decode() for content in contents), ""], pa.string()).take(
        pa.array(np.where(known < 0, len(contents), known))
    )


def decoded(value: bytes) -> CdcRow:
    """Decode a row by the definition. Raises BadRow."""
    try:
        return decode_cdc_row(value)
    except WireError as error:
        raise BadRow(str(error)) from error


def _of_rows(rows: list[CdcRow]) -> Heads:
    """Return the heads of decoded rows."""

    def numbers(name: str) -> I64:
        return np.array([getattr(row, name) for row in rows], dtype=np.int64)

    return Heads(
        tables=pa.array([f"{row.keyspace}.{row.table}" for row in rows], pa.string()),
        topics=pa.array([row.source_topic for row in rows], pa.string()),
        generations=numbers("generation"),
        tokens=np.array([int.from_bytes(row.stream_id[:TOKEN_BYTES], "big", signed=True) for row in rows], np.int64),
        numbers=numbers("batch_seq_no"),
        operations=numbers("operation"),
        partitions=numbers("source_partition"),
        offsets=numbers("source_offset"),
        timestamps=numbers("timestamp"),
        lasts=np.array([row.end_of_batch for row in rows], dtype=bool),
        epochs=numbers("epoch"),
    )
