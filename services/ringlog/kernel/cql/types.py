"""CQL column types: the bytes of a value, exactly as in the native protocol of Cassandra and ScyllaDB.

================== ============================== ==================================================================
type               Python value                   bytes
================== ============================== ==================================================================
ascii, text        str                            ASCII / UTF-8
blob               bytes                          as they are
boolean            bool                           00 or 01
tinyint smallint   int                            1, 2, 4, 8 bytes, big-endian two's complement
int bigint
varint             int                            the fewest bytes of big-endian two's complement
float double       float                          IEEE 754, 4 / 8 bytes big-endian
timestamp          int, ms since 1970 UTC         as bigint
date               int, days since 1970-01-01     4 bytes, unsigned, 2^31 = the first of January 1970
time               int, ns since midnight         as bigint
uuid, timeuuid     str, canonical                 the 16 bytes; a timeuuid has version 1
list set map       tuple (of a map: of pairs)     see ``collections``
tuple              tuple, None for null           see ``collections``
udt                dict, by the fields' names     see ``collections``
================== ============================== ==================================================================

A null is not serialised: the record around it says that it is null. A bool is not an int and an int is not a float. A
value of another Python type is rejected, not converted, so reads return exactly the written value. (The native protocol
also lets an empty byte string stand for an "empty" number; that is rejected too.)

Functions of one name are distinguished by the types of their arguments, in one spelling. An argument is a whole value,
so ``frozen`` makes no difference: ``f(list<int>)`` and ``f(frozen<list<int>>)`` are one function. Names of user types
stay names, those of the function's keyspace.

Source: CQL, "User-defined functions".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from ringlog.kernel.cql.collections import (
    FROZEN,
    PARTS,
    TUPLE,
    USER_TYPE,
    TypeShape,
    join_elements,
    join_fields,
    scalars,
    shape_of,
    split_elements,
    split_fields,
    tokens_of,
)
from ringlog.kernel.values import Value, is_uuid

CqlValue = str | bytes | bool | int | float | tuple[Any, ...] | dict[str, Any]

TIME_MAX_NS: Final = 86_400_000_000_000 - 1
VARINT_BYTES_MAX: Final = 1_024
"""A bound on varint, far beyond use, so that the cost of a value is bounded."""


class TypeMismatch(ValueError):
    """A value or its bytes break a rule of the column's type. ``column`` is empty if only the type is known."""

    code = "type_mismatch"

    def __init__(self, type_name: str, rule: str, column: str = "") -> None:
        super().__init__(f"{column or 'value'} of type {type_name}: {rule}")
        self.type_name = type_name
        self.rule = rule
        self.column = column


class _Broken(Exception):
    """A broken rule in words; the caller adds the type's name."""


class CqlType(Value):
    """A type. ``write`` gets a value of class ``python`` (checked before), ``read`` any bytes; both raise only
    ``_Broken``.
    """

    name: str
    python: type
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def serialize(type_name: str, value: object) -> bytes:
    """Return the bytes of ``value``. Raise TypeMismatch: unknown type, wrong Python class, or out of range."""
    cql = _find(type_name)
    if type(value) is not cql.python:
        raise TypeMismatch(type_name, f"must be {cql.python.__name__}, not {type(value).__name__}")
    try:
        return cql.write(value)
    except _Broken as broken:
        raise TypeMismatch(type_name, str(broken)) from None


def deserialize(type_name: str, data: bytes) -> CqlValue:
    """Return the value of ``data``. Raise TypeMismatch: unknown type, or bytes that ``serialize`` never returns."""
    try:
        value: CqlValue = _find(type_name).read(data)
    except _Broken as broken:
        raise TypeMismatch(type_name, str(broken)) from None
    return value


def is_type(type_name: str) -> bool:
    """Return True for a type that a column may have: a scalar, or a type made of known types."""
    shape = shape_of(type_name)
    return shape is not None and all(name in TYPES for name in scalars(shape))


def _find(type_name: str) -> CqlType:
    cql = TYPES.get(type_name) or _made_of(type_name)
    if cql is None:
        raise TypeMismatch(type_name, "unknown type")
    return cql


@lru_cache(maxsize=4096)
def _made_of(type_name: str) -> CqlType | None:
    shape = shape_of(type_name)
    if shape is None or not shape.parts or not is_type(type_name):
        return None
    if shape.is_collection:
        return _collection_type(shape)
    assert shape.has_fields, "a type with parts is a collection, or has fields"
    return _tuple_type(shape) if shape.name == TUPLE else _user_type(shape)


