"""The documentation against the program: commands that are shown exist, links lead somewhere, Python compiles."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from ringlog.cli import reference
from ringlog.cli.main import app
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.registry import CODES, COMMANDS
from ringlog.log.kafka.topics import TOPICS
from ringlog_schemas import catalog
from tests.cli.known_commands import unknown
from tests.tidy.files import ROOT

PAGES = (
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]*)(?:#([^)]*))?\)")


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shown_commands(text: str) -> list[list[str]]:
    """The words of every command line of ``ringlog`` in ``sh`` blocks and indented text, up to a comment or another
    shell word.
    """
    found = []
    typed = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines()
    shown = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    for line in (*typed, *shown):
        start = re.match(r"(?:.*\| |\.venv/bin/)?(ringlog .*)", line)
        if start:
            words = shlex.split(start.group(1).removesuffix("\\"), comments=True)
            ends = [words.index(word) for word in ("&", ">", "|", "<") if word in words]
            found.append(words[: min(ends, default=len(words))])
    return found


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_commands_that_are_shown_exist(page: Path) -> None:
    assert [wrong for words in shown_commands(page.read_text(encoding="utf-8")) if (wrong := unknown(words))] == []


def test_a_wrong_command_would_be_found() -> None:
    assert unknown(["ringlog", "stack", "upp"]) == "upp in ringlog stack upp"
    assert unknown(["ringlog", "stack", "up", "--fast"]) == "--fast of ringlog stack up --fast"
    assert len(shown_commands((ROOT / "docs/quick-start.md").read_text(encoding="utf-8"))) > 10


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in LINK.findall(text):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_another_page_links_to_each_page() -> None:
    """To decisions the folder is linked, which lists them by their titles."""
    linked: set[Path] = set()
    for page in PAGES:
        found = {
            (page.parent / target).resolve() for target, _ in LINK.findall(page.read_text(encoding="utf-8")) if target
        }
        linked |= found - {page}
    assert ROOT / "docs" / "decisions" in linked
    own = {page for page in PAGES if page.parent.name == "decisions" or page.name in ("README.md", "CHANGELOG.md")}
    assert {names(page) for page in PAGES if page not in linked | own} == set()


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_python_that_is_shown_compiles_and_its_imports_exist(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        tree = ast.parse(block)
        imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec("\n".join(imports), {})


def test_the_readme_shows_the_two_commands_and_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^```sh\n(.*?)\n```", text, re.MULTILINE | re.DOTALL) == ["make demo", "make test"]
    assert len(text.splitlines()) <= 150


def test_the_worked_example_is_one_that_is_tested() -> None:
    """Every command and answer of the example in the page is in the transcript, in the same order."""
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


# The pages made from the code are those that are committed, and say something about everything.


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
