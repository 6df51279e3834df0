"""The schema of a state as CQL.

``reading`` parses the output to the same schema; only ids and versions differ. Every object is after the objects that
it depends on, and otherwise objects are sorted by name. Options with their default values are left out.

Source: DESCRIBE of Cassandra's shell; its reserved words and names with a capital letter are quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from ringlog.kernel.cql.collections import tokens_of
from ringlog.kernel.cql.user_types import used_in
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Aggregate, Function, Keyspace, Table, TableIndex, UserType, View
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.schema.dependents import indexes_of, views_of
from ringlog.kernel.values import CdcOptions, Replication, TabletOptions, asdict
from ringlog.operator.errors import Refused
from ringlog.operator.intents.replication import replication_json

_RESERVED_TEXT: Final = """
add allow alter and apply asc authorize batch begin by columnfamily create default delete desc describe drop entries
execute from full grant if in index infinity insert into is keyspace limit materialized mbean mbeans modify nan
norecursive not null of on or order primary rename replace revoke schema select set table to token truncate unlogged
unset update use using view where with
"""
RESERVED: Final = frozenset(_RESERVED_TEXT.split())
"""Words that CQL accepts as names only in quotes."""

Part = UserType | Function | Aggregate | Table | TableIndex | View
P = TypeVar("P", UserType, Function, Aggregate, Table, TableIndex, View)

# Keys of a replication map that are not datacenters: a datacenter with such a name has no NetworkTopologyStrategy form.
_NO_DATACENTER: Final = frozenset({"class", "replication_factor", "strategy"})


def describe(state: ClusterState, name: str = "") -> str:
    """Return the CQL of the whole schema, of a keyspace, or of every object named ``keyspace.name``.

    A table includes its indexes and views. Raises Refused if no object has the name.
    """
    keyspace, _, inner = name.partition(".")
    if inner:
        return "\n\n".join(_one(state, name)) + "\n"
    if keyspace and keyspace not in state.keyspaces:
        raise Refused("unknown_keyspace", f"the keyspace {keyspace} does not exist")
    chosen = (found for key, found in in_order(state.keyspaces) if keyspace in ("", key))
    statements = [statement for found in chosen for statement in _keyspace(state, found)]
    return "\n\n".join(statements) + "\n" if statements else ""


def _one(state: ClusterState, name: str) -> list[str]:
    keyspace, _, inner = name.partition(".")
    found = [_type(state.types[name])] if name in state.types else []
    found += [_function(one) for one in _within(keyspace, state.functions) if one.name == inner]
    found += [_aggregate(one) for one in _within(keyspace, state.aggregates) if one.name == inner]
    if (table := state.tables.get(name)) is not None:
        found += [_table(table), *map(_index, indexes_of(state, table)), *map(_view, views_of(state, table))]
    found += [_view(state.views[name])] if name in state.views else []
    found += [_index(state.indexes[name])] if name in state.indexes else []
    if not found:
        raise Refused("unknown_table", f"{name} does not exist")
    return found


def _keyspace(state: ClusterState, keyspace: Keyspace) -> Iterator[str]:
    found, in_tablets = _replication(keyspace.replication)
    name = keyspace.name
    tablets = " AND tablets = {'enabled': true}" if in_tablets else ""
    yield f"CREATE KEYSPACE {identifier(name)} WITH replication = {literal(found)}{tablets};"
    yield from map(_type, _after_their_parts(_within(name, state.types)))
    yield from map(_function, _within(name, state.functions))
    yield from map(_aggregate, _within(name, state.aggregates))
    yield from map(_table, sorted(_within(name, state.tables), key=_after_its_base))
    yield from map(_index, _within(name, state.indexes))
    yield from map(_view, _within(name, state.views))


def _within(keyspace: str, part: Mapping[str, P]) -> list[P]:
    return [one for _, one in in_order(part) if one.keyspace == keyspace]


def _after_its_base(table: Table) -> tuple[bool, str]:
    """Sort key: a table that shares the tablets of a base table is created after it."""
    return table.tablets is not None and table.tablets.base != "", table.name


def _after_their_parts(types: Iterable[UserType]) -> list[UserType]:
    """Sort user types so that each is after the types of its fields. Types are never cyclic."""
    by_name, found = {one.name: one for one in types}, dict[str, UserType]()

    def add(one: UserType) -> None:
        for field in one.fields:
            for name in sorted(used_in(field.type) & by_name.keys() - found.keys()):
                add(by_name[name])
        found[one.name] = one

    for one in by_name.values():
        add(one)
    return list(found.values())


def _type(one: UserType) -> str:
    fields = ",\n    ".join(f"{identifier(field.name)} {type_name(field.type)}" for field in one.fields)
    return f"CREATE TYPE {_place(one)} (\n    {fields}\n);"


def _table(table: Table) -> str:
    declared = dict(table.declared)
    lines = [
        f"{identifier(column.name)} {type_name(declared.get(column.name, column.type))}"
        + (" STATIC" if column.static else "")
        for column in table.columns
    ]
    inner = ",\n    ".join([*lines, _key(table)])
    options = [f"{name} = {literal(value)}" for name, value in _options(table)]
    ending = f" WITH {' AND '.join(options)}" if options else ""
    return f"CREATE TABLE {_place(table)} (\n    {inner}\n){ending};"


def _key(table: Table | View) -> str:
    partition = ", ".join(map(identifier, table.partition_key))
    return f"PRIMARY KEY ({', '.join([f'({partition})', *map(identifier, table.clustering_key)])})"


def _view(view: View) -> str:
    columns = ", ".join(map(identifier, view.columns))
    condition = " AND ".join(f"{identifier(name)} IS NOT NULL" for name in view.partition_key + view.clustering_key)
    selected = f"SELECT {columns}\n    FROM {identifier(view.keyspace)}.{identifier(view.table)}"
    return f"CREATE MATERIALIZED VIEW {_place(view)} AS\n    {selected}\n    WHERE {condition}\n    {_key(view)};"


def _index(index: TableIndex) -> str:
    table = f"{identifier(index.keyspace)}.{identifier(index.table)}"
    return f"CREATE INDEX {identifier(index.name)} ON {table} ({identifier(index.column)});"


def _function(function: Function) -> str:
    pairs = zip(function.argument_names, function.arguments, strict=True)
    arguments = ", ".join(f"{identifier(name)} {type_name(kind)}" for name, kind in pairs)
    null = "CALLED" if function.called_on_null else "RETURNS NULL"
    body = literal(function.body) if "$$" in f"{function.body}$" else f"$${function.body}$$"
    return (
        f"CREATE FUNCTION {_place(function)} ({arguments})\n    {null} ON NULL INPUT\n"
        f"    RETURNS {type_name(function.returns)}\n    LANGUAGE {identifier(function.language)}\n    AS {body};"
    )


def _aggregate(aggregate: Aggregate) -> str:
    lines = [
        f"CREATE AGGREGATE {_place(aggregate)} ({', '.join(map(type_name, aggregate.arguments))})",
        f"SFUNC {identifier(aggregate.state_function)}",
        f"STYPE {type_name(aggregate.state_type)}",
    ]
    if aggregate.final_function:
        lines.append(f"FINALFUNC {identifier(aggregate.final_function)}")
    if aggregate.initial is not None:
        lines.append(f"INITCOND {aggregate.initial}")
    return "\n    ".join(lines) + ";"


def _place(one: Part) -> str:
    return f"{identifier(one.keyspace)}.{identifier(one.name)}"


def _options(table: Table) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if table.cdc != CdcOptions():
        yield "cdc", asdict(table.cdc)
    if table.tablets not in (None, TabletOptions()):
        given = asdict(table.tablets or TabletOptions())
        yield "tablets", {name: value for name, value in given.items() if value not in (None, "")}


def _replication(value: Replication) -> tuple[Mapping[str, Any], bool]:
    """Return (replication map, whether in tablets). A datacenter named like a CQL option needs Ringlog's own map."""
    strategy = strategy_of(value)
    if strategy.is_everywhere:
        return {"class": "EverywhereStrategy"}, False
    if strategy.by_zone:
        return replication_json(value), False
    in_tablets = not strategy.in_ring
    if not value.datacenters:
        return {"class": "SimpleStrategy", "replication_factor": value.factor}, in_tablets
    local = {one.datacenter: list(one.racks) or one.factor for one in value.datacenters}
    if _NO_DATACENTER & local.keys():
        return replication_json(value), False
    return {"class": "NetworkTopologyStrategy", **local}, in_tablets


# ---------------------------------------------------------------------------------------------------------- words


def identifier(name: str) -> str:
    """Return a name as CQL spells it, quoted if necessary."""
    return name if re.fullmatch("[a-z][a-z0-9_]*", name) and name not in RESERVED else f'"{name}"'


def type_name(text: str) -> str:
    """Return a type with its names as CQL spells them."""
    signs = {",": ", ", "<": "<", ">": ">"}
    parts = [signs.get(token) or (token if token == "set" else identifier(token)) for token in tokens_of(text) or ()]
    return "".join(parts)


def literal(value: Any) -> str:
    """Return a value as a CQL literal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(name)}: {literal(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
