"""A command class is sufficient for its JSON form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from immutables import Map

from ringlog.client.data.plans import Access, ClientRequest, Level, RequestPlan
from ringlog.client.data.row_reads import FoundPartition
from ringlog.client.tokens import allocate
from ringlog.kernel.commands.schema.batch import SchemaStatement
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave, Replace
from ringlog.kernel.cql.types import TypeMismatch
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Column, Position, Value, is_value_class, replace
from ringlog.operator.errors import Refused
from ringlog.operator.intents.intents import (
    NODE_FIELDS,
    NUM_TOKENS,
    Intent,
    InvalidCommand,
    join,
    move,
    named,
    resolved,
)
from ringlog.operator.intents.json_commands import DEFAULTS
from ringlog.operator.intents.json_shapes import BY_NAME, InvalidJsonError, read_fields
from ringlog.operator.intents.replication import network
from ringlog.operator.views.row_text import cells_of, found_json, key_of, value_of
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.records import Cell, encode_mutation
from tests.node.world import APPENDED, TABLE, cluster, name_of, write

STATE = replace(EMPTY_STATE, node_names=Map({"A": "id-a", "B": "id-b"}))


class Place(Value):
    """A value of a future command."""

    node: str
    shard: int = 0


class Migrate(Value):
    """A future command."""

    table: str
    places: tuple[Place, ...]
    at: Position | None = None
    columns: tuple[Column, ...] = ()
    urgent: bool = False


def read(**given: Any) -> dict[str, Any]:
    return read_fields(Migrate, given, STATE, ())


def test_an_unregistered_command_is_read() -> None:
    found = read(table="t", places=[{"node": "A"}, {"node": "x", "shard": 3}], at={"partition": 1, "offset": 2})
    assert Migrate(**found) == Migrate("t", (Place("id-a"), Place("x", 3)), Position(1, 2))
    assert read(table="t", places=[], at=None) == {"table": "t", "places": (), "at": None}
    assert Migrate(**read(table="t", places=[], columns={"c": "int"}, urgent=True)).columns == (Column("c", "int"),)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"table": "t"}, "missing_field: places is missing"),
        ({"table": "t", "places": [{"shard": 1}]}, "missing_field: places[0].node is missing"),
        ({"table": "t", "places": [{"node": "A", "shart": 1}]}, "unknown_field: places[0].shart is not a field"),
        ({"table": 1, "tabel": "t", "places": []}, "unknown_field: tabel is not a field; did you mean table?"),
        ({"table": "t", "places": [{"node": "A", "shard": 2**63}]}, "bad_field: places[0].shard: must be an integer"),
        ({"table": "t", "places": [], "urgent": 1}, "bad_field: urgent: must be true or false"),
        ({"table": "t", "places": [], "at": 7}, "bad_field: at: must be an object"),
        ({"table": "t", "places": {}}, "bad_field: places: must be a list"),
    ],
)
def test_unreadable_fields_are_named_with_path_and_rule(given: dict[str, Any], refused: str) -> None:
    with pytest.raises(InvalidJsonError) as raised:
        read(**given)
    assert str(raised.value).startswith(refused)


def test_the_tables_name_existing_fields() -> None:
    names = {name for command in COMMANDS.values() for name in command.__struct_fields__}
    assert set(NODE_FIELDS) <= names
    assert set(BY_NAME) <= names | {"streams", "preimage"}
    for kind, defaults in DEFAULTS.items():
        assert defaults.keys() <= {*COMMANDS[kind].__struct_fields__}, kind


IDS_OF_NODES = re.compile(r"\bIds? of (?:\w+ ){0,2}nodes?\b")


def documented(model: Any) -> Iterator[tuple[str, str]]:
    """Yield each field of a command, or of a value in one, with its doc."""
    type_hints = get_type_hints(model, include_extras=True)
    for name in model.__struct_fields__:
        hint = type_hints[name]
        yield name, next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, str)), "")
        yield from (found for inner in values_in(hint) for found in documented(inner))


def values_in(hint: Any) -> Iterator[Any]:
    if is_value_class(hint) and hint is not SchemaStatement:  # of a module with commands
        yield hint
    for inner in get_args(hint):
        yield from values_in(inner)


def test_each_field_of_nodes_accepts_names() -> None:
    told = {name for command in COMMANDS.values() for name, doc in documented(command) if IDS_OF_NODES.search(doc)}
    assert told | {"learners"} == set(NODE_FIELDS), "learners apply without a vote"


def test_intents_accept_names_and_choose_tokens_from_the_seed() -> None:
    assert named(Leave("A"))(STATE, SeededDraw(b"x")) == Leave("id-a")
    swap = named(Replace("A", "B", ("B", "x")))(STATE, SeededDraw(b"x"))
    assert swap == Replace("id-a", "id-b", ("id-b", "x"))
    asked = join("A")(STATE, SeededDraw(b"x"))
    assert asked.tokens == allocate(STATE, "id-a", NUM_TOKENS, asked.seed)  # type: ignore[union-attr]
    moved = move("A", (5, 7))(STATE, SeededDraw(b"x"))
    assert (moved.node, moved.tokens, len(moved.seed)) == ("id-a", (5, 7), 16)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("intent", "why"),
    [
        (join("A", (1, 2**63)), "tokens[1]: must be an integer of 64 bits"),
        (named(Leave("\udc80")), "node: must be text without lone surrogates"),
        (named(CreateKeyspace("k", network({"d": 2**64}))), "replication.factor: must be an integer of 64 bits"),
    ],
)
def test_unencodable_values_are_refused(intent: Intent, why: str) -> None:
    assert resolved(intent, STATE, SeededDraw(b"x")) == InvalidCommand("bad_field", why)


# Typed values and displayed rows.


ROW_TEXT_STATE = cluster((0,), factor=1)
ORDERS = ROW_TEXT_STATE.tables[TABLE]


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
def test_a_value_is_typed_as_json(kind: str, text: str, value: bytes) -> None:
    assert value_of(kind, text) == value


@pytest.mark.parametrize(("kind", "text"), [("int", "x"), ("int", "true"), ("blob", "0xf"), ("none", "1")])
def test_a_value_of_another_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(TypeMismatch):
        value_of(kind, text)


def test_keys_and_cells_follow_the_columns() -> None:
    assert key_of(ORDERS, ["ann", "7"]) == (b"ann", (7).to_bytes(8, "big"))
    assert cells_of(ORDERS, {"note": "x", "other": None}) == (Cell("note", b"x"), Cell("other", None))
    with pytest.raises(Refused, match=r"no column nosuch\. Its columns: .*note.*; its key: ") as unknown:
        cells_of(ORDERS, {"nosuch": "x"})
    with pytest.raises(Refused, match="is a key column") as of_key:
        cells_of(ORDERS, {ORDERS.partition_key[0]: "x"})
    assert unknown.value.code == of_key.value.code == "unknown_column"


def test_results_are_shown_with_their_read_position() -> None:
    request = ClientRequest("shop", token_of(b"ann"), Access.READ, Level.QUORUM, "", "orders")
    plan = RequestPlan(request, ROW_TEXT_STATE.epoch, 3, (name_of(1),), (), ())
    writes = tuple(encode_mutation(write("ann", number, cells=(Cell("note", b"x"),))) for number in (8, 7))
    found = FoundPartition(TABLE, b"ann", writes, {0: 4}, plan, ROW_TEXT_STATE.epoch, (), 1, lacking=(name_of(1),))
    shown = found_json(ROW_TEXT_STATE, found, APPENDED)
    assert shown["rows"] == [{"number": 7, "note": "x"}, {"number": 8, "note": "x"}]
    assert (shown["static"], shown["positions"], shown["lacking"]) == ({}, {"0": 4}, ["n1"])
    assert shown["plan"]["asked"] == ["n1"]
