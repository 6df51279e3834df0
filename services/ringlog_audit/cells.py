"""A comparison of a row of the lake with its row of the CDC topic, by bytes and the lake's column types.

Each value of the topic's row must be in its column or, as bytes, in ``cdc$undecoded``. The row of the lake must have no
other values. The lake's column type determines how to read the bytes. A text may show a uuid, a varint or a text, so
each of these readings is accepted. A value may be undecoded if its table version or the lake has no column for it, or
if the column in the lake has another type. It may also be undecoded if its bytes do not fit their type. This module
shares no code with the writer of the lake.

======================================  =============================================================================
the topic's row                         the lake's row
======================================  =============================================================================
a cell                                  its column
a part of the key                       its column, if the schema has the table, and else a numbered column
``deleted`` names a column              ``cdc$deleted_<col>`` is true
elements deleted from a column          ``cdc$deleted_elements_<col>`` has their keys
======================================  =============================================================================
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ringlog.kernel.cql.collections import TypeShape, key_type, log_type, shape_of
from ringlog.kernel.cql.types import TypeMismatch, deserialize
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Value

DELETED, ELEMENTS, UNDECODED = "cdc$deleted_", "cdc$deleted_elements_", "cdc$undecoded"
TIMESTAMP_MAX = 2**63 - 1
DATE_ZERO = 2**31
FLOATS = {4: ">f", 8: ">d"}
ARROW = dict.fromkeys(("ascii", "text", "uuid", "timeuuid", "varint"), "string")
ARROW |= {"blob": "binary", "boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32"}
ARROW |= {"bigint": "int64", "time": "int64", "float": "float", "double": "double"}
ARROW |= {"date": "date32", "timestamp": "timestamp"}
"""CQL type to the start of the name of its Arrow type."""


class TableOfRow(Value):
    """The table version that reads a row, by the names of columns in rows.

    ``partition``, ``clustering``: key columns. ``kinds``: type of each column in the log. ``taken``: type of the keys
    of removed elements, by column. ``types``: Arrow types of the lake's columns.
    """

    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    kinds: Mapping[str, str]
    taken: Mapping[str, str | None]
    types: Mapping[str, Any]

    @staticmethod
    def of(table: Table | None, types: Mapping[str, Any]) -> TableOfRow | None:
        """Return the version ``table`` for a lake with these columns. None if the table is not known."""
        if table is None:
            return None
        stored = dict(table.stored)
        partition = tuple(stored.get(name, name) for name in table.partition_key)
        clustering = tuple(stored.get(name, name) for name in table.clustering_key)
        columns = {stored.get(column.name, column.name): column.type for column in table.columns}
        kinds = {name: log_type(kind) for name, kind in columns.items()}
        taken = {name: key_type(kind) for name, kind in columns.items()}
        return TableOfRow(partition, clustering, kinds, taken, types)

    def must_decode(self, name: str, data: Any) -> bool:
        """Return True if a value of the row has a type, and the lake has a column of this type for it."""
        column = self.types.get(name)
        if column is None:
            return False
        if data is True:
            return name.removeprefix(DELETED) in self.kinds and str(column) == "bool"
        if isinstance(data, list):
            kind = self.taken.get(name.removeprefix(ELEMENTS))
            if not kind or not str(column).startswith("list"):
                return False
            return is_column_of(column.value_type, shape_of(kind)) and all(_fits(kind, key) for key in data)
        kind = self.kinds.get(name)
        return kind is not None and is_column_of(column, shape_of(kind)) and _fits(kind, data)


def _fits(kind: str, data: bytes) -> bool:
    try:
        deserialize(kind, data)
    except TypeMismatch:
        return False
    return True


def is_column_of(column: Any, shape: TypeShape | None) -> bool:
    """Return True if an Arrow type is that of a CQL type of the log."""
    assert shape is not None, "a column of a table has a type"
    text = str(column)
    if not shape.parts:
        return text.startswith(ARROW[shape.name])
    if shape.has_fields:
        names = shape.fields or tuple(f"_{number}" for number in range(1, len(shape.parts) + 1))
        if not text.startswith("struct") or [field.name for field in column] != [*names]:
            return False
        return all(is_column_of(field.type, part) for field, part in zip(column, shape.parts, strict=True))
    if shape.name == "map":
        inner: tuple[Any, ...] = (column.key_type, column.item_type) if text.startswith("map") else ()
    else:
        inner = (column.value_type,) if text.startswith("list") else ()
    return len(inner) == len(shape.parts) and all(map(is_column_of, inner, shape.parts))


def says_the_same(row: Mapping[str, Any], there: Mapping[str, Any], table: TableOfRow | None) -> bool:
    """Return True if both rows have the same values.

    ``row``: decoded row of the topic. ``there``: row of the lake, Arrow scalars by column. ``table``: None if not
    known.
    """
    undecoded = {} if there.get(UNDECODED) is None else dict(there[UNDECODED].as_py() or ())
    named: set[str] = set()
    for name, data in _expected_cells(row, table):
        named.add(name)
        scalar = there.get(name)
        value = None if scalar is None or not scalar.is_valid else scalar
        if name in undecoded:
            if value is not None or bytes(undecoded[name]) != _bytes(data):
                return False
            if table is not None and table.must_decode(name, data):
                return False
        elif value is None or not _holds(value, data):
            return False
    own = {name for name, scalar in there.items() if scalar.is_valid and _is_of_table(name)} | set(undecoded)
    if table is None:
        own = {name for name in own if name.startswith("cdc$")}  # some of the other columns are key columns
    return own <= named


def _expected_cells(row: Mapping[str, Any], table: TableOfRow | None) -> Iterator[tuple[str, Any]]:
    """Yield the values of a row of the topic by the lake's column: bytes, True, or a list of keys."""
    if table is not None:
        for names, prefix, parts in (
            (table.partition, "partition", row["partition_key"]),
            (table.clustering, "clustering", row["clustering_key"]),
        ):
            for place, part in enumerate(parts):
                if part is not None:
                    yield names[place] if place < len(names) else f"{prefix}_{place}", part
    found = {cell["column"]: cell["value"] for cell in row["cells"] if cell["value"] is not None}
    yield from found.items()
    for column in row["deleted"]:
        yield DELETED + column, True
    for taken in row["deleted_elements"]:
        yield ELEMENTS + taken["column"], list(taken["keys"])


