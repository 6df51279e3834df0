"""Routing of many mutations at once: verdict, stream, generation and ``cdc$time`` of each, on numpy arrays.

This runs in Spark's Python workers. Only the columns that decide come here (key bytes, timestamps, a few numbers a
row); values stay in the JVM. There is no Python loop over rows, and nothing is imported but numpy, Arrow, pandas and
the kernel.

A mutation becomes a CDC row, a dead letter with a reason, or nothing (accepted, without a CDC log). Its verdict is a
pure function of the row and of the ``RoutingTable``, which is made from a stored context, so a replay writes the same
bytes. *Now* in the acceptance rule is the broker's append time of the mutation. Within Spark numbers stand for the
codes of the dead letters, which are stable. When several reasons apply, the first of their order counts.

``cdc$time`` is a version-1 UUID that encodes a write timestamp exactly. The time part counts 100 ns since 1582-10-15,
so microseconds fit without loss. The low half is not random but derived from the row's identity, so that a row written
twice is the same row: with ``mix`` the finaliser of SplitMix64,

- a write with a mutation id (16 bytes, two big-endian halves ``a``, ``b``): ``mix(mix(a) ^ b)``
- any other: ``mix(mix(topic ^ partition) ^ offset)``, ``topic`` the first 8 bytes (big-endian) of the SHA-256 of its
  name

and then the two highest bits are set to ``10``, the variant of the UUID standard.
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
from ringlog_cdc.columnar.scan import padded
from ringlog_cdc.definition.image_tables import EarlierImages, ImageTable

U64 = NDArray[np.uint64]

UUID_EPOCH_100NS = 0x01B21DD213814000
"""100 ns steps from 1582-10-15 to 1970-01-01."""

_VARIANT_MASK = np.uint64(0x3FFFFFFFFFFFFFFF)
_VARIANT = np.uint64(0x8000000000000000)


def mix(values: U64) -> U64:
    """The finaliser of SplitMix64: a bijection of 64-bit numbers that spreads neighbouring ones."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def topic_number(topic: str) -> int:
    """The number that stands for a topic in identities without a mutation id."""
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:8], "big")


def high_halves(timestamps: I64) -> I64:
    """The first 8 bytes of each UUID as a big-endian signed number; ``timestamps`` in microseconds."""
    steps = (timestamps * 10 + UUID_EPOCH_100NS).view(np.uint64)
    low = (steps & np.uint64(0xFFFFFFFF)) << np.uint64(32)
    middle = ((steps >> np.uint64(32)) & np.uint64(0xFFFF)) << np.uint64(16)
    high = ((steps >> np.uint64(48)) & np.uint64(0x0FFF)) | np.uint64(0x1000)
    halves: U64 = low | middle | high
    return halves.view(np.int64)


def low_halves(topic: int, partitions: NDArray[Any], offsets: I64, mutation_ids: U64, has_id: NDArray[np.bool_]) -> I64:
    """The last 8 bytes of each UUID likewise; ``mutation_ids`` has shape (n, 2) and counts where ``has_id`` is true."""
    chosen = mix(mix(np.uint64(topic) ^ partitions.astype(np.uint64)) ^ offsets.view(np.uint64))
    if has_id.any():
        named = mix(mix(mutation_ids[:, 0]) ^ mutation_ids[:, 1])
        chosen = np.where(has_id, named, chosen)
    return ((chosen & _VARIANT_MASK) | _VARIANT).view(np.int64)


KNOWN = -2
"""What goes out for it is there already: see ``recovery``."""
SKIPPED = -1
ROUTED = 0

REASONS: tuple[tuple[str, str], ...] = (
    ("unreadable", "the value is no mutation in Avro single-object encoding of a known schema"),
    ("foreign_cluster", "the mutation names another cluster"),
    ("verdict_forgotten", "the write was appended before the log remembers what counted for it"),
    ("unknown_table", "the schema had no such table, or none of the id that the write names"),
    ("unknown_version", "the table had no such version, or none by the epoch that the write names"),
    ("unknown_operation", "the operation is none that this release knows"),
    ("null_partition_key", "a component of the partition key is null or missing"),
    (
        "bad_key",
        "the key has another number of components than the table's, a null clustering component, or one too long",
    ),
    ("bad_key_type", "a component of the partition key is not of its column's type"),
    ("unknown_column", "the table has no such column outside its key"),
    ("bad_change", "a statement of the write contradicts the table: its columns, its bounds or its collections"),
    ("timestamp_in_future", "the write timestamp lies further ahead of the append time than the leeway"),
    ("no_generation", "no CDC generation operated at the write timestamp"),
    ("timestamp_too_old", "the write timestamp lies before the acceptance window"),
    ("generation_closed", "the generation that operated at the write timestamp takes no more rows"),
    ("oversized", "the CDC row is larger than the limit"),
)
"""(code, rule), in order of precedence; the number of a reason is its place here plus one."""

