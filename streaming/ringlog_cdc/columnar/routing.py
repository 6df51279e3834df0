"""Vectorized routing: verdict, stream, generation and ``cdc$time`` of many mutations, on numpy arrays.

This module runs in Spark's Python workers. Only the columns that decide the routing arrive here: key bytes, timestamps
and a few numbers per row. Loops run over tables and generations, never over rows.

Invariants:

* A mutation becomes a CDC row, a dead letter with a reason, or nothing (accepted, and its table has no CDC log).
* The verdict is a pure function of the row and of the ``RoutingTable``, which is built from a stored context. A replay
  therefore writes the same bytes.
* *Now* in the acceptance rule is the broker's append time of the mutation.
* If several reasons apply, the first one in ``REASONS`` counts. Within Spark, numbers stand for the stable codes.

``cdc$time`` is a version-1 UUID that encodes the write timestamp exactly. Its time part counts 100 ns since 1582-10-15,
so microseconds fit without loss. The low half is derived from the row's identity instead of being random, so a row that
is written twice is the same row. With ``mix``, the finalizer of SplitMix64:

* a write with a mutation id (16 bytes, two big-endian halves ``a`` and ``b``): ``mix(mix(a) ^ b)``
* any other write: ``mix(mix(topic ^ partition) ^ offset)``, where ``topic`` is the first 8 bytes (big-endian) of the
  SHA-256 of the topic name

The two highest bits are then set to ``10``, the variant of RFC 4122.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog.kernel.generations.acceptance import VERDICTS, accept_many
from ringlog.kernel.generations.admission import AdmissionRules
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.vectors import StreamTable
from ringlog.kernel.generations.verdicts import SchemaHistory
from ringlog.kernel.model.state import Generation
from ringlog.kernel.model.tablet_streams import ranges_of
from ringlog.kernel.ring.vectors import tokens_of
from ringlog_cdc.columnar.key_types import well_typed
from ringlog_cdc.columnar.record_keys import buffers, own_keys
from ringlog_cdc.columnar.scan import padded
from ringlog_cdc.definition.image_tables import EarlierImages, ImageTable

U64 = NDArray[np.uint64]

UUID_EPOCH_100NS = 0x01B21DD213814000
"""Steps of 100 ns from 1582-10-15 to 1970-01-01."""

_VARIANT_MASK = np.uint64(0x3FFFFFFFFFFFFFFF)
_VARIANT = np.uint64(0x8000000000000000)


def mix(values: U64) -> U64:
    """Apply the finalizer of SplitMix64, a bijection of 64-bit numbers that spreads neighbours."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def topic_number(topic: str) -> int:
    """Return the number of a topic in identities of writes without a mutation id."""
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:8], "big")


def high_halves(timestamps: I64) -> I64:
    """Return the first 8 bytes of each UUID as a big-endian signed number.

    Args:
        timestamps: Microseconds.
    """
    steps = (timestamps * 10 + UUID_EPOCH_100NS).view(np.uint64)
    # RFC 4122 stores the lowest 32 bits of the time first, then the middle 16, then the highest 12 after the version.
    low = (steps & np.uint64(0xFFFFFFFF)) << np.uint64(32)
    middle = ((steps >> np.uint64(32)) & np.uint64(0xFFFF)) << np.uint64(16)
    high = ((steps >> np.uint64(48)) & np.uint64(0x0FFF)) | np.uint64(0x1000)
    halves: U64 = low | middle | high
    return halves.view(np.int64)


def low_halves(topic: int, partitions: NDArray[Any], offsets: I64, mutation_ids: U64, has_id: NDArray[np.bool_]) -> I64:
    """Return the last 8 bytes of each UUID as a big-endian signed number.

    Args:
        topic: ``topic_number`` of the mutations topic.
        partitions: Source partitions.
        offsets: Source offsets.
        mutation_ids: Halves of the ids, shape (n, 2). Ignored unless ``has_id``.
        has_id: True for writes with a mutation id.
    """
    chosen = mix(mix(np.uint64(topic) ^ partitions.astype(np.uint64)) ^ offsets.view(np.uint64))
    if has_id.any():
        named = mix(mix(mutation_ids[:, 0]) ^ mutation_ids[:, 1])
        chosen = np.where(has_id, named, chosen)
    return ((chosen & _VARIANT_MASK) | _VARIANT).view(np.int64)


