"""Vectorized type check of partition keys: the rule of ``ringlog.kernel.cql.types.deserialize`` on numpy arrays.

Composed keys are walked component by component, for all rows of a table at once. Sizes, ranges of numbers and versions
of UUIDs are comparisons of arrays. Text that is not ASCII is checked by Arrow as a whole. Only invalid text and frozen
collections need a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from ringlog.kernel.cql.types import TIME_MAX_NS, VARINT_BYTES_MAX, TypeMismatch, deserialize
from ringlog_cdc.columnar.words import I64, U8, Flags, is_ascii

SIZES = {
    "boolean": 1,
    "tinyint": 1,
    "smallint": 2,
    "int": 4,
    "float": 4,
    "date": 4,
    "bigint": 8,
    "double": 8,
    "timestamp": 8,
    "time": 8,
    "uuid": 16,
    "timeuuid": 16,
}
"""Type to its fixed size in bytes."""

COMPOSED_HEAD, COMPOSED_TAIL = 2, 1
"""Bytes before and after each component of a key with several components: its length, and a zero byte."""


def well_typed(types: Sequence[str], data: U8, starts: I64, ends: I64) -> Flags:
    """Return True for keys ``data[start:end]`` whose components have these types.

    Args:
        types: Type of each component. Every key has as many components.
        data: Buffer with 8 more bytes after the last key.
        starts: Start of each key.
        ends: End of each key.
    """
    good = np.ones(len(starts), dtype=bool)
    # A single component is stored without length and terminator.
    if len(types) == 1:
        return _of_type(types[0], data, starts, ends, good)
    at = starts
    for type_name in types:
        sizes = data[at].astype(np.int64) << 8 | data[at + 1]
        first = at + COMPOSED_HEAD
        at = first + sizes + COMPOSED_TAIL
        good = _of_type(type_name, data, first, first + sizes, good)
    return good


def _of_type(type_name: str, data: U8, first: I64, end: I64, good: Flags) -> Flags:
    """Return ``good`` with False for components that are not of the type."""
    sizes = end - first
    if type_name in SIZES:
        good = good & (sizes == SIZES[type_name])
    # A type with a fixed size and no check is right if its size is. A blob is always right.
    check = _CHECKS.get(type_name, None if type_name in SIZES or type_name == "blob" else _one_by_one(type_name))
    # Checks read bytes of the component, so they see only rows of the right size.
    rows = np.flatnonzero(good)
    if check is None or not len(rows):
        return good
    good = good.copy()
    good[rows] = check(data, first[rows], end[rows])
    return good


def _boolean(data: U8, first: I64, _end: I64) -> Flags:
    return data[first] <= 1


def _time(data: U8, first: I64, _end: I64) -> Flags:
    """Return True for nanoseconds of one day."""
    nanos = np.zeros(len(first), dtype=np.uint64)
    for byte in range(8):
        nanos = nanos << np.uint64(8) | data[first + byte]
    return nanos <= np.uint64(TIME_MAX_NS)


def _timeuuid(data: U8, first: I64, _end: I64) -> Flags:
    """Return True for UUIDs of version 1."""
    found: Flags = data[first + 6] >> 4 == 1
    return found


def _varint(data: U8, first: I64, end: I64) -> Flags:
    """Return True for minimal two's complement numbers."""
    sizes = end - first
    good = (sizes >= 1) & (sizes <= VARINT_BYTES_MAX)
    long = np.flatnonzero(good & (sizes > 1))
    lead, following = data[first[long]], data[first[long] + 1]
    # A leading 0x00 or 0xFF is redundant if the next byte already has that sign.
    good[long] &= ~(((lead == 0x00) & (following < 0x80)) | ((lead == 0xFF) & (following >= 0x80)))
    return good


def _ascii(data: U8, first: I64, end: I64) -> Flags:
    return is_ascii(data, first, end - first)


def _text(data: U8, first: I64, end: I64) -> Flags:
    """Return True for valid UTF-8."""
    good = _ascii(data, first, end)
    rows = np.flatnonzero(~good)
    if not len(rows):
        return good
    values = [data[start:stop].tobytes() for start, stop in zip(first[rows], end[rows], strict=True)]
    try:
        # One cast checks all values. It fails as a whole, so only then each value is checked.
        pa.array(values, type=pa.binary()).cast(pa.string())
        good[rows] = True
    except pa.ArrowInvalid:
        good[rows] = [_is("text", value) for value in values]
    return good


def _one_by_one(type_name: str) -> Callable[[U8, I64, I64], Flags]:
    """Return a check that deserializes each component, for types without a vectorized rule."""

    def check(data: U8, first: I64, end: I64) -> Flags:
        parts = (data[start:stop].tobytes() for start, stop in zip(first, end, strict=True))
        return np.fromiter((_is(type_name, part) for part in parts), dtype=bool, count=len(first))

    return check


def _is(type_name: str, part: bytes) -> bool:
    """Return True if the bytes are a value of the type."""
    try:
        deserialize(type_name, part)
    except TypeMismatch:
        return False
    return True


_CHECKS: dict[str, Callable[[U8, I64, I64], Flags]] = {
    "boolean": _boolean,
    "time": _time,
    "timeuuid": _timeuuid,
    "varint": _varint,
    "ascii": _ascii,
    "text": _text,
}
