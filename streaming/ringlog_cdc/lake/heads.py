"""What identifies encoded CDC rows, read out of many at once: table, generation, place of the write in the source.

The identity of a row is the place of its write in the mutations topic, the timestamp of its part of the write, and its
number among the rows of that timestamp: a function of the input, the same in the topic and in the lake.

These fields lie before anything whose length is not bounded by names, in every release's schema of a row at the same
place. Rows are the job's own, or those of a release before it; bytes that are no row raise BadRow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ringlog.wire.single_object import HEADER_BYTES
from ringlog_cdc.columnar.scan import Cursor, Span, padded
from ringlog_cdc.errors import CdcError
from ringlog_cdc.routing import buffers

I64 = NDArray[np.int64]
ID_BYTES = 16


class BadRow(CdcError):
    """Bytes in the CDC topic, or out of the routing, that are no CDC row."""

    def __init__(self, count: int) -> None:
        super().__init__("bad_row", f"{count} values are no CDC rows", "only CDC writers may write to the CDC topic")


@dataclass(frozen=True, slots=True)
class Heads:
    """Of n rows: ``tables`` and ``topics`` are strings, ``tables`` with the keyspace before a point; ``tokens``: of
    their streams; ``timestamps`` in microseconds; ``partitions`` and ``offsets`` of the source.
    """

    tables: pa.Array
    topics: pa.Array
    generations: I64
    tokens: I64
    numbers: I64
    partitions: I64
    offsets: I64
    timestamps: I64
    lasts: NDArray[np.bool_]


def heads_of(values: pa.Array) -> Heads:
    """The heads of encoded rows (binary, without nulls). Raises BadRow."""
    data, ends = buffers(values)
    buffer = padded(data)
    cursor = Cursor(buffer, ends[:-1].astype(np.int64), ends[1:].astype(np.int64))
    cursor.skip(HEADER_BYTES)
    stream = cursor.skip(ID_BYTES)
    generations = cursor.number()
    cursor.skip(ID_BYTES)
    numbers = cursor.number()
    cursor.number()
    _number_or_null(cursor)
    lasts = cursor.byte() == 1
    keyspaces, tables = _texts(buffer, cursor.sized()), _texts(buffer, cursor.sized())
    _id_or_null(cursor)
    topics = _texts(buffer, cursor.sized())
    partitions, offsets, timestamps = cursor.number(), cursor.number(), cursor.number()
    if not cursor.sound.all():
        raise BadRow(int((~cursor.sound).sum()))
    places = stream.start[:, None] + np.arange(8)
    tokens = buffer[places].copy().view(">i8").astype(np.int64).reshape(-1)
    names = pc.binary_join_element_wise(keyspaces, tables, ".")
    return Heads(names, topics, generations, tokens, numbers, partitions, offsets, timestamps, lasts)


def _number_or_null(cursor: Cursor) -> None:
    part = cursor.where(cursor.null_or())
    part.number()
    part.give_back()


def _id_or_null(cursor: Cursor) -> None:
    part = cursor.where(cursor.null_or())
    part.skip(ID_BYTES)
    part.give_back()


def _texts(buffer: NDArray[np.uint8], span: Span) -> pa.Array:
    """The texts of spans, each distinct one decoded once: names repeat."""
    known: dict[bytes, str] = {}
    data = buffer.tobytes() if len(span.start) else b""
    found = []
    for start, length in zip(span.start.tolist(), span.length.tolist(), strict=True):
        raw = data[start : start + length]
        if raw not in known:
            known[raw] = raw.decode("utf-8", "replace")
        found.append(known[raw])
    return pa.array(found, pa.string())