NUMBERS: dict[str, int] = {code: number for number, (code, _) in enumerate(REASONS, start=1)}
RULES: dict[int, str] = {number: rule for number, (_, rule) in enumerate(REASONS, start=1)}
CODES: dict[int, str] = {number: code for code, number in NUMBERS.items()}

OPERATION_CODES: dict[str, int] = {"INSERT": 2, "UPDATE": 1, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a mutation to the code in the CDC row."""

NO_OPERATION = 0
"""Stands for an operation that is not in ``OPERATION_CODES``; as a CDC code 0 is a preimage, which no mutation is.
A range delete is not there: it is two rows, see ``split``."""
PARTITION_DELETE = OPERATION_CODES["PARTITION_DELETE"]


I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Everything that verdicts depend on beside the row; made once a context, broadcast to the workers.

    ``timestamps`` of the generations ascend; ``closed`` are indexes of generations. ``halves``, (total, 2) ``int64``,
    and ``partitions``, ``int32``, say of each stream of the table its id and its partition of the CDC topic.
    ``reaches``: the leeway behind each of ``timestamps``; None: ``leeway`` behind them all. ``rules``: the same for
    writes that are looked at one by one. ``images``: the tables that keep images, by full name; ``earlier_images``:
    what the versions before them kept. ``places``: for a table in tablets, by its id, where the streams of its rows lie
    in the table of streams, a number for each generation; of other tables it is the generation's own. ``ids``: the ids
    of the tables in tablets, by full name.
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
        """Where the streams of rows of these generations lie in the table of streams; ``table``: id of theirs, or
        empty.
        """
        places = self.places.get(table)
        return generation if places is None else places[generation]

    @property
    def newest_since(self) -> int:
        """Writes appended before it are looked at one by one: other tables than these may judge them."""
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
    """The table for mutations of ``topic`` under ``generations``, by ascending timestamp; ``closed`` are ids.

    ``history``: what counts when; None: the tables count for every write. ``ids``: of tables in tablets, by full name.
    """
    timestamps = tuple(generation.timestamp for generation in generations)
    assert list(timestamps) == sorted(set(timestamps)), "generations come in the order of their timestamps"
    streams, places = _streams(generations)
    return RoutingTable(
        topic=topic_number(topic),
        timestamps=timestamps,
        streams=streams,
        halves=streams.streams.view(">i8").astype(np.int64),
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
    """The streams of all generations: of the ring one after the other, then those of tables in tablets; and where the
    latter lie, by the table's id.
    """
    rings = [generation.ranges for generation in generations]
    places: dict[str, NDArray[np.int32]] = {}
    for index, generation in enumerate(generations):
        for described in generation.tables:
            own = places.setdefault(described.table, np.arange(len(generations), dtype=np.int32))
            own[index] = len(rings)
            rings.append(ranges_of(generation.timestamp, described))
    return StreamTable(rings), places


@dataclass(frozen=True, slots=True)
class MutationColumns:
    """The columns of n mutations. Of an unreadable one all but the position and the append time are zero or empty.

    ``keys``: composed partition keys; ``missing_key``: a component of it is null; ``bad_component``: a
    clustering component is null or one of the partition key too long; ``unknown_column``: a column is none of the
    table's, where there is such a table; ``identities``: mutation ids or empty;
    ``operations``: codes of the CDC row; times in microseconds.
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
    unknown_column: Flags
    identities: pa.Array
    partitions: NDArray[np.int32]
    offsets: I64


@dataclass(frozen=True, slots=True)
class RoutedColumns:
    """The answer for n mutations; only ``verdict`` counts where that is not ``ROUTED``. Ids are two signed halves."""

    verdict: NDArray[np.int32]
    generation: I64
    partition: NDArray[np.int32]
    stream_high: I64
    stream_low: I64
    time_high: I64
    time_low: I64


def route(table: RoutingTable, rows: MutationColumns) -> RoutedColumns:
    """Verdict and place of each mutation."""
    refusals, generation = accept_many(rows.timestamps, rows.appended, table.timestamps, table.leeway, table.reaches)
    verdict = _verdicts(table, rows, refusals, generation)
    count = len(verdict)
    routed = np.flatnonzero(verdict == ROUTED)
    data, starts = buffers(rows.keys)
    tokens = tokens_of(data, starts)
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
    """Where the streams of each row lie in the table of streams; only of routed rows the answer counts."""
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
"""Number of the acceptance rule to number of the reason."""


def _verdicts(
    table: RoutingTable, rows: MutationColumns, refusals: NDArray[np.int8], generation: NDArray[np.int32]
) -> NDArray[np.int32]:
    """One verdict a row; conditions are applied from the last to the first in precedence, so the first one counts."""
    facts, codes = _facts(table, rows.names)
    known = np.array([fact is not None for fact in facts], dtype=bool)[codes]
    shapes = [fact or TableShape(0, 0, False) for fact in facts]
    cdc = np.array([shape.cdc for shape in shapes], dtype=bool)[codes]
    key_parts = np.array([shape.partition_key for shape in shapes], dtype=np.int64)[codes]
    clustering_parts = np.array([shape.clustering_key for shape in shapes], dtype=np.int64)[codes]
    verdict = _REFUSALS[refusals]
    if table.closed:
        verdict[np.isin(generation, table.closed)] = NUMBERS["generation_closed"]
    # A table without a CDC log takes timestamps of any time; its other rules refuse a write all the same.
    verdict[known & ~cdc] = SKIPPED
    whole_partition = rows.operations == PARTITION_DELETE
    wanted = np.where(whole_partition, 0, clustering_parts)
    bad = (rows.key_sizes != key_parts) | (rows.clustering_sizes != wanted) | rows.bad_component
    none = rows.missing_key | (rows.key_sizes == 0)
    looked_at = rows.readable & known & ~bad & ~none
    for condition, code in (
        (rows.unknown_column, "unknown_column"),
        (_badly_typed(shapes, codes, rows.keys, looked_at), "bad_key_type"),
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
    """(the tables of the rows, None for an unknown one; which of them is each row's), by their full names."""
    coded = names.dictionary_encode()
    found = [table.tables.get(name) for name in coded.dictionary.to_pylist()]
    return found, coded.indices.to_numpy(zero_copy_only=False)


def _badly_typed(shapes: Sequence[TableShape], codes: NDArray[np.int32], keys: pa.Array, looked_at: Flags) -> Flags:
    """True where a key that is looked at has a component of another type than its column; table after table."""
    found = np.zeros(len(codes), dtype=bool)
    data, starts = buffers(keys)
    data = padded(data) if any(shape.partition_types for shape in shapes) else data
    for code, shape in enumerate(shapes):
        rows = np.flatnonzero(looked_at & (codes == code)) if shape.partition_types else ()
        if len(rows):
            found[rows] = ~well_typed(shape.partition_types, data, starts[rows], starts[1:][rows])
    return found


def buffers(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(bytes, n + 1 offsets) of a binary array without nulls, without a copy where Arrow allows it."""
    assert values.null_count == 0, "nulls are replaced before they come here"
    large = values.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64, count=large.offset + len(large) + 1)[large.offset :]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return content, starts


def mutation_ids(identities: pa.Array) -> tuple[NDArray[np.uint64], Flags]:
    """((n, 2) big-endian halves of the ids, which rows have one); an identity is 16 bytes or empty."""
    data, starts = buffers(identities)
    lengths = starts[1:] - starts[:-1]
    has_id = lengths == 16
    assert bool(np.all(has_id | (lengths == 0))), "a mutation id has 16 bytes"
    halves = np.zeros((len(lengths), 2), dtype=np.uint64)
    dense = np.frombuffer(data[int(starts[0]) : int(starts[-1])].tobytes(), dtype=">u8").reshape(-1, 2)
    halves[has_id] = dense
    return halves, has_id


def _crc32_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0xEDB88320), table >> np.uint32(1))
    return table.astype(np.uint32)


_CRC32 = _crc32_table()


def crc32_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """CRC-32 (that of ``zlib``) of each row of an (n, width) array."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in range(rows.shape[1]):
        crc = _CRC32[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)
