"""Routing of many plain writes at once: accepted or not, and stream, generation and ``cdc$time`` of each.

Only the columns that decide the routing arrive here: key bytes, timestamps and a few flags per row. Loops run over
tables and generations, never over rows. A write that breaks a rule is merely marked. The definition
(``ringlog_cdc.definition.decision``) then finds the reason.

Invariant: a write is accepted here if and only if the definition makes rows of it, or nothing because its table has no
CDC log. Stream, partition and time are the same there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog.kernel.generations.acceptance import VERDICTS, accept_many
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.vectors import StreamTable
from ringlog.kernel.ring.vectors import tokens_of
from ringlog.kernel.values import GenerationRange, Value, field
from ringlog_cdc.columnar.key_types import well_typed
from ringlog_cdc.columnar.record_keys import buffers, own_keys
from ringlog_cdc.columnar.scan import padded
from ringlog_cdc.columnar.words import I32, I64, U8, U64, Flags
from ringlog_cdc.definition.cdc_time import MIX_FIRST, MIX_SECOND, UUID_EPOCH_100NS, VARIANT, VARIANT_MASK, topic_number
from ringlog_cdc.definition.routing_table import RoutingTable

ID = 16
"""Bytes of a stream id, of ``cdc$time`` and of a mutation id."""
NO_TABLE = TableShape(0, 0, False)
"""The shape of a table that the schema does not have."""
assert VERDICTS[0] == "", "0 is the verdict of accepted timestamps"


class BulkTable(Value, eq=False):
    """A routing table with its streams as arrays. Built once per context and broadcast to the workers.

    Attributes:
        definition: The routing table.
        streams: Streams of all generations and tables.
        partitions: Partition of the CDC topic of each stream.
        places: Id of a table in tablets to the index of its streams in ``streams``, for each generation. Other tables
            use the generation's own index.
        templates: Cache of ``ringlog_cdc.bulk.template_rows``. It belongs to the table, and is freed with it.
    """

    definition: RoutingTable
    streams: StreamTable
    partitions: I32
    places: Mapping[str, I32] = field(default_factory=dict)
    templates: dict[Any, bool] = field(default_factory=dict)

    @property
    def cluster_id(self) -> bytes:
        """Id of this cluster, 16 bytes."""
        return bytes.fromhex(self.definition.rules.cluster_id.replace("-", ""))

    @property
    def newest_since(self) -> int:
        """Append time before which another version of a table may apply. Such writes are decided one by one."""
        history = self.definition.rules.history
        return 0 if history is None else history.newest_since

    def shape(self, name: str) -> TableShape | None:
        """Return the table with this full name, or None."""
        return self.definition.rules.tables.get(name)


def bulk_table(table: RoutingTable) -> BulkTable:
    """Return the table for the workers."""
    count = len(table.rules.starts)
    rings: list[Sequence[GenerationRange]] = [table.rings[index, ""] for index in range(count)]
    places: dict[str, I32] = {}
    for (index, name), ranges in table.rings.items():
        if name:
            # A generation that does not describe the table keeps its own index, the token ring's streams.
            places.setdefault(name, np.arange(count, dtype=np.int32))[index] = len(rings)
            rings.append(ranges)
    streams = StreamTable(rings)
    partitions = (crc32_rows(streams.streams) % np.uint32(table.partitions)).astype(np.int32)
    return BulkTable(table, streams, partitions, places)


class MutationColumns(Value):
    """Columns of n plain mutations.

    Attributes:
        names: Full table names, as a dictionary array.
        valid: False if the write breaks a rule that its bytes alone decide: other cluster, number of components, nulls,
            columns, types of clustering key and values.
        timestamps: Microseconds.
        appended: Append time, microseconds.
        keys: Composed partition keys.
        record_keys: Keys of the records, or null.
        identities: Mutation ids, 16 bytes or empty.
        partitions: Source partitions.
        offsets: Source offsets.
    """

    names: pa.DictionaryArray
    valid: Flags
    timestamps: I64
    appended: I64
    keys: pa.Array
    record_keys: pa.Array
    identities: pa.Array
    partitions: I32
    offsets: I64


class RoutedColumns(Value):
    """Result for n mutations. Fields other than the flags are meaningful for ``routed`` ones only.

    Attributes:
        routed: True for mutations that become rows.
        silent: True for accepted mutations whose table has no CDC log.
        generations: Start of the generation, microseconds.
        partitions: Partition of the CDC topic.
        streams: Stream ids, shape (n, 16).
        times: ``cdc$time``, shape (n, 16).
    """

    routed: Flags
    silent: Flags
    generations: I64
    partitions: I32
    streams: U8
    times: U8


def route(table: BulkTable, rows: MutationColumns) -> RoutedColumns:
    """Return outcome and destination of each mutation."""
    rules = table.definition.rules
    shapes = [table.shape(name) or NO_TABLE for name in rows.names.dictionary.to_pylist()]
    codes = rows.names.indices.to_numpy(zero_copy_only=False)
    logged = np.array([shape.cdc for shape in shapes], dtype=bool)[codes]
    refusals, generation = accept_many(rows.timestamps, rows.appended, rules.starts, rules.leeway, rules.reaches)
    in_time = refusals == 0
    if table.definition.closed:
        in_time &= ~np.isin(generation, list(table.definition.closed))
    # A table without a CDC log accepts any timestamp. All its other rules still apply.
    accepted = rows.valid & (in_time | ~logged)
    accepted &= own_keys(rows.record_keys, rows.names, rows.keys)
    accepted &= _well_typed_keys(shapes, codes, rows.keys, accepted)
    routed = accepted & logged

    count, chosen = len(routed), np.flatnonzero(routed)
    data, starts = buffers(rows.keys)
    # Only routed rows are looked up: a rejected one may have no generation.
    located = table.streams.locate(tokens_of(data, starts)[chosen], _placed(table, rows.names, generation)[chosen])
    streams = np.zeros((count, ID), dtype=np.uint8)
    generations, partitions = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32)
    streams[chosen] = table.streams.streams[located]
    generations[chosen] = np.asarray(rules.starts, dtype=np.int64)[generation[chosen]]
    partitions[chosen] = table.partitions[located]
    return RoutedColumns(
        routed, accepted & ~logged, generations, partitions, streams, cdc_times(table.definition.topic, rows)
    )


def _placed(table: BulkTable, names: pa.DictionaryArray, generation: I32) -> I32:
    """Return the index in ``streams`` of each row's generation. Meaningful for routed rows only."""
    if not table.places:
        return generation
    codes = names.indices.to_numpy(zero_copy_only=False)
    placed = generation.copy()
    for code, name in enumerate(names.dictionary.to_pylist()):
        places = table.places.get(table.definition.ids.get(name, ""))
        if places is not None:
            rows = np.flatnonzero(codes == code)
            placed[rows] = places[generation[rows]]
    return placed


