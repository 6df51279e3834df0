"""Rules of user types.

The schema keeps a type with its fields as declared and, for each table, the columns that were declared with user types.
The columns themselves have types without such names (``schema.user_types``). A type uses only types that already exist,
so none contains itself. An alteration adds fields, and gives the columns that use the type their new type. It is
rejected if a key column uses the type, because a key keeps its values' bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Annotated, Final

from immutables import Map

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, broken_field
from ringlog.kernel.commands.schema.shared import broken_names, exists, find_object, no_keyspace, part_of, with_schema
from ringlog.kernel.cql.collections import LENGTH_MAX
from ringlog.kernel.cql.types import is_type
from ringlog.kernel.cql.user_types import BUILT_IN, Fields, expand_types, is_part, type_signature, used_in
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table, UserType
from ringlog.kernel.schema.dependents import functions_with, types_of, views_of
from ringlog.kernel.schema.table_versions import changed as lifetimes_after
from ringlog.kernel.values import Column, Command, TypeField, is_identifier, replace

CODES: Final = {
    "field_exists": "The user type has a field with this name.",
    "type_exists": "A user type with this name exists.",
    "type_in_use": "A column, a type or a function uses the user type, or a key column prevents the change.",
    "unknown_type": "The column type does not exist, or this release does not support it.",
}

FIELDS_MAX = LENGTH_MAX // 4
"""The most fields of a type. A spelled type cannot have more, because each field takes two words."""

Declared = tuple[tuple[str, str], ...]


def known_types(types: Map[str, UserType], keyspace: str) -> dict[str, Fields]:
    """Return the user types of a keyspace by name."""
    own = (found for _, found in in_order(types) if found.keyspace == keyspace)
    return {found.name: tuple((field.name, field.type) for field in found.fields) for found in own}


def with_types(state: ClusterState, keyspace: str, columns: tuple[Column, ...]) -> tuple[tuple[Column, ...], Declared]:
    """Return columns without names of user types, and (column, type) as declared for those that had such names."""
    known = known_types(state.types, keyspace)
    found = tuple(replace(column, type=expand_types(column.type, known)) for column in columns)
    declared = ((old.name, old.type) for old, new in zip(columns, found, strict=True) if old.type != new.type)
    return found, tuple(declared)


class CreateType(Command):
    """Create a user type in a keyspace.

    A second create of the same name is refused, not merged.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the type."]
    fields: Annotated[tuple[TypeField, ...], "Fields of the type, in order."]


def decide_create_type(state: ClusterState, command: CreateType, context: EntryContext) -> Decision:
    """Create a type of known types."""
    broken = _broken_names(command.keyspace, command.name) or no_keyspace(state, command.keyspace)
    if broken is not None:
        return broken
    full_name = f"{command.keyspace}.{command.name}"
    if full_name in state.types:
        return exists(state, "type_exists", f"type {full_name}", state.types[full_name].version)
    known = known_types(state.types, command.keyspace)
    if (wrong := _wrong_fields(command.fields, (), known)) is not None:
        return wrong
    made = part_of(UserType, command, context)
    return with_schema(state, context, types=state.types.set(full_name, made))


class AlterType(Command):
    """Add fields to a user type.

    Values of the type have the fields from this entry.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the type."]
    fields: Annotated[tuple[TypeField, ...], "Fields to append to the existing ones."]


def decide_alter_type(state: ClusterState, command: AlterType, context: EntryContext) -> Decision:
    """Add fields to a type. The tables with columns of the type change with it."""
    found = _find(state, command.keyspace, command.name)
    if isinstance(found, Rejected):
        return found
    if (wrong := _too_many(command.fields)) is not None:
        return wrong
    known = known_types(state.types, command.keyspace)
    if own := [field.name for field in command.fields if is_part(command.name, field.type, known)]:
        return Rejected("bad_field", f"fields: {own[0]} would make the type a part of itself")
    if (wrong := _wrong_fields(command.fields, found.fields, known)) is not None:
        return wrong
    altered = replace(found, fields=found.fields + command.fields, version=context.state_id, changed=context.epoch)
    types = state.types.set(f"{command.keyspace}.{command.name}", altered)
    known = known_types(types, command.keyspace)
    for name, fields in known.items():
        if not is_type(expand_types(type_signature(fields), known)):
            return Rejected("bad_field", f"fields: the type {name} would be too large")
    spelled_out = cache(partial(expand_types, known=known))
    for signature, function in in_order(state.functions):
        if function.keyspace == command.keyspace and not all(map(is_type, map(spelled_out, types_of(function)))):
            return Rejected("bad_field", f"fields: a type of {signature} would be too large")
    tables, lifetimes = state.tables, state.table_lives
    for name, table in in_order(state.tables):
        changed = _altered(state, table, spelled_out, context) if table.keyspace == command.keyspace else table
        if isinstance(changed, Rejected):
            return changed
        if changed is not table:
            tables, after = (
                tables.set(name, changed),
                lifetimes_after(replace(state, table_lives=lifetimes), table, changed),
            )
            if isinstance(after, Rejected):
                return after
            lifetimes = after
    assert tables is not state.tables or lifetimes is state.table_lives, "only a changed table has another version"
    return with_schema(state, context, types=types, tables=tables, table_lives=lifetimes)


class DropType(Command):
    """Drop a user type that is not in use."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the type."]


