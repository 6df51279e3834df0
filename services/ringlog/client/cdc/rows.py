"""Rows of the CDC log as typed values, according to the schema of their table.

A ``CdcChange`` is one write at one timestamp: all rows up to the one with ``end_of_batch``, including images. A
column's value has the Python type of its CQL type in the log (``ringlog.kernel.cql.types``). A collection is a tuple, a
map a tuple of pairs, a list a tuple of pairs of a time UUID and a value. A user type is a dict.

Values without a matching column, and values that do not fit their column's type, are *undecoded*. They appear by name
as raw bytes.

Invariant: no reader drops a value silently, because all of them use ``TableTypes``. Rows use the stored names of
columns, readers show the names of the table (``ringlog.kernel.schema.stored``).

==================================  =================================================================================
Undecoded                           Its name
==================================  =================================================================================
Value of a column                   The column.
Surplus part of the key             ``partition_<n>``, ``clustering_<n>``, counted from 0.
Deletion of a column                ``cdc$deleted_<col>``: one byte, 1.
Elements removed from a collection  ``cdc$deleted_elements_<col>``: their keys in hex, separated by commas.
==================================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.collections import key_type, log_type
from ringlog.kernel.cql.types import TypeMismatch, deserialize
from ringlog.kernel.schema.stored import names_of
from ringlog.kernel.values import Value, field, replace
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
"""Operation code to name. An unknown code of a later release is named by its number."""

DELETED, ELEMENTS = "cdc$deleted_", "cdc$deleted_elements_"
"""Prefixes of a column's name for its deletion and for removed elements."""


class LogRow(Value):
    """One row of the log.

    ``key``: partition and clustering columns. It is always complete, with raw bytes for an undecoded part. ``values``:
    columns that the row sets. ``ttl``: in seconds, None: no expiry. ``deleted``: columns set to null, and collections
    that lose their earlier elements; includes undecoded names. ``deleted_elements``: column to the keys of removed
    elements. ``undecoded``: see the module description.
    """

    operation: str
    code: int
    batch_seq_no: int
    ttl: int | None
    key: Mapping[str, Any]
    values: Mapping[str, Any]
    deleted: tuple[str, ...]
    deleted_elements: Mapping[str, tuple[Any, ...]]
    undecoded: Mapping[str, bytes] = field(default_factory=dict)


