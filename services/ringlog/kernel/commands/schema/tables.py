"""Rules of the schema: tables.

Versions come from the entry (its state id), never from hashing the schema. The schema version is that of the last
schema command. A table's version is that of the last command that changed it. Table ids are never used again, not even
those of dropped tables.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, UUID_RULE, broken_field
from ringlog.kernel.commands.schema.shared import broken_names, exists, find_object, no_keyspace, part_of, with_schema
from ringlog.kernel.commands.schema.user_types import with_types
from ringlog.kernel.cql.collections import shape_of
from ringlog.kernel.cql.types import is_type
from ringlog.kernel.generations.describe import with_new_table
from ringlog.kernel.generations.expiry import past_ttls
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.movements.tablet_creation import cut_table, rehinted, shared_by
from ringlog.kernel.schema.dependents import dependents_of_table, first_of, indexes_of, views_of
from ringlog.kernel.schema.stored import with_columns, with_renames
from ringlog.kernel.schema.table_versions import changed
from ringlog.kernel.values import (
    Before,
    CdcOptions,
    Column,
    ColumnRename,
    Command,
    Epoch,
    TabletOptions,
    is_identifier,
    is_uuid,
    replace,
)

CODES: Final = {
    "bad_key": "The key columns are missing, repeated or unknown, or have a type that a key cannot have.",
    "column_exists": "The table has a column with this name.",
    "column_in_use": "A view or an index uses the column.",
    "table_exists": "A table with this name exists.",
    "table_in_use": "A view or an index uses the table.",
    "bad_tablets": "The options for tablets contradict each other, or the table cannot have them.",
    "table_id_reused": "A table has or had this id. Ids are never reused.",
    "unknown_column": "The table does not have the column.",
    "unknown_table": "The table does not exist.",
}

COLUMNS_MAX = 1_000
KEY_COLUMNS_MAX = 100
TTL_MAX_S = 2**31 - 1


class CreateTable(Command):
    """Create a table.

    A second create of the same name is refused, not merged.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    CHANGES_ITS_TABLE = True

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the table."]
    id: Annotated[str, "Id of the table, a UUID in text form that is never reused."]
    columns: Annotated[tuple[Column, ...], "All columns, including key columns."]
    partition_key: Annotated[tuple[str, ...], "Names of the columns of the partition key, in key order."]
    clustering_key: Annotated[tuple[str, ...], "Names of the columns of the clustering key, in key order."]
    cdc: Annotated[CdcOptions, "CDC options of the table."]
    tablets: Annotated[
        TabletOptions | None,
        "Tablet options, for a keyspace with tablets. Null: chosen automatically.",
        Before(None),
    ] = None


def decide_create_table(state: ClusterState, command: CreateTable, context: EntryContext) -> Decision:
    """Create a table under an id that no table ever had."""
    broken = broken_names(command.keyspace, command.name) or broken_field(
        (is_uuid(command.id), "id", UUID_RULE),
        *_cdc_checks(command.cdc),
    )
    if (broken := broken or no_keyspace(state, command.keyspace)) is not None:
        return broken
    full_name = f"{command.keyspace}.{command.name}"
    if full_name in state.tables:
        return exists(state, "table_exists", f"table {full_name}", state.tables[full_name].version)
    if full_name in state.views:
        return Rejected("view_exists", f"name: {full_name} is a view")
    if command.id in state.table_ids:
        return Rejected("table_id_reused", f"id: {command.id} is or was the id of {state.table_ids[command.id]}")
    if (wrong := _too_many(command.columns)) is not None:
        return wrong
    columns, declared = with_types(state, command.keyspace, command.columns)
    wrong = _wrong_columns(columns, ())
    wrong = wrong or wrong_key(columns, command.partition_key, command.clustering_key)
    if (wrong := wrong or _wrong_static(columns, command.partition_key, command.clustering_key)) is not None:
        return wrong
    table = part_of(Table, command, context, columns=columns, declared=declared, tablets=None, made=context.epoch)
    cut = cut_table(state, table, command.tablets, context.epoch)
    if isinstance(cut, Rejected):
        return cut
    table, tablets = cut
    base = table.name if table.tablets is None else table.tablets.base or table.name
    assert table.tablets is None or f"{table.keyspace}.{base}" in tablets, "a table in tablets has or shares them"
    tables = state.tables.set(full_name, table)
    ids = state.table_ids.set(table.id, full_name)
    generations = with_new_table(state, table, tablets)
    return _accept(state, context, None, table, tables=tables, table_ids=ids, tablets=tablets, generations=generations)


