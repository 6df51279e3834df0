"""A partition as its writes left it: its rows, static columns, and the tombstones of ranges and of the whole.

As with rows, ``join`` is commutative, associative and idempotent in every field. The tombstones of a state cover none
of its other parts. It has no empty row, and of equal ranges only the newest delete. Ranges that overlap stay as they
were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from immutables import Map

from ringlog.kernel.cql.collections import key_type, shape_of
from ringlog.kernel.cql.order import sort_key
from ringlog.kernel.rows.cells import NEVER, NOTHING, RowState, join_rows, under
from ringlog.kernel.values import Column, Micros, Value, field, replace

Key = tuple[bytes | None, ...]
"""A clustering key, or a prefix of one."""


class Range(Value):
    """A range tombstone: rows between two prefixes of the clustering key are deleted up to ``deleted``, inclusive."""

    start: Key
    start_inclusive: bool
    end: Key
    end_inclusive: bool
    deleted: Micros


class PartitionState(Value):
    """The state of a partition. ``ranges``: in a fixed order."""

    deleted: Micros = NEVER
    ranges: tuple[Range, ...] = ()
    static: RowState = NOTHING
    rows: Map[Key, RowState] = field(default_factory=Map)


class TableColumns:
    """The columns of a table for merging and reading.

    They are the types of the clustering columns, the names of the static columns, and the multi-cell columns with their
    types.
    """

    def __init__(
        self, clustering_types: Iterable[str], static: Iterable[str], multi_cell: Iterable[tuple[str, str]]
    ) -> None:
        self.clustering_types = tuple(clustering_types)
        self.static = frozenset(static)
        self.multi_cell: Mapping[str, str] = dict(multi_cell)
        self._element_types = {name: key_type(kind) for name, kind in self.multi_cell.items()}
        assert all(self._element_types.values()), "each of these columns is multi-cell"

    @property
    def has_rows(self) -> bool:
        """Whether a partition may have many rows: the table has a clustering key."""
        return bool(self.clustering_types)

    def order(self, key: Key) -> tuple[Any, ...]:
        """Return the sort key of a clustering key, or of a prefix of one."""
        return tuple(_order(kind, part) for kind, part in zip(self.clustering_types, key, strict=False))

    def element_order(self, column: str, key: bytes) -> tuple[Any, ...]:
        """Return the sort key of an element key of a column."""
        return _order(self._element_types[column], key)

    def covers(self, found: Range, key: Key) -> bool:
        """Return whether the row is in the range. An empty prefix does not bound it."""
        own, start, end = self.order(key), self.order(found.start), self.order(found.end)
        from_start, to_end = own[: len(start)], own[: len(end)]
        is_behind = from_start > start or (from_start == start and (found.start_inclusive or not start))
        return is_behind and (to_end < end or (to_end == end and (found.end_inclusive or not end)))

    def gone(self, state: PartitionState, key: Key) -> Micros:
        """Return the newest tombstone, of the partition or of its ranges, that covers a row."""
        return max((state.deleted, *(item.deleted for item in state.ranges if self.covers(item, key))))


def table_columns(columns: Iterable[Column], clustering_key: Iterable[str]) -> TableColumns:
    """Return the columns of a table."""
    types = {column.name: column.type for column in columns}
    shapes = ((name, kind, shape_of(kind)) for name, kind in types.items())
    return TableColumns(
        (types[name] for name in clustering_key),
        (column.name for column in columns if column.static),
        ((name, kind) for name, kind, shape in shapes if shape is not None and shape.is_multi_cell),
    )


def partition_state(
    columns: TableColumns,
    deleted: Micros = NEVER,
    ranges: Iterable[Range] = (),
    static: RowState = NOTHING,
    rows: Iterable[tuple[Key, RowState]] = (),
) -> PartitionState:
    """Return a state in normal form. Each row must occur once."""
    bare = PartitionState(deleted, _newest(ranges, deleted), under(static, deleted))
    kept = ((key, under(row, columns.gone(bare, key))) for key, row in rows)
    return PartitionState(bare.deleted, bare.ranges, bare.static, Map({k: row for k, row in kept if row != NOTHING}))


def join(one: PartitionState, other: PartitionState, columns: TableColumns) -> PartitionState:
    """Return the state after the writes of both. The cost is lowest if ``other`` is the smaller one."""
    deleted = max(one.deleted, other.deleted)
    ranges = _newest((*one.ranges, *other.ranges), deleted) if other.ranges or deleted > one.deleted else one.ranges
    static = under(join_rows(one.static, other.static), deleted)
    if deleted > one.deleted or ranges != one.ranges:
        rows = {**one.rows, **{key: join_rows(one.rows.get(key, NOTHING), row) for key, row in other.rows.items()}}
        return partition_state(columns, deleted, ranges, static, rows.items())
    bare, kept = PartitionState(deleted, ranges), one.rows.mutate()
    for key, row in other.rows.items():
        joined = under(join_rows(one.rows.get(key, NOTHING), row), columns.gone(bare, key))
        if joined != NOTHING:
            kept[key] = joined
        elif key in kept:
            del kept[key]
    return PartitionState(deleted, ranges, static, kept.finish())


def only(state: PartitionState, columns: Set[str]) -> PartitionState:
    """Return the partition with these columns only. Other cells belong to dropped columns, which do not keep a row
    alive.
    """
    rows = {key: _only(row, columns) for key, row in state.rows.items()}
    static = _only(state.static, columns)
    if static is state.static and all(row is state.rows[key] for key, row in rows.items()):
        return state
    return replace(state, static=static, rows=Map({key: row for key, row in rows.items() if row != NOTHING}))


def _only(row: RowState, columns: Set[str]) -> RowState:
    if all(name in columns for name, _ in row.cells) and all(name in columns for name in row.wiped):
        return row
    cells = ((place, cell) for place, cell in row.cells.items() if place[0] in columns)
    wiped = ((name, at) for name, at in row.wiped.items() if name in columns)
    return replace(row, cells=Map(cells), wiped=Map(wiped))


def _newest(ranges: Iterable[Range], deleted: Micros) -> tuple[Range, ...]:
    """Return the ranges newer than the partition's tombstone, in order; of equal ranges the newest."""
    found: dict[tuple[Key, bool, Key, bool], Micros] = {}
    for item in ranges:
        place = (item.start, item.start_inclusive or not item.start, item.end, item.end_inclusive or not item.end)
        if item.deleted > deleted:
            found[place] = max(item.deleted, found.get(place, NEVER))
    return tuple(Range(*place, found[place]) for place in sorted(found, key=_bytes_order))


def _bytes_order(place: tuple[Key, bool, Key, bool]) -> tuple[Any, ...]:
    start, start_inclusive, end, end_inclusive = place
    return tuple(part or b"" for part in start), start_inclusive, tuple(part or b"" for part in end), end_inclusive


def _order(kind: str, data: bytes | None) -> tuple[Any, ...]:
    """Return the sort key of a value among those of its type; null before all."""
    return () if data is None else sort_key(kind, data)
