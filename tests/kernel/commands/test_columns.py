"""Columns that are dropped, renamed and made anew: where their cells lie, and what depends on them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.changes import project
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.schema.user_types import CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.generations.statements import shape_of_table, stored_shape
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.schema.stored import as_stored, in_stored_names, names_of, stored_names
from ringlog.kernel.sections import SCHEMA
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, TypeField
from ringlog.wire.records import Cell, DeletedElements, Mutation, MutationStatement
from tests.kernel.commands.test_cluster_and_nodes import refusal
from tests.kernel.commands.test_schema import ready
from tests.kernel.entries import applied, uuid

WIDE = CreateTable(
    "ks",
    "t",
    uuid(1, space=6),
    (
        Column("k", "text"),
        Column("c", "int"),
        Column("v", "text"),
        Column("s", "int", static=True),
        Column("m", "map<text, int>"),
        Column("home", "frozen<address>"),
    ),
    ("k",),
    ("c",),
    CdcOptions(),
)


def sound() -> ClusterState:
    return applied(ready(), CreateType("ks", "address", (TypeField("street", "text"),)), WIDE)


def altered(state: ClusterState, *renames: tuple[str, str], drop: tuple[str, ...] = (), add: str = "") -> ClusterState:
    added = tuple(Column(name, "text") for name in add.split())
    steps = tuple(ColumnRename(*one) for one in renames)
    return applied(state, AlterTable("ks", "t", added, drop_columns=drop, rename_columns=steps))


def places(state: ClusterState) -> dict[str, str]:
    return {name: place for name, place in stored_names(state.tables["ks.t"]).items() if name not in ("k", "c", "key")}


def test_a_column_that_is_made_anew_lies_where_nothing_was_written() -> None:
    state = altered(sound(), drop=("v",))
    dropped = state.epoch
    assert places(state) == {"s": "s", "m": "m", "home": "home"}
    assert (state.tables["ks.t"].respelled, state.tables["ks.t"].stored) == (dropped, ())
    state = altered(state, add="v w")
    assert (places(state)["v"], places(state)["w"]) == (f"v@{state.epoch}", f"w@{state.epoch}")
    first = places(state)["v"]
    state = altered(altered(state, drop=("v",)), add="v")
    assert places(state)["v"] not in ("v", first)
    assert state.tables["ks.t"].columns[-1] == Column("v", "text")
    assert decode_state(encode(state)) == state


def test_a_rename_leaves_the_cells_where_they_are() -> None:
    state = altered(sound(), ("v", "x"), ("k", "key"))
    table = state.tables["ks.t"]
    assert [column.name for column in table.columns] == ["key", "c", "x", "s", "m", "home"]
    assert (table.partition_key, table.stored) == (("key",), (("key", "k"), ("x", "v")))
    assert (table.version, table.changed, table.respelled) == (state.state_id, state.epoch, state.epoch)
    state = altered(state, ("x", "v"))
    assert state.tables["ks.t"].stored == (("key", "k"),), "it is called again as it lies"
    state = altered(state, ("s", "z"), ("v", "s"))
    assert places(state) == {"s": "v", "z": "s", "m": "m", "home": "home"}


def test_one_command_drops_then_renames_then_adds() -> None:
    state = altered(sound(), ("m", "v"), drop=("v",), add="m")
    assert places(state) == {"s": "s", "v": "m", "home": "home", "m": f"m@{state.epoch}"}
    assert refusal(state, AlterTable("ks", "t", (Column("v", "text"),), drop_columns=("m",))) == "column_exists"
    assert refusal(state, AlterTable("ks", "t")) == "bad_field"


def test_each_rename_sees_the_result_of_the_one_before() -> None:
    index = CreateIndex("ks", "by_m", "t", "m")
    state = altered(applied(sound(), index), ("m", "t"), ("v", "m"), ("t", "v"))
    assert places(state) == {"s": "s", "m": "v", "v": "m", "home": "home"}
    assert state.indexes["ks.by_m"].column == "v"
    state = altered(state, ("m", "t"), ("v", "m"), ("m", "v"), ("t", "w"))
    assert places(state) == {"s": "s", "w": "v", "v": "m", "home": "home"}
    for wrong, code in (((("v", "a"), ("v", "b")), "unknown_column"), ((("v", "w"),), "column_exists")):
        assert refusal(state, AlterTable("ks", "t", rename_columns=tuple(ColumnRename(*one) for one in wrong))) == code


def test_no_two_columns_of_one_entry_lie_in_one_place() -> None:
    base = altered(sound(), drop=("v",))
    steps: list[dict[str, Any]] = [
        {"add_columns": (Column("v", "text"),)},
        {"rename_columns": (ColumnRename("v", "w"),)},
        {"add_columns": (Column("v", "text"),)},
        {"drop_columns": ("w",)},
        {"add_columns": (Column("w", "int"),)},
    ]
    state = applied(base, SchemaBatch(tuple(statement_of(AlterTable("ks", "t", **step)) for step in steps)))
    lies = places(state)
    assert (lies["v"], lies["w"]) == (f"v@{state.epoch}.2", f"w@{state.epoch}")
    assert not list(violations(state, ready()))


def test_what_depends_on_a_renamed_column_follows() -> None:
    view = CreateView("ks", "by_v", "t", ("m",), ("v",), ("k", "c"))
    other = CreateView("ks", "keys", "t", ("c",), ("c",), ("k",))
    state = applied(sound(), view, other, CreateIndex("ks", "t_home", "t", "home"))
    after = altered(state, ("v", "x"), ("home", "address"), ("k", "key"))
    assert after.views["ks.by_v"].partition_key == ("x",)
    assert after.views["ks.by_v"].clustering_key == ("key", "c")
    assert after.views["ks.by_v"].columns == ("key", "c", "x", "m")
    assert after.views["ks.by_v"].version == after.indexes["ks.t_home"].version == after.state_id
    assert after.indexes["ks.t_home"].column == "address"
    assert altered(state, ("m", "n")).views["ks.keys"] is state.views["ks.keys"]
    assert not list(violations(after, ready()))
    assert dict(after.tables["ks.t"].declared) == {"address": "frozen<address>"}


def test_a_type_goes_with_the_last_column_of_it() -> None:
    assert refusal(sound(), DropType("ks", "address")) == "type_in_use"
    state = applied(altered(sound(), drop=("home",)), DropType("ks", "address"))
    assert "ks.address" not in state.types


def test_consumers_hear_where_cells_lie() -> None:
    state = altered(sound(), ("v", "x"))
    told: Any = project(state)[SCHEMA, "table/ks.t"]
    assert (told.stored, told.respelled) == ((("x", "v"),), state.epoch)
    assert names_of(told) == {"v": "x", "x": "x@dropped"}
    state = altered(state, add="v")
    assert names_of(state.tables["ks.t"]) == {"v": "x", f"v@{state.epoch}": "v", "x": "x@dropped"}
    gone = altered(state, drop=("x",))
    assert names_of(gone.tables["ks.t"]) == {"v": "v@dropped", f"v@{state.epoch}": "v"}


def test_versions_say_for_good_where_their_cells_lie() -> None:
    state = applied(ready(), SettleVerdicts(10))
    state = applied(state, CreateType("ks", "address", (TypeField("street", "text"),)), WIDE, SettleVerdicts(20))
    state = altered(applied(altered(state, ("v", "x")), SettleVerdicts(30)), drop=("x",), add="x")
    (lifetime,) = state.table_lives["ks.t"]
    assert [(one.since, dict(one.table.stored).get("x")) for one in lifetime.versions] == [
        (10, None),
        (20, "v"),
        (30, f"x@{state.epoch}"),
    ]


def test_a_write_is_turned_into_stored_names_once() -> None:
    table = altered(sound(), ("v", "x"), ("m", "n"), ("s", "t")).tables["ks.t"]
    shape = shape_of_table(table)
    more = (MutationStatement("UPDATE", (), (Cell("t", b"1"),)),)
    taken = (DeletedElements("n", (b"a",)),)
    write = Mutation(
        None, None, "ks", "t", 1, None, "UPDATE", (b"k",), (b"c",), (Cell("x", b"1"),), taken, ("n",), more=more
    )
    found = as_stored(write, shape.stored)
    assert [cell.column for cell in found.cells] == ["v"]
    assert ([one.column for one in found.deleted_elements], found.replaced) == (["m"], ("m",))
    assert found.more[0].cells[0].column == "s"
    assert as_stored(write, ()) is write
    inner = stored_shape(shape)
    assert (inner.static, inner.collections, inner.stored) == (("s",), (("m", "map<text, int>"),), ())
    assert set(inner.columns or ()) == {"v", "m", "s", "home"}
    assert shape_of_table(in_stored_names(table)) == inner
    assert shape.is_special


def test_a_table_that_kept_its_columns_has_the_bytes_of_before() -> None:
    state = altered(sound(), add="w")
    assert b"respelled" not in encode(state.tables)
    assert b"stored" not in encode(state.tables["ks.t"])
    assert digest(decode_state(encode(state))) == digest(state)


NAMES = st.sampled_from(("v", "w", "x", "m"))
STEP = st.one_of(
    st.tuples(st.just("drop"), NAMES, NAMES),
    st.tuples(st.just("add"), NAMES, NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
)


@given(st.lists(STEP, max_size=12))
@settings(max_examples=25)
def test_no_sequence_of_changes_gives_a_place_twice(steps: list[tuple[str, str, str]]) -> None:
    state, owner, number = sound(), {"v": 1, "m": 2}, 2
    lies = {1: "v", 2: "m"}
    for what, one, other in steps:
        command = {
            "drop": AlterTable("ks", "t", drop_columns=(one,)),
            "add": AlterTable("ks", "t", (Column(one, "text"),)),
            "rename": AlterTable("ks", "t", rename_columns=(ColumnRename(one, other),)),
        }[what]
        if (one in owner) == (what == "add") or (what == "rename" and other in owner):
            assert refusal(state, command) in ("unknown_column", "column_exists")
            continue
        state = applied(state, command)
        if what == "add":
            number += 1
            owner[one] = number
            lies[number] = places(state)[one]
        else:
            known = owner.pop(one)
            owner |= {other: known} if what == "rename" else {}
        assert {name: places(state)[name] for name in owner} == {name: lies[known] for name, known in owner.items()}
    assert len(set(lies.values())) == len(lies)
    assert not list(violations(state, ready()))
