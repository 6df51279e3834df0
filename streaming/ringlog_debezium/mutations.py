"""From a change event to a mutation: pure functions of the event, its place, and the table that it goes to.

=====  ==================================================================================================
op     mutation
=====  ==================================================================================================
c, r   INSERT of all columns in ``after``
u      UPDATE of the columns in ``after`` that differ from ``before``; of all where there is no ``before``
d      ROW_DELETE; the key is that of ``before``, of ``after`` (some have it there), or of the record
=====  ==================================================================================================

A record without a value (a tombstone) follows each delete and says nothing more. Everything else is refused, with
a reason of ``REASONS``.

The *timestamp* is that of the change in the source. It is coarse, a transaction's changes often share one, and
last-write-wins needs an order: changes of one source partition that come one after the other with the same timestamp
get one microsecond more each (``EventClock``). The *mutation id* is a function of topic, partition and offset, so an
event that is read twice is one write.

ScyllaDB's connector puts each column that is no key into a cell: no cell, the write did not touch it; a cell without a
value, it was deleted. Its flat form has no cells; without schemas, null then counts as not touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.cql.collections import shape_of
from ringlog.kernel.model.tables import Table
from ringlog.wire.records import INSERT, ROW_DELETE, UPDATE, Cell, Mutation
from ringlog_debezium.envelope import BadRecord, Envelope, Names
from ringlog_debezium.values import UNKNOWN, BadValue, is_unavailable, to_cql

REASONS: tuple[tuple[str, str], ...] = (
    ("unreadable_envelope", "the record is not written in the form that was named"),
    ("unknown_schema", "no file was given for the number of its schema"),
    ("bad_envelope", "the record is no change event of Debezium"),
    ("unknown_source", "no table of the cluster takes the changes of the event's table"),
    ("unsupported_operation", "the operation is none of c, u, d, r"),
    ("missing_key", "the event has no value for a key column of the table, or an update changes it"),
    ("unknown_column", "the table has no such column"),
    ("bad_value", "a value is not of its column's type, or does not say what it is"),
)
"""(code, rule) of what an event is refused for."""

OPERATIONS = {"c": INSERT, "r": INSERT, "u": UPDATE, "d": ROW_DELETE}
SCYLLA = "scylla"
NAMESPACE = uuid.UUID("8f0dc23c-6d2e-5b05-9c43-3d0d0f7fd1a8")
"""Of mutation ids."""


@dataclass(frozen=True, slots=True)
class EventClock:
    """The source timestamp of the last event of a partition (microseconds), and how many have had it since."""

    base: int = -1
    count: int = 0

    def next(self, timestamp: int) -> EventClock:
        """After one more event; its own timestamp is ``now``."""
        return EventClock(timestamp, self.count + 1 if timestamp == self.base else 0)

    @property
    def now(self) -> int:
        """The timestamp of the last event's mutation."""
        return self.base + self.count


@dataclass(frozen=True, slots=True)
class ImportRules:
    """``tables``: name in the source to the full name here, where they differ. ``unit``: of times without a schema.

    ``ignore_unknown``: columns that the table has not are left out, not refused.
    """

    tables: Mapping[str, str]
    unit: str = ""
    ignore_unknown: bool = False


def source_name(envelope: Envelope) -> str:
    """The table that changed, ``schema.table``; of sources without schemas ``database.table``. Raises BadRecord."""
    source = envelope.source
    table = source.get("table") or source.get("table_name")
    within = source.get("schema") or source.get("keyspace_name") or source.get("db")
    if not isinstance(table, str) or not isinstance(within, str):
        raise BadRecord("bad_envelope", "source does not name the table")
    return f"{within}.{table}"


def source_time(envelope: Envelope) -> int:
    """When the change was made in the source, microseconds. Raises BadRecord."""
    for name, numerator, divisor in (("ts_us", 1, 1), ("ts_ns", 1, 1_000), ("ts_ms", 1_000, 1)):
        found = envelope.source.get(name)
        if type(found) is int and 0 < found * numerator // divisor < 2**62:
            return found * numerator // divisor
    raise BadRecord("bad_envelope", "source has neither ts_us, ts_ns nor ts_ms")


