"""Values that are typed, and rows that are shown."""

from __future__ import annotations

import pytest

from ringlog.client.plans import Access, ClientRequest, Level, RequestPlan
from ringlog.client.row_reads import FoundPartition
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.schema.types import TypeMismatch
from ringlog.operator.row_text import cells_of, found_json, key_of, value_of
from ringlog.wire.records import Cell, encode_mutation
from tests.node.world import APPENDED, TABLE, cluster, name_of, write

STATE = cluster((0,), factor=1)
ORDERS = STATE.tables[TABLE]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("text", "5", b"5"),
        ("text", "0x41", b"0x41"),
        ("blob", "0x41", b"A"),
        ("int", "5", b"\0\0\0\5"),
        ("double", "5", b"\x40\x14" + bytes(6)),
        ("boolean", "true", b"\1"),
        ("uuid", "00000000-0000-4000-8000-000000000001", bytes(6) + b"\x40\0\x80" + bytes(6) + b"\1"),
        ("frozen<list<int>>", "[5]", b"\0\0\0\1\0\0\0\4\0\0\0\5"),
    ],
)
def test_a_value_is_typed_as_json_has_it(kind: str, text: str, value: bytes) -> None:
    assert value_of(kind, text) == value


@pytest.mark.parametrize(("kind", "text"), [("int", "x"), ("int", "true"), ("blob", "0xf"), ("none", "1")])
def test_what_is_not_of_the_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(TypeMismatch):
        value_of(kind, text)


def test_keys_and_cells_are_those_of_the_columns() -> None:
    assert key_of(ORDERS, ["ann", "7"]) == (b"ann", (7).to_bytes(8, "big"))
    assert cells_of(ORDERS, {"note": "x", "other": None}) == (Cell("note", b"x"), Cell("other", None))
    with pytest.raises(TypeMismatch, match="no column nosuch"):
        cells_of(ORDERS, {"nosuch": "x"})


def test_what_was_found_is_shown_with_what_it_went_by() -> None:
    request = ClientRequest("shop", token_of(b"ann"), Access.READ, Level.QUORUM, "", "orders")
    plan = RequestPlan(request, STATE.epoch, 3, (name_of(1),), (), ())
    writes = tuple(encode_mutation(write("ann", number, cells=(Cell("note", b"x"),))) for number in (8, 7))
    found = FoundPartition(TABLE, b"ann", writes, {0: 4}, plan, STATE.epoch, (), 1, lacking=(name_of(1),))
    shown = found_json(STATE, found, APPENDED)
    assert shown["rows"] == [{"number": 7, "note": "x"}, {"number": 8, "note": "x"}]
    assert (shown["static"], shown["positions"], shown["lacking"]) == ({}, {"0": 4}, ["n1"])
    assert shown["plan"]["asked"] == ["n1"]
