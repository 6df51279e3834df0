"""The effect of a write: the state of a partition that only this write has changed.

Joining it to a partition (``partition.join``) applies the write. A statement's parts:

==================  ==============================================================================================
INSERT              as UPDATE, and the row's marker: the row exists even if all its columns are null
UPDATE              cells; for a multi-cell column, one for each element; static columns go to the static row
null                a dead cell; for a multi-cell column, all earlier elements are deleted
``replaced``        all earlier elements are deleted, and those in ``cells`` added
``deleted_elements``  dead elements
ROW_DELETE          everything of the row up to and including its timestamp is deleted
RANGE_DELETE        the same for the rows between two bounds; nothing if no row can be between them
PARTITION_DELETE    the same for the partition
==================  ==============================================================================================

A statement has the timestamp and the TTL of its write unless it names its own; a TTL of 0 means no expiry.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import reduce
from typing import Protocol

from ringlog.kernel.cql.collections import cells_of
from ringlog.kernel.cql.order import is_empty_range
from ringlog.kernel.generations.statements import Statement, TableShape, statements_of
from ringlog.kernel.generations.statements import WriteLike as StatementWrite
from ringlog.kernel.rows.cells import NEVER, NOTHING, Place, RowCell, RowState, row_state
from ringlog.kernel.rows.partition import PartitionState, Range, TableColumns, join, partition_state
from ringlog.kernel.values import SECOND_US, Micros


class StoredWrite(StatementWrite, Protocol):
    """A whole write with its own timestamp."""

    @property
    def timestamp(self) -> Micros: ...


def columns_of(shape: TableShape) -> TableColumns:
    """Return the columns of a table from its shape."""
    types = shape.clustering_types or ("blob",) * shape.clustering_key
    assert len(types) == shape.clustering_key, "each clustering column has a type"
    return TableColumns(types, shape.static, shape.collections)


def expiry(timestamp: Micros, ttl: int | None) -> Micros | None:
    """Return when cells of a write expire, or None; ``ttl`` in seconds, None or 0: never."""
    return timestamp + ttl * SECOND_US if ttl else None


def written_row(
    columns: TableColumns,
    timestamp: Micros,
    ttl: int | None,
    cells: Iterable[tuple[str, bytes | None]],
    taken: Iterable[tuple[str, tuple[bytes, ...]]] = (),
    *,
    is_insert: bool = False,
) -> RowState:
    """Return the effect of one statement's columns on a row.

    A null in a multi-cell column deletes its earlier elements; the column may occur with a null and with a value.
    ``taken``: keys of deleted elements. Bytes that are not a value of a multi-cell column have no effect: they were
    written before the table had the column.
    """
    expires = expiry(timestamp, ttl)
    found: list[tuple[Place, RowCell]] = []
    wiped: dict[str, Micros] = {}
    for name, value in cells:
        kind = columns.multi_cell.get(name)
        if kind is None:
            found.append(((name, None), RowCell(timestamp, value, None if value is None else expires)))
        elif value is None:
            wiped[name] = timestamp - 1
        else:
            with suppress(ValueError):
                found += (((name, key), RowCell(timestamp, data, expires)) for key, data in cells_of(kind, value))
    found += (((name, key), RowCell(timestamp, None)) for name, keys in taken for key in keys)
    marker = RowCell(timestamp, b"", expires) if is_insert else None
    return row_state(NEVER, marker, found, wiped)


def effect_of(write: StoredWrite, shape: TableShape, columns: TableColumns) -> PartitionState:
    """Return the effect of a valid write; all its statements take effect together."""
    parts = (
        _effect(
            statement,
            write.timestamp if statement.timestamp is None else statement.timestamp,
            write.ttl if statement.ttl is None else statement.ttl,
            shape,
            columns,
        )
        for statement in statements_of(write)
    )
    return reduce(lambda one, other: join(one, other, columns), parts)


def _effect(
    statement: Statement, timestamp: Micros, ttl: int | None, shape: TableShape, columns: TableColumns
) -> PartitionState:
    if statement.operation == "PARTITION_DELETE":
        return PartitionState(deleted=timestamp)
    if statement.operation == "ROW_DELETE":
        return partition_state(columns, rows=((statement.clustering_key, RowState(deleted=timestamp)),))
    if statement.operation == "RANGE_DELETE":
        return range_effect(statement, timestamp, columns)
    cells = [(cell.column, cell.value) for cell in statement.cells] + [(name, None) for name in statement.replaced]
    taken = [(one.column, one.keys) for one in statement.deleted_elements]
    of_static, of_row = (
        ([one for one in cells if (one[0] in columns.static) is where],
         [one for one in taken if (one[0] in columns.static) is where])
        for where in (True, False)
    )  # fmt: skip
    # The clustering key decides: if a static column was dropped meanwhile, a statement on static columns must not make
    # a row.
    has_row = bool(statement.clustering_key or not shape.clustering_key)
    row = written_row(columns, timestamp, ttl, *of_row, is_insert=statement.operation == "INSERT" and has_row)
    static = written_row(columns, timestamp, ttl, *of_static) if columns.static else NOTHING
    return partition_state(columns, static=static, rows=((statement.clustering_key, row),) if has_row else ())


def range_effect(statement: Statement, timestamp: Micros, columns: TableColumns) -> PartitionState:
    """Return the effect of a range delete."""
    bounds = statement.bounds
    assert bounds is not None, "a range delete has bounds"
    sides = (bounds.start, bounds.start_inclusive, bounds.end, bounds.end_inclusive)
    if is_empty_range(columns.clustering_types, *sides):
        return PartitionState()
    return partition_state(columns, ranges=(Range(*sides, timestamp),))
