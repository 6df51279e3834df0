"""The rows of the CDC log that fit their table.

``ringlog.kernel.rows.log_rows`` folds them into the partition of a base table. Rows that cannot be a write to the table
are *misfits* (``fitting``). They are returned and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ringlog.client.cdc.rows import TableTypes
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.collections import cells_of
from ringlog.kernel.rows.log_rows import (
    INSERT,
    PARTITION_DELETES,
    POSTIMAGE,
    PREIMAGE,
    RANGE_ENDS,
    RANGE_STARTS,
    ROW_DELETES,
    UPDATE,
    FoldedLogRow,
)
from ringlog.kernel.rows.partition import table_columns
from ringlog.wire.records import CdcRow


class FoldedShape:
    """The properties of a table that decide whether rows fit it, and how they are folded."""

    def __init__(self, table: TableChange) -> None:
        self.types = TableTypes(table)
        self.column_types = {column.name: column.type for column in table.columns}
        self.columns = table_columns(table.columns, table.clustering_key)


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
