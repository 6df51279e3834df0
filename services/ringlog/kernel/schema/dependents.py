"""Dependents of schema elements, in words: they prevent dropping a table, a column, a type or a function.

Both directions of each dependency are here or next to the rule that creates the dependent: a new element uses only
existing ones, and a used element cannot be dropped. Invariant: ``invariants.cluster.derived``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.cql.user_types import used_in
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Function, Table, TableIndex, View


def views_of(state: ClusterState, table: Table) -> list[View]:
    """Return the views of a table, by name."""
    found = [view for view in state.views.values() if view.table == table.name and view.keyspace == table.keyspace]
    return sorted(found, key=lambda view: view.name)


def indexes_of(state: ClusterState, table: Table) -> list[TableIndex]:
    """Return the indexes of a table, by name."""
    found = [one for one in state.indexes.values() if one.table == table.name and one.keyspace == table.keyspace]
    return sorted(found, key=lambda one: one.name)


def dependents_of_table(state: ClusterState, table: Table, column: str = "") -> list[str]:
    """Return the views and indexes of a table, or only those that use its ``column``, in words."""
    views = [one for one in views_of(state, table) if not column or column in one.columns]
    indexes = [one for one in indexes_of(state, table) if column in ("", one.column)]
    return [
        *(f"the view {one.keyspace}.{one.name}" for one in views),
        *(f"the index {one.keyspace}.{one.name}" for one in indexes),
    ]


def types_of(function: Function) -> tuple[str, ...]:
    """Return the types that a function names. The types of an aggregate are those of its functions."""
    return (*function.arguments, function.returns)


def functions_with(state: ClusterState, keyspace: str, type_name: str) -> list[Function]:
    """Return the functions of a keyspace that name one of its user types, by signature."""
    found = [
        one
        for one in state.functions.values()
        if one.keyspace == keyspace and any(type_name in kind and type_name in used_in(kind) for kind in types_of(one))
    ]
    return sorted(found, key=lambda one: one.signature)


def first_of(dependents: Iterable[str]) -> str:
    """Return the first dependent by name, and the number of others."""
    first, *more = dependents
    assert first, "a dependent has a name"
    return f"{first} and {len(more)} more" if more else first
