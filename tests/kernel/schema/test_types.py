"""CQL values: known bytes, round trips, and rejections that name type and rule."""

from __future__ import annotations

import math
import struct
from typing import Any
from uuid import UUID

import pytest
from cassandra.cqltypes import lookup_casstype
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.cql.types import TYPES, TypeMismatch, deserialize, serialize

CASSANDRA_NAMES = {
    "ascii": "AsciiType",
    "text": "UTF8Type",
    "blob": "BytesType",
    "boolean": "BooleanType",
    "tinyint": "ByteType",
    "smallint": "ShortType",
    "int": "Int32Type",
    "bigint": "LongType",
    "varint": "IntegerType",
    "float": "FloatType",
    "double": "DoubleType",
    "timestamp": "TimestampType",
    "uuid": "UUIDType",
    "timeuuid": "TimeUUIDType",
}
TIMEUUID = "f3c3a4a0-5d1c-11ee-8c99-0242ac120002"


def signed(size: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(max_codepoint=127)),
    "text": st.text(),
    "blob": st.binary(),
    "boolean": st.booleans(),
    "tinyint": signed(1),
    "smallint": signed(2),
    "int": signed(4),
    "bigint": signed(8),
    "varint": st.integers(),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "timestamp": signed(8),
    "date": signed(4),
    "time": st.integers(0, 86_399_999_999_999),
    "uuid": st.uuids().map(str),
    "timeuuid": st.uuids(version=1).map(str),
}


@given(st.data(), st.sampled_from(sorted(TYPES)))
def test_round_trip(data: st.DataObject, name: str) -> None:
    value = data.draw(VALUES[name])
    back = deserialize(name, serialize(name, value))
    assert back == value
    assert type(back) is type(value)


@given(st.sampled_from(sorted(TYPES)), st.binary(max_size=20) | st.sampled_from([bytes(size) for size in range(17)]))
def test_any_bytes_are_a_value_or_a_mismatch(name: str, data: bytes) -> None:
    """A decoded value is encoded to the same bytes, so each value has one encoding."""
    try:
        value = deserialize(name, data)
    except TypeMismatch:
        return
    if not (isinstance(value, float) and math.isnan(value)):
        assert serialize(name, value) == data


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ascii", "abc", "616263"),
        ("text", "é", "c3a9"),
        ("text", "", ""),
        ("blob", b"\x00\xff", "00ff"),
        ("boolean", True, "01"),
        ("boolean", False, "00"),
        ("tinyint", -1, "ff"),
        ("smallint", 258, "0102"),
        ("int", -(2**31), "80000000"),
        ("bigint", 2**63 - 1, "7fffffffffffffff"),
        ("varint", 0, "00"),
        ("varint", 127, "7f"),
        ("varint", 128, "0080"),
        ("varint", -128, "80"),
        ("varint", -129, "ff7f"),
        ("varint", 2**64, "010000000000000000"),
        ("float", 1.5, "3fc00000"),
        ("double", -2.0, "c000000000000000"),
        ("timestamp", 1_000, "00000000000003e8"),
        ("date", 0, "80000000"),
        ("date", -1, "7fffffff"),
        ("time", 1, "0000000000000001"),
        ("uuid", "00112233-4455-6677-8899-aabbccddeeff", "00112233445566778899aabbccddeeff"),
        ("timeuuid", TIMEUUID, "f3c3a4a05d1c11ee8c990242ac120002"),
    ],
)
def test_known_bytes(name: str, value: object, expected: str) -> None:
    assert serialize(name, value).hex() == expected
    assert deserialize(name, bytes.fromhex(expected)) == value


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("map", 1, "unknown type"),
        ("int", True, "must be int, not bool"),
        ("int", 1.0, "must be int, not float"),
        ("int", None, "must be int, not NoneType"),
        ("int", 2**31, "must be between"),
        ("tinyint", -129, "must be between"),
        ("double", 1, "must be float, not int"),
        ("float", 1e39, "must fit into 4 bytes"),
        ("boolean", 1, "must be bool, not int"),
        ("ascii", "é", "must be ascii text"),
        ("text", "\udc80", "must be utf-8 text"),
        ("text", b"x", "must be str, not bytes"),
        ("blob", "x", "must be bytes, not str"),
        ("date", 2**31, "must be between"),
        ("time", 86_400_000_000_000, "must be between"),
        ("time", -1, "must be between"),
        ("uuid", "00112233445566778899aabbccddeeff", "must be a canonical lower-case UUID"),
        ("timeuuid", "00112233-4455-6677-8899-aabbccddeeff", "of version 1"),
        ("varint", 1 << 8192, "must fit into 1024 bytes"),
    ],
)
def test_values_refused(name: str, value: object, rule: str) -> None:
    with pytest.raises(TypeMismatch, match=rule) as caught:
        serialize(name, value)
    assert str(caught.value).startswith(f"value of type {name}: ")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("map", ""),
        ("int", ""),
        ("int", "000000"),
        ("boolean", "02"),
        ("text", "ff"),
        ("ascii", "c3a9"),
        ("varint", ""),
        ("varint", "0001"),
        ("varint", "ffff"),
        ("double", "00000000"),
        ("time", "ffffffffffffffff"),
        ("uuid", "00"),
        ("timeuuid", "00112233445566778899aabbccddeeff"),
    ],
)
def test_bytes_refused(name: str, data: str) -> None:
    with pytest.raises(TypeMismatch):
        deserialize(name, bytes.fromhex(data))


@given(st.data(), st.sampled_from(sorted(set(TYPES) - {"date", "time"})))
def test_the_python_driver_writes_the_same_bytes(data: st.DataObject, name: str) -> None:
    """The driver shares no code with Ringlog. Its date and time classes support fewer values than the types."""
    value = data.draw(VALUES[name])
    theirs = UUID(value) if name.endswith("uuid") else value
    assert serialize(name, value) == lookup_casstype(CASSANDRA_NAMES[name]).serialize(theirs, 4)


def test_not_a_number_round_trip() -> None:
    assert math.isnan(deserialize("double", serialize("double", math.nan)))  # type: ignore[arg-type]
    assert deserialize("double", struct.pack(">d", math.inf)) == math.inf
