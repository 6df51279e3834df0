"""The pages made from the code are those that are committed, and say something about everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from ringlog.cli import reference
from ringlog.cli.main import app
from ringlog.kernel.codes import CODES
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.settings import SETTINGS
from ringlog.log.topics import TOPICS
from ringlog_schemas import catalog
from tests.tidy.files import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_committed_page_is_current(name: str) -> None:
    committed = (FOLDER / name).read_text(encoding="utf-8")
    assert reference.pages()[name] == committed, "run: python -m ringlog.cli.reference docs/reference"


def test_nothing_is_left_out() -> None:
    made = reference.pages()
    assert [code for code in CODES if f"| `{code}` |" not in made["codes.md"]] == []
    assert [kind for kind in COMMANDS if f"## {kind}\n" not in made["log-commands.md"]] == []
    assert [name for name in SETTINGS if f"| `{name}` |" not in made["settings.md"]] == []
    assert {spec.suffix for spec in TOPICS} == reference.RECORDS.keys()
    for words in ("stack up", "cluster found", "agents", "agents status", "node run", "cdc run", "rehearse", "shard"):
        assert f"## ringlog {words}\n" in made["commands.md"]


def test_topics_name_schemas_that_exist() -> None:
    named = [part.strip("` ") for _, value in reference.RECORDS.values() for part in value.split(";")]
    schemas = [name for name in named if name.startswith("ringlog.")]
    assert len(schemas) == len(TOPICS) + 13, "all but one, one with seven, one with three, and six with two"
    assert len(set(schemas)) == len(schemas)
    assert [name for name in schemas if name not in catalog()] == []


def test_help_begins_with_what_is_meant() -> None:
    """A value is a thing, and a verb does something: neither begins in the middle of a sentence."""
    left = [(typer.main.get_command(app), "ringlog")]
    broken = re.compile(r"(?:Of|Which|Whom|Whose|So|That)\b")
    found, seen = [], 0
    while left:
        command, name = left.pop()
        if hasattr(command, "list_commands"):
            left += [(command.get_command(None, one), f"{name} {one}") for one in command.list_commands(None)]
        for text in (command.help or "", *(getattr(one, "help", None) or "" for one in command.params)):
            seen += 1
            found += [f"{name}: {text}"] if broken.match(text) else []
    assert found == []
    assert seen > 300


def test_only_what_differs_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main([str(tmp_path)]) == 0
    (tmp_path / "codes.md").write_text("old")
    assert reference.write(tmp_path) == ("codes.md",)
    assert reference.write(tmp_path) == ()
    assert {path.name for path in tmp_path.iterdir()} == set(reference.pages())
    assert reference.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
