"""Test changes: rows of one write to ``ks.t`` with typed columns."""

from __future__ import annotations

from typing import Any

from ringlog.client.cdc.rows import CdcChange, TableTypes, change_of
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.values import CdcOptions, Column, replace
from ringlog.wire.records import CdcRow, Cell
from tests.time_uuids import timeuuid

AT = 1_700_000_000_123_456
STREAM = bytes.fromhex("80800000000000001facbbb618000011")
TYPES = {"p": "text", "c": "int", "v": "int", "w": "text", "m": "map<text, int>", "l": "list<int>", "b": "blob"}
TABLE = TableChange(
    epoch=1,
    id="",
    keyspace="ks",
    name="t",
    columns=tuple(Column(name, kind) for name, kind in TYPES.items()),
    partition_key=("p",),
    clustering_key=("c",),
    cdc=CdcOptions(enabled=True),
    version="",
    changed=1,
    committed_by_log=True,
)


def row(operation: int, key: tuple[int, ...] = (1,), values: dict[str, Any] | None = None, **changes: Any) -> CdcRow:
    """Return a row of the log. ``values``: Python values by column; a list as pairs of time UUID and value."""
    kinds = TYPES | {"l": "map<timeuuid, int>"}
    made = CdcRow(
        STREAM, 7, timeuuid(AT, b"x"), 0, operation, None, True, "ks", "t", None, "m", 0, 0, AT,
        (b"p1",), tuple(serialize("int", part) for part in key),
        tuple(Cell(name, serialize(kinds[name], value)) for name, value in (values or {}).items()), (),
    )  # fmt: skip
    return replace(made, **changes)


def change(*rows: CdcRow, table: TableChange | None = TABLE) -> CdcChange:
    """Return one write of these rows to a table. None: no table had this name."""
    numbered = tuple(
        replace(found, batch_seq_no=number, end_of_batch=number == len(rows) - 1) for number, found in enumerate(rows)
    )
    return change_of(numbered, TableTypes(table), (3, 41))
