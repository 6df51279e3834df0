"""Writes of several rows, one at a time: validated, split, routed piece by piece, and encoded.

These are compound writes, and all writes of tables that keep images (``ringlog_cdc.images``). Tables whose columns are
stored under other names (``ringlog.kernel.schema.stored``) send all inserts and updates here.

Invariants:

* A write is accepted or rejected as a whole, by the rules that base nodes use
  (``ringlog.kernel.generations.admission``). One statement outside the acceptance window, in a closed generation or
  with too large a row rejects it all. A rejected write leaves no state for images.
* The timestamp of a piece selects its generation, so one write may have rows in streams of two generations.
* A write that changes nothing (a range that cannot contain a row) has no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ringlog.kernel.generations.acceptance import index_at
from ringlog.kernel.generations.admission import refusal, shape_for
from ringlog.kernel.generations.statements import TableShape, is_compound, stored_shape
from ringlog.kernel.generations.verdicts import CountedVersion, newest_of, version_at
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.schema.stored import as_stored
from ringlog.wire.records import CdcRow, Mutation, encode_cdc_row
from ringlog_cdc.columnar.routing import (
    NUMBERS,
    OPERATION_CODES,
    ROUTED,
    SKIPPED,
    RoutingTable,
    high_halves,
    low_halves,
    mutation_ids,
)
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.split import Piece, keys_only, split
from ringlog_cdc.images.define import States, imaged


@dataclass(frozen=True, slots=True)
class Single:
    """A write to process alone: the mutation, its append time (microseconds), and its position in the source.

    ``own_key``: whether the record's key is that of the write.
    """

    mutation: Mutation
    appended: int
    partition: int
    offset: int
    own_key: bool = True


@dataclass(frozen=True, slots=True)
class RoutedWrite:
    """Result of a write. The tuples have one item for each row of the log.

    Attributes:
        verdict: ``ROUTED``, ``SKIPPED`` or the number of a reason.
        rows: Encoded rows.
    """

    verdict: int
    generations: tuple[int, ...] = ()
    partitions: tuple[int, ...] = ()
    streams: tuple[bytes, ...] = ()
    rows: tuple[bytes, ...] = ()


def route_single(
    table: RoutingTable, topic: str, row_bytes_max: int, write: Single, epoch: int, states: States | None = None
) -> RoutedWrite:
    """Process one write.

    Args:
        table: Routing table.
        topic: Name of the mutations topic.
        row_bytes_max: Most bytes of an encoded row.
        write: The write.
        epoch: Metadata epoch of the plan part.
        states: States of rows, for tables that keep images. Updated only if the write is routed.
    """
    mutation = write.mutation
    shape = shape_for(table.rules, mutation, write.appended)
    verdict = _verdict(table, write, shape)
    if verdict not in (ROUTED, SKIPPED):
        return RoutedWrite(verdict)
    name = f"{mutation.keyspace}.{mutation.table}"
    assert not isinstance(shape, str), "only routed writes have rows"
    earlier = earlier_version(table, mutation, write.appended)
    images = _images_of(table, mutation, write.appended, earlier)
    if earlier is not None and images is None and states is not None:
        # The write changes rows without updating a state, so states of its table would be wrong.
        states.forget(name, earlier.id)
    if verdict == SKIPPED:
        return RoutedWrite(SKIPPED)
    compound, mutation = is_compound(mutation, shape), as_stored(mutation, shape.stored)
    pieces = split(mutation, stored_shape(shape)) if compound else (plain_piece(mutation),)
    key = compose([part for part in mutation.partition_key if part is not None])
    only_keys = shape.delta == "keys"
    # A row names the epoch whose table version reads it.
    epoch = epoch if earlier is None else earlier.epoch
    left: Mapping[bytes, Any] = {}
    if images is not None:
        assert states is not None, "a table with images has states"
        found = imaged(states, name, images, key, pieces, write.appended, only_keys)
        pieces, left = found.pieces, found.states
    elif only_keys:
        pieces = keys_only(pieces)
    if not pieces:
        return RoutedWrite(SKIPPED)
    generations = np.array([index_at(table.timestamps, piece.timestamp) for piece in pieces], dtype=np.int32)
    if np.isin(generations, table.closed).any():
        return RoutedWrite(NUMBERS["generation_closed"])
    tokens = np.full(len(pieces), token_of(key), dtype=np.int64)
    located = table.streams.locate(tokens, table.placed(_id_of(table, name, earlier), generations))
    streams = tuple(table.streams.streams[index].tobytes() for index in located)
    starts = tuple(table.timestamps[index] for index in generations)
    places = zip(pieces, starts, streams, _times(table, mutation, write, pieces), strict=True)
    rows = tuple(encode_cdc_row(row_of(mutation, topic, write, epoch, *place)) for place in places)
    if max(map(len, rows)) > row_bytes_max:
        return RoutedWrite(NUMBERS["oversized"])
    if states is not None:
        for state in left.items():
            states.put(*state)
    return RoutedWrite(ROUTED, starts, tuple(table.partitions[located].tolist()), streams, rows)


def earlier_version(table: RoutingTable, mutation: Mutation, appended: int) -> CountedVersion | None:
    """Return the table version that reads a write, or None if it is the newest one with the name."""
    history = table.rules.history
    if history is None or history.is_newest(mutation, appended):
        return None
    found = version_at(history, mutation, appended)
    if isinstance(found, str) or found is newest_of(history, f"{mutation.keyspace}.{mutation.table}"):
        return None
    return found


def _id_of(table: RoutingTable, name: str, earlier: CountedVersion | None) -> str:
    """Return the id of the write's table, or empty if the table is not in tablets."""
    return earlier.id if earlier is not None else table.ids.get(name, "")