KNOWN = -2
"""The row or letter is in its topic already (``ringlog_cdc.plan.recovered_rows``)."""
SKIPPED = -1
"""Accepted, and the table has no CDC log."""
ROUTED = 0

REASONS: tuple[tuple[str, str], ...] = (
    ("unreadable", "the value is not a mutation in Avro single-object encoding of a known schema"),
    ("foreign_cluster", "the mutation belongs to another cluster"),
    ("verdict_forgotten", "the write was appended before the log's oldest table versions"),
    ("unknown_table", "the schema did not contain the table with this name and id"),
    ("unknown_version", "the table did not have this version at the epoch of the write"),
    ("unknown_operation", "this release does not support the operation"),
    ("null_partition_key", "a component of the partition key is null or missing"),
    (
        "bad_key",
        "the key has the wrong number of components, a null clustering component, or a component that is too long",
    ),
    ("bad_key_type", "a component of the key or of a bound does not have the type of its column"),
    (
        "wrong_record_key",
        "the key of the record is not that of the write: table name, zero byte, composed partition key",
    ),
    ("unknown_column", "the table does not have the column outside its key"),
    ("bad_value_type", "a value does not have the type of its column"),
    ("bad_change", "a statement of the write contradicts the table: its columns, its bounds or its collections"),
    ("timestamp_in_future", "the write timestamp is further ahead of the append time than the allowed lateness"),
    ("no_generation", "no CDC generation was active at the write timestamp"),
    ("timestamp_too_old", "the write timestamp is before the acceptance window"),
    ("generation_closed", "the generation of the write timestamp is sealed"),
    ("oversized", "the CDC row is larger than the limit"),
)
"""(code, rule) of each dead letter, in order of precedence. The number of a reason is its index plus one."""

NUMBERS: dict[str, int] = {code: number for number, (code, _) in enumerate(REASONS, start=1)}
"""Code to number."""
RULES: dict[int, str] = {number: rule for number, (_, rule) in enumerate(REASONS, start=1)}
"""Number to rule."""
CODES: dict[int, str] = {number: code for code, number in NUMBERS.items()}
"""Number to code."""

