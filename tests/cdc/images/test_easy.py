"""The fast path of images against the definition, on random batches: equal bytes and equal states."""

from __future__ import annotations

import uuid
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringlog.kernel.rows.log_rows import INSERT, ROW_DELETE, UPDATE
from ringlog.kernel.values import Column, replace
from ringlog.wire.records import Bounds, Cell, Mutation, MutationStatement, decode_cdc_row, encode_mutation
from ringlog_cdc.bulk.arrow import read, records_of
from ringlog_cdc.bulk.flat_image import _merged, changed
from ringlog_cdc.definition.image_states import GRACE, Row, item_of, packed, value_of, versions
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.reasons import ROUTED
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.tables import image_table
from tests.cdc.test_columnar import LARGE, NOW, PART, TABLE, listed
from tests.cdc.test_split import T, change, write
from tests.record_keys import record_key

INTS = ("a", "b", "name_of_some_length")


def routing(preimage: str, postimage: bool, ttl: int = 0) -> Any:
    """Return the tables of ``test_columnar``, three of them with images."""

    def outputs_of(partition: tuple[str, ...], clustering: tuple[str, ...]) -> ImageTable:
        columns = [Column(name, "blob") for name in (*partition, *clustering, *INTS)]
        return image_table(columns, clustering, preimage, postimage, ttl, partition)

    images = {
        "shop.orders": outputs_of(("p",), ("c",)),
        "shop.lines": outputs_of(("p", "q"), ()),
        "shop.keyed": outputs_of(("p",), ("c",)),
    }
    return replace(TABLE, definition=replace(TABLE.definition, images=images))


def random_write(chance: Random) -> bytes:
    """Return a random write to one of few rows; a few records are invalid."""
    table = chance.choice(("orders", "orders", "lines", "keyed", "tagged"))
    key = tuple(chance.choice((b"k", b"longer key")) for _ in range(2 if table == "lines" else 1))
    clustering = () if table == "lines" else (chance.choice((b"", b"c", bytes(70))),)
    names = chance.choices((*INTS, "unknown"), (4, 4, 2, 1), k=chance.randint(0, 3))
    sizes = (0, 1, 63, 64, 200)
    cells = tuple(
        Cell(name, None if chance.random() < 0.2 else bytes([chance.randrange(9)]) * chance.choice(sizes))
        for name in (names if chance.random() < 0.1 else dict.fromkeys(names))
    )
    ttl = chance.choice((None, None, 1, 60)) if all(cell.value is not None for cell in cells) else None
    operation = chance.choices(("INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE", "UNKNOWN"), (6, 8, 3, 1, 0.2))[0]
    at = NOW + chance.randrange(-3_000_000, 3_000_000, 250_000)
    one = Mutation(None, None, "shop", table, at, ttl, operation, key, clustering, cells)
    if operation == "PARTITION_DELETE":
        one = replace(one, clustering_key=(), cells=())
    kind = chance.random()
    if kind < 0.05:
        one = replace(one, more=(MutationStatement("UPDATE", clustering, cells, at + 1, 5),))
    elif kind < 0.08 and clustering:
        one = replace(
            one, operation="RANGE_DELETE", cells=(), clustering_key=(), bounds=Bounds((b"c",), True, (), True)
        )
    elif kind < 0.1:
        return b"?"
    return encode_mutation(one)


def batch_of(values: list[bytes], first: int, appended: list[int]) -> pa.RecordBatch:
    columns = [
        pa.array([3] * len(values), pa.int32()),
        pa.array(range(first, first + len(values)), pa.int64()),
        pa.array(appended, pa.int64()),
        pa.array([record_key(value) for value in values], pa.binary()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "appended", "key", "value"])


@pytest.mark.parametrize(
    ("preimage", "postimage", "ttl"),
    [("full", True, 0), ("true", False, 0), ("true", True, 400_000), ("false", True, 0), ("full", False, 0)],
)
def test_random_batches(preimage: str, postimage: bool, ttl: int) -> None:
    table, met = routing(preimage, postimage, ttl), Counter[int]()
    for seed in range(5):
        chance, quick, slow, first = Random(seed), MemoryStates(), MemoryStates(), 0
        for name, one in table.definition.images.items():
            assert quick.number(name, one) == slow.number(name, one)
        part = replace(PART, row_bytes_max=500) if seed % 3 == 0 else LARGE
        for number in range(4):
            values = [random_write(chance) for _ in range(chance.randint(1, 40))]
            begin = NOW + number * (2_000_000 if seed % 2 else GRACE)
            appended = sorted(begin + chance.randrange(1_500_000) for _ in values)
            batch = batch_of(values, first, appended)
            found = read(batch)
            every = np.arange(batch.num_rows)
            singly = replace(found, plain=every[:0], others=every)
            got = listed(records_of(table, found, part, quick))
            assert got == listed(records_of(table, singly, part, slow)), (seed, number)
            assert quick.states == slow.states, (seed, number)
            for row in (decode_cdc_row(row["value"]) for row in got if row["reason"] == ROUTED):
                assert uuid.UUID(bytes=row.time).time // 10 - 12_219_292_800_000_000 == row.timestamp
                met[row.operation] += 1
            first += len(values)
    assert {1, 2, 3, 4, 5, 7} <= set(met)
    assert (met[0] > 0, met[9] > 0) == (preimage != "false", postimage)


# States after plain writes: the fast path and the path cell by cell agree; items are cells in Avro.


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8_191, 8_192, 1_048_576])
def test_items_are_the_cells_of_mutations(size: int) -> None:
    value = bytes([size % 251]) * size
    item = item_of("name", value)
    assert value_of("name", item) == value
    mutation = replace(write(change("UPDATE", None, T)), cells=(Cell("name", value),))
    assert item in encode_mutation(mutation)


def test_a_replaced_row_state_matches_its_single_cells() -> None:
    chance = Random(1)
    short = 0
    for _ in range(600):
        row: Row | None = None
        ttl = chance.choice((0, 0, 40))
        for now in range(100, 100 + chance.randint(1, 12)):
            columns = tuple(chance.choices("abc", k=chance.randint(0, 3)))
            columns = tuple(sorted({*columns})) if chance.random() < 0.8 else columns
            items = tuple(chance.choice((None, item_of(name, bytes([chance.randrange(3)])))) for name in columns)
            at = chance.choice((now, now, now - 1, now - 5))
            operation = chance.choice((INSERT, INSERT, UPDATE, UPDATE, ROW_DELETE))
            arguments = operation, at, chance.choice((None, None, at + 20)), columns, items, now, ttl
            after = changed(row, *arguments)
            assert after == _merged(row, *arguments)
            if after is not None:
                limit, deleted, marker, *_, many = after
                assert packed(limit, deleted, marker, versions(after), many) == after
            short += row is not None and columns == row[3]
            row = after
    assert short > 200
