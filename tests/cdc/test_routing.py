"""Vectorised routing against the scalar definitions of the kernel and the wire, for random clusters and rows."""

from __future__ import annotations

import uuid
import zlib

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
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Value, replace
from ringlog_cdc.bulk.routing import BulkTable, MutationColumns, RoutedColumns, bulk_table, crc32_rows, route
from ringlog_cdc.definition.cdc_time import cdc_time, topic_number
from ringlog_cdc.definition.reasons import CODES, NUMBERS, REASONS
from ringlog_cdc.definition.routing_table import routing_table
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


class Write(Value, dict=True):
    """A mutation as one record: the scalar form of a row of ``MutationColumns``. The key of a valid one fits."""

    table: str
    valid: bool
    timestamp: int
    appended: int
    key: tuple[bytes, ...]
    record_key: bytes | None
    identity: bytes
    partition: int
    offset: int


times = st.integers(0, 60)
names = st.sampled_from([*TABLES, "s.one", "s.one", "s.other", ""])
writes_of_any_key = names.flatmap(
    lambda name: st.builds(
        Write,
        table=st.just(name),
        valid=st.sampled_from([name in TABLES, name in TABLES, False]),
        timestamp=times,
        appended=times,
        key=st.tuples(*[st.binary(max_size=40)] * (TABLES[name].partition_key if name in TABLES else 1)),
        record_key=st.sampled_from([None, b"", b"s.one\0"]),
        identity=st.just(b"") | st.binary(min_size=16, max_size=16),
        partition=st.integers(0, 3),
        offset=st.integers(0, 2**40),
    )
)
writes = writes_of_any_key | writes_of_any_key.map(lambda row: replace(row, record_key=record_key(row)))


def record_key(row: Write) -> bytes:
    """Return the right key of a row's record."""
    return row.table.encode() + b"\0" + compose(row.key)


def columns(rows: list[Write]) -> MutationColumns:
    """Return the rows as Spark passes them."""

    return MutationColumns(
        names=pa.array([row.table for row in rows], type=pa.string()).dictionary_encode(),
        valid=np.array([row.valid for row in rows], dtype=bool),
        timestamps=np.array([row.timestamp for row in rows], dtype=np.int64),
        appended=np.array([row.appended for row in rows], dtype=np.int64),
        keys=pa.array([compose(row.key) for row in rows], type=pa.large_binary()),
        record_keys=pa.array([row.record_key for row in rows], type=pa.binary()),
        identities=pa.array([row.identity for row in rows], type=pa.large_binary()),
        partitions=np.array([row.partition for row in rows], dtype=np.int32),
        offsets=np.array([row.offset for row in rows], dtype=np.int64),
    )


def expected(generations: list[Generation], closed: set[str], row: Write) -> Generation | bool:
    """Return the scalar oracle: the row's generation, True for an accepted write without CDC, False if rejected."""
    if not row.valid or row.record_key != record_key(row):
        return False
    table = TABLES[row.table]
    if any(not is_value(kind, part) for kind, part in zip(table.partition_types, row.key, strict=False)):
        return False
    if not table.cdc:
        return True
    verdict = accept(row.timestamp, row.appended, [generation.timestamp for generation in generations], LEEWAY)
    if isinstance(verdict, RefusedWrite):
        return False
    found = generations[verdict.generation]
    return False if found.id in closed else found


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Generation], set[str], BulkTable]:
    """Return random generations, some of them sealed."""
    starts = sorted(draw(st.sets(st.integers(1, 50), max_size=3)))
    generations = [
        Generation(f"g{start}", start, draw(described()), "committed", 1, None, None, ()) for start in starts
    ]
    generations = [replace(found, tables=draw(layout())) for found in generations]
    closed = {f"g{start}" for start in starts[: draw(st.integers(0, len(starts)))]}
    table = routing_table(TOPIC, generations, TABLES, closed, LEEWAY, PARTITIONS, ids=IDS)
    return generations, closed, bulk_table(table)


@st.composite
def layout(draw: st.DrawFn) -> tuple[DescribedTable, ...]:
    """Return a generation's layout of tables in tablets: none, one or both."""
    ends = st.sets(st.integers(TOKEN_MIN, TOKEN_MAX - 1), max_size=4).map(lambda found: (*sorted(found), TOKEN_MAX))
    named = draw(st.sets(st.sampled_from(sorted(IDS.values()))))
    return tuple(DescribedTable(table, draw(ends)) for table in sorted(named))


@settings(deadline=None)
@given(tables(), st.lists(writes, max_size=30))
def test_routing_is_as_defined(world: tuple[list[Generation], set[str], BulkTable], rows: list[Write]) -> None:
    generations, closed, table = world
    found = route(table, columns(rows))
    assert len(found.routed) == len(rows)
    for index, row in enumerate(rows):
        wanted = expected(generations, closed, row)
        assert (found.routed[index], found.silent[index]) == (isinstance(wanted, Generation), wanted is True)
        if isinstance(wanted, Generation):
            token, table_id = token_of(compose(row.key)), IDS.get(row.table, "")
            stream = stream_of(wanted, token, table_id)
            assert found.generations[index] == wanted.timestamp
            assert found.streams[index].tobytes() == stream
            assert found.partitions[index] == cdc_partition(stream, PARTITIONS)
            place = generations.index(wanted)
            assert table.definition.stream_of(place, token, table_id) == (stream, cdc_partition(stream, PARTITIONS))


@settings(deadline=None)
@given(tables(), st.lists(writes, min_size=1, max_size=20), st.data())
def test_routing_of_a_row_is_independent_of_other_rows(
    world: tuple[list[Generation], set[str], BulkTable], rows: list[Write], data: st.DataObject
) -> None:
    _, _, table = world
    index = data.draw(st.integers(0, len(rows) - 1))
    together, alone = route(table, columns(rows)), route(table, columns([rows[index]]))
    for name in RoutedColumns.__struct_fields__:
        assert np.array_equal(getattr(together, name)[index], getattr(alone, name)[0]), name


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
    table = bulk_table(routing_table(TOPIC, [], TABLES, (), LEEWAY, PARTITIONS))
    found = route(table, columns(rows))
    for index, row in enumerate(rows):
        made = uuid.UUID(bytes=found.times[index].tobytes())
        mutation_id = str(uuid.UUID(bytes=row.identity)) if row.identity else None
        assert made.bytes == cdc_time(TOPIC, row.partition, row.offset, mutation_id, row.timestamp)
        assert made.version == 1
        assert made.variant == uuid.RFC_4122
        assert (made.time - 0x01B21DD213814000) / 10 == row.timestamp
        assert made.int & (2**64 - 1) == scalar_low_half(row)


def test_time_of_a_known_timestamp() -> None:
    assert cdc_time(TOPIC, 0, 0, None, 1_700_000_000_123_456).hex()[:16] == "04c29680833b11ee"


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
