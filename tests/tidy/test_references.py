"""Code names in docstrings and comments exist: modules and their members."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ringlog_schemas import catalog
from ringlog_sim.cli import mutants as sim_mutants
from ringlog_sim.mutants import MUTANTS
from tests.tidy.files import ROOT, python_files, shown, text

SOURCES = ("services", "streaming", "schemas", "bench")
REFERENCE = re.compile(r"``([a-z_]+(?:\.[A-Za-z_]+)+)(?:\(\))?``")
OTHERS = {
    "ringlog.oauth.hook": "a property of Kafka clients",
    "client.properties": "a file",
    "avro.compatibility": "a module of the Avro library",
    "data.undecoded": "an attribute",
    "encoding.digest": "a function of this folder",
    "placement.py": "a file of bench/",
    "report.rule": "an attribute",
    "ringlog.Uuid": "a type within schemas",
    "ringlog.commands.Position": "a type within schemas",
}
"""Names with the prefix of a folder that are not modules."""


@cache
def modules() -> dict[str, tuple[Path, ...]]:
    """Return the files for each suffix of a module's full name."""
    found: dict[str, tuple[Path, ...]] = {}
    for path in python_files("services", "streaming", "schemas"):
        parts = path.relative_to(ROOT).with_suffix("").parts[1:]
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for first in range(len(parts)):
            end = ".".join(parts[first:])
            found[end] = (*found.get(end, ()), path)
    return found


@cache
def folders() -> frozenset[str]:
    """Return the last names of packages."""
    paths = python_files("services", "streaming", "schemas")
    return frozenset(path.parent.name for path in paths if path.name == "__init__.py")


@cache
def names_in(module: str) -> frozenset[str]:
    """Return the names that the modules of that suffix define, at any depth."""
    nodes = [node for path in modules()[module] for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(defined | stored)


def is_there(name: str) -> bool:
    """Return whether a reference names a module, a member of one, or a schema."""
    if name in modules() or name in catalog() or name in OTHERS:
        return True
    module, _, last = name.rpartition(".")
    while module and module not in modules():
        module, _, last = module.rpartition(".")
    return bool(module) and last in names_in(module)


def missing(content: str) -> Iterator[str]:
    """Yield the unresolved references of a text that begin with a folder."""
    for name in REFERENCE.findall(content):
        if name.partition(".")[0] in folders() and not is_there(name):
            yield name


def test_references_exist() -> None:
    found = {shown(path): list(missing(text(path) or "")) for path in python_files(*SOURCES)}
    assert {name: lost for name, lost in found.items() if lost} == {}


def test_a_broken_reference_is_found() -> None:
    words = "``kernel.fold.fold``, ``ringlog.kernel.nowhere``, ``keyspace.table``, ``tablets.groups.gone()``"
    assert list(missing(words)) == ["ringlog.kernel.nowhere", "tablets.groups.gone"]


# The walks in docs/internals name existing functions in their files.


STEP = re.compile(r"^\| (\d+) \| `([a-z_/]+\.py)` \| `(\w+)` \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "folder", "walks"),
    [("architecture.md", "services/ringlog", (27,)), ("cdc.md", "streaming/ringlog_cdc", (8, 7))],
)
def test_each_step_of_a_walk_exists_in_its_file(page: str, folder: str, walks: tuple[int, ...]) -> None:
    steps = STEP.findall((ROOT / "docs/internals" / page).read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in steps] == [number for walk in walks for number in range(1, walk + 1)]
    for _, path, name in steps:
        tree = ast.parse((ROOT / folder / path).read_text(encoding="utf-8"))
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        assert name in {node.name for node in functions}, f"{path}: {name}"


# The page of planted bugs matches the code.


PAGE = "docs/reference/mutants.md"
HOW = f"measure a new one (ringlog sim mutants NAMES --page {PAGE})"


def test_the_page_has_each_planted_bug_with_its_bound() -> None:
    rows = [line.strip("| ").split(" | ") for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("| ")]
    shown = {(row[0], row[1], row[2], row[4]) for row in rows if len(row) == 6}
    planted = {(one.name, one.bug, one.profile, str(one.seeds)) for one in MUTANTS}
    assert planted - shown == set(), HOW
    assert {name for name, *_ in shown} - {"bug"} == {one.name for one in MUTANTS}


def test_the_page_matches_the_output_of_its_command() -> None:
    page = ROOT / PAGE
    known = [one.name for one in MUTANTS]
    assert sim_mutants._page(sim_mutants._rows([], page, known), known, None) == page.read_text()


# Each bound in the guide about growth names an existing test.


GUIDE = ROOT / "docs" / "internals" / "bounds.md"
SECTIONS = "Topics", "The state", "Memory and files of processes"
YOURS = {("Topics", "`dead-letters`"), ("Memory and files of processes", "node: registers")}
"""Limits that the user sets."""


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield (section, growing thing, proof of the bound) of each row."""
    text = GUIDE.read_text(encoding="utf-8")
    for section in SECTIONS:
        lines = text.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
        head, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:2] == "| "]
        assert head[-1] == "shown by", section
        assert {len(row) for row in body} == {len(head)}, section
        yield from ((section, row[0], row[-1]) for row in body)


def fault(named: str) -> str:
    """Return the fault in the name of a test; empty if the test exists."""
    path, _, name = named.partition("::")
    file = ROOT / "tests" / path
    if not file.is_file():
        return f"no file tests/{path}"
    found = {node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if hasattr(node, "name")}
    return "" if name.startswith("test_") and name in found else f"no {name} in tests/{path}"


def test_each_bound_names_its_test() -> None:
    found = list(rows())
    assert len(found) >= 50
    assert {(section, what) for section, what, shown in found if shown == "yours"} == YOURS
    assert [(what, why) for _, what, shown in found if shown != "yours" and (why := fault(shown.strip("`")))] == []


def test_a_removed_test_is_found() -> None:
    here = "tidy/test_references.py"
    assert fault(f"{here}::test_each_bound_names_its_test") == ""
    assert fault(f"{here}::test_each_bound") == f"no test_each_bound in tests/{here}"
    assert fault(f"{here}::fault") == f"no fault in tests/{here}"
    assert fault("tidy/test_gone.py::test_gone") == "no file tests/tidy/test_gone.py"
