"""Values of Debezium's events as CQL values of the column that they go to.

What a number or a text stands for is said by the *semantic type*, the name of the field's schema (``connect.name`` in
Avro): ``io.debezium.time.MicroTimestamp``, ``org.apache.kafka.connect.data.Decimal``, … An event without schemas does
not say it; then a number for a ``timestamp`` or ``time`` is taken only if the caller names its unit, as a guess would
write wrong times without a word. Source: Debezium's documentation of its connectors, "data types".

In JSON bytes are base64; a decimal is base64 of its unscaled number, its scale a parameter of the schema.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from ringlog.kernel.cql.types import TypeMismatch, serialize

UNAVAILABLE = "__debezium_unavailable_value"
"""Stands for a value that the source did not log, because the write did not change it."""

_UNAVAILABLE = (UNAVAILABLE, UNAVAILABLE.encode(), base64.b64encode(UNAVAILABLE.encode()).decode())

UNIT_NS = {"ms": 1_000_000, "us": 1_000, "ns": 1}
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
    """A value is not of its column's type, or does not say what it is."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the schema of a field says: semantic type, scale of a decimal, and whether the value is in a cell."""

    semantic: str = ""
    scale: int = 0
    wrapped: bool = False


UNKNOWN = Meaning()


def to_cql(type_name: str, value: Any, meaning: Meaning = UNKNOWN, unit: str = "") -> bytes | None:
    """The CQL bytes of an event's value; ``unit``: of times whose meaning is unknown. Raises BadValue."""
    if value is None:
        return None
    try:
        return serialize(type_name, _READERS.get(type_name, _as_it_is)(value, meaning, unit, type_name))
    except (TypeMismatch, ValueError, TypeError, ArithmeticError) as error:
        raise BadValue(f"{value!r:.60} is no {type_name}: {error}") from None


def is_unavailable(value: Any) -> bool:
    """True for the text that stands for a value that was not logged."""
    return isinstance(value, str | bytes) and value in _UNAVAILABLE


def _as_it_is(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    return value


def _blob(value: Any, _meaning: Meaning, _unit: str, _type: str) -> bytes:
    return bytes(value) if isinstance(value, bytes) else _base64(value)


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from None


def _boolean(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    # MySQL has no boolean: its TINYINT(1) comes as a number.
    return bool(value) if type(value) is int and value in (0, 1) else value


def _integer(value: Any, meaning: Meaning, _unit: str, _type: str) -> Any:
    number = _decimal(value, meaning) if isinstance(value, Decimal | bytes | str) else value
    if isinstance(number, Decimal):
        if number != number.to_integral_value():
            raise ValueError("not a whole number")
        return int(number)
    return number


def _decimal(value: Any, meaning: Meaning) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if meaning.semantic != "org.apache.kafka.connect.data.Decimal":
        if isinstance(value, str):
            return Decimal(value)
        raise ValueError("bytes that are no decimal")
    unscaled = int.from_bytes(value if isinstance(value, bytes) else _base64(value), "big", signed=True)
    return Decimal(unscaled).scaleb(-meaning.scale)


def _float(value: Any, meaning: Meaning, _unit: str, _type: str) -> Any:
    if isinstance(value, Decimal | bytes | str):
        return float(_decimal(value, meaning))
    return float(value) if type(value) is int else value


def _nanos(value: int, meaning: Meaning, unit: str) -> int:
    scale = TIMES_NS.get(meaning.semantic) or UNIT_NS.get(unit)
    if scale is None:
        raise ValueError("a number of unknown unit: the event has no schema that says it")
    return value * scale


def _timestamp(value: Any, meaning: Meaning, unit: str, _type: str) -> int:
    """Milliseconds."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        return since // timedelta(milliseconds=1)
    return _nanos(_number(value), meaning, unit) // 1_000_000


def _date(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    if isinstance(value, str):
        value = date.fromisoformat(value)
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


def _time(value: Any, meaning: Meaning, unit: str, _type: str) -> int:
    """Nanoseconds since midnight."""
    if isinstance(value, str):
        value = time.fromisoformat(value.removesuffix("Z"))
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) * 1_000
    return _nanos(_number(value), meaning, unit)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"must be a number, not {type(value).__name__}")
    return value


def _uuid(value: Any, _meaning: Meaning, _unit: str, _type: str) -> Any:
    return value.lower() if isinstance(value, str) else str(value)


Reader = Callable[[Any, Meaning, str, str], Any]
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
