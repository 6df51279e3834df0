"""Views, indexes and columns: creation, drops, renames and reuse of names, with all dependents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.changes import project
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import COLUMNS_MAX, AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.generations.statements import shape_of_table, stored_shape
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.schema.stored import as_stored, in_stored_names, names_of, stored_names
from ringlog.kernel.sections import SCHEMA
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, TypeField, replace
from ringlog.wire.records import Cell, DeletedElements, Mutation, MutationStatement
from tests.kernel.commands.test_cluster_and_nodes import refusal
from tests.kernel.commands.test_schema import SIMPLE_1, TABLE, ready
from tests.kernel.entries import applied, uuid

VIEW = CreateView("ks", "by_v", "t", ("c",), ("v",), ("k", "c"))
INDEX = CreateIndex("ks", "t_c_idx", "t", "c")
WIDE = CreateTable(
    "ks",
    "wide",
    uuid(2, space=6),
    (
        Column("v", "text"),
        Column("k", "text"),
        Column("c", "int"),
        Column("s", "int", static=True),
        Column("many", "set<int>"),
        Column("home", "frozen<address>"),
    ),
    ("k",),
    ("c",),
    CdcOptions(),
)


def sound() -> ClusterState:
    address = CreateType("ks", "address", (TypeField("street", "text"),))
    return applied(ready(), address, TABLE, WIDE)


def test_a_view_has_its_own_version_and_key_columns() -> None:
    before = sound()
    state = applied(before, VIEW)
    view = state.views["ks.by_v"]
    assert view.columns == ("k", "c", "v"), "in the order of the table's columns"
    assert (view.version, view.changed) == (state.state_id, state.epoch) == (state.schema_version, state.epoch)
    assert state.tables is before.tables, "its writes are read as before"


def test_a_view_without_columns_has_all_row_columns() -> None:
    state = applied(sound(), CreateView("ks", "all", "wide", (), ("c",), ("k",)))
    assert state.views["ks.all"].columns == ("v", "k", "c", "many", "home")
    state = applied(state, CreateView("ks", "keys", "wide", ("k",), ("c",), ("k",)))
    assert state.views["ks.keys"].columns == ("k", "c")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"keyspace": "a.b"}, "bad_field"),
        ({"name": ""}, "bad_field"),
        ({"table": "a b"}, "bad_field"),
        ({"keyspace": "none"}, "unknown_keyspace"),
        ({"table": "none"}, "unknown_table"),
        ({"table": "by_w"}, "unknown_table"),
        ({"name": "by_w"}, "view_exists"),
        ({"name": "t"}, "table_exists"),
        ({"columns": ("none",)}, "unknown_column"),
        ({"columns": ("v", "v")}, "bad_field"),
        ({"columns": ("v",) * (COLUMNS_MAX + 1)}, "bad_field"),
        ({"columns": ("s",)}, "bad_field"),
        ({"partition_key": ()}, "bad_key"),
        ({"partition_key": ("v", "v")}, "bad_key"),
        ({"partition_key": ("none",)}, "bad_key"),
        ({"partition_key": ("many",)}, "bad_key"),
        ({"partition_key": ("s",)}, "bad_field"),
        ({"clustering_key": ("k",)}, "bad_key"),
        ({"clustering_key": ("c",)}, "bad_key"),
        ({"clustering_key": ()}, "bad_key"),
    ],
)
def test_a_view_is_refused(changes: dict[str, Any], code: str) -> None:
    state = applied(sound(), CreateView("ks", "by_w", "t", (), ("v",), ("k", "c")))
    command = replace(CreateView("ks", "more", "wide", (), ("v",), ("k", "c")), **changes)
    assert refusal(state, command) == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(INDEX, name="other"), "index_exists"),
        (replace(INDEX, column="v"), "index_exists"),
        (replace(INDEX, name="other", column="none"), "unknown_column"),
        (replace(INDEX, name="other", column="k"), "bad_key"),
        (replace(INDEX, table="none"), "unknown_table"),
        (replace(INDEX, keyspace="none"), "unknown_keyspace"),
        (replace(INDEX, name="a.b"), "bad_field"),
        (DropIndex("ks", "none"), "unknown_index"),
        (DropIndex("ks", ""), "bad_field"),
        (DropView("ks", "none"), "unknown_view"),
        (DropView("ks", "t"), "unknown_view"),
        (DropView("", "t"), "bad_field"),
        (DropTable("ks", "t"), "table_in_use"),
        (DropKeyspace("ks"), "keyspace_not_empty"),
        (replace(TABLE, name="by_v", id=uuid(9, space=6)), "view_exists"),
        (AlterType("ks", "address", (TypeField("zip", "int"),)), "type_in_use"),
    ],
)
def test_an_entity_in_use_cannot_be_dropped(command: Command, code: str) -> None:
    home = CreateView("ks", "by_home", "wide", (), ("home",), ("k", "c"))
    assert refusal(applied(sound(), VIEW, INDEX, home), command) == code


@pytest.mark.parametrize(
    ("drops", "renames", "code"),
    [
        (("none",), (), "unknown_column"),
        ((), (ColumnRename("none", "x"),), "unknown_column"),
        (("many", "many"), (), "bad_field"),
        (("many",), (ColumnRename("many", "x"),), "unknown_column"),
        (("many",) * (COLUMNS_MAX + 1), (), "bad_field"),
        (("k",), (), "bad_key"),
        (("home",), (), "column_in_use"),
        (("v",), (), "column_in_use"),
        ((), (ColumnRename("k", "a b"),), "bad_field"),
        ((), (ColumnRename("k", "v"),), "column_exists"),
        ((), (ColumnRename("k", "x"), ColumnRename("v", "x")), "column_exists"),
    ],
)
def test_columns_dropped_or_renamed(drops: tuple[str, ...], renames: tuple[ColumnRename, ...], code: str) -> None:
    home = CreateView("ks", "by_home", "wide", ("home",), ("home",), ("k", "c"))
    state = applied(sound(), home, CreateIndex("ks", "wide_v_idx", "wide", "v"))
    command = AlterTable("ks", "wide", drop_columns=drops, rename_columns=renames)
    assert refusal(state, command) == code
    assert refusal(state, replace(command, keyspace="none")) == "unknown_table"


def test_an_unused_entity_can_be_dropped() -> None:
    state = applied(sound(), VIEW, INDEX)
    assert refusal(applied(state, DropView("ks", "by_v")), DropTable("ks", "t")) == "table_in_use"
    assert refusal(applied(state, DropIndex("ks", "t_c_idx")), DropTable("ks", "t")) == "table_in_use"
    state = applied(state, DropView("ks", "by_v"), DropIndex("ks", "t_c_idx"), DropTable("ks", "t"))
    assert not state.views
    assert not state.indexes
    again = applied(state, replace(TABLE, name="by_v", id=uuid(9, space=6)))
    assert "ks.by_v" in again.tables


def test_names_are_unique_in_a_keyspace() -> None:
    other = replace(TABLE, keyspace="other", id=uuid(9, space=6))
    state = applied(sound(), CreateKeyspace("other", SIMPLE_1), other)
    state = applied(state, VIEW, INDEX, replace(VIEW, keyspace="other"), replace(INDEX, keyspace="other"))
    assert sorted(state.views) == ["ks.by_v", "other.by_v"]
    assert refusal(state, DropTable("other", "t")) == "table_in_use"
    free = applied(state, DropView("other", "by_v"), DropIndex("other", "t_c_idx"), DropTable("other", "t"))
    assert sorted(free.views) == ["ks.by_v"]


def test_a_schema_pause_blocks_views() -> None:
    state = applied(sound(), PauseChanges(("schema",), "", ""))
    assert refusal(state, VIEW) == refusal(state, INDEX) == "changes_paused"


def test_views_and_indexes_are_published() -> None:
    before = sound()
    state = applied(before, VIEW, INDEX)
    told = project(state)
    assert {key for topic, key in told if topic == SCHEMA and key.startswith(("view/", "index/"))} == {
        "view/ks.by_v",
        "index/ks.t_c_idx",
    }
    assert decode_state(encode(state)) == state
    gone = applied(state, DropView("ks", "by_v"), DropIndex("ks", "t_c_idx"))
    assert gone.views == gone.indexes == EMPTY_STATE.views
    assert digest(replace(gone, views=EMPTY_STATE.views)) == digest(gone)


WITH_HOME = CreateTable(
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


def sound_columns() -> ClusterState:
    return applied(ready(), CreateType("ks", "address", (TypeField("street", "text"),)), WITH_HOME)


def altered(state: ClusterState, *renames: tuple[str, str], drop: tuple[str, ...] = (), add: str = "") -> ClusterState:
    added = tuple(Column(name, "text") for name in add.split())
    steps = tuple(ColumnRename(*one) for one in renames)
    return applied(state, AlterTable("ks", "t", added, drop_columns=drop, rename_columns=steps))


def places(state: ClusterState) -> dict[str, str]:
    return {name: place for name, place in stored_names(state.tables["ks.t"]).items() if name not in ("k", "c", "key")}


def test_a_recreated_column_has_a_new_stored_name() -> None:
    state = altered(sound_columns(), drop=("v",))
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


def test_a_rename_keeps_the_stored_name() -> None:
    state = altered(sound_columns(), ("v", "x"), ("k", "key"))
    table = state.tables["ks.t"]
    assert [column.name for column in table.columns] == ["key", "c", "x", "s", "m", "home"]
    assert (table.partition_key, table.stored) == (("key",), (("key", "k"), ("x", "v")))
    assert (table.version, table.changed, table.respelled) == (state.state_id, state.epoch, state.epoch)
    state = altered(state, ("x", "v"))
    assert state.tables["ks.t"].stored == (("key", "k"),), "the column has its stored name again"
    state = altered(state, ("s", "z"), ("v", "s"))
    assert places(state) == {"s": "v", "z": "s", "m": "m", "home": "home"}


def test_one_command_drops_then_renames_then_adds() -> None:
    state = altered(sound_columns(), ("m", "v"), drop=("v",), add="m")
    assert places(state) == {"s": "s", "v": "m", "home": "home", "m": f"m@{state.epoch}"}
    assert refusal(state, AlterTable("ks", "t", (Column("v", "text"),), drop_columns=("m",))) == "column_exists"
    assert refusal(state, AlterTable("ks", "t")) == "bad_field"


def test_each_rename_uses_the_previous_result() -> None:
    index = CreateIndex("ks", "by_m", "t", "m")
    state = altered(applied(sound_columns(), index), ("m", "t"), ("v", "m"), ("t", "v"))
    assert places(state) == {"s": "s", "m": "v", "v": "m", "home": "home"}
    assert state.indexes["ks.by_m"].column == "v"
    state = altered(state, ("m", "t"), ("v", "m"), ("m", "v"), ("t", "w"))
    assert places(state) == {"s": "s", "w": "v", "v": "m", "home": "home"}
    for wrong, code in (((("v", "a"), ("v", "b")), "unknown_column"), ((("v", "w"),), "column_exists")):
        assert refusal(state, AlterTable("ks", "t", rename_columns=tuple(ColumnRename(*one) for one in wrong))) == code


def test_columns_of_one_entry_have_different_stored_names() -> None:
    base = altered(sound_columns(), drop=("v",))
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


def test_dependents_of_a_renamed_column_are_updated() -> None:
    view = CreateView("ks", "by_v", "t", ("m",), ("v",), ("k", "c"))
    other = CreateView("ks", "keys", "t", ("c",), ("c",), ("k",))
    state = applied(sound_columns(), view, other, CreateIndex("ks", "t_home", "t", "home"))
    after = altered(state, ("v", "x"), ("home", "address"), ("k", "key"))
    assert after.views["ks.by_v"].partition_key == ("x",)
    assert after.views["ks.by_v"].clustering_key == ("key", "c")
    assert after.views["ks.by_v"].columns == ("key", "c", "x", "m")
    assert after.views["ks.by_v"].version == after.indexes["ks.t_home"].version == after.state_id
    assert after.indexes["ks.t_home"].column == "address"
    assert altered(state, ("m", "n")).views["ks.keys"] is state.views["ks.keys"]
    assert not list(violations(after, ready()))
    assert dict(after.tables["ks.t"].declared) == {"address": "frozen<address>"}


def test_a_type_can_be_dropped_after_its_last_column() -> None:
    assert refusal(sound_columns(), DropType("ks", "address")) == "type_in_use"
    state = applied(altered(sound_columns(), drop=("home",)), DropType("ks", "address"))
    assert "ks.address" not in state.types


def test_the_schema_topic_contains_stored_names() -> None:
    state = altered(sound_columns(), ("v", "x"))
    told: Any = project(state)[SCHEMA, "table/ks.t"]
    assert (told.stored, told.respelled) == ((("x", "v"),), state.epoch)
    assert names_of(told) == {"v": "x", "x": "x@dropped"}
    state = altered(state, add="v")
    assert names_of(state.tables["ks.t"]) == {"v": "x", f"v@{state.epoch}": "v", "x": "x@dropped"}
    gone = altered(state, drop=("x",))
    assert names_of(gone.tables["ks.t"]) == {"v": "v@dropped", f"v@{state.epoch}": "v"}


def test_table_versions_keep_their_stored_names() -> None:
    state = applied(ready(), SettleVerdicts(10))
    state = applied(state, CreateType("ks", "address", (TypeField("street", "text"),)), WITH_HOME, SettleVerdicts(20))
    state = altered(applied(altered(state, ("v", "x")), SettleVerdicts(30)), drop=("x",), add="x")
    (lifetime,) = state.table_lives["ks.t"]
    assert [(one.since, dict(one.table.stored).get("x")) for one in lifetime.versions] == [
        (10, None),
        (20, "v"),
        (30, f"x@{state.epoch}"),
    ]


def test_a_write_is_converted_to_stored_names_once() -> None:
    table = altered(sound_columns(), ("v", "x"), ("m", "n"), ("s", "t")).tables["ks.t"]
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


def test_an_unrenamed_table_keeps_its_bytes() -> None:
    state = altered(sound_columns(), add="w")
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
def test_stored_names_are_never_reused(steps: list[tuple[str, str, str]]) -> None:
    state, owner, number = sound_columns(), {"v": 1, "m": 2}, 2
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
