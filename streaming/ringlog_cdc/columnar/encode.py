"""CDC rows of plain mutations, put together from the mutations' own bytes.

Most of a row (``ringlog.cdc.CdcRow``) stands in its mutation already, in Avro: names, times, keys, cells. What is new
is short. So a row is a handful of pieces, and where no cell is null everything from the clustering key to the end is
one of them. The result equals that of ``ringlog.wire.records.encode_cdc_row``, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog.wire.avro.codec import header
from ringlog_cdc.columnar.mutations import Items, Mutations
from ringlog_cdc.columnar.pieces import BytePieces, encoded_numbers
from ringlog_cdc.columnar.scan import ByteSpan
from ringlog_cdc.columnar.words import I64, KEEP, U8, Flags, words_of
from ringlog_schemas import current

CDC_ROW = "ringlog.cdc.CdcRow"
BEHIND_CELLS = bytes(2)
"""What follows the cells of a row that has no more to say, up to its epoch: no deleted columns or elements."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where n rows go: (n, 16) ids of streams and times, generations, codes of the operation, source positions.

    ``keys_only``: where the log of the row's table has no more than keys.
    """

    streams: U8
    times: U8
    generations: I64
    operations: I64
    partitions: I64
    offsets: I64
    keys_only: Flags


def composed_keys(mutations: Mutations, rows: I64) -> pa.LargeBinaryArray:
    """The partition keys of plain mutations as they are hashed: one component as it is; of several each with its
    length (2 bytes) before it and a zero byte behind it.
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
        is_part = several & (key.count[rows] > place)
        lengths = np.stack((content.length >> 8, content.length & 0xFF), axis=1).astype(np.uint8)
        pieces.rows(lengths, is_part * np.int64(2))
        pieces.spans(content)
        pieces.rows(np.zeros((len(rows), 1), dtype=np.uint8), is_part.astype(np.int64))
    if not key.content:
        pieces.constant(b"")
    return pieces.joined()


def cdc_rows(mutations: Mutations, rows: I64, places: Places, source_topic: str, epoch: int) -> pa.LargeBinaryArray:
    """The rows of the plain mutations with these numbers, none of which has a null in its partition key.

    ``places`` has an entry for each of ``rows``; ``epoch``: that they are decided by.
    """
    pieces = BytePieces(len(rows), mutations.data)
    _head(pieces, places)
    ttl = _of(mutations.ttl, rows)
    if int(ttl.length.max(initial=1)) == 1:
        pieces.constant(b"\0\1")
    else:
        pieces.spans(ttl)
        pieces.constant(b"\1")
    pieces.spans(_of(mutations.names, rows))
    pieces.spans(_of(mutations.mutation_id, rows))
    _source(pieces, places, source_topic)
    pieces.spans(_of(mutations.timestamp_at, rows))
    counts = mutations.partition_key.count[rows]
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
        # What is behind the key's last component stands behind it in the mutation, too.
        last = inner.pop()
        rest = ByteSpan(last.start, last.length + rest.length)
    for span in inner:
        pieces.spans(span)
    behind = words_of(mutations.data)[rest.start + rest.length]
    if (behind & KEEP[len(BEHIND_CELLS)] == 0).all():
        pieces.spans(ByteSpan(rest.start, rest.length + len(BEHIND_CELLS)))
    else:
        pieces.spans(rest)
        pieces.constant(BEHIND_CELLS)
    pieces.constant(_number(epoch))
    return pieces.joined()


def _head(pieces: BytePieces, places: Places) -> None:
    """Header, stream, generation, time, number within the write, operation."""
    count = len(places.generations)
    pieces.constant(header(current()[CDC_ROW].fingerprint))
    pieces.rows(places.streams)
    if count and (places.generations == places.generations[0]).all():
        pieces.constant(_number(int(places.generations[0])))
    else:
        pieces.numbers(places.generations)
    pieces.rows(places.times)
    tail = np.zeros((count, 2), dtype=np.uint8)
    tail[:, 1] = places.operations << 1
    pieces.rows(tail)


def _source(pieces: BytePieces, places: Places, source_topic: str) -> None:
    """Topic, partition, offset; the rows of a batch come from few partitions."""
    name = source_topic.encode()
    pieces.constant(_number(len(name)) + name)
    if len(places.partitions) and (places.partitions == places.partitions[0]).all():
        pieces.constant(_number(int(places.partitions[0])))
    else:
        pieces.numbers(places.partitions)
    pieces.numbers(places.offsets)


def _number(value: int) -> bytes:
    table, lengths = encoded_numbers(np.array([value], dtype=np.int64))
    return table[0, : int(lengths[0])].tobytes()


def _cells(pieces: BytePieces, mutations: Mutations, rows: I64, wanted: Flags) -> None:
    """Everything behind the partition key, where cells are parted in those with a value and the deleted columns, and
    left out unless ``wanted``.
    """
    cells = mutations.cells
    ended = (mutations.partition_key.count[rows] > 0).astype(np.int64)
    pieces.rows(np.zeros((len(rows), 1), dtype=np.uint8), ended)
    pieces.spans(_of(mutations.clustering_at, rows))
    _array(pieces, cells, rows, cells.whole, [~flags[rows] & wanted for flags in cells.is_null])
    _array(pieces, cells, rows, cells.inner, [flags[rows] & wanted for flags in cells.is_null])
    pieces.constant(BEHIND_CELLS[1:])


def _array(pieces: BytePieces, cells: Items, rows: I64, spans: tuple[ByteSpan, ...], chosen: list[Flags]) -> None:
    """An array of the chosen cells: how many, each of them, and a zero byte unless there are none."""
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
    """Of these records, whose numbers ascend: as many as there are, are all."""
    if len(rows) == len(span.start):
        return span
    return ByteSpan(span.start[rows], span.length[rows])
