"""Vectorised routing against the scalar definitions of the kernel and the wire, for random clusters and rows."""

from __future__ import annotations

import uuid
import zlib
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.generations.acceptance import RefusedWrite, accept, stream_of
from ringlog.kernel.generations.statements import TableShape, is_value
from ringlog.kernel.model.state import Generation
from ringlog.kernel.model.tablet_streams import DescribedTable
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN
from ringlog_cdc.columnar.routing import (
    CODES,
    NO_OPERATION,
    NUMBERS,
    OPERATION_CODES,
    REASONS,
    ROUTED,
    SKIPPED,
    MutationColumns,
    RoutedColumns,
    RoutingTable,
    crc32_rows,
    high_halves,
    route,
    routing_table,
    topic_number,
)
from tests.cdc.partitions import cdc_partition
from tests.kernel.generations.clusters import described

TOPIC = "shop.mutations"
PARTITIONS = 8
LEEWAY = 5
TABLES = {
    "s.one": TableShape(1, 1, True),
    "s.typed": TableShape(1, 1, True, ("text",)),
    "s.two": TableShape(2, 0, True),
    "s.quiet": TableShape(1, 0, False),
}
IDS = {"s.one": "1", "s.two": "2"}
"""The ids of tables in tablets."""


@dataclass(frozen=True)
class Write:
    """A mutation as one record: the scalar form of a row of ``MutationColumns``."""

    readable: bool
    foreign: bool
    table: str
    operation: int
    timestamp: int
    appended: int
    key: tuple[bytes | None, ...]
    clustering: int
    bad_component: bool
    mistyped_clustering: bool
    unknown_column: bool
    mistyped_value: bool
    record_key: bytes | None
    identity: bytes
    partition: int
    offset: int


times = st.integers(0, 60)
keys = st.lists(st.none() | st.binary(max_size=40), max_size=3).map(tuple)
writes_of_any_key = st.builds(
    Write,
    readable=st.sampled_from([True, True, True, False]),
    foreign=st.sampled_from([False, False, False, True]),
    table=st.sampled_from([*TABLES, "s.one", "s.one", "s.other", ""]),
    operation=st.sampled_from([*OPERATION_CODES.values(), NO_OPERATION]),
    timestamp=times,
    appended=times,
    key=keys | st.tuples(st.binary(max_size=40)) | st.tuples(st.binary(max_size=20), st.binary(max_size=20)),
    clustering=st.integers(0, 2),
    bad_component=st.sampled_from([False, False, True]),
    mistyped_clustering=st.sampled_from([False, False, False, True]),
    unknown_column=st.sampled_from([False, False, False, True]),
    mistyped_value=st.sampled_from([False, False, False, True]),
    record_key=st.sampled_from([None, b"", b"s.one\0"]),
    identity=st.just(b"") | st.binary(min_size=16, max_size=16),
    partition=st.integers(0, 3),
    offset=st.integers(0, 2**40),
)
writes = writes_of_any_key | writes_of_any_key.map(lambda row: replace(row, record_key=record_key(row)))


def composed(key: tuple[bytes | None, ...]) -> bytes:
    """Return the composed key; empty if there is none."""
    return b"" if not key or None in key else compose([part or b"" for part in key])


def record_key(row: Write) -> bytes:
    """Return the right key of a row's record."""
    return row.table.encode() + b"\0" + composed(row.key)


def columns(rows: list[Write]) -> MutationColumns:
    """Return the rows as Spark passes them."""

    return MutationColumns(
        readable=np.array([row.readable for row in rows], dtype=bool),
        foreign=np.array([row.foreign for row in rows], dtype=bool),
        names=pa.array([row.table for row in rows], type=pa.string()),
        operations=np.array([row.operation for row in rows], dtype=np.int32),
        timestamps=np.array([row.timestamp for row in rows], dtype=np.int64),
        appended=np.array([row.appended for row in rows], dtype=np.int64),
        keys=pa.array([composed(row.key) for row in rows], type=pa.large_binary()),
        key_sizes=np.array([len(row.key) for row in rows], dtype=np.int32),
        missing_key=np.array([None in row.key for row in rows], dtype=bool),
        clustering_sizes=np.array([row.clustering for row in rows], dtype=np.int32),
        bad_component=np.array([row.bad_component for row in rows], dtype=bool),
        mistyped_clustering=np.array([row.mistyped_clustering for row in rows], dtype=bool),
        unknown_column=np.array([row.unknown_column for row in rows], dtype=bool),
        mistyped_value=np.array([row.mistyped_value for row in rows], dtype=bool),
        record_keys=pa.array([row.record_key for row in rows], type=pa.binary()),
        identities=pa.array([row.identity for row in rows], type=pa.large_binary()),
        partitions=np.array([row.partition for row in rows], dtype=np.int32),
        offsets=np.array([row.offset for row in rows], dtype=np.int64),
    )


def expected(generations: list[Generation], closed: set[str], row: Write) -> str | Generation | None:
    """Return the scalar oracle: a reason, the row's generation, or None for a table without CDC."""
    if not row.readable:
        return "unreadable"
    if row.foreign:
        return "foreign_cluster"
    table = TABLES.get(row.table)
    if table is None:
        return "unknown_table"
    if row.operation == NO_OPERATION:
        return "unknown_operation"
    if not row.key or None in row.key:
        return "null_partition_key"
    clustering = 0 if row.operation == OPERATION_CODES["PARTITION_DELETE"] else table.clustering_key
    if len(row.key) != table.partition_key or row.clustering != clustering or row.bad_component:
        return "bad_key"
    typed = zip(table.partition_types, row.key, strict=False)
    if row.mistyped_clustering or any(not is_value(kind, part or b"") for kind, part in typed):
        return "bad_key_type"
    if row.record_key != record_key(row):
        return "wrong_record_key"
    if row.unknown_column:
        return "unknown_column"
    if row.mistyped_value:
        return "bad_value_type"
    if not table.cdc:
        return None
    verdict = accept(row.timestamp, row.appended, [generation.timestamp for generation in generations], LEEWAY)
    if isinstance(verdict, RefusedWrite):
        return verdict.code
    found = generations[verdict.generation]
    return "generation_closed" if found.id in closed else found