class CdcChange(Value):
    """One write at one timestamp in microseconds.

    ``stream_id``, ``time``: 16 bytes each; together they identify the write. ``place``: partition and offset of its
    last row in the CDC topic. ``raw``: the rows as stored in the log. ``schema``: the table version at the decision on
    the write, which determines the types. None: the table did not exist.
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
    schema: TableChange | None = None

    @property
    def name(self) -> str:
        """The full table name, ``keyspace.table``."""
        return f"{self.keyspace}.{self.table}"

    @property
    def table_id(self) -> str | None:
        """Id of the table, which differs for a recreated table. None: the table did not exist."""
        return None if self.schema is None else self.schema.id

    @property
    def epoch(self) -> int:
        """The metadata epoch of the decision on the write; 0 if not recorded."""
        return decided_by(self.raw)


def decided_by(rows: Iterable[CdcRow]) -> int:
    """Return the epoch of the decision on a write. For a write that was interrupted and completed later, the later
    epoch.
    """
    return max(row.epoch for row in rows)


def change_of(rows: tuple[CdcRow, ...], types: TableTypes, place: tuple[int, int]) -> CdcChange:
    """Build the change from the rows of a write."""
    first = rows[0]
    return CdcChange(
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
        schema=types.table,
    )


def only_columns(change: CdcChange, columns: frozenset[str]) -> CdcChange:
    """Return the change with the values of these columns and of the key. ``raw`` is unchanged."""

    def chosen(name: str) -> bool:
        return name.removeprefix(ELEMENTS).removeprefix(DELETED) in columns

    rows = tuple(
        replace(
            row,
            values={name: value for name, value in row.values.items() if name in columns},
            deleted=tuple(name for name in row.deleted if name in columns),
            deleted_elements={name: keys for name, keys in row.deleted_elements.items() if name in columns},
            undecoded={name: data for name, data in row.undecoded.items() if chosen(name) or name in row.key},
        )
        for row in change.rows
    )
    return replace(change, rows=rows)


class TableTypes:
    """Column types of a table, for decoding. If ``table`` is None, everything is undecoded."""

    def __init__(self, table: TableChange | None) -> None:
        self.table = table
        self.partition_key = () if table is None else table.partition_key
        self.clustering_key = () if table is None else table.clustering_key
        columns = () if table is None else table.columns
        self.columns = {column.name: log_type(column.type) for column in columns}
        self.keys = {column.name: key_type(column.type) for column in columns}
        own = {*self.partition_key, *self.clustering_key}
        self.data = tuple(name for name in self.columns if name not in own)
        """Columns that are none of the key."""
        self._data = frozenset(self.data)
        self._names = {} if table is None else names_of(table)

    def named(self, row: CdcRow) -> CdcRow:
        """Return the row with the table's column names."""
        names = self._names
        if not names:
            return row
        return replace(
            row,
            cells=tuple(replace(cell, column=names.get(cell.column, cell.column)) for cell in row.cells),
            deleted=tuple(names.get(column, column) for column in row.deleted),
            deleted_elements=tuple(
                replace(one, column=names.get(one.column, one.column)) for one in row.deleted_elements
            ),
        )

    def row(self, row: CdcRow) -> LogRow:
        """Return the row with typed values."""
        row = self.named(row)
        undecoded = dict(self.unmatched_values(row))
        values: dict[str, Any] = {}
        for cell in row.cells:
            if cell.value is not None and cell.column in self._data:
                try:
                    values[cell.column] = deserialize(self.columns[cell.column], cell.value)
                except TypeMismatch:
                    undecoded[cell.column] = cell.value
        key, misfits = self._key(row)
        return LogRow(
            operation=OPERATIONS.get(row.operation, str(row.operation)),
            code=row.operation,
            batch_seq_no=row.batch_seq_no,
            ttl=row.ttl,
            key=key,
            values=values,
            deleted=row.deleted,
            deleted_elements={
                found.column: tuple(_typed(self.keys.get(found.column), key) for key in found.keys)
                for found in row.deleted_elements
            },
            undecoded=undecoded | misfits,
        )

    def unmatched_values(self, row: CdcRow, out: frozenset[str] = frozenset()) -> Iterable[tuple[str, bytes]]:
        """Return values of a row without a matching column, and removed elements whose keys do not fit their type.

        ``row``: output of ``named``. ``out``: columns that a reader excludes, also by the names of their deletions.
        """
        for names, prefix, parts in (
            (self.partition_key, "partition", row.partition_key),
            (self.clustering_key, "clustering", row.clustering_key),
        ):
            for place, part in enumerate(parts):
                name = names[place] if place < len(names) else f"{prefix}_{place}"
                if part is not None and (place >= len(names) or name in out):
                    yield name, part
        for cell in row.cells:
            if cell.value is not None and (cell.column not in self._data or cell.column in out):
                yield cell.column, cell.value
        for column in row.deleted:
            if column not in self._data or DELETED + column in out:
                yield DELETED + column, b"\1"
        for taken in row.deleted_elements:
            kind = self.keys.get(taken.column) if taken.column in self._data else None
            if not kind or ELEMENTS + taken.column in out or not all(fits(kind, key) for key in taken.keys):
                yield ELEMENTS + taken.column, b",".join(key.hex().encode() for key in taken.keys)

    def _key(self, row: CdcRow) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return partition and clustering columns by name in key order, and those with undecoded bytes.

        Without a table the names are ``partition_0``, ``clustering_0`` and so on.
        """
        found: dict[str, Any] = {}
        misfits: dict[str, bytes] = {}
        for names, prefix, parts in (
            (self.partition_key, "partition", row.partition_key),
            (self.clustering_key, "clustering", row.clustering_key),
        ):
            for index, part in enumerate(parts):
                if index >= len(names):
                    found[f"{prefix}_{index}"] = part
                    continue
                name = names[index]
                try:
                    found[name] = None if part is None else deserialize(self.columns[name], part)
                except TypeMismatch:
                    assert part is not None, "only values that are not null are decoded"
                    found[name] = misfits[name] = part
        return found, misfits

    def value(self, column: str, data: bytes | None) -> Any:
        """Return a column's value, or its bytes if the type is unknown or does not fit."""
        return None if data is None else _typed(self.columns.get(column), data)


def fits(kind: str, data: bytes) -> bool:
    """Return whether the bytes are a value of the type."""
    try:
        deserialize(kind, data)
    except TypeMismatch:
        return False
    return True


def _typed(kind: str | None, data: bytes) -> Any:
    if not kind:
        return data
    try:
        return deserialize(kind, data)
    except TypeMismatch:
        return data
