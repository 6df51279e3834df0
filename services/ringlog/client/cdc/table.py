"""A base table rebuilt from its CDC log: a pure fold, in which the last write of every cell wins.

The state of a partition holds what every column was last set to and what was last deleted, each with the write's
timestamp, so that the order in which changes arrive, and how often, makes no difference: the fold is a join of
semilattices. What a reader sees at an instant is worked out from it (``seen``).

=====================  ============================================================================================
row of the log         effect, at the row's timestamp *t*
=====================  ============================================================================================
insert                 as update, and the row's marker: the row is there though all its columns be null
update                 cells; of a multi-cell collection, one for each element that was added
``deleted``            a dead cell; of a multi-cell collection everything before *t* is gone (its tombstone lies at
                       *t* - 1: elements added by the same write stay)
``deleted_elements``   dead elements
row, partition delete  everything up to and including *t* is gone
two range bounds       likewise, for the rows between them
images                 none
=====================  ============================================================================================

Between cells of one timestamp a dead one wins, then one that expires, then the later expiry, then the greater value.
A cell with a time to live is as good as dead when that is over; a row without marker and without live cells is none.

Source: ScyllaDB's reconciliation of mutations (``compare_atomic_cell_for_merge``, ``compare_row_marker_for_merge``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from immutables import Map

from ringlog.client.cdc.rows import (
    INSERT,
    PARTITION_DELETES,
    RANGE_ENDS,
    RANGE_STARTS,
    ROW_DELETES,
    UPDATE,
    TableTypes,
)
from ringlog.kernel.changes import TableChange
from ringlog.kernel.schema.collections import cells_of, shape_of, value_of
from ringlog.kernel.schema.order import sort_key
from ringlog.kernel.values import Micros
from ringlog.wire import records

NEVER: Micros = -(2**63)
"""Earlier than any write."""

Key = tuple[bytes | None, ...]
Place = tuple[str, bytes | None]
"""Column, and the key of the element in a multi-cell collection."""


class LogRow(Protocol):
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
    def cells(self) -> Sequence[records.Cell]: ...
    @property
    def deleted(self) -> Sequence[str]: ...
    @property
    def deleted_elements(self) -> Sequence[records.DeletedElements]: ...


@dataclass(frozen=True, slots=True)
class Cell:
    """``value`` None: dead. ``expires``: the instant from which it is as good as dead, None: never."""

    timestamp: Micros
    value: bytes | None
    expires: Micros | None = None

    def rank(self) -> tuple[Micros, bool, bool, Micros, bytes]:
        """Of two cells the one of the greater rank wins."""
        return self.timestamp, self.value is None, self.expires is not None, self.expires or 0, self.value or b""


@dataclass(frozen=True, slots=True)
class RowState:
    """``marker``: that of inserts; ``wiped``: column of a collection to the timestamp up to which it is gone."""

    deleted: Micros = NEVER
    marker: Cell | None = None
    cells: Map[Place, Cell] = field(default_factory=Map)
    wiped: Map[str, Micros] = field(default_factory=Map)


@dataclass(frozen=True, slots=True)
class Range:
    """Rows between two prefixes of the clustering key are gone up to ``deleted``."""

    start: Key
    start_inclusive: bool
    end: Key
    end_inclusive: bool
    deleted: Micros


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Everything that is known of a base partition."""

    deleted: Micros = NEVER
    ranges: tuple[Range, ...] = ()
    static: RowState = RowState()
    rows: Map[Key, RowState] = field(default_factory=Map)


@dataclass(frozen=True, slots=True)
class SeenRow:
    """A row as a reader sees it; columns that are null are absent. ``clustering_key`` None: static values only."""

    clustering_key: Key | None
    values: Mapping[str, bytes]
    static: Mapping[str, bytes]


class TableShape:
    """What the fold must know of a table."""

    def __init__(self, table: TableChange) -> None:
        self.types = TableTypes(table)
        self.has_rows = bool(table.clustering_key)
        self.column_types = {column.name: column.type for column in table.columns}
        self.clustering_types = tuple(self.column_types[name] for name in table.clustering_key)
        shapes = {name: shape_of(kind) for name, kind in self.column_types.items()}
        self.multi_cell = frozenset(name for name, shape in shapes.items() if shape is not None and shape.is_multi_cell)
        self.static = frozenset(column.name for column in table.columns if column.static)

    def order(self, key: Key) -> tuple[Any, ...]:
        """What clustering keys, or prefixes of them, are compared by."""
        return tuple(_order(kind, part) for kind, part in zip(self.clustering_types, key, strict=False))

    def covers(self, found: Range, key: Key) -> bool:
        """Is the row in the range? An empty prefix bounds nothing."""
        own, start, end = self.order(key), self.order(found.start), self.order(found.end)
        from_start, to_end = own[: len(start)], own[: len(end)]
        is_behind = from_start > start or (from_start == start and (found.start_inclusive or not start))
        return is_behind and (to_end < end or (to_end == end and (found.end_inclusive or not end)))


def fold(state: PartitionState, rows: Sequence[LogRow], shape: TableShape) -> PartitionState:
    """The partition after a write: all its rows of the log, in their order."""
    start: LogRow | None = None
    for row in rows:
        if row.operation in (INSERT, UPDATE):
            state = _written(state, row, shape)
        elif row.operation in PARTITION_DELETES:
            state = _without_partition(state, row.timestamp)
        elif row.operation in ROW_DELETES:
            state = _changed(state, row, shape, _without_row)
        elif row.operation in RANGE_STARTS:
            start = row
        elif row.operation in RANGE_ENDS:
            assert start is not None, "a range has its start before its end"
            gone = Range(
                start.clustering_key,
                RANGE_STARTS[start.operation],
                row.clustering_key,
                RANGE_ENDS[row.operation],
                row.timestamp,
            )
            if gone not in state.ranges:
                state = replace(state, ranges=(*state.ranges, gone))
    return state


