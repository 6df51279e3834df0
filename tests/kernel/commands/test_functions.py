"""Functions, aggregates and user types: creation, alteration together with their users, and drops of unused
entities.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from ringlog.kernel.changes import project
from ringlog.kernel.commands.schema.functions import (
    ARGUMENTS_MAX,
    BODY_BYTES_MAX,
    CreateAggregate,
    CreateFunction,
    DropAggregate,
    DropFunction,
)
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.cql.collections import LENGTH_MAX
from ringlog.kernel.cql.literals import LITERAL_MAX, is_literal
from ringlog.kernel.cql.types import is_type, normalised, without_frozen
from ringlog.kernel.cql.user_types import expand_types, is_part, used_in
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.sections import SCHEMA
from ringlog.kernel.values import CdcOptions, Column, Command, TypeField, replace
from tests.kernel.commands.test_cluster_and_nodes import refusal
from tests.kernel.commands.test_schema import ready
from tests.kernel.entries import applied, entry, uuid

ADD = CreateFunction("ks", "add", ("tuple<int, bigint>", "int"), ("s", "v"), "tuple<int, bigint>", "lua", "return s")
MEAN = CreateFunction("ks", "mean", ("frozen<tuple<int,bigint>>",), ("s",), "double", "lua", "return s[2] / s[1]", True)
AVERAGE = CreateAggregate("ks", "average", ("int",), "add", "tuple<int, bigint>", "mean", "(0, 0)")
ADDRESS = CreateType("ks", "address", (TypeField("street", "text"),))


def test_an_aggregate_uses_functions() -> None:
    state = applied(ready(), ADD, MEAN, AVERAGE)
    found = state.functions["ks.add(tuple<int, bigint>, int)"]
    assert (found.version, found.changed) == (state.functions[found.signature].version, state.epoch - 2)
    aggregate = state.aggregates["ks.average(int)"]
    assert aggregate.functions == ("ks.add(tuple<int, bigint>, int)", "ks.mean(tuple<int, bigint>)")
    assert set(aggregate.functions) == set(state.functions)
    assert aggregate.version == state.schema_version == state.state_id
    told = project(state)
    assert (SCHEMA, "aggregate/ks.average(int)") in told
    assert (SCHEMA, "function/ks.mean(tuple<int, bigint>)") in told
    assert decode_state(encode(state)) == state


def test_overloads_differ_by_arguments() -> None:
    one = CreateFunction("ks", "f", ("list<int>",), ("a",), "int", "lua", "return 1")
    state = applied(ready(), one, replace(one, arguments=("int",)), replace(one, arguments=(), argument_names=()))
    assert sorted(state.functions) == ["ks.f()", "ks.f(int)", "ks.f(list<int>)"]
    assert refusal(state, replace(one, arguments=(" frozen < list<int> >",))) == "function_exists"
    assert refusal(state, DropFunction("ks", "f")) == "ambiguous_name"
    assert refusal(state, DropFunction("ks", "f", ("text",))) == "unknown_function"
    assert refusal(state, DropFunction("ks", "f", ("?",))) == "bad_field", "the function without arguments stays"
    state = applied(state, DropFunction("ks", "f", ("frozen<list<int>>",)), DropFunction("ks", "f", ()))
    assert sorted(state.functions) == ["ks.f(int)"]
    assert not applied(state, DropFunction("ks", "f")).functions


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"keyspace": "a.b"}, "bad_field"),
        ({"name": "1"}, "bad_field"),
        ({"arguments": ("int",) * (ARGUMENTS_MAX + 1)}, "bad_field"),
        ({"argument_names": ("v",)}, "bad_field"),
        ({"argument_names": ("v", "v")}, "bad_field"),
        ({"argument_names": ("v", "a b")}, "bad_field"),
        ({"language": ""}, "bad_field"),
        ({"body": ""}, "bad_field"),
        ({"body": "ä" * (BODY_BYTES_MAX // 2 + 1)}, "too_large"),
        ({"keyspace": "none"}, "unknown_keyspace"),
        ({"arguments": ("int", "none")}, "unknown_type"),
        ({"arguments": ("int", "list<address>")}, "unknown_type"),
        ({"returns": "x" * (LENGTH_MAX + 1)}, "unknown_type"),
        ({"arguments": ("tuple<int,bigint>", "int")}, "function_exists"),
        ({"name": "average", "arguments": ("int",), "argument_names": ("v",)}, "aggregate_exists"),
    ],
)
def test_a_function_is_refused(changes: dict[str, Any], code: str) -> None:
    state = applied(ready(), ADDRESS, ADD, MEAN, AVERAGE)
    assert refusal(state, replace(replace(ADD, arguments=("int", "address")), **changes)) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": ""}, "bad_field"),
        ({"arguments": ("int",) * (ARGUMENTS_MAX + 1)}, "bad_field"),
        ({"state_function": ""}, "bad_field"),
        ({"final_function": "a b"}, "bad_field"),
        ({"initial": "(0, 0"}, "bad_field"),
        ({"initial": "'" + "x" * LITERAL_MAX + "'"}, "bad_field"),
        ({"keyspace": "none"}, "unknown_keyspace"),
        ({"arguments": ("none",)}, "unknown_type"),
        ({"state_type": "none"}, "unknown_type"),
        ({"state_type": "int"}, "unknown_function"),
        ({"arguments": ("text",)}, "unknown_function"),
        ({"final_function": "add"}, "unknown_function"),
        ({"state_function": "turn", "state_type": "int", "final_function": ""}, "function_mismatch"),
        ({"name": "average"}, "aggregate_exists"),
        ({"name": "mean", "arguments": ("tuple<int, bigint>",)}, "function_exists"),
    ],
)
def test_an_aggregate_is_refused(changes: dict[str, Any], code: str) -> None:
    turn = CreateFunction("ks", "turn", ("int", "int"), ("s", "v"), "text", "lua", "return ''")
    state = applied(ready(), ADD, MEAN, AVERAGE, turn)
    assert refusal(state, replace(replace(AVERAGE, name="other"), **changes)) == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (DropFunction("ks", "add"), "function_in_use"),
        (DropFunction("ks", "mean", ("tuple<int,bigint>",)), "function_in_use"),
        (DropFunction("ks", "none"), "unknown_function"),
        (DropFunction("ks", "where", ("int",) * (ARGUMENTS_MAX + 1)), "bad_field"),
        (DropFunction("", "where"), "bad_field"),
        (DropAggregate("ks", "mean"), "unknown_aggregate"),
        (DropAggregate("ks", "average", ("text",)), "unknown_aggregate"),
        (DropType("ks", "address"), "type_in_use"),
        (DropKeyspace("ks"), "keyspace_not_empty"),
    ],
)
def test_an_entity_in_use_cannot_be_dropped(command: Command, code: str) -> None:
    where = CreateFunction("ks", "where", ("frozen<map<int, address>>",), ("a",), "text", "lua", "return ''")
    where = replace(where, arguments=("frozen<map<int, frozen<address>>>",))
    assert refusal(applied(ready(), ADDRESS, where, ADD, MEAN, AVERAGE), command) == code


def test_an_unused_entity_can_be_dropped() -> None:
    state = applied(ready(), ADD, MEAN, AVERAGE, DropAggregate("ks", "average"))
    state = applied(state, DropFunction("ks", "add"), DropFunction("ks", "mean"), DropKeyspace("ks"))
    assert not state.functions


def test_a_type_growth_is_limited_by_its_functions() -> None:
    many = ", ".join(["frozen<address>"] * 100)
    where = CreateFunction("ks", "where", (f"tuple<{many}>",), ("a",), "text", "lua", "return ''")
    state = applied(ready(), ADDRESS, where)
    assert refusal(state, AlterType("ks", "address", (TypeField("street_and_number", "text"),))) == "bad_field"
    applied(state, AlterType("ks", "address", (TypeField("z", "int"),)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("'a''b'", True),
        ("-1.5e-3", True),
        (" ( 0 , {'a': [1, null]} ) ", True),
        ('{a: 1, "B c": {}}', True),
        ("0xff", True),
        ("0b0f4d4e-0000-7000-8000-000000000000", True),
        ("", False),
        ("a", False),
        ("1a", False),
        ("(1 2)", False),
        ("[1,]", False),
        ("'", False),
        ("1; DROP KEYSPACE ks", False),
        ("(" * 9 + ")" * 9, True),
        ("(" * 10 + ")" * 10, False),
    ],
)
def test_literals(text: str, found: bool) -> None:
    assert is_literal(text) is found


def test_a_type_has_one_canonical_spelling() -> None:
    assert normalised(" map < text,frozen< udt<a int,b list<x>> > >") == "map<text, frozen<udt<a int, b list<x>>>>"
    assert without_frozen("frozen<map<text, frozen<list<x>>>>") == "map<text, list<x>>"
    assert normalised("a;b") == without_frozen("a;b") == ""


# Random sequences


def drawn(draw: random.Random, number: int) -> Command:
    """Return a command for a small schema, so that most names are taken or in use."""
    kind, name = draw.choice(["int", "x", "frozen<y>"]), draw.choice("tu")
    columns = (Column("k", "text"), Column("c", "int"), Column("v", draw.choice(["int", "frozen<x>", "frozen<y>"])))
    commands: list[Command] = [
        CreateTable("ks", name, uuid(number, space=6), columns, ("k",), ("c",), CdcOptions()),
        DropTable("ks", name),
        CreateView("ks", draw.choice("tvw"), name, draw.choice([(), ("k",)]), ("v",), ("k", "c")),
        DropView("ks", draw.choice("vw")),
        CreateIndex("ks", draw.choice("ij"), name, draw.choice("cv")),
        DropIndex("ks", draw.choice("ij")),
        CreateType("ks", draw.choice("xy"), (TypeField("a", draw.choice(["int", "frozen<x>"])),)),
        AlterType("ks", draw.choice("xy"), (TypeField(f"n{number}", "int"),)),
        DropType("ks", draw.choice("xy")),
        CreateFunction("ks", draw.choice("fg"), (kind, kind), ("s", "v"), kind, "lua", "return s"),
        CreateFunction("ks", draw.choice("fg"), (kind,), ("s",), "int", "lua", "return s"),
        DropFunction("ks", draw.choice("fg"), draw.choice([None, (kind,), (kind, kind)])),
        CreateAggregate("ks", draw.choice("fgh"), (kind,), draw.choice("fg"), kind, draw.choice(["", "f", "g"])),
        DropAggregate("ks", draw.choice("fgh")),
        DropKeyspace("ks"),
    ]
    return draw.choice(commands)


def test_no_sequence_of_schema_commands_leaves_a_dangling_reference() -> None:
    done = set[type[Command]]()
    for seed in range(10):
        draw, state = random.Random(seed), ready()
        for number in range(150):
            command = drawn(draw, number)
            after: ClusterState = fold(state, entry(state, command)).state
            if after is not state and not isinstance(command, DropKeyspace):
                assert violations(after, state) == (), command
                done.add(type(command))
                state = after
    assert len(done) == 13, "each kind has applied"


def fields(**kinds: str) -> tuple[TypeField, ...]:
    return tuple(TypeField(name, kind) for name, kind in kinds.items())


def table(name: str = "t", key: str = "text", **kinds: str) -> CreateTable:
    columns = tuple(Column(column, kind) for column, kind in {"k": key, **kinds}.items())
    return CreateTable("ks", name, uuid(len(name), space=6), columns, ("k",), (), CdcOptions())


HOME = CreateType("ks", "address", fields(street="text", zip="int"))
PERSON = CreateType("ks", "person", fields(name="text", home="frozen<address>", all="frozen<list<frozen<address>>>"))
PLAIN = "udt<street text, zip int>"


def types_of(state: ClusterState, name: str = "ks.t") -> dict[str, str]:
    return {column.name: column.type for column in state.tables[name].columns}


def test_columns_have_types_without_names() -> None:
    state = applied(ready(), HOME, PERSON, table(a="address", b="frozen<person>", c="map<text, frozen<address>>"))
    assert types_of(state) == {
        "k": "text",
        "a": PLAIN,
        "b": f"frozen<udt<name text, home frozen<{PLAIN}>, all frozen<list<frozen<{PLAIN}>>>>>",
        "c": f"map<text, frozen<{PLAIN}>>",
    }
    assert dict(state.tables["ks.t"].declared) == {
        "a": "address",
        "b": "frozen<person>",
        "c": "map<text, frozen<address>>",
    }
    assert shape_of_table(state.tables["ks.t"]).collections == (("a", PLAIN), ("c", f"map<text, frozen<{PLAIN}>>"))
    state = applied(state, AlterTable("ks", "t", (Column("d", "frozen<address>"),)))
    assert types_of(state)["d"] == f"frozen<{PLAIN}>"
    assert all(is_type(kind) for kind in types_of(state).values())


def test_a_type_alteration_changes_all_columns_and_versions() -> None:
    before = applied(ready(), HOME, PERSON, table(b="frozen<person>"), table("other", v="text"))
    state = applied(before, AlterType("ks", "address", fields(city="text")))
    longer = "udt<street text, zip int, city text>"
    kind = f"frozen<udt<name text, home frozen<{longer}>, all frozen<list<frozen<{longer}>>>>>"
    assert types_of(state)["b"] == kind
    assert state.tables["ks.t"].version == state.types["ks.address"].version == state.schema_version == state.state_id
    assert state.tables["ks.other"] is before.tables["ks.other"]
    assert digest(state) != digest(before)


def test_an_unused_type_can_be_dropped() -> None:
    state = applied(ready(), HOME, PERSON, table(a="address"))
    assert refusal(state, DropType("ks", "address")) == "type_in_use"
    assert refusal(state, DropKeyspace("ks")) == "keyspace_not_empty"
    state = applied(state, DropType("ks", "person"), DropTable("ks", "t"), DropType("ks", "address"))
    assert not state.types
    assert applied(state, DropKeyspace("ks")).keyspaces.get("ks") is None


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("unknown_keyspace", CreateType("none", "a", fields(a="int"))),
        ("type_exists", HOME),
        ("bad_field", CreateType("ks", "text", fields(a="int"))),
        ("bad_field", CreateType("ks", "udt", fields(a="int"))),
        ("bad_field", CreateType("ks", "a", ())),
        ("bad_field", CreateType("ks", "a", fields(**{"1": "int"}))),
        ("bad_field", CreateType("ks", "a b", fields(a="int"))),
        ("bad_field", CreateType("ks", "a", fields(**{f"field{number}": "timestamp" for number in range(300)}))),
        ("unknown_type", CreateType("ks", "a", fields(a="address"))),
        ("unknown_type", CreateType("ks", "a", fields(a="list<int>"))),
        ("unknown_type", CreateType("ks", "a", fields(a="frozen<a>"))),
        ("field_exists", AlterType("ks", "address", fields(zip="int"))),
        ("unknown_type", AlterType("ks", "none", fields(zip="int"))),
        ("bad_field", AlterType("ks", "address", fields(a="frozen<address>"))),
        ("bad_field", AlterType("ks", "address", fields(a="frozen<list<frozen<person>>>"))),
        ("type_in_use", AlterType("ks", "inkey", fields(b="int"))),
        ("unknown_type", DropType("ks", "none")),
        ("type_in_use", DropType("ks", "address")),
        ("unknown_type", table("new", a="frozen<nothing>")),
        ("bad_key", table("new", key="address")),
    ],
)
def test_invalid_type_commands_are_rejected(code: str, command: Any) -> None:
    inkey = CreateType("ks", "inkey", fields(a="int"))
    state = applied(ready(), HOME, PERSON, inkey, table(key="frozen<inkey>"))
    assert refusal(state, command) == code


def test_a_field_may_have_the_name_of_a_type() -> None:
    known = {"a": (("b", "int"), ("a", "text")), "b": (("a", "frozen<a>"),)}
    assert used_in("udt<a b, b frozen<list<c>>>") == {"b", "c"}
    assert expand_types("b", known) == "udt<a frozen<udt<b int, a text>>>"
    assert expand_types("set<int>", known) == "set<int>"
    assert is_part("a", "list<frozen<b>>", known)
    assert not is_part("b", "frozen<a>", known)
    assert not is_type(expand_types("b>", known)), "an invalid type stays invalid"
