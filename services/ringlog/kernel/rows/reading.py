"""What a reader sees of a partition at an instant.

A cell whose time to live is over is as good as dead; a row without marker and without live cells is none. A partition
with static values but no rows is seen as one row without a clustering key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringlog.kernel.cql.collections import value_of
from ringlog.kernel.rows.cells import RowState, alive
from ringlog.kernel.rows.partition import Key, PartitionState, TableColumns
from ringlog.kernel.values import Micros


@dataclass(frozen=True, slots=True)
class SeenRow:
    """A row as a reader sees it; columns that are null are absent. ``clustering_key`` None: static values only."""

    clustering_key: Key | None
    values: Mapping[str, bytes]
    static: Mapping[str, bytes]


def live_rows(
    state: PartitionState, columns: TableColumns, now: Micros
) -> tuple[RowState | None, tuple[tuple[Key, RowState], ...]]:
    """(static row or None, live rows in the order of the clustering key): their live markers and cells only. Keys that
    differ and have one place in that order (0.0 and -0.0) are ordered by their bytes.
    """
    static = alive(state.static, state.deleted, now)
    keys = sorted(state.rows, key=lambda key: (columns.order(key), tuple(part or b"" for part in key)))
    ordered = ((key, state.rows[key]) for key in keys)
    found = ((key, alive(row, columns.gone(state, key), now)) for key, row in ordered)
    return static, tuple((key, row) for key, row in found if row is not None)


def seen(state: PartitionState, columns: TableColumns, now: Micros) -> tuple[SeenRow, ...]:
    """The rows of a partition at an instant, in the order of the clustering key."""
    static, rows = live_rows(state, columns, now)
    shared = {} if static is None else values_of(static, columns)
    if not rows and shared:
        return (SeenRow(None, {}, shared),)
    return tuple(SeenRow(key, values_of(row, columns), shared) for key, row in rows)


def values_of(row: RowState, columns: TableColumns) -> dict[str, bytes]:
    """Column to value in CQL serialisation as the log has it, of a row whose cells are all live: a multi-cell column is
    whole, its elements in the order of their keys.
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
    """When something of it expires next, after ``now``."""
    rows = (state.static, *state.rows.values())
    cells = (cell for row in rows for cell in (row.marker, *row.cells.values()) if cell is not None)
    return min((cell.expires for cell in cells if cell.expires is not None and cell.expires > now), default=None)
