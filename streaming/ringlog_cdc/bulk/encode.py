"""Encoding of CDC rows from the bytes of plain mutations.

Most of a CDC row (``ringlog.cdc.CdcRow``) is in its mutation already, as Avro: names, times, keys, cells. Only a few
short fields are new. A row is thus a handful of pieces. If no cell is null, everything from the clustering key to the
end is a single piece.

Invariant: the result equals ``ringlog.wire.records.encode_cdc_row``, byte for byte.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog.kernel.values import Value
from ringlog.wire.avro.codec import header
from ringlog_cdc.columnar.mutations import Items, Mutations
from ringlog_cdc.columnar.pieces import BytePieces, encoded_numbers
from ringlog_cdc.columnar.scan import ByteSpan
from ringlog_cdc.columnar.words import I64, KEEP, U8, Flags, words_of
from ringlog_schemas import current

CDC_ROW = "ringlog.cdc.CdcRow"
BEHIND_CELLS = bytes(2)
"""The fields between cells and epoch of a simple row: two empty arrays, for deleted columns and elements."""


class Destinations(Value):
    """Destinations of n rows.

    Attributes:
        streams: Stream ids, shape (n, 16).
        times: ``cdc$time``, shape (n, 16).
        generations: Start of the generation, microseconds.
        operations: ``cdc$operation``.
        partitions: Source partitions.
        offsets: Source offsets.
        keys_only: True if the table logs keys only.
    """

    streams: U8
    times: U8
    generations: I64
    operations: I64
    partitions: I64
    offsets: I64
    keys_only: Flags


def composed_keys(mutations: Mutations, rows: I64) -> pa.LargeBinaryArray:
    """Return the composed partition keys of plain mutations, as they are hashed.

    A single component is used as it is. Of several, each has its length (2 bytes) before it and a zero byte after it.
    """
    pieces = BytePieces(len(rows), mutations.data)
    key = mutations.partition_key
    several = key.count[rows] > 1
    any_several = bool(several.any())
    for place, span in enumerate(key.content):
        content = _of(span, rows)
        if not any_several:
            pieces.spans(content)
            continue
        # Rows of tables with fewer components get an empty piece here.
        is_part = several & (key.count[rows] > place)
        # Big-endian 16-bit length of each component.
        lengths = np.stack((content.length >> 8, content.length & 0xFF), axis=1).astype(np.uint8)
        pieces.rows(lengths, is_part * np.int64(2))
        pieces.spans(content)
        pieces.rows(np.zeros((len(rows), 1), dtype=np.uint8), is_part.astype(np.int64))
    if not key.content:
        pieces.constant(b"")
    return pieces.joined()


def cdc_rows(
    mutations: Mutations, rows: I64, places: Destinations, source_topic: str, epoch: int
) -> pa.LargeBinaryArray:
    """Encode the rows of plain mutations.

    Args:
        mutations: Columns of a batch.
        rows: Numbers of n plain mutations without nulls in their partition keys.
        places: Their destinations.
        source_topic: Name of the mutations topic.
        epoch: Metadata epoch that decided them.
    """
    pieces = BytePieces(len(rows), mutations.data)
    _head(pieces, places)
    ttl = _of(mutations.ttl, rows)
    # No row has a time to live: null, then ``end_of_batch``, which is true for the only row of a write.
    if int(ttl.length.max(initial=1)) == 1:
        pieces.constant(b"\0\1")
    else:
        pieces.spans(ttl)
        pieces.constant(b"\1")
    # The same bytes in both schemas, so they are copied: names, id, timestamp.
    pieces.spans(_of(mutations.names, rows))
    pieces.spans(_of(mutations.mutation_id, rows))
    _source(pieces, places, source_topic)
    pieces.spans(_of(mutations.timestamp_at, rows))
    counts = mutations.partition_key.count[rows]
    # Components of the key lose their union branch: a CDC row has no null in its key.
    inner = [_of(span, rows) for span in mutations.partition_key.inner]
    has_null = any(flags[rows].any() for flags in mutations.cells.is_null)
    pieces.numbers(counts)
    if has_null or places.keys_only.any():
        for span in inner:
            pieces.spans(span)
        _cells(pieces, mutations, rows, ~places.keys_only)
        pieces.constant(_number(epoch))
        return pieces.joined()
    rest = _of(mutations.rest, rows)
    if inner and (counts == len(inner)).all():
        # The last component is adjacent to the rest in the mutation, so both are one piece.
        last = inner.pop()
        rest = ByteSpan(last.start, last.length + rest.length)
    for span in inner:
        pieces.spans(span)
    # If two zero bytes follow in the buffer for all rows, as for schemas with fields after the cells, they serve as the
    # empty arrays and extend the piece.
    behind = words_of(mutations.data)[rest.start + rest.length]
    if (behind & KEEP[len(BEHIND_CELLS)] == 0).all():
        pieces.spans(ByteSpan(rest.start, rest.length + len(BEHIND_CELLS)))
    else:
        pieces.spans(rest)
        pieces.constant(BEHIND_CELLS)
    pieces.constant(_number(epoch))
    return pieces.joined()


def _head(pieces: BytePieces, places: Destinations) -> None:
    """Append header, stream, generation, time, number within the write, and operation."""
    count = len(places.generations)
    pieces.constant(header(current()[CDC_ROW].fingerprint))
    pieces.rows(places.streams)
    # A constant is cheaper than a column. Rows of a batch usually share their generation.
    if count and (places.generations == places.generations[0]).all():
        pieces.constant(_number(int(places.generations[0])))
    else:
        pieces.numbers(places.generations)
    pieces.rows(places.times)
    tail = np.zeros((count, 2), dtype=np.uint8)
    # Zigzag of a small number is one byte: its double. The number within the write stays 0.
    tail[:, 1] = places.operations << 1
    pieces.rows(tail)


def _source(pieces: BytePieces, places: Destinations, source_topic: str) -> None:
    """Append source topic, partition and offset."""
    name = source_topic.encode()
    pieces.constant(_number(len(name)) + name)
    if len(places.partitions) and (places.partitions == places.partitions[0]).all():
        pieces.constant(_number(int(places.partitions[0])))
    else:
        pieces.numbers(places.partitions)
    pieces.numbers(places.offsets)


def _number(value: int) -> bytes:
    """Encode one zigzag number."""
    table, lengths = encoded_numbers(np.array([value], dtype=np.int64))
    return table[0, : int(lengths[0])].tobytes()


def _cells(pieces: BytePieces, mutations: Mutations, rows: I64, wanted: Flags) -> None:
    """Append everything after the partition key: cells with a value, deleted columns, no deleted elements.

    Args:
        wanted: False for rows that log keys only.
    """
    cells = mutations.cells
    # The zero byte that ends the key's array, if that is not empty.
    ended = (mutations.partition_key.count[rows] > 0).astype(np.int64)
    pieces.rows(np.zeros((len(rows), 1), dtype=np.uint8), ended)
    pieces.spans(_of(mutations.clustering_at, rows))
    _array(pieces, cells, rows, cells.whole, [~flags[rows] & wanted for flags in cells.is_null])
    _array(pieces, cells, rows, cells.inner, [flags[rows] & wanted for flags in cells.is_null])
    pieces.constant(BEHIND_CELLS[1:])


def _array(pieces: BytePieces, cells: Items, rows: I64, spans: tuple[ByteSpan, ...], chosen: list[Flags]) -> None:
    """Append an array with the chosen items: count, items, and a zero byte if it is not empty."""
    taken = [flags & (cells.count[rows] > place) for place, flags in enumerate(chosen)]
    count: NDArray[np.int64] = np.zeros(len(rows), dtype=np.int64)
    for flags in taken:
        count += flags
    pieces.numbers(count)
    for span, flags in zip(spans, taken, strict=True):
        one = _of(span, rows)
        pieces.spans(ByteSpan(one.start, np.where(flags, one.length, 0)))
    pieces.rows(np.zeros((len(rows), 1), dtype=np.uint8), (count > 0).astype(np.int64))


def _of(span: ByteSpan, rows: I64) -> ByteSpan:
    """Return the spans of these records. ``rows`` ascends, so if it is as long as the span, it selects all."""
    if len(rows) == len(span.start):
        return span
    return ByteSpan(span.start[rows], span.length[rows])