class AlterTable(Command):
    """Drop, rename and add columns, in this order, and replace the CDC options if they are given.

    A column that is added later under the name of a dropped column is a different column.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    CHANGES_ITS_TABLE = True

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the table."]
    add_columns: Annotated[tuple[Column, ...], "Columns to add."] = ()
    cdc: Annotated[CdcOptions | None, "New CDC options. Null: unchanged."] = None
    tablets: Annotated[TabletOptions | None, "New tablet hints. Null: unchanged.", Before(None)] = None
    drop_columns: Annotated[tuple[str, ...], "Columns to drop. Key columns cannot be dropped.", Before(())] = ()
    rename_columns: Annotated[
        tuple[ColumnRename, ...], "Columns to rename, in this order. Views and indexes follow.", Before(())
    ] = ()


def decide_alter_table(state: ClusterState, command: AlterTable, context: EntryContext) -> Decision:
    """Drop columns, rename columns, then add columns after the others; and replace the CDC options as a whole."""
    table = find_table(state, command.keyspace, command.name)
    if isinstance(table, Rejected):
        return table
    spelled = _with_changed_columns(state, table, command, context.epoch)
    if isinstance(spelled, Rejected):
        return spelled
    something = command.add_columns != () or command.cdc is not None or command.tablets is not None
    broken = broken_field(
        (something or spelled is not table, "add_columns", "must name a column unless cdc or tablets are given"),
        *(_cdc_checks(command.cdc) if command.cdc is not None else ()),
    )
    if (wrong := _too_many(spelled.columns + command.add_columns)) is not None:
        return wrong
    added, declared = with_types(state, command.keyspace, command.add_columns)
    wrong = broken or _wrong_columns(added, spelled.columns)
    if (wrong := wrong or _wrong_static(added, (), spelled.clustering_key)) is not None:
        return wrong
    altered = replace(
        with_columns(spelled, added, context.epoch),
        cdc=command.cdc if command.cdc is not None else table.cdc,
        version=context.state_id,
        changed=context.epoch,
        committed_by_log=True,
        declared=spelled.declared + declared,
    )
    hinted = altered if command.tablets is None else rehinted(state, altered, command.tablets)
    if isinstance(hinted, Rejected):
        return hinted
    past = past_ttls(state.past_ttls, table, hinted, context.epoch)
    tables = state.tables.set(table.full_name, hinted)
    dependents = _dependents_renamed(state, table, command, context)
    return _accept(state, context, table, hinted, tables=tables, past_ttls=past, **dependents)


def _with_changed_columns(state: ClusterState, table: Table, command: AlterTable, epoch: Epoch) -> Table | Rejected:
    """Return the table without the dropped columns, with the others under their new names; or the rejection."""
    drops, renames = command.drop_columns, command.rename_columns
    if max(len(drops), len(renames)) > COLUMNS_MAX:
        return Rejected("bad_field", f"drop_columns, rename_columns: must be at most {COLUMNS_MAX}")
    if len(set(drops)) < len(drops):
        return Rejected("bad_field", "drop_columns: must name each column once")
    for name in drops:
        if name not in {column.name for column in table.columns}:
            return Rejected("unknown_column", f"drop_columns: {table.full_name} has no column {name}")
        if name in table.partition_key + table.clustering_key:
            return Rejected("bad_key", f"drop_columns: {name} is a column of the key")
        if dependents := dependents_of_table(state, table, name):
            return Rejected("column_in_use", f"drop_columns: {name} is used by {first_of(dependents)}")
    names = {column.name for column in table.columns}.difference(drops)
    for one in renames:
        if one.from_ not in names:
            return Rejected("unknown_column", f"rename_columns: {table.full_name} has no column {one.from_}")
        if not is_identifier(one.to):
            return Rejected("bad_field", f"rename_columns.to: {IDENTIFIER_RULE}")
        if one.to in names:
            return Rejected("column_exists", f"rename_columns: {one.to} already exists")
        names.remove(one.from_)
        names.add(one.to)
    if not drops and not renames:
        return table
    changed_table = with_renames(table, drops, _new_names(table, command), epoch)
    assert {column.name for column in changed_table.columns} == names, "the changed columns have the checked names"
    return changed_table


def _new_names(table: Table, command: AlterTable) -> dict[str, str]:
    """Return old name to new name of the columns that valid renames change. Each rename sees the result of the one
    before.
    """
    old_names = {column.name: column.name for column in table.columns if column.name not in command.drop_columns}
    for one in command.rename_columns:
        assert one.to not in old_names, "the new name is unused"
        old_names[one.to] = old_names.pop(one.from_)
    return {old: new for new, old in old_names.items() if old != new}


def _dependents_renamed(
    state: ClusterState, table: Table, command: AlterTable, context: EntryContext
) -> dict[str, object]:
    """Return views and indexes of renamed columns, with the new names."""
    to = _new_names(table, command)
    views, indexes, mark = state.views, state.indexes, {"version": context.state_id, "changed": context.epoch}
    for view in views_of(state, table) if to else ():
        if not to.keys().isdisjoint(view.columns):
            places = {
                field: tuple(to.get(name, name) for name in getattr(view, field))
                for field in ("columns", "partition_key", "clustering_key")
            }
            changed: Any = {**places, **mark}
            views = views.set(f"{view.keyspace}.{view.name}", replace(view, **changed))
    for index in indexes_of(state, table) if to else ():
        if index.column in to:
            changed = {"column": to[index.column], **mark}
            indexes = indexes.set(f"{index.keyspace}.{index.name}", replace(index, **changed))
    return {"views": views, "indexes": indexes}


class DropTable(Command):
    """Drop a table."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    CHANGES_ITS_TABLE = True

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the table."]


