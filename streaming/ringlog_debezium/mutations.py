"""Conversion of change events to mutations: pure functions of the event, its position in the topic, and the target
table.

=====  ==================================================================================================
op     mutation
=====  ==================================================================================================
c, r   INSERT of all columns in ``after``
u      UPDATE of the columns in ``after`` that differ from ``before``, or of all if ``before`` is missing
d      ROW_DELETE, with the key from ``before``, else from ``after``, else from the record key
=====  ==================================================================================================

Debezium writes a tombstone (a record without a value) after each delete. It carries no information and is skipped. All
other events are rejected with a code of ``REASONS``.

Invariants:

* The *mutation id* is a function of topic, partition and offset. An event that is read twice is one write.
* The *timestamp* is the time of the change in the source. That time is coarse, and changes of one transaction often
  share it, but last-write-wins needs an order. Consecutive events of a partition with the same source time therefore
  get 0, 1, 2, … microseconds added (``EventClock``).

ScyllaDB's connector wraps each column that is not a key into a cell. A missing cell means that the write did not touch
the column; a cell without a value means that it deleted the column. The connector's flat format has no cells. Without
schemas, null in that format counts as not touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ringlog.kernel.cql.collections import shape_of
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Value
from ringlog.wire.records import INSERT, ROW_DELETE, UPDATE, Cell, Mutation
from ringlog_debezium.envelope import BadRecord, Envelope, Names
from ringlog_debezium.values import UNKNOWN, BadValue, is_unavailable, to_cql

REASONS: tuple[tuple[str, str], ...] = (
    ("unreadable_envelope", "the record does not have the format of --format"),
    ("unknown_schema", "no --schema has the schema number of the record"),
    ("bad_envelope", "the record is not a Debezium change event"),
    ("unknown_source", "no table of the cluster corresponds to the table of the event"),
    ("unsupported_operation", "the operation is not c, u, d or r"),
    ("missing_key", "the event has no value for a key column of the table, or an update changes it"),
    ("unknown_column", "the table does not have the column"),
    ("bad_value", "the value does not fit the type of its column, or its type is ambiguous"),
)
"""(code, rule) for each reason to reject an event."""

OPERATIONS = {"c": INSERT, "r": INSERT, "u": UPDATE, "d": ROW_DELETE}
"""Debezium's ``op`` to the mutation's operation."""
SCYLLA = "scylla"
"""Value of ``source.connector`` in events of ScyllaDB's connector."""
NAMESPACE = uuid.UUID("8f0dc23c-6d2e-5b05-9c43-3d0d0f7fd1a8")
"""UUID namespace of mutation ids. Changing it would import events again as new writes."""


class EventClock(Value):
    """Timestamp generator for one partition.

    Attributes:
        base: Source time of the last event, microseconds.
        count: Number of earlier consecutive events with the same source time.
    """

    base: int = -1
    count: int = 0

    def next(self, timestamp: int) -> EventClock:
        """Return the clock after one more event. The event's own timestamp is ``now`` of the result.

        Args:
            timestamp: Source time of the event, microseconds.
        """
        return EventClock(timestamp, self.count + 1 if timestamp == self.base else 0)

    @property
    def now(self) -> int:
        """Timestamp of the last event's mutation, microseconds."""
        return self.base + self.count


class ImportRules(Value):
    """Options of the conversion.

    Attributes:
        tables: Table name in the source to ``keyspace.table`` here. Tables with equal names may be omitted.
        unit: Unit of times in events without schemas: ``ms``, ``us`` or ``ns``. Empty rejects such times.
        ignore_unknown: Drop columns that the target table does not have, instead of rejecting the event.
    """

    tables: Mapping[str, str]
    unit: str = ""
    ignore_unknown: bool = False


def source_name(envelope: Envelope) -> str:
    """Return the changed table as ``schema.table``, or as ``database.table`` for sources without schemas.

    Raises:
        BadRecord: ``source`` does not name the table.
    """
    source = envelope.source
    table = source.get("table") or source.get("table_name")
    within = source.get("schema") or source.get("keyspace_name") or source.get("db")
    if not isinstance(table, str) or not isinstance(within, str):
        raise BadRecord("bad_envelope", "source does not contain the name of the table")
    return f"{within}.{table}"


