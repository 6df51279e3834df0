"""The order of CQL values by their bytes: that in which rows of a partition and elements of a collection lie.

Integers, times and floats go by their numbers (NaN after all others), text and blobs by their bytes, false before
true, a timeuuid by its time and then its bytes, another uuid by its version first (and of version 1 by its time). A
collection goes by its elements, the shorter one first where one is the beginning of the other; a tuple or a user type
by its fields, null first.
Anything else, and bytes that are no value of their type, goes by its bytes, after the values that are.

A clustering bound is a prefix: it lies before or after all rows that begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlog.kernel.cql.collections import shape_of, split_elements, split_fields
from ringlog.kernel.cql.types import TYPES, TypeMismatch, deserialize

NUMBERS = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "varint", "timestamp", "date", "time"})
FLOATS = frozenset({"float", "double"})
UUIDS = frozenset({"uuid", "timeuuid"})


def sort_key(type_name: str, data: bytes) -> tuple[Any, ...]:
    """Sorts values of one type."""
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
    version = data[6] >> 4
    ticks = int.from_bytes(bytes((data[6] & 0x0F, data[7])) + data[4:6] + data[:4], "big") if version == 1 else 0
    return (0, version, ticks, data)


def _by_parts(type_name: str, data: bytes) -> tuple[Any, ...]:
    """Sorts values of a type that has parts, and bytes that are none of it after these."""
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
    """True if no clustering key can lie between the bounds. ``types``: of the clustering columns, in key order."""
    for type_name, low, high in zip(types, start, end, strict=False):
        one, other = sort_key(type_name, low), sort_key(type_name, high)
        if one != other:
            return one > other
    # One is a prefix of the other: rows that begin with the shorter one lie between, unless its side leaves them out.
    if len(start) == len(end):
        return bool(start) and not (start_inclusive and end_inclusive)
    return not start_inclusive if 0 < len(start) < len(end) else not end_inclusive and 0 < len(end) < len(start)
