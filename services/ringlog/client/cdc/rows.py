"""Rows of the CDC log as typed values, by the schema of their table.

A ``Change`` is one write at one timestamp: all rows up to the one with ``end_of_batch``, images included. A column's
value has the Python type of its CQL type in the log (``ringlog.kernel.schema.types``): a collection is a tuple, a map
one of pairs, a list one of pairs of a time UUID and a value; a user type is a dict. A column that the table has no
more, or a value that does not fit its type, comes as its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.changes import TableChange
from ringlog.kernel.schema.collections import key_type, log_type
from ringlog.kernel.schema.types import TypeMismatch, deserialize
from ringlog.wire.records import CdcRow

OPERATIONS: Mapping[int, str] = {
    0: "preimage",
    1: "update",
    2: "insert",
    3: "row_delete",
    4: "partition_delete",
    5: "range_delete_start_inclusive",
    6: "range_delete_start_exclusive",
    7: "range_delete_end_inclusive",
    8: "range_delete_end_exclusive",
    9: "postimage",
    -3: "service_row_delete",
    -4: "service_partition_delete",
}
"""Code of an operation to its name; a code of a later release is named by its number."""

PREIMAGE, UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE, POSTIMAGE = 0, 1, 2, 3, 4, 9
RANGE_STARTS: Mapping[int, bool] = {5: True, 6: False}
RANGE_ENDS: Mapping[int, bool] = {7: True, 8: False}
"""Code of a bound to whether it is inclusive."""

ROW_DELETES, PARTITION_DELETES = frozenset({3, -3}), frozenset({4, -4})


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row of the log. ``key``: partition and clustering columns that it names; ``values``: columns that it sets;
    ``deleted``: columns set to null, or collections whose earlier elements are gone; ``deleted_elements``: column to
    the keys of elements taken out; ``ttl`` in seconds, None: never.
    """

    operation: str
    code: int
    batch_seq_no: int
    ttl: int | None
    key: Mapping[str, Any]
    values: Mapping[str, Any]
    deleted: tuple[str, ...]
    deleted_elements: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Change:
    """One write at one timestamp (microseconds). ``stream_id`` and ``time``: 16 bytes each, together its name;
    ``place``: partition and offset of its last row in the CDC topic; ``raw``: the rows as they are in the log.
    """

    keyspace: str
    table: str
    generation: int
    stream_id: bytes
    time: bytes
    timestamp: int
    mutation_id: str | None
    rows: tuple[LogRow, ...]
    place: tuple[int, int]
    raw: tuple[CdcRow, ...]

    @property
    def name(self) -> str:
        """``keyspace.table``."""
        return f"{self.keyspace}.{self.table}"


def change_of(rows: tuple[CdcRow, ...], types: TableTypes, place: tuple[int, int]) -> Change:
    """The write of these rows."""
    first = rows[0]
    return Change(
        keyspace=first.keyspace,
        table=first.table,
        generation=first.generation,
        stream_id=first.stream_id,
        time=first.time,
        timestamp=first.timestamp,
        mutation_id=first.mutation_id,
        rows=tuple(types.row(row) for row in rows),
        place=place,
        raw=rows,
    )


class TableTypes:
    """The columns of a table, for decoding; ``table`` None: it is unknown, and values stay bytes."""

    def __init__(self, table: TableChange | None) -> None:
        self.table = table
        self.partition_key = () if table is None else table.partition_key
        self.clustering_key = () if table is None else table.clustering_key
        columns = () if table is None else table.columns
        self.columns = {column.name: log_type(column.type) for column in columns}
        self.keys = {column.name: key_type(column.type) for column in columns}

    def row(self, row: CdcRow) -> LogRow:
        """A row with typed values."""
        return LogRow(
            operation=OPERATIONS.get(row.operation, str(row.operation)),
            code=row.operation,
            batch_seq_no=row.batch_seq_no,
            ttl=row.ttl,
            key=self.key(row),
            values={cell.column: self.value(cell.column, cell.value) for cell in row.cells if cell.value is not None},
            deleted=row.deleted,
            deleted_elements={
                found.column: tuple(_typed(self.keys.get(found.column), key) for key in found.keys)
                for found in row.deleted_elements
            },
        )

    def key(self, row: CdcRow) -> dict[str, Any]:
        """Partition and clustering columns by name, in key order; without a table ``partition_0``, ``clustering_0``."""
        found: dict[str, Any] = {}
        for names, prefix, parts in (
            (self.partition_key, "partition", row.partition_key),
            (self.clustering_key, "clustering", row.clustering_key),
        ):
            for index, part in enumerate(parts):
                name = names[index] if index < len(names) else f"{prefix}_{index}"
                found[name] = self.value(name, part)
        return found

    def value(self, column: str, data: bytes | None) -> Any:
        """A column's value; its bytes where the type is unknown or does not fit."""
        return None if data is None else _typed(self.columns.get(column), data)


def _typed(kind: str | None, data: bytes) -> Any:
    if not kind:
        return data
    try:
        return deserialize(kind, data)
    except TypeMismatch:
        return data
