"""The view of a reader on a partition at one time.

An expired cell counts as dead. A row without marker and live cells does not exist. A partition with static values but
without rows appears as one row without a clustering key.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlog.kernel.cql.collections import value_of
from ringlog.kernel.rows.cells import RowState, alive
from ringlog.kernel.rows.partition import Key, PartitionState, TableColumns
from ringlog.kernel.values import Micros, Value


class SeenRow(Value):
    """A row as a reader sees it; null columns are absent. ``clustering_key`` None: static values only."""

    clustering_key: Key | None
    values: Mapping[str, bytes]
    static: Mapping[str, bytes]


def live_rows(
    state: PartitionState, columns: TableColumns, now: Micros
) -> tuple[RowState | None, tuple[tuple[Key, RowState], ...]]:
    """Return (static row or None, live rows in the order of the clustering key), with live markers and cells only.

    Different keys with the same position in that order (0.0 and -0.0) are ordered by their bytes.
    """
    static = alive(state.static, state.deleted, now)
    keys = sorted(state.rows, key=lambda key: (columns.order(key), tuple(part or b"" for part in key)))
    ordered = ((key, state.rows[key]) for key in keys)
    found = ((key, alive(row, columns.gone(state, key), now)) for key, row in ordered)
    return static, tuple((key, row) for key, row in found if row is not None)


def seen(state: PartitionState, columns: TableColumns, now: Micros) -> tuple[SeenRow, ...]:
    """Return the rows of a partition at one time, in the order of the clustering key."""
    static, rows = live_rows(state, columns, now)
    shared = {} if static is None else values_of(static, columns)
    if not rows and shared:
        return (SeenRow(None, {}, shared),)
    return tuple(SeenRow(key, values_of(row, columns), shared) for key, row in rows)


def values_of(row: RowState, columns: TableColumns) -> dict[str, bytes]:
    """Return column to CQL-serialised value, as in the log, of a row whose cells are all live.

    A multi-cell column is one value, with its elements in the order of their keys.
    """
    values: dict[str, bytes] = {}
    elements: dict[str, list[tuple[bytes, bytes]]] = {}
    for (column, key), cell in row.cells.items():
        assert cell.value is not None, "a live cell has a value"
        if key is None:
            values[column] = cell.value
        else:
            elements.setdefault(column, []).append((key, cell.value))
    for column, found in elements.items():
        found.sort(key=lambda item: columns.element_order(column, item[0]))
        values[column] = value_of(columns.multi_cell[column], found)
    return dict(sorted(values.items()))


def next_expiry(state: PartitionState, now: Micros) -> Micros | None:
    """Return the time of the next expiry after ``now``, or None."""
    rows = (state.static, *state.rows.values())
    cells = (cell for row in rows for cell in (row.marker, *row.cells.values()) if cell is not None)
    return min((cell.expires for cell in cells if cell.expires is not None and cell.expires > now), default=None)
