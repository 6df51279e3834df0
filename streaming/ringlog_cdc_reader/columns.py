"""Spark schema of a table's CDC log, named as in ScyllaDB, and the conversion of decoded rows to Arrow batches.

============================  =====================================================================================
column                        type
============================  =====================================================================================
``cdc$stream_id``             binary
``cdc$time``                  string: the time UUID. It does not sort by time; ``cdc$timestamp`` does
``cdc$batch_seq_no``          int
``cdc$operation``             tinyint
``cdc$ttl``                   bigint, seconds. Null: the row does not expire
``cdc$end_of_batch``          boolean
``cdc$timestamp``             bigint: the write's timestamp in microseconds since 1970
``cdc$generation``            bigint: timestamp of the generation
key and data columns          as below
``cdc$deleted_<col>``         boolean: set to null. For a collection: its earlier elements were removed
``cdc$deleted_elements_…``    array: keys of the removed elements, for multi-cell collections only
``cdc$undecoded``             map from text to binary: values without a column (``ringlog.client.cdc.rows``)
============================  =====================================================================================

CQL ascii, text, uuid, timeuuid and varint become strings, time a bigint (ns), date a date, and timestamp a timestamp
(clamped to Spark's range). A set becomes an array, and a list a map from time UUID to value, as in the log. A user type
becomes a struct of its fields, and a tuple a struct of ``_1``, ``_2``, ….

This module is the definition. ``ringlog_cdc_reader.vectors`` gives the same batches faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ringlog.client.cdc.errors import TableReplaced, TablesForgotten
from ringlog.client.cdc.rows import DELETED, ELEMENTS, TableTypes
from ringlog.client.cdc.table_versions import NamePeriod
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.collections import TypeShape, shape_of
from ringlog.kernel.cql.types import TypeMismatch, deserialize
from ringlog.kernel.values import Value, replace
from ringlog.wire.avro.mapping import uuid_text
from ringlog.wire.records import CdcRow

TIMESTAMP_MAX = 2**63 - 1
"""Largest value of Spark's and Arrow's timestamp, in microseconds. Times of the log itself end earlier
(``MICROS_MAX``).
"""
EPOCH = "cdc$epoch"
"""Name of the optional column with the metadata epoch of each row."""

Convert = Callable[[Any], Any]
"""Function from a deserialized CQL value to the value that Arrow takes."""

_SCALARS: Mapping[str, pa.DataType] = {
    "ascii": pa.string(),
    "text": pa.string(),
    "uuid": pa.string(),
    "timeuuid": pa.string(),
    "varint": pa.string(),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "time": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class _Kind(Value):
    """Arrow type of a CQL type, and the conversion of its values. ``convert`` is None if values stay the same."""

    arrow: pa.DataType
    convert: Convert | None


def _micros(millis: int) -> int:
    """Return microseconds, clamped to Spark's range. CQL timestamps are milliseconds and reach further."""
    return max(-TIMESTAMP_MAX, min(TIMESTAMP_MAX, millis * 1_000))


_CONVERTS: Mapping[str, Convert] = {"varint": str, "timestamp": _micros}


def _kind(shape: TypeShape) -> _Kind:
    """Return the Arrow type and conversion of a CQL type, recursively for collections."""
    if not shape.parts:
        return _Kind(_SCALARS[shape.name], _CONVERTS.get(shape.name))
    parts = [_kind(part) for part in shape.parts]
    if shape.has_fields:
        return _struct(shape, parts)
    if shape.name == "map":
        key, value = (part.convert or _same for part in parts)
        return _Kind(pa.map_(parts[0].arrow, parts[1].arrow), lambda found: [(key(k), value(v)) for k, v in found])
    each = parts[0].convert or _same
    return _Kind(pa.list_(parts[0].arrow), lambda found: [each(item) for item in found])