def seen(state: PartitionState, shape: TableShape, now: Micros) -> tuple[SeenRow, ...]:
    """The rows of a partition at an instant, in the order of the clustering key."""
    static = _live(state.static, state.deleted, shape, now)
    found = []
    for key in sorted(state.rows, key=shape.order):
        row = state.rows[key]
        gone = max(
            (state.deleted, row.deleted, *(item.deleted for item in state.ranges if shape.covers(item, key))),
        )
        values = _live(row, gone, shape, now)
        if values or _is_live(row.marker, gone, now):
            found.append(SeenRow(key, values, static))
    if not found and static:
        found.append(SeenRow(None, {}, static))
    return tuple(found)


def next_expiry(state: PartitionState, now: Micros) -> Micros | None:
    """When something of it expires next, after ``now``."""
    rows = (state.static, *state.rows.values())
    cells = (cell for row in rows for cell in (row.marker, *row.cells.values()) if cell is not None)
    return min((cell.expires for cell in cells if cell.expires is not None and cell.expires > now), default=None)


# ------------------------------------------------------------------------------------------------------ changes


def _written(state: PartitionState, row: LogRow, shape: TableShape) -> PartitionState:
    return _changed(state, row, shape, lambda before, found: _with_cells(before, found, shape))


def _changed(state: PartitionState, row: LogRow, shape: TableShape, change: Any) -> PartitionState:
    if shape.has_rows and not row.clustering_key:
        return replace(state, static=change(state.static, row))
    before = state.rows.get(row.clustering_key, RowState())
    return replace(state, rows=state.rows.set(row.clustering_key, change(before, row)))


def _with_cells(before: RowState, row: LogRow, shape: TableShape) -> RowState:
    expires = None if row.ttl is None else row.timestamp + row.ttl * 1_000_000
    cells, wiped = before.cells.mutate(), before.wiped.mutate()
    for place, cell in _cells(row, shape, expires):
        known = cells.get(place)
        if known is None or cell.rank() > known.rank():
            cells[place] = cell
    for column in row.deleted:
        if column in shape.multi_cell:
            wiped[column] = max(wiped.get(column, NEVER), row.timestamp - 1)
    marker = before.marker
    if row.operation == INSERT:
        made = Cell(row.timestamp, b"", expires)
        marker = made if marker is None or made.rank() > marker.rank() else marker
    return RowState(before.deleted, marker, cells.finish(), wiped.finish())


def _cells(row: LogRow, shape: TableShape, expires: Micros | None) -> Iterable[tuple[Place, Cell]]:
    for cell in row.cells:
        if cell.value is not None and cell.column in shape.multi_cell:
            for key, value in cells_of(shape.column_types[cell.column], cell.value):
                yield (cell.column, key), Cell(row.timestamp, value, expires)
        elif cell.value is not None:
            yield (cell.column, None), Cell(row.timestamp, cell.value, expires)
    for column in row.deleted:
        if column not in shape.multi_cell:
            yield (column, None), Cell(row.timestamp, None)
    for taken in row.deleted_elements:
        for key in taken.keys:
            yield (taken.column, key), Cell(row.timestamp, None)


def _without_row(before: RowState, row: LogRow) -> RowState:
    return replace(before, deleted=max(before.deleted, row.timestamp))


def _without_partition(state: PartitionState, timestamp: Micros) -> PartitionState:
    """What lies under the tombstone is forgotten: nothing that comes later can bring it back."""
    deleted = max(state.deleted, timestamp)
    rows = Map({key: row for key, row in state.rows.items() if _newest(row) > deleted})
    ranges = tuple(item for item in state.ranges if item.deleted > deleted)
    return replace(state, deleted=deleted, rows=rows, ranges=ranges)


def _newest(row: RowState) -> Micros:
    found: list[Micros] = [row.deleted, *row.wiped.values()]
    found += [cell.timestamp for cell in (row.marker, *row.cells.values()) if cell is not None]
    return max(found)


# ------------------------------------------------------------------------------------------------------ reading


def _is_live(cell: Cell | None, gone: Micros, now: Micros) -> bool:
    if cell is None or cell.value is None or cell.timestamp <= gone:
        return False
    return cell.expires is None or cell.expires > now


def _live(row: RowState, gone: Micros, shape: TableShape, now: Micros) -> dict[str, bytes]:
    """Column to value in CQL serialisation, a multi-cell collection whole, its elements in the order of their keys."""
    values: dict[str, bytes] = {}
    elements: dict[str, list[tuple[bytes, bytes]]] = {}
    for (column, key), cell in row.cells.items():
        if not _is_live(cell, max(gone, row.wiped.get(column, NEVER) if key is not None else NEVER), now):
            continue
        assert cell.value is not None, "a live cell has a value"
        if key is None:
            values[column] = cell.value
        else:
            elements.setdefault(column, []).append((key, cell.value))
    for column, found in elements.items():
        key_kind = shape.types.keys[column]
        found.sort(key=lambda item: _order(key_kind, item[0]))
        values[column] = value_of(shape.column_types[column], found)
    return dict(sorted(values.items()))


def _order(kind: str, data: bytes | None) -> tuple[Any, ...]:
    """A value's place among those of its type; null before all."""
    return () if data is None else sort_key(kind, data)