def _is_of_table(name: str) -> bool:
    return not name.startswith("cdc$") or name.startswith(DELETED)


def _bytes(data: Any) -> bytes:
    if data is True:
        return b"\1"
    return b",".join(key.hex().encode() for key in data) if isinstance(data, list) else bytes(data)


def _holds(value: Any, data: Any) -> bool:
    if data is True:
        return bool(value.as_py())
    if isinstance(data, list):
        return len(value) == len(data) and all(map(is_value, value, data))
    return is_value(value, data)


def is_value(value: Any, data: bytes) -> bool:
    """Return True if an Arrow scalar of the lake has the value of these bytes."""
    try:
        return _is_value(value, data)
    except (ValueError, struct.error, IndexError, OverflowError):
        return False


def _is_value(value: Any, data: bytes) -> bool:
    kind = str(value.type)
    if kind.startswith("timestamp"):
        micros = int.from_bytes(data, "big", signed=True) * 1_000
        return len(data) == 8 and bool(value.value == max(-TIMESTAMP_MAX, min(TIMESTAMP_MAX, micros)))
    if kind.startswith("date32"):
        return len(data) == 4 and bool(value.value == int.from_bytes(data, "big") - DATE_ZERO)
    if kind.startswith(("map", "list", "struct")):
        return _has_parts(kind, value, data)
    own = value.as_py()
    if isinstance(own, bool):
        return data == bytes([own])
    if isinstance(own, int):
        return own == int.from_bytes(data, "big", signed=True) and len(data) * 8 == value.type.bit_width
    if isinstance(own, float):
        (found,) = struct.unpack(FLOATS[len(data)], data)
        return bool(found == own) or (math.isnan(found) and math.isnan(own))
    if isinstance(own, bytes):
        return own == data
    return own in _texts(data)


def _texts(data: bytes) -> Iterator[str]:
    """Yield the texts that the bytes may represent."""
    if len(data) == 16:
        yield str(uuid.UUID(bytes=data))
    yield str(int.from_bytes(data, "big", signed=True))
    yield data.decode()


def _has_parts(kind: str, value: Any, data: bytes) -> bool:
    if kind.startswith("struct"):
        fields = list(_fields(data))
        own = [value[number] for number in range(len(value.type))]
        fields += [None] * (len(own) - len(fields))
        return len(fields) == len(own) and all(
            not element.is_valid if field is None else element.is_valid and is_value(element, field)
            for element, field in zip(own, fields, strict=True)
        )
    elements = list(_fields(data[4:]))
    own = (
        [part for pair in value.values for part in (pair["key"], pair["value"])] if kind.startswith("map") else [*value]
    )
    count = int.from_bytes(data[:4], "big")
    return (
        len(data) >= 4
        and len(elements) == len(own) == count * (1 + kind.startswith("map"))
        and all(field is not None and is_value(element, field) for element, field in zip(own, elements, strict=True))
    )


def _fields(data: bytes) -> Iterator[bytes | None]:
    """Yield length-prefixed parts. Raise ValueError if a part goes beyond the end."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        end = at + 4 + max(size, 0)
        if size < -1 or end > len(data):
            raise ValueError("a part ends after the end of the value")
        yield None if size < 0 else data[at + 4 : end]
        at = end