def _collection_type(shape: TypeShape) -> CqlType:
    """Return a collection type: elements are encoded by their types. A set or a map has each key once."""
    parts = [str(part) for part in shape.parts]
    assert len(parts) == PARTS[shape.name], "a map has two element types, other collections have one"

    def write(value: tuple[Any, ...]) -> bytes:
        elements = []
        for item in value:
            element = item if len(parts) == 2 else (item,)
            if type(element) is not tuple or len(element) != len(parts):
                raise _Broken("must be a tuple of pairs")
            elements.append(tuple(serialize(part, one) for part, one in zip(parts, element, strict=True)))
        if shape.name != "list" and len({element[0] for element in elements}) < len(elements):
            raise _Broken("must not contain a key twice")
        return join_elements(tuple(elements))

    def read(data: bytes) -> tuple[Any, ...]:
        try:
            elements = split_elements(data, len(parts))
        except ValueError as error:
            raise _Broken(str(error)) from None
        if shape.name == "set" and len(set(elements)) < len(elements):
            raise _Broken("must not contain an element twice")
        values = [tuple(deserialize(part, one) for part, one in zip(parts, each, strict=True)) for each in elements]
        return tuple(values) if len(parts) == 2 else tuple(value[0] for value in values)

    return CqlType(str(shape), tuple, write, read)


def _tuple_type(shape: TypeShape) -> CqlType:
    """Return a tuple type: fields by position, exactly as many as the type has."""
    parts = [str(part) for part in shape.parts]

    def write(value: tuple[Any, ...]) -> bytes:
        if len(value) != len(parts):
            raise _Broken(f"must have {len(parts)} fields")
        return join_fields(_written(parts, value))

    def read(data: bytes) -> tuple[Any, ...]:
        fields = _fields(data, parts)
        if len(fields) != len(parts):
            raise _Broken(f"must have {len(parts)} fields")
        return fields

    return CqlType(str(shape), tuple, write, read)


def _user_type(shape: TypeShape) -> CqlType:
    """Return a user type: fields by name, without null fields.

    Bytes may have fewer fields than the type, if the value was written before the type had the others.
    """
    parts = [str(part) for part in shape.parts]

    def write(value: dict[str, Any]) -> bytes:
        if not value.keys() <= set(shape.fields):
            raise _Broken(f"must have no other fields than {', '.join(shape.fields)}")
        return join_fields(_written(parts, tuple(value.get(field) for field in shape.fields)))

    def read(data: bytes) -> dict[str, Any]:
        named = zip(shape.fields, _fields(data, parts), strict=False)
        return {field: value for field, value in named if value is not None}

    return CqlType(str(shape), dict, write, read)


def _written(parts: list[str], values: tuple[Any, ...]) -> tuple[bytes | None, ...]:
    return tuple(None if value is None else serialize(part, value) for part, value in zip(parts, values, strict=True))


def _fields(data: bytes, parts: list[str]) -> tuple[Any, ...]:
    try:
        fields = split_fields(data, len(parts))
    except ValueError as error:
        raise _Broken(str(error)) from None
    return tuple(None if one is None else deserialize(part, one) for part, one in zip(parts, fields, strict=False))


def _text(name: str, encoding: str) -> CqlType:
    def write(value: str) -> bytes:
        try:
            return value.encode(encoding)
        except UnicodeEncodeError:
            raise _Broken(f"must be {encoding} text") from None

    def read(data: bytes) -> str:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            raise _Broken(f"must be {encoding} text") from None

    return CqlType(name, str, write, read)


def _integer(name: str, size: int, minimum: int, maximum: int, bias: int = 0) -> CqlType:
    """Return a type with ``size`` bytes of value + ``bias``: two's complement, or unsigned if there is a bias."""
    signed = bias == 0
    lowest, highest = minimum + bias, maximum + bias
    assert lowest < highest, "the lower bound is below the upper bound"
    assert (-(1 << 8 * size - 1) if signed else 0) <= lowest, "the least value fits into the bytes"
    assert highest < 1 << 8 * size - signed, "the greatest value fits into the bytes"

    def write(value: int) -> bytes:
        if not minimum <= value <= maximum:
            raise _Broken(f"must be between {minimum} and {maximum}")
        return (value + bias).to_bytes(size, "big", signed=signed)

    def read(data: bytes) -> int:
        if len(data) != size:
            raise _Broken(f"must be {size} bytes")
        value = int.from_bytes(data, "big", signed=signed) - bias
        if not minimum <= value <= maximum:
            raise _Broken(f"must be between {minimum} and {maximum}")
        return value

    return CqlType(name, int, write, read)


