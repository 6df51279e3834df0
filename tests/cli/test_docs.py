"""The documentation against the program: commands exist, links resolve, Python blocks compile."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ringlog.cli import reference
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.registry import CODES, COMMANDS
from ringlog.log.kafka.topics import TOPICS
from ringlog_schemas import catalog
from tests.cli.known_commands import hidden_words, program, unknown, wrong_use
from tests.tidy.files import ROOT, files, shown
from tests.tidy.markdown import blocks, program_arguments, shell_commands

PAGES = tuple(path for path in files() if path.suffix == ".md")


def shown_commands(text: str) -> list[list[str]]:
    """Return the words of every command line of ``ringlog`` in the blocks that a reader types."""
    shown = [block.text for block in blocks(text) if block.language == "sh"]
    found = [program_arguments(words, "ringlog") for one in shown for words in shell_commands(one)]
    return [["ringlog", *words] for words in found if words is not None]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_shown_commands_are_valid(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [wrong for words in shown_commands(text) if (wrong := wrong_use(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_pages_show_no_old_names_of_commands_and_options(page: Path) -> None:
    found = [hidden_words(words) for words in shown_commands(page.read_text(encoding="utf-8"))]
    assert [words for words in found if words] == []


def test_an_old_name_is_found() -> None:
    assert hidden_words(["ringlog", "cluster", "found", "c"]) == ["found"]
    assert hidden_words(["ringlog", "balance", "chart", "f", "--wait"]) == []
    assert hidden_words(["ringlog", "audit", "--wait", "9"]) == ["--wait"]


def test_a_wrong_command_is_found() -> None:
    assert unknown(["ringlog", "stack", "upp"]) == "upp in ringlog stack upp"
    assert unknown(["ringlog", "stack", "up", "--fast"]) == "--fast of ringlog stack up --fast"
    assert wrong_use(["ringlog", "node", "join"]) == "Missing parameter: node (ringlog node join)"
    assert "unexpected" in str(wrong_use(["ringlog", "node", "join", "n4", "n5"]))
    assert "valid integer" in str(wrong_use(["ringlog", "node", "join", "n4", "--num-tokens", "many"]))
    assert wrong_use(["ringlog", "--cluster", "c", "node", "join", "NODE", "--num-tokens", "COUNT"]) is None
    assert wrong_use(["ringlog", "status", "--kafka-config", "gone.properties"]) is None
    assert wrong_use(["ringlog", "log", "--last", "20"]) is None
    assert "valid integer" in str(wrong_use(["ringlog", "log", "--last", "few"]))
    assert sum(len(shown_commands(page.read_text(encoding="utf-8"))) for page in PAGES) > 100


def test_commands_are_found_in_shell_text() -> None:
    page = (
        "```sh\n# first\nA=1 .venv/bin/ringlog status --json | jq .x >out.json 2>&1\n"
        "ringlog node list \\\n  --json > out.log 2>&1 &\n"
        'sudo -u ringlog /opt/bin/ringlog node join "$(ringlog token n)" && echo ringlog done\n```\n'
        "```text\nringlog refused\n```\n"
    )
    assert shown_commands(page) == [
        ["ringlog", "status", "--json"],
        ["ringlog", "node", "list", "--json"],
        ["ringlog", "node", "join", "SUBSTITUTED"],
        ["ringlog", "token", "n"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_shown_python_compiles_and_its_imports_exist(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language != "python":
            continue
        compile(block.text, shown(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        tree = ast.parse(block.text)
        imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec("\n".join(imports), {})


def test_the_readme_shows_the_two_commands_and_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^```sh\n(.*?)\n```", text, re.MULTILINE | re.DOTALL) == ["make demo", "make test"]
    assert len(text.splitlines()) <= 150


def test_the_worked_example_is_a_tested_transcript() -> None:
    """The transcript contains every command and answer of the page's example in equal order."""
    lines = iter((ROOT / "tests/testdata/rehearsals/dead_node.txt").read_text(encoding="utf-8").splitlines())
    page = (ROOT / "docs/concepts/operations.md").read_text(encoding="utf-8").partition("## A worked example")[2]
    shown = [line for line in page.splitlines() if line.startswith("{")]
    assert len(shown) > 10
    for line in shown:
        typed = json.loads(line)
        found = next(
            (other for other in lines if other.startswith((">", "{")) and _holds(other.removeprefix("> "), typed)), None
        )
        assert found is not None, line


def _holds(line: str, shown: dict[str, Any]) -> bool:
    found = json.loads(line)
    return all(found.get(name) == value for name, value in shown.items())


# The generated pages are current and document every item.


FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The text of each generated page."""
    return reference.pages()


def test_the_committed_pages_are_current(made: dict[str, str]) -> None:
    changed = [name for name, text in made.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert changed == [], "run: python -m ringlog.cli.reference docs/reference"


def test_the_pages_are_complete(made: dict[str, str]) -> None:
    assert [code for code in CODES if f"| `{code}` |" not in made["codes.md"]] == []
    assert [kind for kind in COMMANDS if f"## {kind}\n" not in made["log-commands.md"]] == []
    assert [name for name in SETTINGS if f"| `{name}` |" not in made["settings.md"]] == []
    assert {spec.suffix for spec in TOPICS} == reference.RECORDS.keys()
    for words in ("stack up", "cluster create", "agents", "agents status", "node run", "cdc run", "rehearse", "shard"):
        assert f"## ringlog {words}\n" in made["commands.md"]


def test_topics_name_schemas_that_exist() -> None:
    named = [part.strip("` ") for _, value in reference.RECORDS.values() for part in value.split(";")]
    schemas = [name for name in named if name.startswith("ringlog.")]
    assert len(schemas) == len(TOPICS) + 14, "one topic has no schema, one has seven, two have three, five have two"
    assert len(set(schemas)) == len(schemas)
    assert [name for name in schemas if name not in catalog()] == []


def test_no_help_begins_mid_sentence() -> None:
    """No help text begins with a fragment such as a relative clause."""
    left = [(program(), "ringlog")]
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


def test_only_changed_pages_are_written(
    made: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "pages", lambda: made)
    assert reference.main([str(tmp_path)]) == 0
    (tmp_path / "codes.md").write_text("old")
    assert reference.write(tmp_path) == ("codes.md",)
    assert reference.write(tmp_path) == ()
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == made
    assert reference.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