OPERATION_CODES: dict[str, int] = {"INSERT": 2, "UPDATE": 1, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a mutation to ``cdc$operation``."""

NO_OPERATION = 0
"""Marks operations without an entry in ``OPERATION_CODES``. As ``cdc$operation``, 0 is a preimage, and a mutation is
never one. A range delete has no entry because it becomes two rows (``ringlog_cdc.definition.split``).
"""
PARTITION_DELETE = OPERATION_CODES["PARTITION_DELETE"]


I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Everything besides the row itself that verdicts depend on. Built once per context and broadcast to the workers.

    Attributes:
        topic: ``topic_number`` of the mutations topic.
        timestamps: Start of each generation, microseconds, ascending.
        streams: Streams of all generations.
        halves: Id of each stream as two signed halves, shape (streams, 2).
        partitions: Partition of the CDC topic of each stream, shape (streams,).
        tables: Full name to table.
        closed: Indexes of closed generations.
        leeway: Allowed lateness, microseconds.
        reaches: Allowed lateness after each of ``timestamps``. None: ``leeway`` for all.
        rules: The same rules, for writes that are checked one by one.
        images: Full name to table, for tables that keep images.
        places: Id of a table in tablets to the index of its streams in ``streams``, for each generation. Other tables
            use the generation's own index.
        ids: Full name to id, for tables in tablets.
        earlier_images: Image options of earlier table versions.
    """

    topic: int
    timestamps: tuple[int, ...]
    streams: StreamTable
    halves: I64
    partitions: NDArray[np.int32]
    tables: Mapping[str, TableShape]
    closed: tuple[int, ...]
    leeway: int
    reaches: tuple[int, ...] | None
    rules: AdmissionRules
    images: Mapping[str, ImageTable] = field(default_factory=dict)
    places: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    earlier_images: EarlierImages = field(default_factory=EarlierImages)

    def placed(self, table: str, generation: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the index in ``streams`` of each row's generation.

        Args:
            table: Id of the rows' table, or empty.
            generation: Index of each row's generation.
        """
        places = self.places.get(table)
        return generation if places is None else places[generation]

    @property
    def newest_since(self) -> int:
        """Append time before which another version of a table may apply. Such writes are checked one by one."""
        return 0 if self.rules.history is None else self.rules.history.newest_since


def routing_table(
    topic: str,
    generations: Sequence[Generation],
    tables: Mapping[str, TableShape],
    closed: Collection[str],
    leeway: int,
    partitions: int,
    reaches: Sequence[int] | None = None,
    cluster_id: str = "",
    images: Mapping[str, ImageTable] | None = None,
    history: SchemaHistory | None = None,
    ids: Mapping[str, str] | None = None,
    earlier_images: EarlierImages | None = None,
) -> RoutingTable:
    """Build the routing table.

    Args:
        topic: Name of the mutations topic.
        generations: Generations by ascending timestamp.
        tables: Full name to table.
        closed: Ids of closed generations.
        leeway: Allowed lateness, microseconds.
        partitions: Number of partitions of the CDC topic.
        reaches: Allowed lateness after each generation's start. None: ``leeway`` for all.
        cluster_id: Id of this cluster.
        images: Full name to table, for tables that keep images.
        history: Earlier table versions by append time. None: ``tables`` apply to every write.
        ids: Full name to id, for tables in tablets.
        earlier_images: Image options of earlier table versions.
    """
    timestamps = tuple(generation.timestamp for generation in generations)
    assert list(timestamps) == sorted(set(timestamps)), "generations come in the order of their timestamps"
    streams, places = _streams(generations)
    return RoutingTable(
        topic=topic_number(topic),
        timestamps=timestamps,
        streams=streams,
        halves=streams.streams.view(">i8").astype(np.int64),
        # A stream's partition is a hash of its id, so all its rows are in one partition, in order.
        partitions=(crc32_rows(streams.streams) % np.uint32(partitions)).astype(np.int32),
        tables=dict(tables),
        closed=tuple(index for index, generation in enumerate(generations) if generation.id in closed),
        leeway=leeway,
        reaches=tuple(reaches) if reaches is not None else None,
        rules=AdmissionRules(
            cluster_id,
            dict(tables),
            timestamps,
            leeway,
            tuple(reaches) if reaches is not None else (leeway,) * len(timestamps),
            history,
        ),
        images=dict(images or {}),
        places=places,
        ids=dict(ids or {}),
        earlier_images=earlier_images or EarlierImages(),
    )


def _streams(generations: Sequence[Generation]) -> tuple[StreamTable, dict[str, NDArray[np.int32]]]:
    """Return the streams of all generations, and where those of tables in tablets are, by table id."""
    rings = [generation.ranges for generation in generations]
    places: dict[str, NDArray[np.int32]] = {}
    for index, generation in enumerate(generations):
        for described in generation.tables:
            # A generation that does not describe the table keeps its own index, the token ring's streams.
            own = places.setdefault(described.table, np.arange(len(generations), dtype=np.int32))
            own[index] = len(rings)
            rings.append(ranges_of(generation.timestamp, described))
    return StreamTable(rings), places


@dataclass(frozen=True, slots=True)
class MutationColumns:
    """Columns of n mutations. For an unreadable one, all but position and append time are zero or empty.

    Attributes:
        readable: False if the value is not a mutation.
        foreign: True if the mutation names another cluster.
        names: Full table names.
        operations: ``cdc$operation``, or ``NO_OPERATION``.
        timestamps: Microseconds.
        appended: Append time, microseconds.
        keys: Composed partition keys.
        key_sizes: Number of components of the partition key.
        missing_key: True if one of them is null.
        clustering_sizes: Number of components of the clustering key.
        bad_component: True if a clustering component is null or a partition key component is too long.
        mistyped_clustering: True if a clustering component or a bound is not of its column's type.
        unknown_column: True if the table is known and lacks a column of the write.
        mistyped_value: True if a value is not of its column's type.
        record_keys: Keys of the records, or null.
        identities: Mutation ids, 16 bytes or empty.
        partitions: Source partitions.
        offsets: Source offsets.
    """

    readable: Flags
    foreign: Flags
    names: pa.Array
    operations: NDArray[np.int32]
    timestamps: I64
    appended: I64
    keys: pa.Array
    key_sizes: NDArray[np.int32]
    missing_key: Flags
    clustering_sizes: NDArray[np.int32]
    bad_component: Flags
    mistyped_clustering: Flags
    unknown_column: Flags
    mistyped_value: Flags
    record_keys: pa.Array
    identities: pa.Array
    partitions: NDArray[np.int32]
    offsets: I64


@dataclass(frozen=True, slots=True)
class RoutedColumns:
    """Result for n mutations. Fields other than ``verdict`` are meaningful for ``ROUTED`` ones only.

    Attributes:
        verdict: ``ROUTED``, ``SKIPPED`` or the number of a reason.
        generation: Start of the generation, microseconds.
        partition: Partition of the CDC topic.
        stream_high, stream_low: Stream id as two signed halves.
        time_high, time_low: ``cdc$time`` as two signed halves.
    """

    verdict: NDArray[np.int32]
    generation: I64
    partition: NDArray[np.int32]
    stream_high: I64
    stream_low: I64
    time_high: I64
    time_low: I64


def route(table: RoutingTable, rows: MutationColumns) -> RoutedColumns:
    """Return verdict and destination of each mutation."""
    refusals, generation = accept_many(rows.timestamps, rows.appended, table.timestamps, table.leeway, table.reaches)
    verdict = _verdicts(table, rows, refusals, generation)
    count = len(verdict)
    routed = np.flatnonzero(verdict == ROUTED)
    data, starts = buffers(rows.keys)
    tokens = tokens_of(data, starts)
    # Only routed rows are looked up: a refused one may have no generation.
    located = table.streams.locate(tokens[routed], _placed(table, rows.names, generation)[routed])
    starts_at = np.zeros(count, dtype=np.int64)
    partition = np.zeros(count, dtype=np.int32)
    halves = np.zeros((count, 2), dtype=np.int64)
    starts_at[routed] = np.asarray(table.timestamps, dtype=np.int64)[generation[routed]]
    partition[routed] = table.partitions[located]
    halves[routed] = table.halves[located]
    ids, has_id = mutation_ids(rows.identities)
    return RoutedColumns(
        verdict=verdict,
        generation=starts_at,
        partition=partition,
        stream_high=halves[:, 0],
        stream_low=halves[:, 1],
        time_high=high_halves(rows.timestamps),
        time_low=low_halves(table.topic, rows.partitions, rows.offsets, ids, has_id),
    )


def _placed(table: RoutingTable, names: pa.Array, generation: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the index in ``streams`` for each row. Meaningful for routed rows only."""
    if not table.places:
        return generation
    coded = names.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    placed = generation.copy()
    for code, name in enumerate(coded.dictionary.to_pylist()):
        if table.ids.get(name) in table.places:
            rows = np.flatnonzero(codes == code)
            placed[rows] = table.placed(table.ids[name], generation[rows])
    return placed


_REFUSALS = np.array([NUMBERS.get(code, ROUTED) for code in VERDICTS], dtype=np.int32)
"""Verdict of the acceptance rule to the number of the reason."""


def _verdicts(
    table: RoutingTable, rows: MutationColumns, refusals: NDArray[np.int8], generation: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return one verdict for each row.

    Conditions are applied from the last to the first in precedence, each overwriting the verdict, so the first one
    counts.
    """
    facts, codes = _facts(table, rows.names)
    known = np.array([fact is not None for fact in facts], dtype=bool)[codes]
    shapes = [fact or TableShape(0, 0, False) for fact in facts]
    cdc = np.array([shape.cdc for shape in shapes], dtype=bool)[codes]
    key_parts = np.array([shape.partition_key for shape in shapes], dtype=np.int64)[codes]
    clustering_parts = np.array([shape.clustering_key for shape in shapes], dtype=np.int64)[codes]
    verdict = _REFUSALS[refusals]
    if table.closed:
        verdict[np.isin(generation, table.closed)] = NUMBERS["generation_closed"]
    # A table without a CDC log accepts any timestamp. All its other rules still apply, so this comes before them.
    verdict[known & ~cdc] = SKIPPED
    whole_partition = rows.operations == PARTITION_DELETE
    wanted = np.where(whole_partition, 0, clustering_parts)
    bad = (rows.key_sizes != key_parts) | (rows.clustering_sizes != wanted) | rows.bad_component
    none = rows.missing_key | (rows.key_sizes == 0)
    looked_at = rows.readable & known & ~bad & ~none
    for condition, code in (
        (rows.mistyped_value, "bad_value_type"),
        (rows.unknown_column, "unknown_column"),
        (~own_keys(rows.record_keys, rows.names, rows.keys), "wrong_record_key"),
        (_badly_typed(shapes, codes, rows.keys, looked_at) | rows.mistyped_clustering, "bad_key_type"),
        (bad, "bad_key"),
        (none, "null_partition_key"),
        (rows.operations == NO_OPERATION, "unknown_operation"),
    ):
        verdict[condition] = NUMBERS[code]
    verdict[~known] = NUMBERS["unknown_table"]
    verdict[rows.foreign] = NUMBERS["foreign_cluster"]
    verdict[~rows.readable] = NUMBERS["unreadable"]
    return verdict


def _facts(table: RoutingTable, names: pa.Array) -> tuple[list[TableShape | None], NDArray[np.int32]]:
    """Return the distinct tables of the rows, None for unknown ones, and the index of each row's table."""
    coded = names.dictionary_encode()
    found = [table.tables.get(name) for name in coded.dictionary.to_pylist()]
    return found, coded.indices.to_numpy(zero_copy_only=False)


def _badly_typed(shapes: Sequence[TableShape], codes: NDArray[np.int32], keys: pa.Array, looked_at: Flags) -> Flags:
    """Return True for keys with a component of the wrong type. Only ``looked_at`` rows are checked, table by table."""
    found = np.zeros(len(codes), dtype=bool)
    data, starts = buffers(keys)
    data = padded(data) if any(shape.partition_types for shape in shapes) else data
    for code, shape in enumerate(shapes):
        rows = np.flatnonzero(looked_at & (codes == code)) if shape.partition_types else ()
        if len(rows):
            found[rows] = ~well_typed(shape.partition_types, data, starts[rows], starts[1:][rows])
    return found


def mutation_ids(identities: pa.Array) -> tuple[NDArray[np.uint64], Flags]:
    """Return (big-endian halves of the ids, shape (n, 2); flags of rows with an id).

    An identity is 16 bytes or empty.
    """
    data, starts = buffers(identities)
    lengths = starts[1:] - starts[:-1]
    has_id = lengths == 16
    assert bool(np.all(has_id | (lengths == 0))), "a mutation id has 16 bytes"
    halves = np.zeros((len(lengths), 2), dtype=np.uint64)
    # Empty identities take no bytes, so the ids are adjacent.
    dense = np.frombuffer(data[int(starts[0]) : int(starts[-1])].tobytes(), dtype=">u8").reshape(-1, 2)
    halves[has_id] = dense
    return halves, has_id


def _crc32_table() -> NDArray[np.uint32]:
    """Return the CRC-32 of each byte value, the usual table for reading a byte at a time."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0xEDB88320), table >> np.uint32(1))
    return table.astype(np.uint32)


_CRC32 = _crc32_table()


def crc32_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC-32 (as in ``zlib``) of each row of an (n, width) array."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in range(rows.shape[1]):
        crc = _CRC32[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)
