"""The declarations of state sections are complete, and agree with change records and caches."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringlog
from ringlog.cache import projection
from ringlog.cli.codes import COMMAND_CODES
from ringlog.kernel.changes import PUBLICATIONS, TypeChange, _maker, project
from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import Node
from ringlog.kernel.model.state_section import WHOLE
from ringlog.kernel.registry import CODES
from ringlog.kernel.sections import PARTS, SCHEMA
from ringlog.kernel.values import Replication, TypeField, is_value_class
from tests.kernel.entries import applied, founded, node, with_normal_nodes


def test_every_reason_is_a_sentence() -> None:
    for part in PARTS:
        assert all(len(why) > 10 for why in (*part.hidden.values(), *part.unpublished.values()))
        assert bool(part.topic) is not (WHOLE in {**part.hidden, **part.unpublished}), (
            f"{part.name}: a topic or a reason"
        )


def test_a_change_record_has_each_field_of_its_section() -> None:
    (nodes,) = (publication for publication in PUBLICATIONS if publication.part.name == "nodes")
    assert {*nodes.change.__struct_fields__} == {*Node.__struct_fields__} | {"epoch"}
    with pytest.raises(TypeError, match=r"differ in \['.*'tokens'.*\]"):
        _maker("nodes", TypeChange)


def test_caches_contain_each_visible_field() -> None:
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
        within = {split_fields.field for split_fields in part.split_fields}
        for text in cached[part.name].values():
            if is_value_class(part.item):
                assert json.loads(text).keys() == set(part.fields) - within
    (operation,) = (json.loads(text) for text in cached["operations"].values())
    assert (operation["keyspace"], operation["replication"]["factor"]) == ("ks", 2)
    assert json.loads(cached["nodes"][node(9).id])["down_reason"] == "burnt"
    assert cached["types"].keys() == {"ks.t"}


def test_user_types_are_published() -> None:
    state = applied(with_normal_nodes(founded(), 1), CreateKeyspace("ks", Replication("simple", 1)))
    state = applied(state, CreateType("ks", "t", (TypeField("f", "int"),)))
    state = applied(state, AlterType("ks", "t", (TypeField("g", "text"),)))
    fields_now = (TypeField("f", "int"), TypeField("g", "text"))
    told = project(state)[SCHEMA, "type/ks.t"]
    assert told == TypeChange("ks", "t", fields_now, state.state_id, state.epoch, epoch=state.epoch)
    assert (SCHEMA, "type/ks.t") not in project(applied(state, DropType("ks", "t")))


# The set of rejection codes is closed: the source uses no other code, and uses each one.


SOURCE = Path(ringlog.__file__).parent


def _declares(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in ("CODES", "_PROTOCOL")


def trees() -> Iterator[ast.Module]:
    """Yield the sources without the declarations of codes."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield ast.Module([node for node in tree.body if not _declares(node)], [])


def given_codes() -> set[str]:
    """Return the literal rejection codes in the source."""
    calls = (node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("Rejected", "InvalidCommand") and call.args
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def test_each_rejection_has_a_declared_code() -> None:
    found = given_codes()
    assert len(found) > 40
    assert found <= {*CODES, *COMMAND_CODES}


def test_each_code_is_used() -> None:
    literals = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(CODES) <= literals


def test_every_code_has_a_meaning() -> None:
    for code, meaning in CODES.items():
        assert code.replace("_", "").isalpha()
        assert code.islower()
        assert meaning.endswith(".")