def decide_drop_table(state: ClusterState, command: DropTable, context: EntryContext) -> Decision:
    """Drop a table without views and indexes. Its id is never used again."""
    table = find_table(state, command.keyspace, command.name)
    if isinstance(table, Rejected):
        return table
    if (shared := shared_by(state, table)) is not None:
        return shared
    if dependents := dependents_of_table(state, table):
        return Rejected("table_in_use", f"name: {table.full_name} is used by {first_of(dependents)}")
    past = past_ttls(state.past_ttls, table, None, context.epoch)
    name = table.full_name
    tablets = state.tablets.delete(name) if name in state.tablets else state.tablets
    tables = state.tables.delete(name)
    return _accept(state, context, table, None, tables=tables, past_ttls=past, tablets=tablets)


def _accept(
    state: ClusterState, context: EntryContext, before: Table | None, after: Table | None, **parts: object
) -> Decision:
    """Replace ``before`` by ``after``. Writes appended before the change counts are still validated by ``before``."""
    lifetimes = changed(state, before, after)
    if isinstance(lifetimes, Rejected):
        return lifetimes
    return with_schema(state, context, table_lives=lifetimes, **parts)


def find_table(state: ClusterState, keyspace: str, name: str) -> Table | Rejected:
    """Return the table of that name, or the rejection of a command that names it."""
    return find_object(state.tables, "unknown_table", "table", keyspace, name)


def _cdc_checks(cdc: CdcOptions) -> tuple[tuple[bool, str, str], ...]:
    return (
        (cdc.preimage in ("false", "true", "full"), "cdc.preimage", "must be false, true or full"),
        (cdc.delta in ("full", "keys"), "cdc.delta", "must be full or keys"),
        (0 <= cdc.ttl <= TTL_MAX_S, "cdc.ttl", f"must be between 0 and {TTL_MAX_S} seconds"),
    )


def _too_many(columns: tuple[Column, ...]) -> Rejected | None:
    """Reject too many columns before any work on them: a hostile command may have a hundred thousand."""
    return None if len(columns) <= COLUMNS_MAX else Rejected("bad_field", f"columns: must be at most {COLUMNS_MAX}")


def _wrong_columns(added: tuple[Column, ...], present: tuple[Column, ...]) -> Rejected | None:
    """Reject new columns that are invalid with the present ones; None if they are valid."""
    names = {column.name for column in present}
    for column in added:
        if not is_identifier(column.name):
            return Rejected("bad_field", f"columns.name: {IDENTIFIER_RULE}")
        if column.name in names:
            return Rejected("column_exists", f"columns: {column.name} already exists")
        if not is_type(column.type):
            return Rejected("unknown_type", f"columns: {column.name} has the unknown type {column.type!r}")
        names.add(column.name)
    return None


def _wrong_static(
    columns: tuple[Column, ...], partition_key: tuple[str, ...], clustering_key: tuple[str, ...]
) -> Rejected | None:
    """Reject static columns in a key, or in a table without clustering columns: they share one value among several
    rows.
    """
    for column in columns:
        if column.static and not clustering_key:
            return Rejected("bad_field", f"columns: {column.name} is static in a table without a clustering key")
        if column.static and column.name in partition_key + clustering_key:
            return Rejected("bad_field", f"columns: {column.name} is static and in the key")
    return None


def wrong_key(
    columns: tuple[Column, ...], partition_key: tuple[str, ...], clustering_key: tuple[str, ...]
) -> Rejected | None:
    """Reject an invalid primary key. Its order is that of the key fields, not that of the columns."""
    if not partition_key:
        return Rejected("bad_key", "partition_key: must name at least one column")
    key = partition_key + clustering_key
    if len(key) > KEY_COLUMNS_MAX:
        return Rejected("bad_key", f"partition_key, clustering_key: must be at most {KEY_COLUMNS_MAX} columns")
    if len(set(key)) < len(key):
        return Rejected("bad_key", "partition_key, clustering_key: must name each column once")
    types = {column.name: column.type for column in columns}
    if missing := [name for name in key if name not in types]:
        return Rejected("bad_key", f"partition_key, clustering_key: {missing[0]} is not a column")
    for name in key:
        shape = shape_of(types[name])
        if shape is not None and shape.is_multi_cell:
            return Rejected("bad_key", f"partition_key, clustering_key: {name} is a collection that is not frozen")
    return None
