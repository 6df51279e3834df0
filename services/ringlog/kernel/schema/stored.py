"""Stored names of columns: a rename keeps the stored name, and no later column gets it.

Users see a column's name. Rows, streams, image states and the CDC topic store its cells under its stored name. Both are
the same until a column of the table is dropped or renamed (``Table.respelled``):

- a rename changes the name and keeps the stored name;
- each column added later is stored as ``name@epoch``. An identifier has no ``@``, and each epoch occurs once, so this
  stored name is unused. Cells of a dropped column never reappear under a column of the same name.

A write is converted to stored names once, at validation, by the version that reads it (``as_stored``). A reader
converts them back by the version that it reads with (``names_of``). It skips cells of dropped columns, which that
version does not have.

Invariant (``kernel.invariants.cluster``): the stored names of a table's columns differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain, count
from typing import Any, Protocol, TypeVar

from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Column, Epoch, replace

Stored = tuple[tuple[str, str], ...]
"""(name, stored name) of the columns whose stored name differs from the name."""


class StoredTable(Protocol):
    """The common fields of a table of the state and of a table's record."""

    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def stored(self) -> Stored: ...


T = TypeVar("T", bound=StoredTable)
W = TypeVar("W")


def place_for(name: str, epoch: Epoch, taken: Iterable[str]) -> str:
    """Return the stored name of a column that entry ``epoch`` adds to a table with dropped or renamed columns.

    ``taken``: the stored names of the other columns. A column that the same entry dropped was never written.
    """
    assert epoch > 0, "a lifetime begins with an entry"
    others, first = frozenset(taken), f"{name}@{epoch}"
    return next(one for one in chain((first,), (f"{first}.{number}" for number in count(2))) if one not in others)


def with_renames(table: Table, drops: Collection[str], names: Mapping[str, str], epoch: Epoch) -> Table:
    """Return the table without the columns ``drops`` and with other columns renamed to ``names``. All of them must
    exist.
    """
    known, key = stored_names(table), {*table.partition_key, *table.clustering_key}
    assert known.keys() >= {*drops, *names}, "dropped and renamed columns exist"
    assert key.isdisjoint(drops), "key columns are not dropped"
    columns = tuple(
        replace(column, name=names.get(column.name, column.name))
        for column in table.columns
        if column.name not in drops
    )
    pairs = ((names.get(name, name), place) for name, place in known.items() if name not in drops)
    made = replace(
        table,
        columns=columns,
        partition_key=tuple(names.get(name, name) for name in table.partition_key),
        clustering_key=tuple(names.get(name, name) for name in table.clustering_key),
        declared=tuple((names.get(name, name), kind) for name, kind in table.declared if name not in drops),
        stored=tuple((name, place) for name, place in pairs if name != place),
        respelled=epoch,
    )
    assert set(stored_names(made).values()) <= set(known.values()), "stored column names do not change"
    return made


def with_columns(table: Table, added: tuple[Column, ...], epoch: Epoch) -> Table:
    """Return the table with the columns that entry ``epoch`` adds. No cells of them exist yet."""
    if not table.respelled:
        return replace(table, columns=table.columns + added)
    taken, pairs = list(stored_names(table).values()), list(table.stored)
    for column in added:
        taken.append(place_for(column.name, epoch, taken))
        assert taken[-1] not in taken[:-1], "stored column names are unique"
        pairs.append((column.name, taken[-1]))
    return replace(table, columns=table.columns + added, stored=tuple(pairs))


def stored_names(table: StoredTable) -> dict[str, str]:
    """Return name to stored name of each column, in the table's order."""
    differ = dict(table.stored)
    return {column.name: differ.get(column.name, column.name) for column in table.columns}


def names_of(table: StoredTable) -> dict[str, str]:
    """Return stored name to name, for columns whose name differs.

    A stored name of a dropped column may equal the name of a later column. It is shown as ``name@dropped``.
    """
    if not table.stored:
        return {}
    stored = stored_names(table)
    free = {name: f"{name}@dropped" for name in stored if name not in stored.values()}
    return free | {place: name for name, place in stored.items() if place != name}


def in_stored_names(table: T) -> T:
    """Return the table with each column under its stored name, as its cells have it."""
    if not table.stored:
        return table
    names: dict[str, str] = stored_names(table)
    changed: Any = table
    made: T = replace(
        changed,
        columns=tuple(replace(column, name=names[column.name]) for column in table.columns),
        partition_key=tuple(names[name] for name in changed.partition_key),
        clustering_key=tuple(names[name] for name in changed.clustering_key),
        stored=(),
    )
    return made


def as_stored(write: W, stored: Stored) -> W:
    """Return a write, or a statement of one, with stored names in cells, deleted elements and replaced collections.

    ``stored``: the stored names of the version that reads the write.
    """
    return _renamed(write, dict(stored)) if stored else write


def _renamed(write: Any, names: dict[str, str]) -> Any:
    changed = replace(
        write,
        cells=_columns_renamed(write.cells, names),
        deleted_elements=_columns_renamed(write.deleted_elements, names),
        replaced=tuple(names.get(name, name) for name in write.replaced),
    )
    more = getattr(write, "more", ())
    return replace(changed, more=tuple(_renamed(one, names) for one in more)) if more else changed


def _columns_renamed(items: Iterable[Any], names: dict[str, str]) -> tuple[Any, ...]:
    return tuple(replace(item, column=names.get(item.column, item.column)) for item in items)