def _signed(name: str, size: int) -> CqlType:
    limit = 1 << (8 * size - 1)
    return _integer(name, size, -limit, limit - 1)


def _floating(name: str, layout: struct.Struct) -> CqlType:
    def write(value: float) -> bytes:
        try:
            return layout.pack(value)
        except OverflowError:
            raise _Broken(f"must fit into {layout.size} bytes") from None

    def read(data: bytes) -> float:
        if len(data) != layout.size:
            raise _Broken(f"must be {layout.size} bytes")
        value: float = layout.unpack(data)[0]
        return value

    return CqlType(name, float, write, read)


def _uuid(name: str, version: str | None) -> CqlType:
    rule = "must be a canonical lower-case UUID" + (f" of version {version}" if version else "")

    def write(value: str) -> bytes:
        if not is_uuid(value) or (version and value[14] != version):
            raise _Broken(rule)
        return bytes.fromhex(value.replace("-", ""))

    def read(data: bytes) -> str:
        if len(data) != 16:
            raise _Broken("must be 16 bytes")
        digits = data.hex()
        if version and digits[12] != version:
            raise _Broken(rule)
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return CqlType(name, str, write, read)


def _write_varint(value: int) -> bytes:
    # One more bit than the magnitude for the sign; -128 needs 8 bits, 128 needs 9.
    size = ((value if value >= 0 else ~value).bit_length() + 8) // 8
    if size > VARINT_BYTES_MAX:
        raise _Broken(f"must fit into {VARINT_BYTES_MAX} bytes")
    return value.to_bytes(size, "big", signed=True)


def _read_varint(data: bytes) -> int:
    if not 1 <= len(data) <= VARINT_BYTES_MAX:
        raise _Broken(f"must be 1 to {VARINT_BYTES_MAX} bytes")
    value = int.from_bytes(data, "big", signed=True)
    if _write_varint(value) != data:
        raise _Broken("must be the fewest bytes that hold the number")
    return value


def _read_boolean(data: bytes) -> bool:
    if data not in (b"\x00", b"\x01"):
        raise _Broken("must be one byte, 00 or 01")
    return data == b"\x01"


_ALL: Final = (
    _text("ascii", "ascii"),
    _text("text", "utf-8"),
    CqlType("blob", bytes, lambda value: value, lambda data: data),
    CqlType("boolean", bool, lambda value: b"\x01" if value else b"\x00", _read_boolean),
    _signed("tinyint", 1),
    _signed("smallint", 2),
    _signed("int", 4),
    _signed("bigint", 8),
    CqlType("varint", int, _write_varint, _read_varint),
    _floating("float", struct.Struct(">f")),
    _floating("double", struct.Struct(">d")),
    _signed("timestamp", 8),
    _integer("date", 4, -(2**31), 2**31 - 1, bias=2**31),
    _integer("time", 8, 0, TIME_MAX_NS),
    _uuid("uuid", None),
    _uuid("timeuuid", "1"),
)

TYPES: Final[dict[str, CqlType]] = {cql.name: cql for cql in _ALL}
"""Type name to scalar type. Columns have these types and types made of them, but not counters."""
assert len(TYPES) == len(_ALL), "names of types are unique"
assert TYPES.keys().isdisjoint({*PARTS, TUPLE, USER_TYPE}), "a scalar has no parts"


def normalised(type_name: str) -> str:
    """Return a type's name in one spelling, with blanks only where needed; empty for an invalid name."""
    return _joined(tokens_of(type_name) or ())


def without_frozen(type_name: str) -> str:
    """Return the normalised name of a type without any ``frozen``."""
    found, inside = list[str](), list[bool]()
    for token in tokens_of(type_name) or ():
        if token == "<":
            inside.append(found[-1:] == [FROZEN])
            if inside[-1]:
                found.pop()
                continue
        elif token == ">" and inside and inside.pop():
            continue
        found.append(token)
    return _joined(found)


def signature(keyspace: str, name: str, arguments: Iterable[str]) -> str:
    """Return ``keyspace.name(type, type)``, which is unique among functions and among aggregates."""
    return f"{keyspace}.{name}({', '.join(map(without_frozen, arguments))})"


def _joined(tokens: Iterable[str]) -> str:
    return " ".join(tokens).replace(" < ", "<").replace(" , ", ", ").replace(" >", ">")
