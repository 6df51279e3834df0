"""Bounds in bytes on the schema: each record, all changes of one command, all that the state holds.

A short command can add much more than its own bytes. An alteration of a user type changes each table that uses it, a
renamed column changes each view of the table, and both leave the earlier version of a table behind. Replicas, nodes,
commands and snapshots contain all of it, and the change publisher publishes the changes of one entry in one
transaction.

A *weight* is an upper bound of the bytes of an item's Avro record and key as the change publisher writes them
(``kernel.changes``). The kernel does not know Avro. ``tests/wire/test_size_weights.py`` compares the encoder with the
weights.

Invariants, for each applied command: a record weighs at most ``RECORD_BYTES_MAX``, the changed records at most
``CHANGED_BYTES_MAX``, a schema that grows at most ``SCHEMA_BYTES_MAX``, past table versions that grow at most
``PAST_BYTES_MAX``. Pruning is never rejected for a size. A drop is rejected only if the dropped table is too large for
the past versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from immutables import Map

from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.model.tables import Table, TableLifetime
from ringlog.kernel.values import Column, Value

RECORD_BYTES_MAX: Final = 1_500_000
"""The maximum weight of one record of a change topic: half a megabyte below the limit of the topics."""
CHANGED_BYTES_MAX: Final = 64_000_000
"""The maximum weight of all records that one entry changes: they are published in one transaction."""
SCHEMA_BYTES_MAX: Final = 128_000_000
"""The maximum weight of all tables, views, indexes, types, functions and aggregates."""
PAST_BYTES_MAX: Final = 64_000_000
"""The maximum weight of earlier versions of tables and of dropped tables."""

RECORD, ITEM = 2_048, 16
"""Bytes for the small fields of a record; for the marks around an item and its flags."""

LIVING: Final = ("tables", "views", "indexes", "types", "functions", "aggregates")
"""The sections of the state that make up the schema."""

assert {*LIVING} < {*PARTS}, "each name is a section"
assert RECORD_BYTES_MAX < CHANGED_BYTES_MAX < SCHEMA_BYTES_MAX, "limits ascend: a record, a change, the schema"


def text(value: str) -> int:
    """Return an upper bound of the bytes of a text in UTF-8."""
    return len(value) if value.isascii() else 4 * len(value)


def weight_of(table: Table) -> int:
    """Return the weight of a table, including the types as declared, because caches store these too."""
    keys = sum(ITEM + text(name) for name in (*table.partition_key, *table.clustering_key))
    declared = sum(ITEM + text(name) + text(kind) for name, kind in table.declared)
    stored = sum(ITEM + text(name) + text(place) for name, place in table.stored)
    return RECORD + keys + declared + stored + sum(map(_column, table.columns))


def _column(column: Column) -> int:
    return ITEM + text(column.name) + text(column.type)


def weight_of_part(item: Any) -> int:
    """Return the weight of a view, an index, a type, a function or an aggregate: its texts and those of its key."""
    key = text(getattr(item, "signature", ""))
    return RECORD + key + sum(_value(getattr(item, name)) for name in item.__struct_fields__)


def _value(value: Any) -> int:
    if isinstance(value, str):
        return ITEM + text(value)
    if isinstance(value, tuple):
        return ITEM + sum(map(_value, value))
    return sum(_value(getattr(value, name)) for name in value.__struct_fields__) if isinstance(value, Value) else ITEM


def weight_of_past(lifetimes: tuple[TableLifetime, ...]) -> int:
    """Return the weight of the versions of a name, without the current version of a living table."""
    versions = [version.table for lifetime in lifetimes for version in lifetime.versions]
    living = 1 if lifetimes and lifetimes[-1].until is None else 0
    return sum(map(weight_of, versions[: len(versions) - living]))


def is_changed(before: ClusterState, after: ClusterState) -> bool:
    """Return whether a weighed section changed. Written without a loop, because it runs for every command."""
    return (
        after.tables is not before.tables
        or after.table_lives is not before.table_lives
        or after.views is not before.views
        or after.indexes is not before.indexes
        or after.types is not before.types
        or after.functions is not before.functions
        or after.aggregates is not before.aggregates
    )


def too_large(before: ClusterState, after: ClusterState, command: Any) -> Rejected | None:
    """Return a rejection with size and bound if the schema of ``after`` is too large, or None.

    Only the changes are weighed: totals are cached by the identity of their maps.
    """
    changed = total = 0
    grows = False
    for section in LIVING:
        old, new = getattr(before, section), getattr(after, section)
        for item in () if new is old else changed_items(section, old, new, command):
            size = _WEIGHTS[section](item)
            changed += size
            if size > RECORD_BYTES_MAX:
                subject = f"{_NAMES[section]} {item.keyspace}.{item.name}: its record"
                return _refusal(subject, size, RECORD_BYTES_MAX, "use fewer columns, or smaller types")
        known, now = _total(section, old, old, command), _total(section, new, old, command)
        grows, total = grows or now > known, total + now
    if changed > CHANGED_BYTES_MAX:
        then = "change a type or a column that fewer tables use"
        return _refusal("schema: the records that change", changed, CHANGED_BYTES_MAX, then)
    if grows and total > SCHEMA_BYTES_MAX:
        return _refusal("schema: the whole schema", total, SCHEMA_BYTES_MAX, "drop unused objects")
    return _too_much_past(before, after, command)


def _too_much_past(before: ClusterState, after: ClusterState, command: Any) -> Rejected | None:
    old, new = before.table_lives, after.table_lives
    if new is old or (now := _total("table_lives", new, old, command)) <= PAST_BYTES_MAX:
        return None
    if now <= _total("table_lives", old, old, command):
        return None
    text = f"name: earlier versions of tables could have {now:,} bytes, the limit is {PAST_BYTES_MAX:,}"
    return Rejected("too_many_versions", text)


def changed_items(section: str, old: Map[str, Any], new: Map[str, Any], command: Any) -> Iterable[Any]:
    """Return the items of ``new`` that are new or replaced."""
    return [new[name] for name in _changed_names(section, old, new, command) if name in new]


def _changed_names(section: str, old: Map[str, Any], new: Map[str, Any], command: Any) -> Iterable[str]:
    if command.CHANGES_ITS_TABLE and section in ("tables", "table_lives"):
        return (f"{command.keyspace}.{command.name}",)
    names = [name for name, item in new.items() if old.get(name) is not item]
    return sorted(names) + sorted([name for name in old if name not in new])


def _total(section: str, of: Map[str, Any], base: Map[str, Any], command: Any) -> int:
    """Return the weight of all items of a section, computed from that of ``base``, which ``command`` changed into
    ``of``.
    """
    totals, weigh = _TOTALS[section], _WEIGHTS[section]
    if (known := totals.get(of)) is not None:
        return known
    if of is base:
        return totals.put(of, sum(map(weigh, of.values())))
    total = _total(section, base, base, command)
    for name in _changed_names(section, base, of, command):
        total += (weigh(of[name]) if name in of else 0) - (weigh(base[name]) if name in base else 0)
    assert total >= (RECORD * len(of) if section in LIVING else 0), "each item counts at least as a record"
    return totals.put(of, total)


def _refusal(subject: str, size: int, most: int, then: str) -> Rejected:
    return Rejected("too_large", f"{subject} could have {size:,} bytes, the limit is {most:,}: {then}")


_NAMES: Final = dict(zip(LIVING, ("table", "view", "index", "type", "function", "aggregate"), strict=True))
_WEIGHTS: Final[dict[str, Callable[[Any], int]]] = {
    **dict.fromkeys(LIVING, weight_of_part),
    "tables": weight_of,
    "table_lives": weight_of_past,
}
_TOTALS: Final = {section: IdentityCache[Map[str, Any], int](4) for section in _WEIGHTS}
