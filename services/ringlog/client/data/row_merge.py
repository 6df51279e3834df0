"""The rows of one partition, merged from the writes that a node keeps of it.

``ringlog.kernel.rows`` defines the merge. It does not depend on the order or number of copies of the writes. Writes use
the stored names of columns (``kernel.schema.stored``), results use the current names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from ringlog.kernel.generations.statements import TableShape, stored_shape
from ringlog.kernel.rows.cells import RowState
from ringlog.kernel.rows.partition import Key, PartitionState, TableColumns, join, only
from ringlog.kernel.rows.reading import live_rows, values_of
from ringlog.kernel.rows.writes import columns_of, effect_of
from ringlog.kernel.values import Micros, Value
from ringlog.wire.records import Mutation


class LiveCell(Value):
    """The live value of a column in CQL serialisation, and the timestamp of its write in microseconds.

    A non-frozen collection is complete, as in the CDC log, with the timestamp of its newest element.
    """

    column: str
    value: bytes
    timestamp: Micros


class LiveRow(Value):
    """A live row.

    ``inserted``: timestamp of the insert that keeps it alive without cells. None: only its cells keep it alive.
    """

    clustering_key: Key
    inserted: Micros | None
    cells: tuple[LiveCell, ...]


class LivePartition(Value):
    """Live rows in the order of the clustering key, each with its cells in the order of column names."""

    static: tuple[LiveCell, ...]
    rows: tuple[LiveRow, ...]


def merged(writes: Iterable[Mutation], shape: TableShape, now: Micros) -> LivePartition:
    """Merge writes of one partition and return its live rows at ``now``. The table's rules must accept all writes."""
    state, names = partition_of(writes, shape), {place: name for name, place in shape.stored}
    columns = columns_of(stored_shape(shape))
    static, rows = live_rows(state, columns, now)
    return LivePartition(
        static=() if static is None else _cells(static, columns, names),
        rows=tuple(
            LiveRow(key, None if row.marker is None else row.marker.timestamp, _cells(row, columns, names))
            for key, row in rows
        ),
    )


def partition_of(writes: Iterable[Mutation], shape: TableShape) -> PartitionState:
    """Return the state of a partition after ``writes``, with the columns of ``shape`` under their stored names."""
    inner = stored_shape(shape)
    columns = columns_of(inner)
    effects = (effect_of(write, inner, columns) for write in writes)
    state = reduce(lambda one, other: join(one, other, columns), effects, PartitionState())
    return state if inner.columns is None else only(state, frozenset(inner.columns))


def _cells(row: RowState, columns: TableColumns, names: Mapping[str, str]) -> tuple[LiveCell, ...]:
    newest: dict[str, Micros] = {}
    for (column, _), cell in row.cells.items():
        newest[column] = max(cell.timestamp, newest.get(column, cell.timestamp))
    found = (LiveCell(names.get(one, one), value, newest[one]) for one, value in values_of(row, columns).items())
    return tuple(sorted(found, key=lambda cell: cell.column)) if names else tuple(found)
