"""CDC rows as Arrow batches, made by columns: the same as by the definition, whatever the rows hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ringlog.client.cdc.errors import UnreadableRecord
from ringlog.kernel.schema.types import TYPES as SCALARS
from ringlog.kernel.values import Column
from ringlog.wire.records import CdcRow, Cell, DeletedElements, encode_cdc_row
from ringlog_cdc.reading import vectors
from ringlog_cdc.reading.columns import LogColumns
from ringlog_cdc.reading.heads import RowHead, head_of
from ringlog_cdc.reading.vectors import batch_of
from tests.client.cdc.changes import TABLE, row

SIZES = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4, "uuid": 16, "timeuuid": 16}
MORE = {f"x_{kind}": kind for kind in sorted(SCALARS)} | {"s": "set<text>"}
COLUMNS = LogColumns(replace(TABLE, columns=(*TABLE.columns, *(Column(name, kind) for name, kind in MORE.items()))))


def drawn_value(chance: Random, kind: str) -> bytes | None:
    """Bytes for a column: mostly a value of its type, sometimes none, or what it cannot hold."""
    draw = chance.random()
    if draw < 0.1:
        return None
    if draw < 0.13:
        return chance.randbytes(chance.choice((0, 3, 17)))
    if kind in ("text", "ascii"):
        return chance.choice(("", "x", "some text that is longer than a word", "y" * 200)).encode()
    if kind == "text" and draw < 0.2:
        return "größe".encode()
    if kind == "boolean":
        return bytes([chance.randrange(2)])
    if kind in ("float", "double"):
        return chance.choice((b"\x40\x09\x21\xfb", b"\0\0\0\0", b"\xff\x80\0\0")) + bytes(4 * (kind == "double"))
    if kind == "varint":
        return chance.choice((b"\x01", b"\xff", b"\x7f" + chance.randbytes(9)))
    return chance.randbytes(SIZES.get(kind, 8))


def drawn(chance: Random) -> CdcRow:
    kinds = {column.name: column.type for column in COLUMNS.table.columns if "<" not in column.type}
    names = [name for name in kinds if name not in ("p", "c")]
    chosen = chance.sample(names, chance.randint(0, 6))
    cells = [Cell(name, drawn_value(chance, kinds[name])) for name in chosen]
    cells += [Cell("unknown", b"1")] * (chance.random() < 0.05)
    if cells and chance.random() < 0.05:
        cells.append(Cell(cells[0].column, b"again"))
    return row(
        chance.randint(-4, 9),
        key=chance.choice(((), (1,), (-5,), (1, 2))),
        ttl=chance.choice((None, 0, 60, 2**40)),
        batch_seq_no=chance.choice((0, 1, 2**31 - 1)),
        end_of_batch=chance.random() < 0.5,
        cells=tuple(cells),
        deleted=tuple(chance.sample([*names, "unknown", "p"], chance.randint(0, 2))),
        deleted_elements=(DeletedElements("m", (b"k",)),) if chance.random() < 0.03 else (),
    )


def headed(rows: list[CdcRow]) -> list[RowHead]:
    return [head_of(found, number, encode_cdc_row(found)) for number, found in enumerate(rows)]


def test_columns_by_vectors_are_those_of_the_definition() -> None:
    calls: Counter[str] = Counter()
    by_definition = COLUMNS.batch

    class Watched(LogColumns):
        def batch(self, rows: Any) -> pa.RecordBatch:
            calls["slow"] += len(rows)
            return by_definition(rows)

    watched = Watched(COLUMNS.table)
    chance, total = Random(3), 0
    for _ in range(60):
        rows = [drawn(chance) for _ in range(chance.choice((1, 2, 40)))]
        total += len(rows)
        assert batch_of(watched, headed(rows), 0).equals(by_definition(rows))
    assert 0 < calls["slow"] < total / 2


def test_every_type_has_its_values_by_vectors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (
        Cell("x_ascii", b"abc"),
        Cell("x_text", "größe".encode()),
        Cell("x_blob", b"\0\xff"),
        Cell("x_boolean", b"\1"),
        Cell("x_tinyint", b"\xff"),
        Cell("x_smallint", b"\x80\0"),
        Cell("x_int", b"\x7f\xff\xff\xff"),
        Cell("x_bigint", b"\x80" + bytes(7)),
        Cell("x_timestamp", (2**62).to_bytes(8, "big")),
        Cell("x_double", b"\xbf\xf0" + bytes(6)),
        Cell("x_float", b"\x3f\x80\0\0"),
        Cell("x_uuid", bytes(range(16))),
        Cell("x_date", (2**31 + 3).to_bytes(4, "big")),
        Cell("s", b"\0\0\0\1\0\0\0\1a"),
    )
    rows = [row(2, cells=cells), row(1, cells=(Cell("x_timestamp", (-(2**62)).to_bytes(8, "big", signed=True)),))]
    wanted = COLUMNS.batch(rows)
    monkeypatch.setattr(LogColumns, "batch", None)
    found = batch_of(COLUMNS, headed(rows), 0)
    assert found.equals(wanted)
    assert found.column("x_timestamp").cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63) + 1]


def test_a_text_that_is_none_sends_all_rows_the_way_of_the_definition() -> None:
    rows = [row(2, cells=(Cell("w", b"fine"),)), row(2, cells=(Cell("w", b"\xff"),))]
    found = batch_of(COLUMNS, headed(rows), 0)
    assert found.column("w").to_pylist() == ["fine", None]
    assert found.column("cdc$undecoded").to_pylist() == [None, [("w", b"\xff")]]


def test_a_record_that_is_damaged_behind_its_head_is_named() -> None:
    head = headed([row(2, values={"v": 5})])[0]
    for value in (head.value[:-1], head.value + b"!", head.value[:-2] + b"\2\0"):
        with pytest.raises(UnreadableRecord, match="3/9"):
            batch_of(COLUMNS, [head._replace(value=value, offset=9)], 3)
    assert vectors.NUMBERS.keys() < SCALARS.keys()