def source_time(envelope: Envelope) -> int:
    """Return the time of the change in the source, microseconds.

    Raises:
        BadRecord: ``source`` has no usable ``ts_us``, ``ts_ns`` or ``ts_ms``.
    """
    for name, numerator, divisor in (("ts_us", 1, 1), ("ts_ns", 1, 1_000), ("ts_ms", 1_000, 1)):
        found = envelope.source.get(name)
        # ``type is int`` excludes booleans. The bound keeps base + count within 64 bits.
        if type(found) is int and 0 < found * numerator // divisor < 2**62:
            return found * numerator // divisor
    raise BadRecord("bad_envelope", "source has none of ts_us, ts_ns and ts_ms")


def mutation_id(topic: str, partition: int, offset: int) -> str:
    """Return the id of the mutation for the event at this offset."""
    return str(uuid.uuid5(NAMESPACE, f"{topic}/{partition}/{offset}"))


def mutation_of(
    envelope: Envelope, key: Names, table: Table, rules: ImportRules, *, name: str, timestamp: int
) -> Mutation | None:
    """Convert an event to a mutation.

    Args:
        envelope: The event.
        key: Columns of the record key, used if the row images lack a key column.
        table: Target table.
        rules: Options.
        name: The mutation's id.
        timestamp: The mutation's timestamp, microseconds.

    Returns:
        The mutation, or None for an update that changes no column.

    Raises:
        BadRecord: The event does not fit the table.
    """
    operation = OPERATIONS.get(envelope.op)
    if operation is None:
        raise BadRecord("unsupported_operation", f"op {envelope.op!r:.20}")
    types = {column.name: column.type for column in table.columns}
    image = envelope.after if operation != ROW_DELETE or envelope.before is None else envelope.before
    if operation != ROW_DELETE and image is None:
        raise BadRecord("bad_envelope", f"op {envelope.op} has no after")
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
    """Return the serialized value of a key column, from the row image or else from the record key."""
    given = image if image is not None and image.get(column) is not None else key
    value = _value(envelope, column, given.get(column), type_name, rules)
    if value is None:
        raise BadRecord("missing_key", f"no {column}")
    return value


def _check_key_kept(envelope: Envelope, table: Table) -> None:
    """Reject an update that changes a key column: as one mutation it would leave the old row in place."""
    before, after = envelope.before, envelope.after
    if envelope.op != "u" or not before or after is None:
        return
    for column in table.partition_key + table.clustering_key:
        if column in before and before[column] is not None and before[column] != after.get(column):
            raise BadRecord(
                "missing_key", f"an update changes key column {column}: Debezium must send a delete and a create"
            )


def _cells(envelope: Envelope, table: Table, types: Mapping[str, str], rules: ImportRules) -> tuple[Cell, ...]:
    """Return a cell for each data column that the event sets, in the order of ``after``."""
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
    """Return (True if the write touched the column, its value without the connector's cell)."""
    if envelope.source.get("connector") != SCYLLA:
        return True, raw
    if isinstance(raw, dict) and raw.keys() == {"value"}:
        return True, raw["value"]
    in_cell = envelope.meanings is None or envelope.meanings.get(column, UNKNOWN).wrapped
    return not (raw is None and in_cell), raw


def _value(envelope: Envelope, column: str, value: Any, type_name: str, rules: ImportRules) -> bytes | None:
    """Serialize a raw value to CQL bytes. Raises BadRecord."""
    shape = shape_of(type_name)
    if value is not None and shape is not None and shape.parts:
        raise BadRecord("bad_value", f"{column}: only scalar values are supported")
    try:
        return to_cql(type_name, value, (envelope.meanings or {}).get(column, UNKNOWN), rules.unit)
    except BadValue as error:
        raise BadRecord("bad_value", f"{column}: {error}") from None
