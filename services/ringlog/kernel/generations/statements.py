"""Rules for the statements of a write, and the definition of *compound* writes.

A write is one statement, or several on one partition that take effect together. A **plain** write is one statement on
one row, with one TTL, without collections: it makes one row of the CDC log, and fast paths handle it separately. Every
other write is compound: it is split into the rows that ScyllaDB would log.

A plain write that names a column twice is compound, too. Of several values for one cell in a statement the greatest
wins, null over all, and the log row has only that value.

Rules of a compound write (``bad_change`` unless another code is named), for each of its statements:

- its operation is known (``unknown_operation``);
- its clustering key is complete and without nulls (``bad_key``). It is empty for deletes of ranges and partitions, and
  for writes of static columns only;
- a range delete has bounds, each a prefix of the table's clustering key; no other statement has bounds;
- deletes of rows, ranges and partitions name no columns;
- only non-frozen collections have deleted or replaced elements;
- a TTL is not negative.

In any write, key components and bounds have the types of their columns (``bad_key_type``). Each named column is a
non-key column of the table (``unknown_column``), and its values have its type (``bad_value_type``). A write uses the
names of the version that reads it; rows use stored names (``schema.stored``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from ringlog.kernel.cql.collections import key_type, log_type, shape_of
from ringlog.kernel.cql.types import TypeMismatch, deserialize
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Value, replace

UPSERTS = ("INSERT", "UPDATE")
DELETES = ("ROW_DELETE", "RANGE_DELETE", "PARTITION_DELETE")
OPERATIONS = (*UPSERTS, *DELETES)
"""The operations that this release knows."""


class CellLike(Protocol):
    """A column's value; None = null or deleted."""

    @property
    def column(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...


class DeletedElementsLike(Protocol):
    """Deleted elements of one collection."""

    @property
    def column(self) -> str: ...
    @property
    def keys(self) -> tuple[bytes, ...]: ...


class BoundsLike(Protocol):
    """A range of rows."""

    @property
    def start(self) -> tuple[bytes, ...]: ...
    @property
    def start_inclusive(self) -> bool: ...
    @property
    def end(self) -> tuple[bytes, ...]: ...
    @property
    def end_inclusive(self) -> bool: ...


class Statement(Protocol):
    """One statement of a write. ``timestamp``: in microseconds; None: that of the write."""

    @property
    def operation(self) -> str: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def ttl(self) -> int | None: ...
    @property
    def clustering_key(self) -> tuple[bytes | None, ...]: ...
    @property
    def cells(self) -> Sequence[CellLike]: ...
    @property
    def deleted_elements(self) -> Sequence[DeletedElementsLike]: ...
    @property
    def replaced(self) -> tuple[str, ...]: ...
    @property
    def bounds(self) -> BoundsLike | None: ...


class WriteLike(Statement, Protocol):
    """A whole write, which is its own first statement."""

    @property
    def more(self) -> Sequence[Statement]: ...


class TableShape(Value):
    """The facts about a table that rules and splitting need.

    ``partition_key``, ``clustering_key``: numbers of key components. ``cdc``: whether it keeps a CDC log.
    ``partition_types``, ``clustering_types``: types of the key columns; empty: not checked. ``static``: names of the
    static columns. ``collections``: name and type of non-frozen collections. ``delta``: content of the log (``full`` or
    ``keys``). ``columns``: names of the non-key columns; None: not recorded and not checked. ``stored``: name and
    stored name of non-key columns whose names differ. ``types``: name and type of all other non-key columns than
    ``collections``; the values of columns without a type are not checked. ``key_names``: names of the key columns.
    """

    partition_key: int
    clustering_key: int
    cdc: bool
    partition_types: tuple[str, ...] = ()
    clustering_types: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    collections: tuple[tuple[str, str], ...] = ()
    delta: str = "full"
    columns: tuple[str, ...] | None = None
    stored: tuple[tuple[str, str], ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    key_names: tuple[str, ...] = ()

    @property
    def is_special(self) -> bool:
        """Return True if all inserts and updates of the table are compound."""
        return bool(self.static or self.collections or self.stored)


def shape_of_table(table: Table) -> TableShape:
    """Return the shape of a table of the state."""
    types = {column.name: column.type for column in table.columns}
    key = {*table.partition_key, *table.clustering_key}
    shapes = ((name, shape_of(kind)) for name, kind in types.items())
    collections = {name: types[name] for name, shape in shapes if shape and shape.is_multi_cell}
    return TableShape(
        partition_key=len(table.partition_key),
        clustering_key=len(table.clustering_key),
        cdc=table.cdc.enabled,
        partition_types=tuple(types[name] for name in table.partition_key),
        clustering_types=tuple(types[name] for name in table.clustering_key),
        static=tuple(column.name for column in table.columns if column.static),
        collections=tuple(collections.items()),
        delta=table.cdc.delta,
        columns=tuple(name for name in types if name not in key),
        stored=tuple((name, place) for name, place in table.stored if name not in key),
        types=tuple((name, kind) for name, kind in types.items() if name not in key and name not in collections),
        key_names=(*table.partition_key, *table.clustering_key),
    )


@lru_cache(maxsize=1_024)
def stored_shape(shape: TableShape) -> TableShape:
    """Return the shape of a table as its rows are stored: columns under their stored names."""
    if not shape.stored:
        return shape
    names = dict(shape.stored)
    return replace(
        shape,
        static=tuple(names.get(name, name) for name in shape.static),
        collections=tuple((names.get(name, name), kind) for name, kind in shape.collections),
        columns=None if shape.columns is None else tuple(names.get(name, name) for name in shape.columns),
        types=tuple((names.get(name, name), kind) for name, kind in shape.types),
        stored=(),
    )


def statements_of(write: WriteLike) -> tuple[Statement, ...]:
    """Return all statements of a write, itself first."""
    return (write, *write.more)


def is_flat(write: WriteLike, shape: TableShape) -> bool:
    """Return True if last-write-wins is enough: cells of one row, or a delete of one row or the partition."""
    if write.more or write.deleted_elements or write.replaced or write.bounds is not None:
        return False
    return not shape.is_special if write.operation in UPSERTS else write.operation != "RANGE_DELETE"


def is_compound(write: WriteLike, shape: TableShape) -> bool:
    """Return True unless the write is plain."""
    if write.operation not in UPSERTS or not is_flat(write, shape):
        return not is_flat(write, shape)
    if len(write.cells) > 1 and len({cell.column for cell in write.cells}) < len(write.cells):
        return True
    return write.ttl is not None and (write.ttl == 0 or any(cell.value is None for cell in write.cells))


def is_value(type_name: str, data: bytes) -> bool:
    """Return True if the bytes are a value of the type."""
    try:
        deserialize(type_name, data)
    except TypeMismatch:
        return False
    return True


def mistyped_key(write: WriteLike, partition_key: Sequence[bytes | None], shape: TableShape) -> str | None:
    """Return the first key column with a component of another type, or None.

    Other rules check nulls and the number of components.
    """
    if (place := _mistyped(shape.partition_types, partition_key)) is not None:
        return shape.key_names[place] if shape.key_names else ""
    for one in (write, *write.more):
        bounds = () if one.bounds is None else (one.bounds.start, one.bounds.end)
        for key in (one.clustering_key, *bounds):
            if (place := _mistyped(shape.clustering_types, key)) is not None:
                return shape.key_names[len(shape.partition_types) + place] if shape.key_names else ""
    return None


def _mistyped(types: Sequence[str], key: Sequence[bytes | None]) -> int | None:
    """Return the first component of another type."""
    for place, part in enumerate(key[: len(types)]):
        if part is not None and not is_value(types[place], part):
            return place
    return None


def mistyped_value(write: WriteLike, shape: TableShape) -> str | None:
    """Return the first named column with a value, or the key of a deleted element, of another type; or None."""
    types = value_types(shape)
    for one in (write, *write.more):
        for cell in one.cells:
            value, kind = cell.value, types.get(cell.column)
            if value is not None and kind is not None and not is_value(kind, value):
                return cell.column
        for deleted in one.deleted_elements:
            kind = _element_types(shape).get(deleted.column)
            if kind is not None and not all(is_value(kind, key) for key in deleted.keys):
                return deleted.column
    return None


@lru_cache(maxsize=1_024)
def value_types(shape: TableShape) -> Mapping[str, str]:
    """Return the type of each column whose values are checked, as in the CDC log."""
    return dict(shape.types) | {name: log_type(kind) for name, kind in shape.collections}


@lru_cache(maxsize=1_024)
def _element_types(shape: TableShape) -> Mapping[str, str]:
    return {name: key_type(kind) for name, kind in shape.collections}


def unknown_column(write: WriteLike, shape: TableShape) -> str | None:
    """Return the first named column that is not a non-key column of the table, or None."""
    if shape.columns is None:
        return None
    known = _names(shape.columns)
    for one in statements_of(write):
        for name in named_columns(one):
            if name not in known:
                return name
    return None


def named_columns(statement: Statement) -> Iterator[str]:
    """Yield the columns that a statement names, with repetitions."""
    for cell in statement.cells:
        yield cell.column
    for one in statement.deleted_elements:
        yield one.column
    yield from statement.replaced


@lru_cache(maxsize=1_024)
def _names(columns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(columns)


def bad_statement(statement: Statement, shape: TableShape) -> str:
    """Return the code of the rule that a statement of a compound write breaks; empty if none."""
    if statement.operation not in OPERATIONS:
        return "unknown_operation"
    if _bad_clustering(statement, shape):
        return "bad_key"
    columns = bool(statement.cells or statement.deleted_elements or statement.replaced)
    is_delete = statement.operation in DELETES
    if (is_delete and columns) or (statement.ttl is not None and statement.ttl < 0) or _bad_bounds(statement, shape):
        return "bad_change"
    return "" if is_delete or _takes_elements(statement, shape) else "bad_change"


def _bad_clustering(statement: Statement, shape: TableShape) -> bool:
    key = statement.clustering_key
    if statement.operation in ("RANGE_DELETE", "PARTITION_DELETE"):
        return bool(key)
    if statement.operation in UPSERTS and not key and shape.clustering_key:
        return not is_static_only(statement, shape)
    return len(key) != shape.clustering_key or None in key


def is_static_only(statement: Statement, shape: TableShape) -> bool:
    """Return True if a statement names columns, and all of them are static."""
    columns = list(named_columns(statement))
    return bool(columns) and all(column in shape.static for column in columns)


def _bad_bounds(statement: Statement, shape: TableShape) -> bool:
    bounds = statement.bounds
    if statement.operation != "RANGE_DELETE" or bounds is None:
        return (statement.operation == "RANGE_DELETE") != (bounds is not None)
    return not 0 <= max(len(bounds.start), len(bounds.end)) <= shape.clustering_key or not shape.clustering_key


def _takes_elements(statement: Statement, shape: TableShape) -> bool:
    """Return True if every column with deleted or replaced elements is a non-frozen collection."""
    types = dict(shape.collections)
    named = (*statement.replaced, *(one.column for one in statement.deleted_elements))
    return all(column in types for column in named)
