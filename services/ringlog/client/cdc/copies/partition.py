"""A partition of a base table, rebuilt from its CDC log.

``ringlog.kernel.rows`` defines how writes are merged and read. This module maps log rows to merge operations. The
result does not depend on the order or the number of copies of the changes.

=====================  ============================================================================================
Log row                Its effect, at its timestamp *t*
=====================  ============================================================================================
Insert                 As for an update, and the row marker: the row exists even if all its columns are null.
Update                 Cells; for a multi-cell column, one cell per added element.
``deleted``            A dead cell; for a multi-cell column, everything before *t* is deleted.
``deleted_elements``   Dead elements.
Row or partition       Everything up to and including *t* is deleted.
delete
Two range bounds       As for a row delete, for all rows between them.
Images                 None.
=====================  ============================================================================================

Rows that cannot be a write to the table are *misfits* (``fitting``). They are returned and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from ringlog.client.cdc.rows import (
    INSERT,
    PARTITION_DELETES,
    POSTIMAGE,
    PREIMAGE,
    RANGE_ENDS,
    RANGE_STARTS,
    ROW_DELETES,
    UPDATE,
    TableTypes,
)
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.collections import cells_of, shape_of
from ringlog.kernel.rows.cells import NOTHING, RowState
from ringlog.kernel.rows.partition import Key, PartitionState, Range, TableColumns, join, partition_state
from ringlog.kernel.rows.writes import written_row
from ringlog.kernel.values import Micros
from ringlog.wire.records import CdcRow, Cell, DeletedElements


class FoldedLogRow(Protocol):
    """The fields of a log row, or of a future log row, that ``fold`` uses."""

    @property
    def operation(self) -> int: ...
    @property
    def timestamp(self) -> Micros: ...
    @property
    def ttl(self) -> int | None: ...
    @property
    def clustering_key(self) -> Key: ...
    @property
    def cells(self) -> Sequence[Cell]: ...
    @property
    def deleted(self) -> Sequence[str]: ...
    @property
    def deleted_elements(self) -> Sequence[DeletedElements]: ...


class FoldedShape:
    """The properties of a table that ``fold`` uses."""

    def __init__(self, table: TableChange) -> None:
        self.types = TableTypes(table)
        self.has_rows = bool(table.clustering_key)
        self.column_types = {column.name: column.type for column in table.columns}
        shapes = ((name, kind, shape_of(kind)) for name, kind in self.column_types.items())
        self.columns = TableColumns(
            (self.column_types[name] for name in table.clustering_key),
            (column.name for column in table.columns if column.static),
            ((name, kind) for name, kind, shape in shapes if shape is not None and shape.is_multi_cell),
        )


R = TypeVar("R", bound=FoldedLogRow)


def fits_key(rows: Sequence[CdcRow], table: TableChange) -> bool:
    """Return whether the rows have the partition key of the table."""
    return all(len(row.partition_key) == len(table.partition_key) for row in rows)


def fitting(rows: Sequence[R], shape: FoldedShape) -> tuple[list[R], list[R]]:
    """Separate the rows of a write into applicable rows and misfits.

    A row is applicable if its operation is known, it has the key columns that its operation needs, and both bounds of a
    range are present.
    """
    good: list[R] = []
    misfits: list[R] = []
    for place, row in enumerate(rows):
        if row.operation in RANGE_STARTS:
            behind = rows[place + 1].operation if place + 1 < len(rows) else None
            is_good = behind in RANGE_ENDS and all(_is_prefix(end, shape) for end in rows[place : place + 2])
        elif row.operation in RANGE_ENDS:
            is_good = bool(good) and place > 0 and good[-1] is rows[place - 1] and good[-1].operation in RANGE_STARTS
        else:
            is_good = _has_key(row, shape)
        (good if is_good else misfits).append(row)
    return good, misfits


def _is_prefix(row: FoldedLogRow, shape: FoldedShape) -> bool:
    return len(row.clustering_key) <= len(shape.types.clustering_key)


def _has_key(row: FoldedLogRow, shape: FoldedShape) -> bool:
    parts, whole = len(row.clustering_key), len(shape.types.clustering_key)
    if row.operation in (INSERT, UPDATE):
        return parts in (0, whole)
    if row.operation in ROW_DELETES:
        return parts == whole
    return row.operation in PARTITION_DELETES or row.operation in (PREIMAGE, POSTIMAGE)


def unfolded(row: FoldedLogRow, shape: FoldedShape) -> Iterable[tuple[str, bytes]]:
    """Return columns of a row whose values ``fold`` skips, because they are not elements of the column's type."""
    if row.operation not in (INSERT, UPDATE):
        return
    for cell in row.cells:
        kind = shape.columns.multi_cell.get(cell.column)
        if kind is not None and cell.value is not None:
            try:
                cells_of(kind, cell.value)
            except ValueError:
                yield cell.column, cell.value


def fold(state: PartitionState, rows: Sequence[FoldedLogRow], shape: FoldedShape) -> PartitionState:
    """Return the partition after a write. ``rows``: all rows of the write that are ``fitting``, in order."""
    for effect in _effects(rows, shape):
        state = join(state, effect, shape.columns)
    return state


def _effects(rows: Sequence[FoldedLogRow], shape: FoldedShape) -> Iterable[PartitionState]:
    start: FoldedLogRow | None = None
    for row in rows:
        if row.operation in (INSERT, UPDATE):
            yield _at(row, _written(row, shape), shape)
        elif row.operation in PARTITION_DELETES:
            yield PartitionState(deleted=row.timestamp)
        elif row.operation in ROW_DELETES:
            yield _at(row, RowState(deleted=row.timestamp), shape)
        elif row.operation in RANGE_STARTS:
            start = row
        elif row.operation in RANGE_ENDS:
            assert start is not None, "a range has its start before its end"
            ends = (row.clustering_key, RANGE_ENDS[row.operation])
            gone = Range(start.clustering_key, RANGE_STARTS[start.operation], *ends, row.timestamp)
            yield partition_state(shape.columns, ranges=(gone,))


def _at(row: FoldedLogRow, state: RowState, shape: FoldedShape) -> PartitionState:
    """Return the state for the row that a log row names. Without a clustering key, it is the static row if the table
    has one.
    """
    if shape.has_rows and not row.clustering_key:
        return partition_state(shape.columns, static=state)
    return partition_state(shape.columns, static=NOTHING, rows=((row.clustering_key, state),))


def _written(row: FoldedLogRow, shape: FoldedShape) -> RowState:
    cells: list[tuple[str, bytes | None]] = [(cell.column, cell.value) for cell in row.cells if cell.value is not None]
    cells += [(column, None) for column in row.deleted]
    taken = [(found.column, found.keys) for found in row.deleted_elements]
    return written_row(shape.columns, row.timestamp, row.ttl, cells, taken, is_insert=row.operation == INSERT)
