"""What identifies encoded CDC rows, as columns: table, generation, place of the write in the source.

The identity of a row is the place of its write in the mutations topic, the timestamp of its part of the write, and its
number among the rows of that timestamp: a function of the input, the same in the topic and in the lake.

Fields are read by ``ringlog_cdc_reader.heads``; a record that is doubtful there is decoded whole. Bytes that are no
row raise BadRow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, decode_cdc_row
from ringlog_cdc.columnar.mutations import grouped
from ringlog_cdc.columnar.scan import ByteSpan
from ringlog_cdc.columnar.words import rows_of
from ringlog_cdc.errors import CdcError
from ringlog_cdc_reader.heads import NAMES_MAX, Front, front_of

I64 = NDArray[np.int64]
TOKEN_BYTES = 8


class BadRow(CdcError):
    """Bytes in the CDC topic, or out of the routing, that are no CDC row."""

    def __init__(self, why: str) -> None:
        super().__init__("bad_row", f"a value is no CDC row: {why}", "only CDC writers may write to the CDC topic")


@dataclass(frozen=True, slots=True)
class Heads:
    """Of n rows: ``tables`` and ``topics`` are strings, ``tables`` with the keyspace before a point; ``tokens``: of
    their streams; ``timestamps`` in microseconds; ``partitions`` and ``offsets`` of the source; ``lasts``: the rows
    with ``end_of_batch``.
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


def heads_of(values: pa.Array) -> Heads:
    """The heads of encoded rows (binary, without nulls). Raises BadRow."""
    return heads_in(front_of(values), values) if len(values) else _of_rows([])


def heads_in(found: Front, values: pa.Array) -> Heads:
    """The same of one row or more whose front was read. Raises BadRow."""
    names = [_texts(found, span) for span in found.names]
    if not found.cursor.sound.all():
        return _of_rows([decoded(value) for value in values.to_pylist()])
    return Heads(
        tables=pc.binary_join_element_wise(names[0], names[1], "."),
        topics=names[2],
        generations=found.generation,
        tokens=rows_of(found.cursor.data, found.stream, TOKEN_BYTES).view(">i8").astype(np.int64).ravel(),
        numbers=found.number,
        operations=found.operation,
        partitions=found.source[0],
        offsets=found.source[1],
        timestamps=found.timestamp,
        lasts=found.last,
    )


def _texts(found: Front, span: ByteSpan) -> pa.Array:
    """The texts of spans; the records of names beyond ``NAMES_MAX`` others become doubtful."""
    rows = np.flatnonzero(found.cursor.sound)
    codes, contents = grouped(found.cursor.data, span, rows, NAMES_MAX)
    known = np.full(len(span.start), -1, dtype=np.int64)
    known[rows] = codes
    found.cursor.expect(known >= 0)
    return pa.array([*(content.decode() for content in contents), ""], pa.string()).take(
        pa.array(np.where(known < 0, len(contents), known))
    )


def decoded(value: bytes) -> CdcRow:
    """A row, by the definition. Raises BadRow."""
    try:
        return decode_cdc_row(value)
    except WireError as error:
        raise BadRow(str(error)) from error


def _of_rows(rows: list[CdcRow]) -> Heads:
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
    )
