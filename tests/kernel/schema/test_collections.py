"""Collection types: parsed names, values in the encoding of the native protocol, and invalid bytes."""

from __future__ import annotations

from typing import Any

import pytest
from cassandra.cqltypes import lookup_casstype
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.cql.collections import cells_of, key_type, log_type, shape_of, value_of
from ringlog.kernel.cql.types import TypeMismatch, deserialize, is_type, serialize


@pytest.mark.parametrize(
    ("name", "text", "multi_cell"),
    [
        ("text", "text", False),
        ("list<int>", "list<int>", True),
        (" map < text,int > ", "map<text, int>", True),
        ("frozen<set<uuid>>", "frozen<set<uuid>>", False),
        ("map<text, frozen<list<int>>>", "map<text, frozen<list<int>>>", True),
        ("frozen<map<text, frozen<list<int>>>>", "frozen<map<text, frozen<list<int>>>>", False),
    ],
)
def test_a_type_name_is_parsed(name: str, text: str, multi_cell: bool) -> None:
    shape = shape_of(name)
    assert shape is not None
    assert (str(shape), shape.is_multi_cell, is_type(name)) == (text, multi_cell, True)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "TEXT",
        "list",
        "list<>",
        "list<int",
        "list<int>>",
        "list<int, int>",
        "map<int>",
        "map<int, int, int>",
        "set<list<int>>",
        "frozen<int>",
        "frozen<frozen<list<int>>>",
        "text<int>",
        "list<nothing>",
        "frozen<" * 300,
        "list<" * 9 + "int" + ">" * 9,
    ],
)
def test_invalid_type_names(name: str) -> None:
    assert not is_type(name)
    with pytest.raises(TypeMismatch, match="unknown type"):
        serialize(name, ())


@pytest.mark.parametrize(
    ("name", "driver", "ours", "theirs"),
    [
        ("list<int>", "ListType(Int32Type)", (1, -1, 1), [1, -1, 1]),
        ("set<text>", "SetType(UTF8Type)", ("a", "é"), {"a", "é"}),
        ("map<text, bigint>", "MapType(UTF8Type, LongType)", (("k", 2**40), ("l", 0)), {"k": 2**40, "l": 0}),
        ("frozen<list<int>>", "FrozenType(ListType(Int32Type))", (), []),
    ],
)
def test_bytes_equal_the_cassandra_driver(name: str, driver: str, ours: Any, theirs: Any) -> None:
    data = serialize(name, ours)
    found = lookup_casstype(driver).deserialize(data, 5)
    assert (dict(found) if isinstance(theirs, dict) else type(theirs)(found)) == theirs
    assert lookup_casstype(driver).serialize(found, 5) == data
    assert deserialize(name, data) == ours


@given(st.lists(st.tuples(st.integers(-128, 127), st.binary(max_size=5)), unique_by=lambda pair: pair[0], max_size=5))
def test_written_values_are_read_back(pairs: list[tuple[int, bytes]]) -> None:
    assert deserialize("map<tinyint, blob>", serialize("map<tinyint, blob>", tuple(pairs))) == tuple(pairs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("list<int>", [1]),
        ("list<int>", ("1",)),
        ("set<int>", (1, 1)),
        ("map<int, int>", ((1, 1), (1, 2))),
        ("map<int, int>", (1,)),
        ("map<int, int>", ((1, 2, 3),)),
    ],
)
def test_other_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeMismatch):
        serialize(name, value)


ONE = b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01" + b"\x07"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        ONE[:-1],
        ONE + b"\x00",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x01\xff\xff\xff\xff",
        b"\x00\x00\x00\x02" + ONE[4:] * 2,
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    assert deserialize("set<tinyint>", ONE) == (7,)
    with pytest.raises(TypeMismatch):
        deserialize("set<tinyint>", data)


def test_how_the_log_shows_a_collection() -> None:
    assert [log_type(name) for name in ("int", "list<int>", "set<int>", "map<int, text>", "frozen<set<int>>")] == [
        "int",
        "frozen<map<timeuuid, int>>",
        "frozen<set<int>>",
        "frozen<map<int, text>>",
        "frozen<set<int>>",
    ]
    names = ("int", "list<int>", "set<int>", "map<text, int>", "frozen<set<int>>")
    assert [key_type(name) for name in names] == ["", "timeuuid", "int", "text", ""]


def test_cells_of_a_multi_cell_value() -> None:
    assert cells_of("set<tinyint>", ONE) == ((b"\x07", b""),)
    pairs = ((b"k" * 16, b"\x01"), (b"l" * 16, b""))
    assert cells_of("list<tinyint>", value_of("list<tinyint>", pairs)) == pairs
    assert value_of("set<tinyint>", cells_of("set<tinyint>", ONE)) == ONE
    for wrong in ("int", "frozen<set<int>>", "nothing<"):
        with pytest.raises(ValueError, match="not a multi-cell"):
            cells_of(wrong, ONE)
