"""Mutations with equal layout against the definition record by record: equal bytes, and lookalikes are
distinguished.
"""

from __future__ import annotations

import random
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.values import replace
from ringlog.wire.records import Cell, Mutation, encode_mutation
from ringlog_cdc.bulk.arrow import going_out
from ringlog_cdc.bulk.layouts import ALIKE_MAX, ByteTable, groups_of, layout_of
from ringlog_cdc.columnar.mutations import scan
from ringlog_cdc.columnar.record_keys import buffers
from ringlog_cdc.columnar.scan import padded
from tests.cdc.test_columnar import (
    CLUSTER,
    EXAMPLE,
    LARGE,
    LEEWAY,
    NOW,
    PART,
    TABLE,
    VALUES,
    batch_of,
    definition_of,
    listed,
)

TIMES = st.integers(NOW - 10, NOW + 10) | st.sampled_from([0, -1, 63, 64, 2**63 - 1, -(2**63), NOW - 2 * LEEWAY])


@st.composite
def families(draw: st.DrawFn) -> list[bytes]:
    """Return writes that differ only in ids, times and contents of equal width."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    table, keys = draw(
        st.sampled_from([("orders", 1), ("lines", 2), ("quiet", 1), ("keyed", 1), ("typed", 1), ("lost", 1)])
    )
    components = [draw(st.integers(0, 20)) for _ in range(keys)]
    clustering = [draw(st.integers(0, 9)) for _ in range(draw(st.sampled_from([1, 1, 0])))]
    cells = [(name, draw(st.integers(0, 70))) for name in draw(st.sampled_from([["a"], [], ["a", "b"], ["ä"]]))]
    named, foreign = draw(st.booleans()), draw(st.sampled_from([None, [CLUSTER], [CLUSTER, CLUSTER[:-1] + "0"]]))
    operation = draw(st.sampled_from(["INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE", "UNKNOWN"]))
    ttl = draw(st.sampled_from([None, None, 0, 5]))
    times = draw(st.lists(TIMES, min_size=1, max_size=12))
    return [
        encode_mutation(
            Mutation(
                mutation_id=str(_uuid(chance)) if named else None,
                cluster_id=chance.choice(foreign) if foreign else None,
                keyspace="shop",
                table=table,
                timestamp=time,
                ttl=ttl,
                operation=operation,
                partition_key=tuple(chance.randbytes(size) for size in components),
                clustering_key=tuple(chance.randbytes(size) for size in clustering),
                cells=tuple(Cell(name, chance.randbytes(size)) for name, size in cells),
            )
        )
        for time in times
    ]


def _uuid(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128))


def from_offset(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the same records from another offset on."""
    offsets = pa.array(range(first, first + batch.num_rows), pa.int64())
    return batch.set_column(batch.schema.get_field_index("offset"), "offset", offsets)


@given(
    st.lists(families(), min_size=1, max_size=3),
    st.lists(VALUES, max_size=3),
    st.sampled_from([5, 8_189, 2**33]),
    st.sampled_from([0.0, 0.1]),
)
def test_records_match_the_definition(
    alike: list[list[bytes]], others: list[bytes | None], first: int, wrong: float
) -> None:
    values: list[bytes | None] = [*others, *(value for family in alike for value in family)]
    random.Random(first + len(values)).shuffle(values)
    batch = from_offset(batch_of(values, 1, wrong), first)
    for part in (PART, LARGE):
        assert listed(going_out(TABLE, batch, part)) == definition_of(batch, part)


@pytest.mark.parametrize("values", [[b"", b""], [None, None], [b"", None, b"\x00", b""]])
def test_empty_records_end_no_task(values: list[bytes | None]) -> None:
    batch = batch_of(values, 1)
    assert listed(going_out(TABLE, batch, PART)) == definition_of(batch, PART)


@given(families(), st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=1)), max_size=6))
def test_a_changed_fixed_byte_breaks_the_layout(family: list[bytes], changes: list[tuple[int, bytes]]) -> None:
    values: list[bytes | None] = list(family)
    for number, (at, byte) in enumerate(changes):
        data = family[number % len(family)]
        values.append(data[: at % len(data)] + byte + data[at % len(data) + 1 :])
    batch = batch_of(values, 1)
    assert listed(going_out(TABLE, batch, LARGE)) == definition_of(batch, LARGE)


@given(families(), st.integers(0, 2**32))
def test_a_matching_layout_has_the_same_fields(family: list[bytes], seed: int) -> None:
    """Each byte of a record changes at random; the layout may match only if a reader finds all fields at equal
    positions.
    """
    chance = random.Random(seed)
    data = np.frombuffer(family[0], dtype=np.uint8)
    layout = layout_of(data)
    if layout is None:
        return
    assert layout.of(ByteTable(data, 1, len(data))).all()
    tried = [bytearray(family[0]) for _ in data]
    for at, record in enumerate(tried):
        record[at] ^= 1 << chance.randrange(8)
    every, starts = buffers(pa.array([bytes(record) for record in tried], pa.binary()))
    found = scan(padded(every), starts[:-1], starts[1:])
    table = ByteTable(every, len(tried), len(data))
    mine = layout.of(table)
    for number in np.flatnonzero(mine).tolist():
        assert found.plain[number]
        assert found.rest.length[number] == layout.mutation.rest.length[0]
        assert found.names.length[number] == layout.mutation.names.length[0]
        assert found.operation[number] == layout.mutation.operation[0]
    assert layout.timestamps(table)[mine].tolist() == found.timestamp[mine].tolist()


def test_writes_of_one_kind_are_not_read_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    values = [encode_mutation(replace(EXAMPLE, partition_key=(b"%d" % number,))) for number in range(900, 1_100)]
    expected = definition_of(batch_of([*values], 1), LARGE)
    monkeypatch.setattr("ringlog_cdc.bulk.arrow.read", never)
    assert listed(going_out(TABLE, batch_of([*values], 1), LARGE)) == expected


def test_many_widths_are_left_to_the_general_reader() -> None:
    values = [encode_mutation(replace(EXAMPLE, cells=(Cell("a", bytes(size)),))) for size in range(60)]
    assert groups_of(*buffers(pa.array(values, pa.binary()))) == []


def test_many_layouts_of_one_width_are_left_to_the_general_reader() -> None:
    names = [chr(ord("a") + number) for number in range(ALIKE_MAX + 3)]
    values = [encode_mutation(replace(EXAMPLE, cells=(Cell(name, b"x"),))) for name in names]
    assert len(groups_of(*buffers(pa.array(values, pa.binary())))) == ALIKE_MAX
    assert listed(going_out(TABLE, batch_of([*values], 1), LARGE)) == definition_of(batch_of([*values], 1), LARGE)
