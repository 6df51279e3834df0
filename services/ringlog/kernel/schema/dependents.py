"""Who uses a part of the schema, in words: what keeps a table, a column, a type or a function from being dropped.

Both directions of each dependency stand here or beside the rule that makes the using part: what is made uses only what
is there, and what is used is not dropped. Invariant: ``invariants.cluster.derived``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.cql.user_types import used_in
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Function, Table, TableIndex, View


def views_of(state: ClusterState, table: Table) -> list[View]:
    """The views of a table, by name."""
    found = [view for view in state.views.values() if view.table == table.name and view.keyspace == table.keyspace]
    return sorted(found, key=lambda view: view.name)


def indexes_of(state: ClusterState, table: Table) -> list[TableIndex]:
    """The indexes of a table, by name."""
    found = [one for one in state.indexes.values() if one.table == table.name and one.keyspace == table.keyspace]
    return sorted(found, key=lambda one: one.name)


def dependents_of_table(state: ClusterState, table: Table, column: str = "") -> list[str]:
    """The views and indexes of a table, or those that have its ``column``, in words."""
    views = [one for one in views_of(state, table) if not column or column in one.columns]
    indexes = [one for one in indexes_of(state, table) if column in ("", one.column)]
    return [
        *(f"the view {one.keyspace}.{one.name}" for one in views),
        *(f"the index {one.keyspace}.{one.name}" for one in indexes),
    ]


def types_of(function: Function) -> tuple[str, ...]:
    """The types that a function names. Those of an aggregate are its functions'."""
    return (*function.arguments, function.returns)


def functions_with(state: ClusterState, keyspace: str, type_name: str) -> list[Function]:
    """The functions of a keyspace that name a user type of it, by signature."""
    found = [
        one
        for one in state.functions.values()
        if one.keyspace == keyspace and any(type_name in kind and type_name in used_in(kind) for kind in types_of(one))
    ]
    return sorted(found, key=lambda one: one.signature)


def first_of(dependents: Iterable[str]) -> str:
    """The first user by name, and how many more there are."""
    first, *more = dependents
    assert first, "a user has a name"
    return f"{first} and {len(more)} more" if more else first
