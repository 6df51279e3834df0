"""A command is declared in one file: a test adds one at run time, and no other module lists it.

*Dim* sets the number of concurrent operations on named nodes. Registry, schema, payload, JSON, fold, rehearsal and
reference page come from its class and its rule. These tests fail if one of them keeps a manual list of commands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from ringlog.cli import reference
from ringlog.kernel import registry
from ringlog.kernel.model.outcome import UnknownCommand
from ringlog.operator.intents.intents import InvalidCommand
from ringlog.operator.intents.json_commands import from_json, to_json
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.runtime.draw import SeededDraw
from ringlog.wire import commands
from ringlog.wire.avro import avsc, codec
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.commands import decode_command, encode_command
from ringlog_schemas.catalogue import VERSION
from tests.kernel.entries import applied, founded, node

FAMILY = '''"""Lamps."""

from __future__ import annotations

from typing import Annotated

from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Command

CODES = {"too_bright": "There is no such lamp."}


class Dim(Command):
    """Fewer lamps.

    For a while.
    """

    node: Annotated[str, "Id of the node."]
    level: Annotated[int, "How many are left."]
    seed: Annotated[bytes, "16 random bytes."]
    others: Annotated[tuple[str, ...], "Names of others."] = ()


def decide_dim(state: ClusterState, command: Dim, context: EntryContext) -> Decision:
    """Not above nine."""
    if command.level > 9:
        return Rejected("too_bright", f"level: {command.level}")
    return Accepted(
        advance(state, context.epoch, settings=state.settings.set("operations_concurrent_max", command.level))
    )
'''
NAME = "ringlog.commands.Dim"


@pytest.fixture(autouse=True)
def dim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the class; its file is the only manual part."""
    (tmp_path / "lamps.py").write_text(FAMILY)
    spec = spec_from_file_location("lamps", tmp_path / "lamps.py")
    assert spec is not None
    assert spec.loader is not None
    family = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lamps", family)
    spec.loader.exec_module(family)
    # The derivations at the end of the deriving modules, repeated with one more family.
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, family))
    (new,) = {kind: rule for kind, rule in registry._rules().items() if kind not in registry.RULES}.items()
    monkeypatch.setitem(registry.RULES, *new)
    monkeypatch.setitem(registry.COMMANDS, "Dim", family.Dim)
    monkeypatch.setitem(registry.VERSIONS, "Dim", family.Dim.VERSION)
    monkeypatch.setitem(avsc.RECORD_CLASSES, NAME, family.Dim)
    made = RecordCodec(avsc.schema_of(NAME))
    monkeypatch.setattr(commands, "layout", lambda name: made if name == NAME else codec.layout(name))
    yield family.Dim
    commands.mapper.cache_clear()


def test_its_schema_comes_from_the_class() -> None:
    schema = avsc.schema_of(NAME)
    assert (schema["doc"], schema[VERSION]) == ("Fewer lamps.", 1)
    assert [(field["name"], field["type"]) for field in schema["fields"]] == [
        ("node", "string"),
        ("level", "long"),
        ("seed", "bytes"),
        ("others", {"type": "array", "items": "string"}),
    ]


def test_it_round_trips_as_payload_and_json(dim: Any) -> None:
    state = applied(founded(), node(1))
    command = dim(state.node_names["n1"], 3, bytes(16), ("a", "b"))
    assert decode_command(*encode_command(command)) == command
    assert decode_command("Dimmer", 1, b"") == UnknownCommand("Dimmer", 1)
    shown = to_json(state, command)
    assert shown == {"command": "Dim", "node": "n1", "level": 3, "seed": "00" * 16, "others": ["a", "b"]}
    assert from_json(state, shown, SeededDraw(b"x")) == command


def test_a_seed_is_drawn_and_bad_fields_are_refused_with_their_path(dim: Any) -> None:
    state = applied(founded(), node(1))
    made = from_json(state, {"command": "Dim", "node": "n1", "level": 3}, SeededDraw(b"x"))
    assert isinstance(made, dim)
    assert len(made.seed) == 16
    refused = [
        from_json(state, {"command": "Dim", "node": "n1", **given}, SeededDraw(b"x"))
        for given in ({}, {"level": "3"}, {"level": 3, "others": [1]}, {"level": 3, "lamp": 1})
    ]
    codes = [one.code for one in refused if isinstance(one, InvalidCommand)]
    assert codes == ["missing_field", "bad_field", "bad_field", "unknown_field"]


def test_a_rehearsal_folds_it() -> None:
    rehearsal = Rehearsal()
    lines = [
        {"command": "RegisterNode", "name": "A"},
        {"command": "Dim", "node": "A", "level": 4},
        {"command": "Dim", "node": "A", "level": 10},
        {"show": "settings"},
    ]
    answers = [rehearsal.line(json.dumps(line), number) for number, line in enumerate(lines, 1)]
    assert [answer.get("outcome") for answer in answers[:3]] == ["applied", "applied", "rejected"]
    assert answers[2]["code"] == "too_bright"
    assert '"operations_concurrent_max": 4' in json.dumps(answers[3])


def test_the_reference_has_it() -> None:
    page = reference.pages()["log-commands.md"]
    assert "## Dim\n\nVersion 1. Fewer lamps.\n\nFor a while.\n\nRule: Not above nine." in page
    assert "| `level` | `int` | How many are left. |" in page