def _struct(shape: TypeShape, parts: Sequence[_Kind]) -> _Kind:
    """Return the Arrow type and conversion of a user type or tuple."""
    names = shape.fields or tuple(f"_{number}" for number in range(1, len(parts) + 1))
    converts = [part.convert or _same for part in parts]

    def convert(found: Any) -> dict[str, Any]:
        values = [found.get(name) for name in names] if shape.fields else found
        each = zip(names, values, converts, strict=True)
        return {name: None if value is None else own(value) for name, value, own in each}

    return _Kind(pa.struct([pa.field(name, part.arrow) for name, part in zip(names, parts, strict=True)]), convert)


def _same(value: Any) -> Any:
    return value


class LogColumns:
    """The columns of one table's log. Picklable, since Spark sends it to the tasks.

    A table name can belong to several tables over time. A ``NamePeriod`` is the range of metadata epochs when a table
    had the name.

    Attributes:
        table: The table, in its newest version.
        life: Epochs when the table had its name. Rows decided at other epochs are skipped. None: every row is the
            table's.
        out: Columns to omit. Their values become undecoded.
        with_epoch: Add the column ``cdc$epoch``: the epoch that decided the write, or null if the row does not name
            one.
        now: The same period as known now, if the table may have lost its name during the query. A row of the next table
            with that name raises TableReplaced instead of being skipped.
    """

    def __init__(
        self,
        table: TableChange,
        life: NamePeriod | None = None,
        out: frozenset[str] = frozenset(),
        with_epoch: bool = False,
        now: NamePeriod | None = None,
    ) -> None:
        self.table = table
        self.life = life
        self.out = out
        self.with_epoch = with_epoch
        self.now = now

    def is_mine(self, epoch: int) -> bool:
        """Return True if a row decided at this epoch belongs to the table.

        Raises:
            TableReplaced: Another table has the name since, and the query did not select this one by id.
            TablesForgotten: The known history starts after this epoch.
        """
        name = f"{self.table.keyspace}.{self.table.name}"
        if self.now is not None and self.now.is_over(epoch):
            assert self.now.end is not None, "a period that is over has an end"
            raise TableReplaced(name, self.table.id, self.now.end)
        if self.life is not None and not self.life.knows(epoch):
            raise TablesForgotten(name, epoch)
        return self.life is None or self.life.has(epoch)

    def with_past(self, whole: NamePeriod) -> LogColumns:
        """Return a copy that knows the earlier history of the name.

        Args:
            whole: Period of the table from the whole metadata log.
        """
        assert self.life is not None, "a whole life covers all rows"
        life = replace(self.life, first=whole.first, known_from=whole.known_from)
        return LogColumns(self.table, life, self.out, self.with_epoch, self.now)

    def until(self, now: NamePeriod | None, *, by_id: bool) -> LogColumns:
        """Return a copy for a table whose period may have ended during the query.

        Args:
            now: The period as known now. None: unchanged.
            by_id: The query selected the table by id, so rows of the next table with that name are skipped, not an
                error.
        """
        if now is None or not by_id:
            return LogColumns(self.table, self.life, self.out, self.with_epoch, now)
        assert self.life is not None, "the period of the name is known"
        life = replace(self.life, end=now.end, is_last=now.is_last)
        return LogColumns(self.table, life, self.out, self.with_epoch)

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the batches."""
        types = TableTypes(self.table)
        fields = [
            pa.field("cdc$stream_id", pa.binary()),
            pa.field("cdc$time", pa.string()),
            pa.field("cdc$batch_seq_no", pa.int32()),
            pa.field("cdc$operation", pa.int8()),
            pa.field("cdc$ttl", pa.int64()),
            pa.field("cdc$end_of_batch", pa.bool_()),
            pa.field("cdc$timestamp", pa.int64()),
            pa.field("cdc$generation", pa.int64()),
        ]
        fields += [pa.field(name, _kind_of(kind).arrow) for name, kind in types.columns.items()]
        for name in types.data:
            fields.append(pa.field(DELETED + name, pa.bool_()))
            if types.keys[name]:
                fields.append(pa.field(ELEMENTS + name, pa.list_(_kind_of(types.keys[name]).arrow)))
        fields.append(pa.field("cdc$undecoded", pa.map_(pa.string(), pa.binary())))
        if self.with_epoch:
            fields.append(pa.field(EPOCH, pa.int64()))
        return pa.schema([field for field in fields if field.name not in self.out])

    def spark_schema(self) -> StructType:
        """Return the same schema for Spark."""
        return from_arrow_schema(self.schema())

    def batch(self, rows: Sequence[CdcRow]) -> pa.RecordBatch:
        """Convert decoded rows to one batch. Rows of other tables are skipped."""
        types, schema = TableTypes(self.table), self.schema()
        rows = [types.named(row) for row in rows if self.is_mine(row.epoch)]
        columns: dict[str, list[Any]] = {
            "cdc$stream_id": [row.stream_id for row in rows],
            "cdc$time": [uuid_text(row.time) for row in rows],
            "cdc$batch_seq_no": [row.batch_seq_no for row in rows],
            "cdc$operation": [row.operation for row in rows],
            "cdc$ttl": [row.ttl for row in rows],
            "cdc$end_of_batch": [row.end_of_batch for row in rows],
            "cdc$timestamp": [row.timestamp for row in rows],
            "cdc$generation": [row.generation for row in rows],
            # Epoch 0 stands for a row that does not name its epoch.
            EPOCH: [row.epoch or None for row in rows],
        }
        undecoded = [dict(types.unmatched_values(row, self.out)) for row in rows]
        given = [_named(row, types) for row in rows]
        for name, kind in types.columns.items():
            if name in self.out:
                continue
            read = reader_of(kind)
            columns[name] = [
                read_value(read, name, found.get(name), odd) for found, odd in zip(given, undecoded, strict=True)
            ]
        for name in types.data:
            columns[DELETED + name] = [True if name in row.deleted else None for row in rows]
            if types.keys[name]:
                read = reader_of(types.keys[name])
                columns[ELEMENTS + name] = [_taken(row, name, read) for row in rows]
        columns["cdc$undecoded"] = [list(odd.items()) or None for odd in undecoded]
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )


def _named(row: CdcRow, types: TableTypes) -> dict[str, bytes | None]:
    """Return column name to raw value.

    Key columns take their value from the row's key only, even if a cell has their name.
    """
    found: dict[str, bytes | None] = {cell.column: cell.value for cell in row.cells}
    found |= dict.fromkeys((*types.partition_key, *types.clustering_key))
    # Not strict: a row of another version of the table may have a longer or shorter key.
    found.update(zip(types.partition_key, row.partition_key, strict=False))
    found.update(zip(types.clustering_key, row.clustering_key, strict=False))
    return found


def _kind_of(type_name: str) -> _Kind:
    shape = shape_of(type_name)
    assert shape is not None, f"{type_name} is a column's type"
    return _kind(shape)


def reader_of(type_name: str) -> Convert:
    """Return a function from CQL bytes of this type to the Arrow value. The function raises TypeMismatch."""
    convert = _kind_of(type_name).convert
    if convert is None:
        return lambda data: deserialize(type_name, data)
    return lambda data: convert(deserialize(type_name, data))


def read_value(read: Convert, name: str, data: bytes | None, odd: dict[str, bytes]) -> Any:
    """Return the value, or None for None.

    Args:
        read: Function from ``reader_of``.
        name: The column.
        data: CQL bytes, or None.
        odd: Undecoded values of the row. Receives ``data`` if it does not fit the type.
    """
    if data is None:
        return None
    try:
        return read(data)
    except TypeMismatch:
        odd[name] = data
        return None


def _taken(row: CdcRow, name: str, read: Convert) -> list[Any] | None:
    """Return the keys of the elements that a row removed from a collection, or None.

    Unreadable keys become null here; ``TableTypes.unmatched_values`` reports them as undecoded.
    """
    for found in row.deleted_elements:
        if found.column == name:
            odd: dict[str, bytes] = {}
            return [read_value(read, name, key, odd) for key in found.keys]
    return None
