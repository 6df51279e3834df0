"""Rows of the CDC log as typed values, by the schema of their table.

A ``CdcChange`` is one write at one timestamp: all rows up to the one with ``end_of_batch``, images included. A column's
value has the Python type of its CQL type in the log (``ringlog.kernel.cql.types``): a collection is a tuple, a map
one of pairs, a list one of pairs of a time UUID and a value; a user type is a dict.

What the table has no column for, and what does not fit its column's type, is *undecoded*: it is shown by name, as its
bytes. Every reader goes by ``TableTypes`` there, so none of them passes anything over in silence. Rows have columns
under stored names, readers show those of the table (``ringlog.kernel.schema.stored``):

==================================  =================================================================================
undecoded                           its name
==================================  =================================================================================
value of a column                   the column
part of the key, of one too many    ``partition_<n>``, ``clustering_<n>``, from 0 on
deletion of a column                ``cdc$deleted_<col>``: one byte, 1
elements taken out of a collection  ``cdc$deleted_elements_<col>``: their keys in hex, by comma
==================================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.collections import key_type, log_type
from ringlog.kernel.cql.types import TypeMismatch, deserialize
from ringlog.kernel.schema.stored import names_of
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

DELETED, ELEMENTS = "cdc$deleted_", "cdc$deleted_elements_"
"""What stands before the column's name where its deletion, or that of some of its elements, is shown."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row of the log. ``key``: partition and clustering columns that it names; ``values``: columns that it sets;
    ``deleted``: columns set to null, or collections whose earlier elements are gone; ``deleted_elements``: column to
    the keys of elements taken out; ``ttl`` in seconds, None: never; ``undecoded``: see the module. A key is whole in
    any case, with bytes where a part of it is undecoded, and ``deleted`` has all names.
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


@dataclass(frozen=True, slots=True)
class CdcChange:
    """One write at one timestamp (microseconds). ``stream_id`` and ``time``: 16 bytes each, together its name;
    ``place``: partition and offset of its last row in the CDC topic; ``raw``: the rows as they are in the log.
    ``schema``: the table as it was when the write was decided, by which its values are typed; None: there was none.
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
        """``keyspace.table``."""
        return f"{self.keyspace}.{self.table}"

    @property
    def table_id(self) -> str | None:
        """Id of the table: another one when it was dropped and made anew. None: there was no such table."""
        return None if self.schema is None else self.schema.id

    @property
    def epoch(self) -> int:
        """The metadata epoch by which the write was decided; 0: not said."""
        return decided_by(self.raw)


def decided_by(rows: Iterable[CdcRow]) -> int:
    """The epoch by which a write was decided: of one that was left half written and finished later, the later one."""
    return max(row.epoch for row in rows)


def change_of(rows: tuple[CdcRow, ...], types: TableTypes, place: tuple[int, int]) -> CdcChange:
    """The write of these rows."""
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


class TableTypes:
    """The columns of a table, for decoding; ``table`` None: it is unknown, and everything is undecoded."""

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
        """The row with columns under the names that the table has for them."""
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
        """A row with typed values."""
        row = self.named(row)
        undecoded = dict(self.homeless(row))
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

    def homeless(self, row: CdcRow, out: frozenset[str] = frozenset()) -> Iterable[tuple[str, bytes]]:
        """What of a row no column can take whatever its type; and elements taken out whose keys are not of their type.

        ``row`` is ``named``. ``out``: columns that a reader leaves out, also by the names that their deletions have.
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
        """(partition and clustering columns by name, in key order; those that are not of their type, which have their
        bytes there). Without a table the names are ``partition_0``, ``clustering_0``.
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
                    assert part is not None, "a null was not looked at"
                    found[name] = misfits[name] = part
        return found, misfits

    def value(self, column: str, data: bytes | None) -> Any:
        """A column's value; its bytes where the type is unknown or does not fit."""
        return None if data is None else _typed(self.columns.get(column), data)


def fits(kind: str, data: bytes) -> bool:
    """Are the bytes a value of the type?"""
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