def _well_typed_keys(shapes: Sequence[TableShape], codes: NDArray[np.int32], keys: pa.Array, accepted: Flags) -> Flags:
    """Return False for keys with a component of the wrong type. Only ``accepted`` rows are checked, table by table."""
    found = np.ones(len(codes), dtype=bool)
    data, starts = buffers(keys)
    data = padded(data) if any(shape.partition_types for shape in shapes) else data
    for code, shape in enumerate(shapes):
        rows = np.flatnonzero(accepted & (codes == code)) if shape.partition_types else ()
        if len(rows):
            found[rows] = well_typed(shape.partition_types, data, starts[rows], starts[1:][rows])
    return found


# ------------------------------------------------------------------------------------------------------ cdc$time


def cdc_times(topic: str, rows: MutationColumns) -> U8:
    """Return ``cdc$time`` of each row, shape (n, 16). The definition is ``ringlog_cdc.definition.cdc_time``."""
    halves = np.empty((len(rows.timestamps), 2), dtype=">u8")
    steps = (rows.timestamps * 10 + UUID_EPOCH_100NS).view(np.uint64)
    halves[:, 0] = (steps & np.uint64(0xFFFFFFFF)) << np.uint64(32)
    halves[:, 0] |= ((steps >> np.uint64(32)) & np.uint64(0xFFFF)) << np.uint64(16)
    halves[:, 0] |= ((steps >> np.uint64(48)) & np.uint64(0x0FFF)) | np.uint64(0x1000)
    low = mix(mix(np.uint64(topic_number(topic)) ^ rows.partitions.astype(np.uint64)) ^ rows.offsets.view(np.uint64))
    ids, has_id = mutation_ids(rows.identities)
    if has_id.any():
        low = np.where(has_id, mix(mix(ids[:, 0]) ^ ids[:, 1]), low)
    halves[:, 1] = (low & np.uint64(VARIANT_MASK)) | np.uint64(VARIANT)
    return halves.view(np.uint8)


def mix(values: U64) -> U64:
    """Apply the finalizer of SplitMix64 to each number."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(MIX_SECOND)
    return mixed ^ (mixed >> np.uint64(31))


def mutation_ids(identities: pa.Array) -> tuple[U64, Flags]:
    """Return (big-endian halves of the ids, shape (n, 2); flags of rows with an id).

    An identity is 16 bytes or empty.
    """
    data, starts = buffers(identities)
    lengths = starts[1:] - starts[:-1]
    has_id = lengths == ID
    assert bool(np.all(has_id | (lengths == 0))), "a mutation id has 16 bytes"
    halves = np.zeros((len(lengths), 2), dtype=np.uint64)
    # Empty identities take no bytes, so the ids are adjacent.
    dense = np.frombuffer(data[int(starts[0]) : int(starts[-1])].tobytes(), dtype=">u8").reshape(-1, 2)
    halves[has_id] = dense
    return halves, has_id


# ---------------------------------------------------------------------------------------------------- partitions


def _crc32_table() -> NDArray[np.uint32]:
    """Return the CRC-32 of each byte value, the usual table for reading a byte at a time."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0xEDB88320), table >> np.uint32(1))
    return table.astype(np.uint32)


_CRC32 = _crc32_table()


def crc32_rows(rows: U8) -> NDArray[np.uint32]:
    """Return the CRC-32 (as in ``zlib``) of each row of an (n, width) array."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in range(rows.shape[1]):
        crc = _CRC32[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)
