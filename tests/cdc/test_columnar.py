"""Batches of mutations by columns against the definition record by record: equal bytes."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.model.state import Generation, Node
from ringlog.kernel.values import replace
from ringlog.wire.avro import reading
from ringlog.wire.records import (
    Bounds,
    Cell,
    DeletedElements,
    Mutation,
    MutationStatement,
    decode_cdc_row,
    encode_mutation,
)
from ringlog_cdc.bulk.arrow import NEVER, facts_function, going_out, read, records_of, rows_function
from ringlog_cdc.bulk.choice import RecordPath
from ringlog_cdc.bulk.outgoing_columns import LETTER, OutgoingColumns
from ringlog_cdc.bulk.routing import BulkTable, bulk_table
from ringlog_cdc.bulk.tally import Tally, TallyParam
from ringlog_cdc.columnar.mutations import defaults_behind_cells
from ringlog_cdc.columnar.scan import Cursor, padded
from ringlog_cdc.definition.decision import Input, PartContext, read_mutation
from ringlog_cdc.definition.reasons import NUMBERS, ROUTED, SKIPPED
from ringlog_cdc.definition.routing_table import routing_table
from ringlog_schemas import by_fingerprint
from ringlog_sim.actors.cdc.driver import facts as simulated
from ringlog_sim.actors.cdc.rows import Taken
from tests.record_keys import OTHER, record_key

TOPIC = "c.mutations"
CLUSTER = str(uuid.UUID(int=7))
NOW = 1_800_000_000_000_000
LEEWAY = 5_000_000
PART = PartContext(TOPIC, "incarnation", 42, 400)
LARGE = replace(PART, row_bytes_max=100_000)


VALUED = {"a": "text", "b": "int", "c": "frozen<list<int>>", "d": "blob", "e": "boolean", "f": "ascii"}
"""The columns of the table with typed values."""


def table() -> BulkTable:
    """Return two generations (the second from ``NOW``), tables with one and two key columns, and a table
    without CDC.
    """
    node = Node("n", "n", "localhost:1", "dc1", "r1", 3, 12, "0", (), 1, "normal", (), 1)
    owners = dict.fromkeys((-(2**62), 0, 2**62), "n")
    generations = [
        Generation(
            f"g{number}", start, generate(owners, {"n": node}, bytes([number]) * 16), "committed", 1, None, None, ()
        )
        for number, start in enumerate((NOW - 3_600_000_000, NOW))
    ]
    facts = {
        "shop.orders": TableShape(1, 1, True, columns=("a", "a_name_of_some_length")),
        "shop.lines": TableShape(2, 0, True),
        "shop.quiet": TableShape(1, 0, False),
        "shop.keyed": TableShape(1, 1, True, delta="keys"),
        "shop.typed": TableShape(1, 1, True, ("int",), ("blob",)),
        "shop.valued": TableShape(1, 2, True, ("text",), ("int", "text"), columns=(*VALUED,), types=(*VALUED.items(),)),
        "shop.tagged": TableShape(1, 1, True, (), (), (), (("a", "map<text, blob>"),), columns=("a", "ä")),
    }
    return bulk_table(routing_table(TOPIC, generations, facts, (), LEEWAY, 8, cluster_id=CLUSTER))


TABLE = table()

COMPONENTS = st.one_of(st.none(), st.binary(max_size=20))
MUTATIONS = st.builds(
    Mutation,
    mutation_id=st.one_of(st.none(), st.uuids().map(str)),
    cluster_id=st.sampled_from([None, CLUSTER, str(uuid.UUID(int=8))]),
    keyspace=st.sampled_from(["shop", "shop", "shop", "other", "é"]),
    table=st.sampled_from(["orders", "lines", "quiet", "lost", "typed", "tagged", "valued"]),
    timestamp=st.one_of(
        st.integers(NOW - 2 * LEEWAY, NOW + 2 * LEEWAY), st.sampled_from([0, -1, 2**63 - 1, -(2**63), NOW - 1, NOW])
    ),
    ttl=st.one_of(st.none(), st.integers(-1, 2**40)),
    operation=st.sampled_from(["INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE", "UNKNOWN"]),
    partition_key=st.lists(COMPONENTS, max_size=3).map(tuple),
    clustering_key=st.lists(COMPONENTS, max_size=2).map(tuple),
    cells=st.lists(
        st.builds(
            Cell,
            column=st.sampled_from(["a", "ä", "a_name_of_some_length"]),
            value=st.one_of(st.none(), st.binary(max_size=300)),
        ),
        max_size=4,
    ).map(tuple),
)
CELLS = st.lists(
    st.builds(Cell, column=st.sampled_from(["a", "a_name_of_some_length"]), value=st.none() | st.binary(max_size=90)),
    max_size=4,
).map(tuple)


def good(table: str, partition_key: int, clustering_key: int) -> st.SearchStrategy[Mutation]:
    """Return writes that become rows, except large ones."""
    return st.builds(
        Mutation,
        mutation_id=st.none() | st.uuids().map(str),
        cluster_id=st.sampled_from([None, CLUSTER]),
        keyspace=st.just("shop"),
        table=st.just(table),
        timestamp=st.integers(NOW - 10, NOW + 10),
        ttl=st.none(),
        operation=st.sampled_from(["INSERT", "UPDATE", "ROW_DELETE"]),
        partition_key=st.tuples(*[st.binary(min_size=1, max_size=30)] * partition_key),
        clustering_key=st.tuples(*[st.binary(max_size=30)] * clustering_key),
        cells=CELLS.map(lambda cells: tuple({cell.column: cell for cell in cells}.values())),
    )


STRANGE = st.builds(
    lambda mutation, column, place: replace(
        mutation, cells=(*mutation.cells[:place], Cell(column, b"1"), *mutation.cells[place:])
    ),
    good("orders", 1, 1),
    st.sampled_from(["a_name_of_some_lengti", "b", ""]),
    st.integers(0, 4),
)
"""Writes that name an unknown column of their table."""

BYTES = st.sampled_from(
    [
        b"",
        b"\0",
        b"\1",
        b"\2",
        bytes(4),
        b"\0\0\0\1\0\0\0\4\0\0\0\7",
        "Größe".encode(),
        b"\xc3",
        b"\xed\xa0\x80",
        b"a" * 40,
    ]
)
VALUED_WRITES = st.builds(
    lambda mutation, clustering, cells, **changes: replace(
        mutation,
        table="valued",
        partition_key=(b"k",),
        clustering_key=clustering,
        cells=tuple(Cell(*cell) for cell in cells.items()),
        **changes,
    ),
    good("orders", 1, 1),
    st.tuples(st.just(bytes(4)) | BYTES, st.just(b"x") | BYTES),
    st.dictionaries(st.sampled_from([*VALUED]), st.none() | BYTES, max_size=3),
    ttl=st.sampled_from([None, None, None, 5]),
    operation=st.sampled_from(["INSERT", "INSERT", "UPDATE", "ROW_DELETE"]),
)
"""Writes of keys and values of right and wrong types."""

GOOD = good("orders", 1, 1) | good("lines", 2, 0) | good("keyed", 1, 1)

COMPOUND = st.builds(
    lambda mutation, changes: replace(mutation, **changes),
    MUTATIONS,
    st.fixed_dictionaries(
        {},
        optional={
            "deleted_elements": st.just((DeletedElements("a", (b"x",)),)),
            "replaced": st.just(("a",)),
            "bounds": st.just(Bounds((b"c",), True, (), False)),
            "more": st.just((MutationStatement("UPDATE", (b"c",), (Cell("a", b"1"),), timestamp=NOW),)),
            "operation": st.just("RANGE_DELETE"),
        },
    ),
)
VALUES = st.one_of(
    GOOD.map(encode_mutation),
    GOOD.map(encode_mutation),
    VALUED_WRITES.map(encode_mutation),
    VALUED_WRITES.map(encode_mutation),
    STRANGE.map(encode_mutation),
    MUTATIONS.map(encode_mutation),
    COMPOUND.map(encode_mutation),
    MUTATIONS.map(encode_mutation),
    st.none(),
    st.binary(max_size=30),
    st.builds(lambda mutation, cut: encode_mutation(mutation)[:cut], MUTATIONS, st.integers(0, 80)),
    st.builds(lambda mutation, more: encode_mutation(mutation) + more, MUTATIONS, st.binary(min_size=1, max_size=3)),
    st.builds(
        lambda mutation, at, byte: (lambda data: data[: at % len(data)] + byte + data[at % len(data) + 1 :])(
            encode_mutation(mutation)
        ),
        MUTATIONS,
        st.integers(0, 400),
        st.binary(min_size=1, max_size=1),
    ),
)


EXAMPLE = Mutation(None, None, "shop", "orders", NOW, None, "INSERT", (b"k",), (b"c",), (Cell("a", b""),))


def batch_of(values: list[bytes | None], partitions: int = 2, wrong: float = 0.0) -> pa.RecordBatch:
    """Return records in source order, appended around ``NOW``. ``wrong``: share of wrong record keys."""
    chance = random.Random(len(values))
    columns = [
        pa.array([number * partitions // max(len(values), 1) for number in range(len(values))], pa.int32()),
        pa.array(range(1_000, 1_000 + len(values)), pa.int64()),
        pa.array([NOW + chance.randrange(-LEEWAY // 2, LEEWAY // 2) for _ in values], pa.int64()),
        pa.array([_record_key(value, chance, wrong) for value in values], pa.binary()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "appended", "key", "value"])


def _record_key(value: bytes | None, chance: random.Random, wrong: float) -> bytes | None:
    own = record_key(value)
    other = own[:-1] + bytes([own[-1] ^ 1])
    return own if chance.random() >= wrong else chance.choice([None, b"", own + b"\0", own[1:], other, OTHER])


def listed(made: OutgoingColumns) -> list[dict[str, object]]:
    """Return outputs with reasons, one per record; Spark gets the same without the empty ones."""
    rows = [
        {
            "number": number,
            "reason": reason,
            "generation": generation,
            "partition": partition,
            "key": key,
            "value": value,
        }
        for number, reason, generation, partition, key, value in zip(
            made.numbers.tolist(),
            made.reasons.tolist(),
            made.generations.tolist(),
            made.partitions.tolist(),
            made.keys.to_pylist(),
            made.values.to_pylist(),
            strict=True,
        )
    ]
    assert made.batch().to_pylist() == [
        {"partition": row["partition"] if row["reason"] == ROUTED else LETTER, "key": row["key"], "value": row["value"]}
        for row in rows
        if row["reason"] != SKIPPED
    ]
    tally = made.tally()
    assert tally.records == len({row["number"] for row in rows}) == tally.paths.total()
    assert tally.reasons == Counter(row["reason"] for row in rows)
    assert tally.generations == Counter(row["generation"] for row in rows if row["reason"] == ROUTED)
    return rows


def definition_of(batch: pa.RecordBatch, part: PartContext = PART) -> list[dict[str, object]]:
    """Return the output of the definition for the same records, each handled as not plain."""
    found = read(batch)
    every = np.arange(batch.num_rows)
    slow = replace(found, plain=every[:0], others=every)
    return listed(records_of(TABLE, slow, part))


@given(st.lists(GOOD, min_size=1, max_size=30))
def test_good_writes_become_rows_without_single_reads(mutations: list[Mutation]) -> None:
    batch = batch_of([encode_mutation(mutation) for mutation in mutations])
    found = read(batch)
    assert len(found.plain) == len(mutations)
    out = listed(records_of(TABLE, replace(found, values=None), LARGE))
    assert out == definition_of(batch, LARGE)
    assert {row["reason"] for row in out} == {ROUTED}


@given(st.lists(GOOD, min_size=1, max_size=10), st.integers(1, 2**40))
def test_an_expiring_write_without_nulls_is_one_row(mutations: list[Mutation], ttl: int) -> None:
    batch = batch_of([encode_mutation(replace(mutation, ttl=ttl)) for mutation in mutations])
    out = listed(records_of(TABLE, read(batch), LARGE))
    assert out == definition_of(batch, LARGE)


@given(st.lists(GOOD, min_size=1, max_size=10), st.integers(1, 2**40))
def test_a_row_has_the_epoch_of_its_decision(mutations: list[Mutation], epoch: int) -> None:
    part = replace(LARGE, epoch=epoch)
    batch = batch_of([encode_mutation(mutation) for mutation in mutations])
    for out in (listed(going_out(TABLE, batch, part)), definition_of(batch, part)):
        rows = [decode_cdc_row(bytes(row["value"])) for row in out if row["reason"] == ROUTED]  # type: ignore[call-overload]
        assert {row.epoch for row in rows} <= {epoch}
        assert len(rows) == len(out)


@given(st.lists(VALUES, min_size=1, max_size=30), st.sampled_from([0.0, 0.1, 1.0]))
def test_output_matches_the_single_records(values: list[bytes | None], wrong: float) -> None:
    batch = batch_of(values, wrong=wrong)
    together = listed(records_of(TABLE, read(batch), PART))
    assert together == definition_of(batch)


@given(st.lists(VALUES, min_size=1, max_size=30))
def test_the_single_reader_accepts_all_plain_records(values: list[bytes | None]) -> None:
    for number in read(batch_of(values)).plain.tolist():
        assert read_mutation(values[number]) is not None


@given(st.lists(MUTATIONS, min_size=1, max_size=20))
def test_records_with_plain_names_are_plain(mutations: list[Mutation]) -> None:
    found = read(batch_of([encode_mutation(mutation) for mutation in mutations]))
    names = [[m.keyspace, m.table, *(cell.column for cell in m.cells)] for m in mutations]
    assert found.plain.tolist() == [number for number, texts in enumerate(names) if "".join(texts).isascii()]


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(NOW - LEEWAY, NOW + LEEWAY))
def test_facts_match_each_record(values: list[bytes | None], horizon: int) -> None:
    """The facts include those of the simulated job, which reads single records."""
    batch = batch_of(values)
    (facts,) = facts_function(horizon, LEEWAY)(iter([batch]))
    found = {
        fact["partition"]: (None if fact["held"] == NEVER else fact["held"], fact["used"]) for fact in facts.to_pylist()
    }
    unused: Any = None
    rows = [
        Taken(unused, Input(row["partition"], row["offset"], row["appended"], None, row["value"], mutation))
        for row in batch.to_pylist()
        for mutation in (read_mutation(row["value"]),)
    ]
    positions = dict.fromkeys(found, 0)
    assert found == {one.partition: (one.held, one.used) for one in simulated(rows, positions, horizon, LEEWAY)}
    for partition, (held, used) in found.items():
        uses = {row.item.offset: row.item.use(LEEWAY) for row in rows if row.item.partition == partition}
        assert held == min((offset for offset, use in uses.items() if use >= horizon), default=None)
        assert used == max((use for use in uses.values() if use < horizon), default=0)


def test_an_unknown_operation_is_left_to_the_single_reader() -> None:
    good = encode_mutation(replace(EXAMPLE, operation="UPDATE"))
    (at,) = (place for place, byte in enumerate(encode_mutation(EXAMPLE)) if byte != good[place])
    for number in (1, 12, 127):
        value = good[:at] + bytes((number,)) + good[at + 1 :]
        assert read_mutation(value) is None
        assert read(batch_of([value])).plain.tolist() == []


def test_a_too_long_array_is_left_to_the_single_reader() -> None:
    cells = tuple(Cell("a", b"") for _ in range(300))
    mutation = Mutation(None, None, "shop", "orders", NOW, None, "INSERT", (b"k",), (b"c",), cells)
    batch = batch_of([encode_mutation(mutation)])
    assert read(batch).plain.tolist() == []
    assert listed(records_of(TABLE, read(batch), LARGE)) == definition_of(batch, LARGE)


def test_tallies_of_arrow_batches_add_up() -> None:
    mutation = Mutation(None, None, "shop", "orders", NOW, None, "INSERT", (b"k",), (b"c",), ())
    many: list[bytes | None] = [encode_mutation(mutation)] * 3
    added: list[Tally] = []
    function = rows_function(SimpleNamespace(value=TABLE), LARGE, SimpleNamespace(add=added.append))
    out = list(function(iter([batch_of(many), batch_of([]), batch_of([*many, None])])))
    assert [batch.num_rows for batch in out] == [3, 4]
    total = TallyParam().zero(Tally())
    for tally in added:
        total = TallyParam().addInPlace(total, tally)
    assert total.records == 7
    assert total.reasons == {ROUTED: 6, NUMBERS["unreadable"]: 1}
    assert total.generations == {NOW: 6}
    assert total.paths == {RecordPath.BULK: 6, RecordPath.NOT_PLAIN: 1}


def test_empty_fields_after_the_cells_are_zero_bytes() -> None:
    """The reader assumes these zero bytes; with another schema no mutation would be plain."""
    for mark, fields in defaults_behind_cells():
        (schema,) = [s for f, s in by_fingerprint().items() if mark.endswith(f.to_bytes(8, "little"))]
        names = [field["name"] for field in schema.json["fields"]]
        assert [field["default"] in ([], None) for field in schema.json["fields"][len(names) - fields :]] == [
            True
        ] * fields


@given(st.lists(st.binary(min_size=1, max_size=11), min_size=1, max_size=20))
def test_numbers_match_the_strict_reader(fields: list[bytes]) -> None:
    """A number that the strict reader refuses (too long, beyond 64 bits, truncated) is doubtful."""
    ends = np.cumsum([len(field) for field in fields])
    starts = np.concatenate(([0], ends[:-1]))
    cursor = Cursor(padded(np.frombuffer(b"".join(fields), dtype=np.uint8)), starts, ends)
    numbers = cursor.number()
    for index, field in enumerate(fields):
        try:
            number, at = reading.number_at(field, 0)
        except (IndexError, ValueError):
            assert not cursor.sound[index]
        else:
            assert cursor.sound[index]
            assert (numbers[index], cursor.at[index] - starts[index]) == (number, at)
