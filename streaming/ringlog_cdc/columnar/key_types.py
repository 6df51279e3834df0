"""Vectorized type checks of keys and values: the rule of ``ringlog.kernel.cql.types.deserialize`` on numpy arrays.

Composed keys are walked component by component, for all rows of a table at once. Sizes, ranges of numbers and versions
of UUIDs are comparisons of arrays. Text that is not ASCII is checked by Arrow as a whole. Only invalid text and frozen
collections need a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from ringlog.kernel.cql.types import TIME_MAX_NS, VARINT_BYTES_MAX
from ringlog.kernel.generations.statements import is_value
from ringlog_cdc.columnar.pieces import BytePieces
from ringlog_cdc.columnar.scan import ByteSpan
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

ASCII_MAX = 0x7F
SHORT = 32
"""Most bytes of a short text."""
COMPOSED_HEAD, COMPOSED_TAIL = 2, 1
"""Bytes before and after each component of a key with several components: its length, and a zero byte."""


def well_typed(types: Sequence[str], data: U8, starts: I64, ends: I64) -> Flags:
    """Return True for keys ``data[start:end]`` whose components have these types.

    Args:
        types: Type of each component. Every key has as many components.
        data: Padded buffer (``ringlog_cdc.columnar.scan``) of the keys.
        starts: Start of each key.
        ends: End of each key.
    """
    good = np.ones(len(starts), dtype=bool)
    # A single component is stored without length and terminator.
    if len(types) == 1:
        return of_type(types[0], data, starts, ends, good)
    at = starts
    for type_name in types:
        sizes = data[at].astype(np.int64) << 8 | data[at + 1]
        first = at + COMPOSED_HEAD
        at = first + sizes + COMPOSED_TAIL
        good = of_type(type_name, data, first, first + sizes, good)
    return good


def is_fixed(type_name: str) -> bool:
    """Return True if only the size of a value decides whether it is of the type, or nothing does."""
    return type_name == "blob" or (type_name in SIZES and type_name not in _CHECKS)


def of_type(type_name: str, data: U8, first: I64, end: I64, good: Flags) -> Flags:
    """Return ``good`` with False for values ``data[first:end]`` that are not of the type.

    ``data`` is padded (``ringlog_cdc.columnar.scan``).
    """
    sizes = end - first
    if type_name in SIZES:
        good = good & (sizes == SIZES[type_name])
    check = None if is_fixed(type_name) else _CHECKS.get(type_name) or _one_by_one(type_name)
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
    sizes = end - first
    # Words of short text are quickly checked in place. Longer text is cheaper to join first.
    good = is_ascii(data, first, sizes) if sizes.max(initial=0) <= SHORT else np.zeros(len(first), dtype=bool)
    rows = np.flatnonzero(~good)
    if len(rows):
        pieces = BytePieces(len(rows), data)
        pieces.spans(ByteSpan(first[rows], sizes[rows]))
        good[rows] = texts(pieces.joined())
    return good


def texts(values: pa.LargeBinaryArray) -> Flags:
    """Return True for values that are valid UTF-8."""
    content = values.buffers()[2]
    good: Flags = np.ones(len(values), dtype=bool)
    # Most text is ASCII, and one pass over all bytes shows that.
    if content is None or np.frombuffer(content, dtype=np.uint8).max(initial=0) <= ASCII_MAX:
        return good
    try:
        # One cast checks all values. It fails as a whole, so only then each value is checked.
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        good[:] = [is_value("text", value) for value in values.to_pylist()]
    return good


def _one_by_one(type_name: str) -> Callable[[U8, I64, I64], Flags]:
    """Return a check that deserializes each component, for types without a vectorized rule."""

    def check(data: U8, first: I64, end: I64) -> Flags:
        parts = (data[start:stop].tobytes() for start, stop in zip(first, end, strict=True))
        return np.fromiter((is_value(type_name, part) for part in parts), dtype=bool, count=len(first))

    return check


_CHECKS: dict[str, Callable[[U8, I64, I64], Flags]] = {
    "boolean": _boolean,
    "time": _time,
    "timeuuid": _timeuuid,
    "varint": _varint,
    "ascii": _ascii,
    "text": _text,
}
