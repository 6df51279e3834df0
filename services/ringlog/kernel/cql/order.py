"""The order of CQL values by their bytes: the order of rows in a partition and of elements in a collection.

- Integers, times and floats: by number, NaN last.
- Text and blobs: by their bytes. False before true.
- A timeuuid: by its time, then its bytes. Another uuid: by its version first, version 1 then by its time.
- A collection: by its elements; a prefix of another collection comes first.
- A tuple or a user type: by its fields, null first.
- Other types: by their bytes. Bytes that are not a value of their type: by their bytes, after all values.

A clustering bound is a prefix: it comes before or after all rows that begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlog.kernel.cql.collections import shape_of, split_elements, split_fields
from ringlog.kernel.cql.types import TYPES, TypeMismatch, deserialize

NUMBERS = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "varint", "timestamp", "date", "time"})
FLOATS = frozenset({"float", "double"})
UUIDS = frozenset({"uuid", "timeuuid"})
assert TYPES.keys() > NUMBERS | FLOATS | UUIDS, "each name is a scalar type"
assert len(NUMBERS | FLOATS | UUIDS) == len(NUMBERS) + len(FLOATS) + len(UUIDS), "a type has one order"


def sort_key(type_name: str, data: bytes) -> tuple[Any, ...]:
    """Return a key that sorts values of one type."""
    if type_name not in NUMBERS | FLOATS | UUIDS:
        return (0, data) if type_name in TYPES else _by_parts(type_name, data)
    try:
        value = deserialize(type_name, data)
    except TypeMismatch:
        return (1, data)
    if type_name in NUMBERS:
        return (0, value)
    if type_name in FLOATS:
        return (0, value != value, 0.0 if value != value else value)
    assert len(data) == 16, "a value of the remaining types is a UUID"
    version = data[6] >> 4
    ticks = int.from_bytes(bytes((data[6] & 0x0F, data[7])) + data[4:6] + data[:4], "big") if version == 1 else 0
    return (0, version, ticks, data)


def _by_parts(type_name: str, data: bytes) -> tuple[Any, ...]:
    """Return a key for values of a type with parts. Invalid bytes sort after all values."""
    shape = shape_of(type_name)
    if shape is None or not shape.parts:
        return (0, data)
    kinds = [str(part) for part in shape.parts]
    try:
        if shape.has_fields:
            fields = zip(kinds, split_fields(data, len(kinds)), strict=False)
            return (0, tuple(() if field is None else sort_key(kind, field) for kind, field in fields))
        elements = split_elements(data, len(kinds))
    except ValueError:
        return (1, data)
    pairs = (tuple(sort_key(kind, part) for kind, part in zip(kinds, each, strict=True)) for each in elements)
    return (0, tuple(pairs))


def is_empty_range(
    types: Sequence[str], start: Sequence[bytes], start_inclusive: bool, end: Sequence[bytes], end_inclusive: bool
) -> bool:
    """Return True if no clustering key is between the bounds. ``types``: of the clustering columns, in key order."""
    for type_name, low, high in zip(types, start, end, strict=False):
        one, other = sort_key(type_name, low), sort_key(type_name, high)
        if one != other:
            return one > other
    # One is a prefix of the other: rows that begin with the shorter one are in between, unless its side excludes them.
    if len(start) == len(end):
        return bool(start) and not (start_inclusive and end_inclusive)
    return not start_inclusive if 0 < len(start) < len(end) else not end_inclusive and 0 < len(end) < len(start)