def _images_of(
    table: RoutingTable, mutation: Mutation, appended: int, earlier: CountedVersion | None
) -> ImageTable | None:
    """Return the image options and columns for a write, or None if it has no images.

    Args:
        earlier: Result of ``earlier_version``.
    """
    if earlier is None:
        return table.images.get(f"{mutation.keyspace}.{mutation.table}")
    assert table.rules.history is not None, "the table has an earlier version"
    # Columns come from the version that the write names, options from the version that counts at its append time.
    unnamed = replace(mutation, table_version=None, epoch=None)
    counting = version_at(table.rules.history, unnamed, appended)
    assert not isinstance(counting, str), "a version of the table reads the write"
    return table.earlier_images.at(earlier.id, earlier.epoch, counting.epoch)


def _verdict(table: RoutingTable, write: Single, shape: TableShape | str) -> int:
    """Return the verdict of the write as a whole."""
    if code := refusal(table.rules, write.mutation, write.appended, write.own_key):
        return NUMBERS[code]
    assert not isinstance(shape, str), "a write without a table is refused"
    return ROUTED if shape.cdc else SKIPPED


def _times(table: RoutingTable, mutation: Mutation, write: Single, pieces: Sequence[Piece]) -> tuple[bytes, ...]:
    """Return ``cdc$time`` of each piece. Pieces of one timestamp share it."""
    name = b"" if mutation.mutation_id is None else bytes.fromhex(mutation.mutation_id.replace("-", ""))
    ids, has_id = mutation_ids(pa.array([name], type=pa.large_binary()))
    partition, offset = np.array([write.partition], dtype=np.int32), np.array([write.offset], dtype=np.int64)
    low = low_halves(table.topic, partition, offset, ids, has_id).astype(">i8").tobytes()
    high = high_halves(np.array([piece.timestamp for piece in pieces], dtype=np.int64))
    # Conversion through ``int``: a numpy scalar has the machine's byte order, even from a big-endian array.
    return tuple(half.to_bytes(8, "big", signed=True) + low for half in high.tolist())


def plain_piece(mutation: Mutation, only_keys: bool = False) -> Piece:
    """Return the only row of a plain write."""
    cells = () if only_keys else mutation.cells
    return Piece(
        timestamp=mutation.timestamp,
        batch_seq_no=0,
        end_of_batch=True,
        operation=OPERATION_CODES[mutation.operation],
        ttl=mutation.ttl,
        clustering_key=mutation.clustering_key,
        cells=tuple(cell for cell in cells if cell.value is not None),
        deleted=tuple(cell.column for cell in cells if cell.value is None),
    )


class WritePlace(Protocol):
    """Position of a write in the mutations topic."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


def row_of(
    mutation: Mutation,
    topic: str,
    place: WritePlace,
    epoch: int,
    piece: Piece,
    generation: int,
    stream: bytes,
    time: bytes,
) -> CdcRow:
    """Return the CDC row of a piece.

    Args:
        mutation: The write. Its partition key has no nulls.
        topic: Name of the mutations topic.
        place: Position of the write.
        epoch: Metadata epoch that decided the write.
        piece: The piece.
        generation: Start of its generation, microseconds.
        stream: Stream id.
        time: ``cdc$time``, 16 bytes.
    """
    return CdcRow(
        stream_id=stream,
        generation=generation,
        time=time,
        batch_seq_no=piece.batch_seq_no,
        operation=piece.operation,
        ttl=piece.ttl,
        end_of_batch=piece.end_of_batch,
        keyspace=mutation.keyspace,
        table=mutation.table,
        mutation_id=mutation.mutation_id,
        source_topic=topic,
        source_partition=place.partition,
        source_offset=place.offset,
        timestamp=piece.timestamp,
        partition_key=tuple(part for part in mutation.partition_key if part is not None),
        clustering_key=piece.clustering_key,
        cells=piece.cells,
        deleted=piece.deleted,
        deleted_elements=piece.deleted_elements,
        epoch=epoch,
    )
