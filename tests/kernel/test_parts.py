"""The declarations of the parts: complete, and kept by change records and caches alike."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

import pytest

from ringlog.cache import projection
from ringlog.kernel.changes import SCHEMA, TELLINGS, TypeChange, _maker, project
from ringlog.kernel.commands.cdc_writers import RegisterCdcWriter
from ringlog.kernel.commands.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.nodes import DeclareDown
from ringlog.kernel.commands.user_types import AlterType, CreateType, DropType
from ringlog.kernel.parts import PARTS, WHOLE
from ringlog.kernel.state import Node
from ringlog.kernel.values import Replication, TypeField
from tests.kernel.entries import applied, founded, node, with_normal_nodes


def test_every_reason_is_a_sentence() -> None:
    for part in PARTS:
        assert all(len(why) > 10 for why in (*part.hidden.values(), *part.untold.values()))
        assert bool(part.topic) is not (WHOLE in {**part.hidden, **part.untold}), f"{part.name}: a topic or a reason"


def test_a_record_that_lacks_a_field_is_no_record_of_its_part() -> None:
    (nodes,) = (telling for telling in TELLINGS if telling.part.name == "nodes")
    assert {field.name for field in fields(nodes.change)} == {field.name for field in fields(Node)} | {"epoch"}
    with pytest.raises(TypeError, match=r"differ in \['.*'tokens'.*\]"):
        _maker("nodes", TypeChange)


def test_caches_show_every_field_that_is_not_hidden() -> None:
    state = with_normal_nodes(founded(), 2)
    state = applied(
        state,
        node(9),
        DeclareDown(node(9).id, "burnt"),
        CreateKeyspace("ks", Replication("simple", 1)),
        CreateType("ks", "t", (TypeField("f", "int"),)),
        RegisterCdcWriter("w", node(1).id),
        AlterKeyspace("ks", Replication("simple", 2)),
    )
    cached = projection.project(state)
    for part in PARTS:
        if WHOLE in part.hidden:
            assert part.name not in cached
            continue
        within = {pieces.field for pieces in part.pieces}
        for text in cached[part.name].values():
            if is_dataclass(part.item):
                assert json.loads(text).keys() == set(part.fields) - within
    (operation,) = (json.loads(text) for text in cached["operations"].values())
    assert (operation["keyspace"], operation["replication"]["factor"]) == ("ks", 2)
    assert json.loads(cached["nodes"][node(9).id])["down_reason"] == "burnt"
    assert cached["types"].keys() == {"ks.t"}


def test_user_types_are_told_as_they_come_and_go() -> None:
    state = applied(with_normal_nodes(founded(), 1), CreateKeyspace("ks", Replication("simple", 1)))
    state = applied(state, CreateType("ks", "t", (TypeField("f", "int"),)))
    state = applied(state, AlterType("ks", "t", (TypeField("g", "text"),)))
    fields_now = (TypeField("f", "int"), TypeField("g", "text"))
    told = project(state)[SCHEMA, "type/ks.t"]
    assert told == TypeChange("ks", "t", fields_now, state.state_id, state.epoch, epoch=state.epoch)
    assert (SCHEMA, "type/ks.t") not in project(applied(state, DropType("ks", "t")))