def stream_at(found: RoutedColumns, index: int) -> bytes:
    """Return the 16 bytes of a stream id from its halves."""
    return halves(found.stream_high[index], found.stream_low[index])


def halves(high: np.int64, low: np.int64) -> bytes:
    """Return 16 bytes as two signed halves."""
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Generation], set[str], RoutingTable]:
    """Return random generations, some of them sealed."""
    starts = sorted(draw(st.sets(st.integers(1, 50), max_size=3)))
    generations = [
        Generation(f"g{start}", start, draw(described()), "committed", 1, None, None, ()) for start in starts
    ]
    generations = [replace(found, tables=draw(layout())) for found in generations]
    closed = {f"g{start}" for start in starts[: draw(st.integers(0, len(starts)))]}
    return generations, closed, routing_table(TOPIC, generations, TABLES, closed, LEEWAY, PARTITIONS, ids=IDS)


@st.composite
def layout(draw: st.DrawFn) -> tuple[DescribedTable, ...]:
    """Return a generation's layout of tables in tablets: none, one or both."""
    ends = st.sets(st.integers(TOKEN_MIN, TOKEN_MAX - 1), max_size=4).map(lambda found: (*sorted(found), TOKEN_MAX))
    named = draw(st.sets(st.sampled_from(sorted(IDS.values()))))
    return tuple(DescribedTable(table, draw(ends)) for table in sorted(named))


@settings(deadline=None)
@given(tables(), st.lists(writes, max_size=30))
def test_routing_is_as_defined(world: tuple[list[Generation], set[str], RoutingTable], rows: list[Write]) -> None:
    generations, closed, table = world
    found = route(table, columns(rows))
    assert len(found.verdict) == len(rows)
    for index, row in enumerate(rows):
        wanted = expected(generations, closed, row)
        if wanted is None:
            assert found.verdict[index] == SKIPPED
        elif isinstance(wanted, str):
            assert CODES[int(found.verdict[index])] == wanted
        else:
            token = token_of(compose([part or b"" for part in row.key]))
            stream = stream_of(wanted, token, IDS.get(row.table, ""))
            assert found.verdict[index] == ROUTED
            assert found.generation[index] == wanted.timestamp
            assert stream_at(found, index) == stream
            assert found.partition[index] == cdc_partition(stream, PARTITIONS)


@settings(deadline=None)
@given(tables(), st.lists(writes, min_size=1, max_size=20), st.data())
def test_routing_of_a_row_is_independent_of_other_rows(
    world: tuple[list[Generation], set[str], RoutingTable], rows: list[Write], data: st.DataObject
) -> None:
    _, _, table = world
    index = data.draw(st.integers(0, len(rows) - 1))
    together, alone = route(table, columns(rows)), route(table, columns([rows[index]]))
    for name in RoutedColumns.__dataclass_fields__:
        assert getattr(together, name)[index] == getattr(alone, name)[0], name


def scalar_low_half(row: Write) -> int:
    """Return the low half of ``cdc$time`` by its definition, in Python integers."""
    mask = 2**64 - 1

    def mix(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        return value ^ value >> 31

    if row.identity:
        first, second = int.from_bytes(row.identity[:8], "big"), int.from_bytes(row.identity[8:], "big")
    else:
        first, second = topic_number(TOPIC) ^ row.partition, row.offset
    return mix(mix(first) ^ second) & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000


@settings(deadline=None)
@given(st.lists(writes, min_size=1, max_size=10))
def test_time_is_a_version_1_uuid_of_timestamp_and_row_identity(rows: list[Write]) -> None:
    table = routing_table(TOPIC, [], TABLES, (), LEEWAY, PARTITIONS)
    found = route(table, columns(rows))
    for index, row in enumerate(rows):
        made = uuid.UUID(bytes=halves(found.time_high[index], found.time_low[index]))
        assert made.version == 1
        assert made.variant == uuid.RFC_4122
        assert (made.time - 0x01B21DD213814000) / 10 == row.timestamp
        assert made.int & (2**64 - 1) == scalar_low_half(row)


def test_time_of_a_known_timestamp() -> None:
    high = high_halves(np.array([1_700_000_000_123_456], dtype=np.int64))
    assert halves(high[0], np.int64(0)).hex()[:16] == "04c29680833b11ee"


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=20))
def test_crc32_matches_zlib(ids: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 16)
    assert crc32_rows(rows).tolist() == [zlib.crc32(each) for each in ids]


def test_reasons_are_numbered_once() -> None:
    assert len(NUMBERS) == len(REASONS) == len(CODES)
    assert sorted(CODES) == list(range(1, len(REASONS) + 1))


def test_generations_out_of_order_are_refused() -> None:
    two = [Generation(name, at, (), "committed", 1, None, None, ()) for name, at in (("b", 2), ("a", 1))]
    with pytest.raises(AssertionError):
        routing_table(TOPIC, two, TABLES, (), LEEWAY, PARTITIONS)
