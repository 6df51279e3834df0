"""Conversion of values in Debezium events to CQL bytes.

The *semantic type* gives numbers and texts their meaning. It is the name of the field's schema (``connect.name`` in
Avro), for example ``io.debezium.time.MicroTimestamp`` or ``org.apache.kafka.connect.data.Decimal``.

Invariants:

* Times are never guessed. A number for a ``timestamp`` or ``time`` column without a semantic type is rejected unless
  the caller passes the unit. A wrong guess would silently store wrong times.
* A value either converts or raises ``BadValue``.

In JSON, bytes are base64. A decimal is the base64 of its unscaled number, and its scale is a parameter of the schema.

Source: Debezium's documentation of its connectors, "data types".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from ringlog.kernel.cql.types import TypeMismatch, serialize
from ringlog.kernel.values import Value

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder for a value that the source did not log because the write did not change it."""

_UNAVAILABLE = (UNAVAILABLE, UNAVAILABLE.encode(), base64.b64encode(UNAVAILABLE.encode()).decode())
"""The placeholder as text, as bytes and as base64: its encoding follows the column's type."""

UNIT_NS = {"ms": 1_000_000, "us": 1_000, "ns": 1}
"""Unit to nanoseconds."""
TIMES_NS = {
    "io.debezium.time.Timestamp": UNIT_NS["ms"],
    "io.debezium.time.MicroTimestamp": UNIT_NS["us"],
    "io.debezium.time.NanoTimestamp": UNIT_NS["ns"],
    "org.apache.kafka.connect.data.Timestamp": UNIT_NS["ms"],
    "io.debezium.time.Time": UNIT_NS["ms"],
    "io.debezium.time.MicroTime": UNIT_NS["us"],
    "io.debezium.time.NanoTime": UNIT_NS["ns"],
    "org.apache.kafka.connect.data.Time": UNIT_NS["ms"],
}
"""Semantic type to nanoseconds of its unit."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "varint")


class BadValue(ValueError):
    """A value that does not fit the type of its column, or whose unit is unknown."""


class Meaning(Value):
    """The meaning of a field, from its schema.

    Attributes:
        semantic: Semantic type. Empty if the schema has none.
        scale: Digits after the decimal point of a Connect Decimal.
        wrapped: True if ScyllaDB's connector wraps the value into a cell.
    """

    semantic: str = ""
    scale: int = 0
    wrapped: bool = False


UNKNOWN = Meaning()
"""The meaning of every column in an event without schemas."""


def to_cql(type_name: str, value: Any, meaning: Meaning = UNKNOWN, unit: str = "") -> bytes | None:
    """Serialize a value of an event.

    Args:
        type_name: CQL type of the column.
        value: Raw value, or None.
        meaning: Meaning of the field.
        unit: Unit of times without a semantic type: ``ms``, ``us`` or ``ns``.

    Returns:
        CQL bytes, or None for None.

    Raises:
        BadValue: The value does not fit the type.
    """
    if value is None:
        return None
    try:
        return serialize(type_name, _READERS.get(type_name, _as_it_is)(value, meaning, unit, type_name))
    except (TypeMismatch, ValueError, TypeError, ArithmeticError) as error:
        raise BadValue(f"{value!r:.60} is not a valid {type_name}: {error}") from None


def is_unavailable(value: Any) -> bool:
    """Return True for Debezium's placeholder of an unlogged value."""
    return isinstance(value, str | bytes) and value in _UNAVAILABLE


def _as_it_is(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    return value


def _blob(value: Any, _meaning: Meaning, _unit: str, _type: str) -> bytes:
    return bytes(value) if isinstance(value, bytes) else _base64(value)


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _boolean(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    # MySQL has no boolean: its TINYINT(1) comes as a number.
    return bool(value) if type(value) is int and value in (0, 1) else value


def _integer(value: Any, meaning: Meaning, _unit: str, _type: str) -> Any:
    """Return an integer. Sources send large integers as decimals, bytes or texts."""
    number = _decimal(value, meaning) if isinstance(value, Decimal | bytes | str) else value
    if isinstance(number, Decimal):
        # Checked first: a short text such as 1e999999999 would make an integer of hundreds of megabytes.
        if number.adjusted() > DIGITS_MAX:
            raise ValueError(f"more than {DIGITS_MAX} digits")
        if number != number.to_integral_value():
            raise ValueError("not an integer")
        return int(number)
    return number


def _decimal(value: Any, meaning: Meaning) -> Decimal:
    """Return a Decimal from a Decimal, a text, or the unscaled bytes of a Connect Decimal."""
    if isinstance(value, Decimal):
        return value
    if meaning.semantic != "org.apache.kafka.connect.data.Decimal":
        if isinstance(value, str):
            return Decimal(value)
        raise ValueError("the bytes are not a decimal")
    unscaled = int.from_bytes(value if isinstance(value, bytes) else _base64(value), "big", signed=True)
    return Decimal(unscaled).scaleb(-meaning.scale)


def _float(value: Any, meaning: Meaning, _unit: str, _type: str) -> Any:
    if isinstance(value, Decimal | bytes | str):
        return float(_decimal(value, meaning))
    return float(value) if type(value) is int else value


def _nanos(value: int, meaning: Meaning, unit: str) -> int:
    """Return nanoseconds for a number in the field's unit. Raises ValueError if the unit is unknown."""
    scale = TIMES_NS.get(meaning.semantic) or UNIT_NS.get(unit)
    if scale is None:
        raise ValueError("the number has no known unit: the event has no schema that defines it")
    return value * scale


def _timestamp(value: Any, meaning: Meaning, unit: str, _type: str) -> int:
    """Return milliseconds since 1970. A datetime without a zone counts as UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        # Integer division of timedeltas: a float of seconds would lose microseconds.
        return since // timedelta(milliseconds=1)
    return _nanos(_number(value), meaning, unit) // 1_000_000


def _date(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    """Return days since 1970."""
    if isinstance(value, str):
        value = date.fromisoformat(value)
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


def _time(value: Any, meaning: Meaning, unit: str, _type: str) -> int:
    """Return nanoseconds since midnight."""
    if isinstance(value, str):
        value = time.fromisoformat(value.removesuffix("Z"))
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) * 1_000
    return _nanos(_number(value), meaning, unit)


def _number(value: Any) -> int:
    """Return the value if it is an int, not a bool. Raises TypeError."""
    if type(value) is not int:
        raise TypeError(f"must be a number, not {type(value).__name__}")
    return value


def _uuid(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    return value.lower() if isinstance(value, str) else str(value)


DIGITS_MAX = 10_000
"""The maximum number of digits of an integer that a source sends as a decimal."""

Reader = Callable[[Any, Meaning, str, str], Any]
"""Function of value, meaning, unit and type name."""
_READERS: dict[str, Reader] = {
    "blob": _blob,
    "boolean": _boolean,
    "float": _float,
    "double": _float,
    "timestamp": _timestamp,
    "date": _date,
    "time": _time,
    "uuid": _uuid,
    "timeuuid": _uuid,
    **dict.fromkeys(_INTEGERS, _integer),
}
