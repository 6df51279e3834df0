"""Rules of views and indexes: other paths to the rows of a table, as metadata.

Neither their table nor a column that they use can be dropped while they exist (``schema.dependents``). They have
separate versions; the table's version stays, since its writes are read as before.

Sources: CQL, "Materialized views" and "Secondary indexes"; CEP-21, "Racing DROP X validations".
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, broken_field
from ringlog.kernel.commands.schema.shared import broken_names, exists, find_object, no_keyspace, part_of, with_schema
from ringlog.kernel.commands.schema.tables import COLUMNS_MAX, find_table, wrong_key
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table, TableIndex, View
from ringlog.kernel.schema.dependents import indexes_of
from ringlog.kernel.values import Command, is_identifier

CODES: Final = {
    "index_exists": "An index with this name, or on this column, exists.",
    "unknown_index": "The index does not exist.",
    "unknown_view": "The view does not exist.",
    "view_exists": "A view with this name exists.",
}


class CreateView(Command):
    """Create a materialized view of a table.

    Every key column of the table is in the view's key, so a row of the one is a row of the other.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace of the view and its table."]
    name: Annotated[str, "Name of the view."]
    table: Annotated[str, "Name of the table."]
    columns: Annotated[
        tuple[str, ...],
        "Columns of the view in addition to its key. Empty: all present columns of the table that are not static.",
    ]
    partition_key: Annotated[tuple[str, ...], "Names of the columns of the view's partition key, in key order."]
    clustering_key: Annotated[tuple[str, ...], "Names of the columns of the view's clustering key, in key order."]


def decide_create_view(state: ClusterState, command: CreateView, context: EntryContext) -> Decision:
    """Create a view under a name that no table of the keyspace has."""
    table = _table_of(state, command.keyspace, command.name, command.table)
    if isinstance(table, Rejected):
        return table
    full_name = f"{command.keyspace}.{command.name}"
    if full_name in state.views:
        return exists(state, "view_exists", f"view {full_name}", state.views[full_name].version)
    if full_name in state.tables:
        return Rejected("table_exists", f"name: {full_name} is a table")
    key = (*command.partition_key, *command.clustering_key)
    if (wrong := wrong_key(table.columns, command.partition_key, command.clustering_key)) is not None:
        return wrong
    if missing := [name for name in table.partition_key + table.clustering_key if name not in key]:
        text = f"{missing[0]} is in the key of {table.full_name} and not in that of the view"
        return Rejected("bad_key", f"partition_key, clustering_key: {text}")
    columns = _columns(table, command.columns, key)
    if isinstance(columns, Rejected):
        return columns
    view = part_of(View, command, context, columns=columns)
    return with_schema(state, context, views=state.views.set(full_name, view))


def _columns(table: Table, named: tuple[str, ...], key: tuple[str, ...]) -> tuple[str, ...] | Rejected:
    """Return the columns of a view, in the order of the table's."""
    if len(named) > COLUMNS_MAX:
        return Rejected("bad_field", f"columns: must be at most {COLUMNS_MAX}")
    if len(set(named)) < len(named):
        return Rejected("bad_field", "columns: must name each column once")
    known = {column.name: column for column in table.columns}
    if strange := [name for name in named if name not in known]:
        return Rejected("unknown_column", f"columns: {table.full_name} has no column {strange[0]}")
    if static := [name for name in (*named, *key) if known[name].static]:
        return Rejected("bad_field", f"columns: {static[0]} is static, so its value does not belong to a single row")
    wanted = {*named, *key} if named else {column.name for column in table.columns if not column.static}
    columns = tuple(column.name for column in table.columns if column.name in wanted)
    assert {*key, *named} <= set(columns), "the view has all requested columns"
    return columns


class DropView(Command):
    """Drop a materialized view."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the view."]


def decide_drop_view(state: ClusterState, command: DropView, context: EntryContext) -> Decision:
    """Drop a view. Its table stays."""
    view = find_object(state.views, "unknown_view", "view", command.keyspace, command.name)
    if isinstance(view, Rejected):
        return view
    return with_schema(state, context, views=state.views.delete(f"{view.keyspace}.{view.name}"))


class CreateIndex(Command):
    """Create an index of a table's column."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace of the index and its table."]
    name: Annotated[str, "Name of the index."]
    table: Annotated[str, "Name of the table."]
    column: Annotated[str, "Name of the indexed column."]


def decide_create_index(state: ClusterState, command: CreateIndex, context: EntryContext) -> Decision:
    """Create an index of a column that has none. A whole partition key needs no index."""
    table = _table_of(state, command.keyspace, command.name, command.table)
    if isinstance(table, Rejected):
        return table
    full_name = f"{command.keyspace}.{command.name}"
    if full_name in state.indexes:
        return exists(state, "index_exists", f"index {full_name}", state.indexes[full_name].version)
    if command.column not in [column.name for column in table.columns]:
        return Rejected("unknown_column", f"column: {table.full_name} has no column {command.column}")
    if other := [one.name for one in indexes_of(state, table) if one.column == command.column]:
        return Rejected("index_exists", f"column: {command.column} of {table.full_name} has the index {other[0]}")
    if table.partition_key == (command.column,):
        return Rejected("bad_key", f"column: {command.column} is the partition key of {table.full_name}")
    index = part_of(TableIndex, command, context)
    return with_schema(state, context, indexes=state.indexes.set(full_name, index))


class DropIndex(Command):
    """Drop an index."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the index."]


def decide_drop_index(state: ClusterState, command: DropIndex, context: EntryContext) -> Decision:
    """Drop an index. Its table stays."""
    index = find_object(state.indexes, "unknown_index", "index", command.keyspace, command.name)
    if isinstance(index, Rejected):
        return index
    return with_schema(state, context, indexes=state.indexes.delete(f"{index.keyspace}.{index.name}"))


def _table_of(state: ClusterState, keyspace: str, name: str, table: str) -> Table | Rejected:
    """Return the table of a new view or index, after a check of the names."""
    broken = broken_names(keyspace, name) or broken_field((is_identifier(table), "table", IDENTIFIER_RULE))
    if (broken := broken or no_keyspace(state, keyspace)) is not None:
        return broken
    found = find_table(state, keyspace, table)
    return Rejected(found.code, found.detail.replace("name:", "table:", 1)) if isinstance(found, Rejected) else found
