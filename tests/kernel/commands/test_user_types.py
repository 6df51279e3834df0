"""User types: made, used by tables and by each other, altered with what uses them, dropped when nobody does."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.cql.types import is_type
from ringlog.kernel.cql.user_types import is_part, resolved, used_in
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, TypeField
from tests.kernel.commands.test_cluster_and_nodes import refusal
from tests.kernel.commands.test_schema import ready
from tests.kernel.entries import applied, uuid


def fields(**kinds: str) -> tuple[TypeField, ...]:
    return tuple(TypeField(name, kind) for name, kind in kinds.items())


def table(name: str = "t", key: str = "text", **kinds: str) -> CreateTable:
    columns = tuple(Column(column, kind) for column, kind in {"k": key, **kinds}.items())
    return CreateTable("ks", name, uuid(len(name), space=6), columns, ("k",), (), CdcOptions())


ADDRESS = CreateType("ks", "address", fields(street="text", zip="int"))
PERSON = CreateType("ks", "person", fields(name="text", home="frozen<address>", all="frozen<list<frozen<address>>>"))
PLAIN = "udt<street text, zip int>"


def types_of(state: ClusterState, name: str = "ks.t") -> dict[str, str]:
    return {column.name: column.type for column in state.tables[name].columns}


def test_columns_have_types_without_names() -> None:
    state = applied(ready(), ADDRESS, PERSON, table(a="address", b="frozen<person>", c="map<text, frozen<address>>"))
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


def test_an_alteration_reaches_every_column_and_the_tables_versions() -> None:
    before = applied(ready(), ADDRESS, PERSON, table(b="frozen<person>"), table("other", v="text"))
    state = applied(before, AlterType("ks", "address", fields(city="text")))
    longer = "udt<street text, zip int, city text>"
    kind = f"frozen<udt<name text, home frozen<{longer}>, all frozen<list<frozen<{longer}>>>>>"
    assert types_of(state)["b"] == kind
    assert state.tables["ks.t"].version == state.types["ks.address"].version == state.schema_version == state.state_id
    assert state.tables["ks.other"] is before.tables["ks.other"]
    assert digest(state) != digest(before)


def test_a_type_that_nobody_uses_goes() -> None:
    state = applied(ready(), ADDRESS, PERSON, table(a="address"))
    assert refusal(state, DropType("ks", "address")) == "type_in_use"
    assert refusal(state, DropKeyspace("ks")) == "keyspace_not_empty"
    state = applied(state, DropType("ks", "person"), DropTable("ks", "t"), DropType("ks", "address"))
    assert not state.types
    assert applied(state, DropKeyspace("ks")).keyspaces.get("ks") is None


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("unknown_keyspace", CreateType("none", "a", fields(a="int"))),
        ("type_exists", ADDRESS),
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
def test_what_is_refused(code: str, command: Any) -> None:
    inkey = CreateType("ks", "inkey", fields(a="int"))
    state = applied(ready(), ADDRESS, PERSON, inkey, table(key="frozen<inkey>"))
    assert refusal(state, command) == code


def test_a_field_may_have_the_name_of_a_type() -> None:
    known = {"a": (("b", "int"), ("a", "text")), "b": (("a", "frozen<a>"),)}
    assert used_in("udt<a b, b frozen<list<c>>>") == {"b", "c"}
    assert resolved("b", known) == "udt<a frozen<udt<b int, a text>>>"
    assert resolved("set<int>", known) == "set<int>"
    assert is_part("a", "list<frozen<b>>", known)
    assert not is_part("b", "frozen<a>", known)
    assert not is_type(resolved("b>", known)), "what is no type stays none"