def mutation_id(topic: str, partition: int, offset: int) -> str:
    """The id of the mutation that an event becomes."""
    return str(uuid.uuid5(NAMESPACE, f"{topic}/{partition}/{offset}"))


def mutation_of(
    envelope: Envelope, key: Names, table: Table, rules: ImportRules, *, name: str, timestamp: int
) -> Mutation | None:
    """The mutation of an event; None if it changes nothing. ``name``: the mutation's id. Raises BadRecord."""
    operation = OPERATIONS.get(envelope.op)
    if operation is None:
        raise BadRecord("unsupported_operation", f"op {envelope.op!r:.20}")
    types = {column.name: column.type for column in table.columns}
    image = envelope.after if operation != ROW_DELETE or envelope.before is None else envelope.before
    if operation != ROW_DELETE and image is None:
        raise BadRecord("bad_envelope", f"op {envelope.op} without after")
    partition_key, clustering_key = (
        tuple(_key_part(envelope, column, image, key, types[column], rules) for column in columns)
        for columns in (table.partition_key, table.clustering_key)
    )
    _check_key_kept(envelope, table)
    cells = () if operation == ROW_DELETE else _cells(envelope, table, types, rules)
    if operation == UPDATE and not cells:
        return None
    return Mutation(
        mutation_id=name,
        cluster_id=None,
        keyspace=table.keyspace,
        table=table.name,
        timestamp=timestamp,
        ttl=None,
        operation=operation,
        partition_key=partition_key,
        clustering_key=clustering_key,
        cells=cells,
    )


def _key_part(
    envelope: Envelope, column: str, image: Names | None, key: Names, type_name: str, rules: ImportRules
) -> bytes:
    given = image if image is not None and image.get(column) is not None else key
    value = _value(envelope, column, given.get(column), type_name, rules)
    if value is None:
        raise BadRecord("missing_key", f"no {column}")
    return value


def _check_key_kept(envelope: Envelope, table: Table) -> None:
    before, after = envelope.before, envelope.after
    if envelope.op != "u" or not before or after is None:
        return
    for column in table.partition_key + table.clustering_key:
        if column in before and before[column] is not None and before[column] != after.get(column):
            raise BadRecord("missing_key", f"an update changes {column}: Debezium tells that by a delete and a create")


def _cells(envelope: Envelope, table: Table, types: Mapping[str, str], rules: ImportRules) -> tuple[Cell, ...]:
    """The columns that the event says something of, in the order of ``after``."""
    after, before = envelope.after or {}, envelope.before if envelope.op == "u" else None
    cells = []
    for column, raw in after.items():
        if column in table.partition_key or column in table.clustering_key or is_unavailable(raw):
            continue
        if column not in types:
            if rules.ignore_unknown:
                continue
            raise BadRecord("unknown_column", column[:100])
        touched, value = _unwrapped(envelope, column, raw)
        if touched and not (before is not None and column in before and before[column] == raw):
            cells.append(Cell(column, _value(envelope, column, value, types[column], rules)))
    return tuple(cells)


def _unwrapped(envelope: Envelope, column: str, raw: Any) -> tuple[bool, Any]:
    """(whether the write touched a column, its value)."""
    if envelope.source.get("connector") != SCYLLA:
        return True, raw
    if isinstance(raw, dict) and raw.keys() == {"value"}:
        return True, raw["value"]
    in_cell = envelope.meanings is None or envelope.meanings.get(column, UNKNOWN).wrapped
    return not (raw is None and in_cell), raw


def _value(envelope: Envelope, column: str, value: Any, type_name: str, rules: ImportRules) -> bytes | None:
    shape = shape_of(type_name)
    if value is not None and shape is not None and shape.parts:
        raise BadRecord("bad_value", f"{column}: only scalar values are taken")
    try:
        return to_cql(type_name, value, (envelope.meanings or {}).get(column, UNKNOWN), rules.unit)
    except BadValue as error:
        raise BadRecord("bad_value", f"{column}: {error}") from None
