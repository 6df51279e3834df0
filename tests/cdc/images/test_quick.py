"""States after plain writes: the short way and the one cell by cell agree; items are cells in Avro."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ringlog.client.cdc.rows import INSERT, ROW_DELETE, UPDATE
from ringlog.wire.records import Cell, encode_mutation
from ringlog_cdc.images.items import item_of, value_of
from ringlog_cdc.images.quick import _merged, changed
from ringlog_cdc.images.state import Row, packed, versions
from tests.cdc.test_split import T, change, write


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8_191, 8_192, 1_048_576])
def test_items_are_the_cells_of_mutations(size: int) -> None:
    value = bytes([size % 251]) * size
    item = item_of("name", value)
    assert value_of("name", item) == value
    mutation = replace(write(change("UPDATE", None, T)), cells=(Cell("name", value),))
    assert item in encode_mutation(mutation)


def test_a_write_that_takes_the_place_of_a_row_leaves_what_its_cells_do_one_by_one() -> None:
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
