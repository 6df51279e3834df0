"""Where the cells of a column lie: under its *stored* name, which a rename leaves and no later column is given.

A column has a name, by which users know it, and a stored name, by which rows, streams, states of images and the CDC
topic have its cells. The two are one until a column of the table is dropped or renamed (``Table.respelled``):

- a rename changes the name, and leaves the stored one;
- what is added from then on lies under ``name@epoch``. No identifier has an ``@``, and an epoch comes once, so nothing
  was ever written there: cells of a dropped column never come to light under a namesake.

A write is turned into stored names once, as it is judged, by the version that reads it (``as_stored``). A reader
turns them back by the version that it reads with (``names_of``), and passes over what that version has not: the cells
of columns that are dropped.

Invariant (``kernel.invariants.cluster``): the columns of a table lie under names that differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any, Protocol, TypeVar

from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Column, Epoch

Stored = tuple[tuple[str, str], ...]
"""(name, stored name) of the columns for which these differ."""


class StoredTable(Protocol):
    """What a table of the state, and the record of one, say of it."""

    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def stored(self) -> Stored: ...


T = TypeVar("T", bound=StoredTable)
W = TypeVar("W")


def place_for(name: str, epoch: Epoch, taken: Iterable[str]) -> str:
    """The stored name of a column that entry ``epoch`` adds to a table of which columns were dropped or renamed.

    ``taken``: those of the columns that it has. What the same entry dropped nobody has written.
    """
    assert epoch > 0, "an entry adds it"
    others, first = frozenset(taken), f"{name}@{epoch}"
    return next(one for one in chain((first,), (f"{first}.{number}" for number in count(2))) if one not in others)


def respelled(table: Table, drops: Collection[str], names: Mapping[str, str], epoch: Epoch) -> Table:
    """The table without the columns ``drops``, with others under new ``names``; what is to be dropped or renamed is."""
    known, key = stored_names(table), {*table.partition_key, *table.clustering_key}
    assert known.keys() >= {*drops, *names}, "what goes, and what is renamed, is there"
    assert key.isdisjoint(drops), "the key stays"
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
    assert set(stored_names(made).values()) <= set(known.values()), "cells stay where they are"
    return made


def with_columns(table: Table, added: tuple[Column, ...], epoch: Epoch) -> Table:
    """The table with more columns, which entry ``epoch`` adds. They have cells nowhere."""
    if not table.respelled:
        return replace(table, columns=table.columns + added)
    taken, pairs = list(stored_names(table).values()), list(table.stored)
    for column in added:
        taken.append(place_for(column.name, epoch, taken))
        assert taken[-1] not in taken[:-1], "no two columns have their cells in one place"
        pairs.append((column.name, taken[-1]))
    return replace(table, columns=table.columns + added, stored=tuple(pairs))


def stored_names(table: StoredTable) -> dict[str, str]:
    """Name to stored name of each column, in the table's order."""
    differ = dict(table.stored)
    return {column.name: differ.get(column.name, column.name) for column in table.columns}


def names_of(table: StoredTable) -> dict[str, str]:
    """Stored name to name, where a reader shows another one. What lies where a dropped column lay, and would be taken
    for its namesake, is shown as ``name@dropped``.
    """
    if not table.stored:
        return {}
    stored = stored_names(table)
    free = {name: f"{name}@dropped" for name in stored if name not in stored.values()}
    return free | {place: name for name, place in stored.items() if place != name}


def in_stored_names(table: T) -> T:
    """The table as its cells have it: each column under its stored name."""
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
    """A write, or a statement of one, in stored names: its cells, elements that it deletes, collections it replaces.

    ``stored``: of the version that reads it.
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
