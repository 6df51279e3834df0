"""A base table rebuilt from its CDC log: each write's rows become what the write left, and that is joined.

How writes are joined and read stands in ``ringlog.kernel.rows``; here is what the rows of the log mean there. The order
in which changes arrive, and how often, makes no difference.

=====================  ============================================================================================
row of the log         what it leaves, at the row's timestamp *t*
=====================  ============================================================================================
insert                 as update, and the row's marker: the row is there though all its columns be null
update                 cells; of a multi-cell column, one for each element that was added
``deleted``            a dead cell; of a multi-cell column everything before *t* is gone
``deleted_elements``   dead elements
row, partition delete  everything up to and including *t* is gone
two range bounds       likewise, for the rows between them
images                 nothing
=====================  ============================================================================================

Rows that cannot be a write to the table are *misfits* (``fitting``): they are handed back, and change nothing.
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
    """What the fold needs of a row of the log, or of what is going to be one."""

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
    """What the fold must know of a table."""

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
    """Have rows of the log the partition key of the table?"""
    return all(len(row.partition_key) == len(table.partition_key) for row in rows)


def fitting(rows: Sequence[R], shape: FoldedShape) -> tuple[list[R], list[R]]:
    """(rows of a write that can be carried out, misfits): a row has the parts of the key that its operation wants, both
    ends of a range are there, and the operation is one that is known.
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
    """Columns of a row, with their values, that ``fold`` passes over: they should be elements, and are none."""
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
    """The partition after a write: all its rows of the log that are ``fitting``, in their order."""
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
    """The state in the row that the log names; without a clustering key, if the table has one, the static columns."""
    if shape.has_rows and not row.clustering_key:
        return partition_state(shape.columns, static=state)
    return partition_state(shape.columns, static=NOTHING, rows=((row.clustering_key, state),))


def _written(row: FoldedLogRow, shape: FoldedShape) -> RowState:
    cells: list[tuple[str, bytes | None]] = [(cell.column, cell.value) for cell in row.cells if cell.value is not None]
    cells += [(column, None) for column in row.deleted]
    taken = [(found.column, found.keys) for found in row.deleted_elements]
    return written_row(shape.columns, row.timestamp, row.ttl, cells, taken, is_insert=row.operation == INSERT)
