"""Views and indexes: made of a table that is there, and kept from losing what they are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringlog.kernel.changes import project
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import COLUMNS_MAX, AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.sections import SCHEMA
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, TypeField
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


def test_a_view_has_a_version_of_its_own_and_the_columns_of_its_key() -> None:
    before = sound()
    state = applied(before, VIEW)
    view = state.views["ks.by_v"]
    assert view.columns == ("k", "c", "v"), "in the order of the table's"
    assert (view.version, view.changed) == (state.state_id, state.epoch) == (state.schema_version, state.epoch)
    assert state.tables is before.tables, "its writes are read as before"


def test_a_view_without_columns_has_all_that_are_of_one_row() -> None:
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
def test_what_is_used_stays(command: Command, code: str) -> None:
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


def test_what_nobody_uses_goes() -> None:
    state = applied(sound(), VIEW, INDEX)
    assert refusal(applied(state, DropView("ks", "by_v")), DropTable("ks", "t")) == "table_in_use"
    assert refusal(applied(state, DropIndex("ks", "t_c_idx")), DropTable("ks", "t")) == "table_in_use"
    state = applied(state, DropView("ks", "by_v"), DropIndex("ks", "t_c_idx"), DropTable("ks", "t"))
    assert not state.views
    assert not state.indexes
    again = applied(state, replace(TABLE, name="by_v", id=uuid(9, space=6)))
    assert "ks.by_v" in again.tables


def test_names_are_those_of_a_keyspace() -> None:
    other = replace(TABLE, keyspace="other", id=uuid(9, space=6))
    state = applied(sound(), CreateKeyspace("other", SIMPLE_1), other)
    state = applied(state, VIEW, INDEX, replace(VIEW, keyspace="other"), replace(INDEX, keyspace="other"))
    assert sorted(state.views) == ["ks.by_v", "other.by_v"]
    assert refusal(state, DropTable("other", "t")) == "table_in_use"
    free = applied(state, DropView("other", "by_v"), DropIndex("other", "t_c_idx"), DropTable("other", "t"))
    assert sorted(free.views) == ["ks.by_v"]


def test_a_pause_of_the_schema_holds_them_up() -> None:
    state = applied(sound(), PauseChanges(("schema",), "", ""))
    assert refusal(state, VIEW) == refusal(state, INDEX) == "changes_paused"


def test_they_are_published_and_kept() -> None:
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
