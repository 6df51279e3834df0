"""Confirmation of changes that cannot be reverted: a terminal asks for the name, a script is not asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.cli.shared import submitting
from ringlog.client.client import Client
from tests.cli.authoring import authoring, run
from tests.cli.test_help import TREE
from tests.tidy.files import ROOT

PAGE = ROOT / "docs/operate/README.md"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with authoring(monkeypatch) as client:
        for number in (1, 2):
            assert run("submit", json.dumps({"command": "RegisterNode", "name": f"n{number}"}))[0] == 0
        yield client


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "is_interactive", lambda: True)


def typed(answer: str, *words: str) -> tuple[int, str]:
    """Return (exit status, standard error) of a command whose user types this."""
    ended = CliRunner().invoke(app, [*words, "--bootstrap", "b:1", "--cluster", "tests"], input=answer)
    return ended.exit_code, ended.stderr


@pytest.mark.usefixtures("terminal")
def test_a_user_sees_the_effect_and_types_the_name(client: Client) -> None:
    status, error = typed("n2\n", "node", "unregister", "n1")
    assert (status, "not_confirmed: nothing was changed" in error) == (1, True)
    assert "would change" in error
    assert "nodes n1" in error
    assert "n1" in client.state.node_names
    status, error = typed("n1\n", "node", "unregister", "n1")
    assert (status, "Type n1 to continue" in error) == (0, True)
    assert "n1" not in [node.name for node in client.state.nodes.values() if node.state == "none"]


@pytest.mark.usefixtures("terminal")
def test_a_command_without_a_name_asks_for_the_cluster(client: Client) -> None:
    words = ("recovery", "enter", "--operator", "ann", "--reason", "a drill")
    assert typed("ann\n", *words)[0] == 1
    status, error = typed("tests\n", *words)
    assert (status, "Type tests to continue" in error) == (0, True)
    assert typed("\n", "recovery", "leave", "--operator", "ann", "--reason", "ended", "--yes") == (0, "")


@pytest.mark.usefixtures("terminal", "client")
def test_an_effect_without_items_is_not_shown() -> None:
    status, error = typed("no\n", "log", "forget-archive")
    assert (status, "Type tests to continue" in error, "would change" in error) == (1, True, False)


@pytest.mark.usefixtures("terminal", "client")
def test_a_command_that_would_be_rejected_is_not_confirmed() -> None:
    status, error = typed("", "table", "drop", "ks.t")
    assert (status, error.partition(":")[0]) == (1, "unknown_table")
    assert "Type" not in error


def test_a_script_is_not_asked(client: Client) -> None:
    assert typed("", "node", "unregister", "n1") == (0, "")
    assert [node.name for node in client.state.nodes.values() if node.state == "none"] == ["n2"]


def test_the_page_lists_each_command_that_asks() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Confirmations")[2].partition("\n## ")[0]
    listed = {path for line in text.splitlines() if line.startswith("| `") for path in re.findall("`([a-z -]+)`", line)}
    asking = {path for path, command in TREE.items() if "yes" in {one.name for one in command.params}}
    assert listed == asking | {"cluster delete"}
