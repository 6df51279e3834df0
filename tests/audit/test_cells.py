"""The audit compares a decoded CDC row with a row of the lake.

Random rows must equal their own lake row and differ after each single change.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ringlog.kernel.cql.collections import shape_of
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.values import Column, asdict, replace
from ringlog.wire.records import CdcRow, Cell, DeletedElements
from ringlog_audit.cells import TableOfRow, is_column_of, is_value, says_the_same
from ringlog_cdc_reader.columns import LogColumns, reader_of
from tests.cdc.test_vectors import COLUMNS, drawn
from tests.client.cdc.changes import TABLE, row

PARTS = {"u": "frozen<udt<a int, at timestamp>>", "y": "tuple<int, text>", "z": "frozen<map<text, timestamp>>"}
TYPED = LogColumns(replace(TABLE, columns=(*TABLE.columns, *(Column(name, kind) for name, kind in PARTS.items()))))


def table_of(columns: LogColumns) -> TableOfRow | None:
    """Return the table of these columns, in a lake that has all of them."""
    return TableOfRow.of(columns.table, {field.name: field.type for field in columns.schema()})


KEYS = table_of(COLUMNS)


def in_lake(found: CdcRow, columns: LogColumns = COLUMNS) -> dict[str, Any]:
    """Return the row in lake format, by column."""
    batch = columns.batch([found])
    return {name: batch.column(place)[0] for place, name in enumerate(batch.schema.names)}


def changed(chance: Random, found: CdcRow) -> list[CdcRow]:
    """Return copies of the row, each with one change."""
    made = [replace(found, partition_key=(b"another",))]
    for place, cell in enumerate(found.cells):
        others = found.cells[:place] + found.cells[place + 1 :]
        # The lake clamps timestamps outside its range, so two such timestamps compare as equal.
        is_cut = cell.column == "x_timestamp"
        if cell.value is not None and not is_cut and cell.column not in {other.column for other in others}:
            data = bytes([cell.value[0] ^ 1, *cell.value[1:]]) if cell.value else b"\0"
            made += [replace(found, cells=others), replace(found, cells=(*others, Cell(cell.column, data)))]
    fresh = chance.choice(("w", "v", "nocol"))
    if fresh not in {cell.column for cell in found.cells}:
        made.append(replace(found, cells=(*found.cells, Cell(fresh, b"\0\0\0\1"))))
    if "w" not in found.deleted:
        made.append(replace(found, deleted=(*found.deleted, "w")))
    made += [replace(found, deleted=found.deleted[1:])] if found.deleted[1:] == found.deleted[:-1][1:] else []
    return made


def test_a_row_equals_only_its_own_lake_row() -> None:
    compared = 0
    for seed in range(300):
        chance = Random(seed)
        found = drawn(chance)
        there = in_lake(found)
        assert says_the_same(asdict(found), there, KEYS), found
        assert says_the_same(asdict(found), there, None), found
        for other in changed(chance, found):
            if asdict(other) != asdict(found):
                compared += 1
                assert not says_the_same(asdict(other), there, KEYS), (found, other)
    assert compared > 500


def test_a_value_missing_in_the_lake_is_reported() -> None:
    found = row(2, cells=(Cell("nocol", b"!"), Cell("v", b"\1")), deleted=("gone",))
    there = in_lake(found)
    assert says_the_same(asdict(found), there, KEYS)
    kind = there["cdc$undecoded"].type
    whole = there["cdc$undecoded"].as_py()
    for place in range(len(whole)):
        less = there | {"cdc$undecoded": pa.scalar(whole[:place] + whole[place + 1 :], kind)}
        assert not says_the_same(asdict(found), less, KEYS)
        assert not says_the_same(asdict(found), less, None)
    assert not says_the_same(asdict(found), there | {"cdc$undecoded": pa.scalar(None, kind)}, KEYS)


def test_collections_are_compared_by_element() -> None:
    values: dict[str, Any] = {"u": {"a": 1, "at": 2**60}, "y": (7, None), "z": (("k", -5),)}
    cells = tuple(Cell(name, serialize(PARTS[name], value)) for name, value in values.items())
    found = row(2, values={"m": (("x", 1),)}, deleted_elements=(DeletedElements("m", (b"a", b"b")),))
    found = replace(found, cells=(*found.cells, *cells))
    there, table = in_lake(found, TYPED), table_of(TYPED)
    assert says_the_same(asdict(found), there, table)
    for name, other in {"u": {"a": 1, "at": 5}, "y": (7, "x"), "z": (("k", -6),)}.items():
        kept = tuple(cell for cell in found.cells if cell.column != name)
        wrong = replace(found, cells=(*kept, Cell(name, serialize(PARTS[name], other))))
        assert not says_the_same(asdict(wrong), there, table), name
    for keys in ((b"a",), (b"a", b"c"), ()):
        assert not says_the_same(asdict(replace(found, deleted_elements=(DeletedElements("m", keys),))), there, table)


def test_only_values_without_a_column_may_be_undecoded() -> None:
    found = row(2, values={"v": 7, "m": (("x", 1),)}, deleted=("w",), deleted_elements=(DeletedElements("m", (b"a",)),))
    found = replace(found, cells=(*found.cells, Cell("u", serialize(PARTS["u"], {"a": 1, "at": 5}))))
    names = ("c", "v", "m", "u", "cdc$deleted_w", "cdc$deleted_elements_m")
    whole = {field.name: field.type for field in TYPED.schema()}
    for name in names:
        there = in_lake(found, LogColumns(TYPED.table, out=frozenset({name})))
        types = {field.name: there[field.name].type for field in TYPED.schema() if field.name in there}
        assert not says_the_same(asdict(found), there, TableOfRow.of(TYPED.table, whole)), name
        assert says_the_same(asdict(found), there, TableOfRow.of(TYPED.table, types)), "the lake has no such column"
        other = whole | {name: pa.struct([pa.field("a", pa.int32())])}
        assert says_the_same(asdict(found), there, TableOfRow.of(TYPED.table, other)), "it has another type"
        less = replace(TYPED.table, columns=tuple(one for one in TYPED.table.columns if one.name not in name))
        if name not in ("c", "cdc$deleted_w", "cdc$deleted_elements_m"):
            assert says_the_same(asdict(found), there, TableOfRow.of(less, whole)), "the table has no such column"


@pytest.mark.parametrize(
    ("kind", "data", "wrong"),
    [
        ("double", b"\x7f\xf8" + bytes(6), bytes(8)),
        ("float", b"\x3f\x80\0\0", b"\xbf\x80\0\0"),
        ("varint", b"\x7f", b"\x7e"),
        ("uuid", bytes(range(16)), bytes(16)),
        ("date", b"\x80\0\0\x05", b"\x80\0\0\x06"),
        ("boolean", b"\1", b"\0"),
        ("smallint", b"\0\5", b"\0\0\0\5"),
        ("blob", b"", b"\0"),
    ],
)
def test_scalars(kind: str, data: bytes, wrong: bytes) -> None:
    columns = LogColumns(replace(TABLE, columns=(*TABLE.columns, Column("x", kind))))
    value = pa.scalar(reader_of(kind)(data), columns.schema().field("x").type)
    assert is_value(value, data)
    assert not is_value(value, wrong)
    assert is_column_of(value.type, shape_of(kind))
    assert is_column_of(pa.null(), shape_of(kind)) is False
