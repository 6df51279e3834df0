"""Printed advice as an operator types it: the parser reads it, and the fold accepts or rejects it."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlog.cli import json_commands
from ringlog.cli.main import app
from ringlog.cli.node import movements as node_movements
from ringlog.cli.shared import following, submitting
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.operator.intents.intents import Intent, resolved
from ringlog.operator.views.ways_out import NEW
from ringlog.runtime.draw import SeededDraw

LOOKS = ("tablet explain", "balance status", "service show", "operation show", "zone show")
"""Commands that submit no intent."""


def commands_of(way: str) -> list[str]:
    """Return the commands of a line of advice in order, without ``ringlog``."""
    found = []
    for part in re.split(r", then (?=ringlog )", way[way.index("ringlog ") :] if "ringlog " in way else ""):
        typed = part.removeprefix("ringlog ")
        found.append(typed if "'" in typed else typed.partition(" (")[0])
    return [one for one in found if one and not one.startswith(LOOKS)]


def intent_of(words: str) -> Intent:
    """Return the intent that the command line submits."""
    asked: list[Intent] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (submitting, following, node_movements, json_commands):
            patch.setattr(module, "resolve", lambda *_: None)
        patch.setattr(submitting, "submit", lambda _, intent, *__, **___: asked.append(intent))
        patch.setattr(following, "ask", lambda _, intent, *__, **___: asked.append(intent))
        patch.setattr(node_movements, "ask", following.ask)
        patch.setattr(node_movements, "_confirm", lambda *_: None)
        ended = CliRunner().invoke(app, shlex.split(words))
    assert (ended.exit_code, len(asked)) == (0, 1), f"{words}: {ended.output} {ended.exception!r}"
    return asked[0]


def with_new(state: ClusterState, words: str) -> ClusterState:
    """Return the state after the new node NEW of a replacement has registered at the old node's location."""
    old = next(one for one in state.nodes.values() if one.name == words.split()[-1])
    new: Any = replace(old, id="new", name=NEW, address="new:1", state="none", tokens=(), down=False, down_reason="")
    return replace(state, nodes=state.nodes.set("new", new), node_names=state.node_names.set(NEW, "new"))


def state_after(state: ClusterState, way: str) -> ClusterState:
    """Return the state after all commands of a line; each must be accepted."""
    for words in commands_of(way):
        if words.startswith(f"node replace {NEW} "):
            state = with_new(state, words)
        command: Any = resolved(intent_of(words), state, SeededDraw(b"x"))
        decided = decide(state, command, EntryContext(state.epoch + 1, state.state_id, state.time))
        assert isinstance(decided, Accepted), f"{way}\n{words}: {decided}"
        state = replace(decided.state, epoch=state.epoch + 1)
    return state
