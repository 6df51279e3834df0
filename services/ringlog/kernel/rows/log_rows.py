"""The operations of the CDC log, and their effect on a partition.

``ringlog.kernel.rows.writes`` and ``partition`` define how writes are merged. This module maps log rows to merge
operations. The result does not depend on the order or the number of copies of the changes.

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

Source: ScyllaDB, ``cdc/log.hh`` (operations).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ringlog.kernel.generations.statements import CellLike, DeletedElementsLike
from ringlog.kernel.rows.cells import NOTHING, RowState
from ringlog.kernel.rows.partition import Key, PartitionState, Range, TableColumns, join, partition_state
from ringlog.kernel.rows.writes import written_row
from ringlog.kernel.values import Micros

PREIMAGE, UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE, POSTIMAGE = 0, 1, 2, 3, 4, 9
START_INCLUSIVE, START_EXCLUSIVE, END_INCLUSIVE, END_EXCLUSIVE = 5, 6, 7, 8
"""``cdc$operation``."""
RANGE_STARTS: Mapping[int, bool] = {START_INCLUSIVE: True, START_EXCLUSIVE: False}
RANGE_ENDS: Mapping[int, bool] = {END_INCLUSIVE: True, END_EXCLUSIVE: False}
"""Code of a range bound to whether the bound is inclusive."""

ROW_DELETES, PARTITION_DELETES = frozenset({3, -3}), frozenset({4, -4})
"""Codes of deletes. The negative ones are written by the store itself."""


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
    def cells(self) -> Sequence[CellLike]: ...
    @property
    def deleted(self) -> Sequence[str]: ...
    @property
    def deleted_elements(self) -> Sequence[DeletedElementsLike]: ...


def fold(state: PartitionState, rows: Sequence[FoldedLogRow], columns: TableColumns) -> PartitionState:
    """Return the partition after a write.

    ``rows``: all rows of the write, in order. Each fits the table, and a range has both bounds.
    """
    for effect in _effects(rows, columns):
        state = join(state, effect, columns)
    return state


def _effects(rows: Sequence[FoldedLogRow], columns: TableColumns) -> Iterable[PartitionState]:
    start: FoldedLogRow | None = None
    for row in rows:
        if row.operation in (INSERT, UPDATE):
            yield _at(row, _written(row, columns), columns)
        elif row.operation in PARTITION_DELETES:
            yield PartitionState(deleted=row.timestamp)
        elif row.operation in ROW_DELETES:
            yield _at(row, RowState(deleted=row.timestamp), columns)
        elif row.operation in RANGE_STARTS:
            start = row
        elif row.operation in RANGE_ENDS:
            assert start is not None, "a range has its start before its end"
            ends = (row.clustering_key, RANGE_ENDS[row.operation])
            gone = Range(start.clustering_key, RANGE_STARTS[start.operation], *ends, row.timestamp)
            yield partition_state(columns, ranges=(gone,))


def _at(row: FoldedLogRow, state: RowState, columns: TableColumns) -> PartitionState:
    """Return the state for the row that a log row names. Without a clustering key, it is the static row if the table
    has one.
    """
    if columns.has_rows and not row.clustering_key:
        return partition_state(columns, static=state)
    return partition_state(columns, static=NOTHING, rows=((row.clustering_key, state),))


def _written(row: FoldedLogRow, columns: TableColumns) -> RowState:
    cells: list[tuple[str, bytes | None]] = [(cell.column, cell.value) for cell in row.cells if cell.value is not None]
    cells += [(column, None) for column in row.deleted]
    taken = [(found.column, found.keys) for found in row.deleted_elements]
    return written_row(columns, row.timestamp, row.ttl, cells, taken, is_insert=row.operation == INSERT)