def decide_drop_type(state: ClusterState, command: DropType, context: EntryContext) -> Decision:
    """Drop a type that no table, type or function uses."""
    found = _find(state, command.keyspace, command.name)
    if isinstance(found, Rejected):
        return found
    dependents = [
        f"the column {column} of {name}"
        for name, table in in_order(state.tables)
        for column, kind in table.declared
        if table.keyspace == command.keyspace and command.name in used_in(kind)
    ] + [
        f"the type {name}"
        for name, other in in_order(state.types)
        if other.keyspace == command.keyspace and any(command.name in used_in(field.type) for field in other.fields)
    ]
    dependents += [f"the function {one.signature}" for one in functions_with(state, command.keyspace, command.name)]
    if dependents:
        return Rejected("type_in_use", f"name: {command.keyspace}.{command.name} is used by {dependents[0]}")
    return with_schema(state, context, types=state.types.delete(f"{command.keyspace}.{command.name}"))


def _altered(
    state: ClusterState, table: Table, spelled_out: Callable[[str], str], context: EntryContext
) -> Table | Rejected:
    declared = dict(table.declared)
    columns = tuple(
        replace(column, type=spelled_out(declared[column.name])) if column.name in declared else column
        for column in table.columns
    )
    if columns == table.columns:
        return table
    keys = dict.fromkeys(table.partition_key + table.clustering_key, table.full_name)
    for view in views_of(state, table):
        keys |= dict.fromkeys(view.partition_key + view.clustering_key, f"the view {view.keyspace}.{view.name}")
    for old, new in zip(table.columns, columns, strict=True):
        if old != new and old.name in keys:
            return Rejected("type_in_use", f"name: {old.name} is a column of the key of {keys[old.name]}")
        if not is_type(new.type):
            return Rejected("bad_field", f"fields: the type of {old.name} of {table.full_name} would be too large")
    return replace(table, columns=columns, version=context.state_id, changed=context.epoch)


def _wrong_fields(
    added: tuple[TypeField, ...], present: tuple[TypeField, ...], known: Mapping[str, Fields]
) -> Rejected | None:
    if not added:
        return Rejected("bad_field", "fields: must name at least one field")
    if (many := _too_many(added)) is not None:
        return many
    names = {field.name for field in present}
    length = 0
    for field in added:
        if not is_identifier(field.name):
            return Rejected("bad_field", f"fields.name: {IDENTIFIER_RULE}")
        if field.name in names:
            return Rejected("field_exists", f"fields: {field.name} already exists")
        alone = expand_types(type_signature(((field.name, field.type),)), known)
        if not is_type(alone):
            return Rejected("unknown_type", f"fields: {field.name} has an unknown or not frozen type {field.type!r}")
        length += len(alone) - len(type_signature(()))
        if length > LENGTH_MAX:
            return Rejected("bad_field", "fields: the type would be too large")
        names.add(field.name)
    if not is_type(
        expand_types(type_signature(tuple((field.name, field.type) for field in (*present, *added))), known)
    ):
        return Rejected("bad_field", "fields: the type would be too large")
    return None


def _too_many(added: tuple[TypeField, ...]) -> Rejected | None:
    """Reject too many fields before any work on them: a hostile command may have a hundred thousand."""
    return Rejected("bad_field", "fields: the type would be too large") if len(added) > FIELDS_MAX else None


def _broken_names(keyspace: str, name: str) -> Rejected | None:
    built_in = (name not in BUILT_IN, "name", "must not be that of a built-in type")
    return broken_names(keyspace, name) or broken_field(built_in)


def _find(state: ClusterState, keyspace: str, name: str) -> UserType | Rejected:
    if (broken := _broken_names(keyspace, name)) is not None:
        return broken
    return find_object(state.types, "unknown_type", "type", keyspace, name)
