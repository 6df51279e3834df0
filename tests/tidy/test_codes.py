"""The page of codes contains every visible code of the programs, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from ringlog.cli.codes import PROGRAM_CODES
from ringlog.runtime.monitoring.metrics import ALL_METRICS, JOB
from tests.tidy.files import ROOT, python_files

RAISERS = {"CdcError", "Refused", "StackError", "fail"}
"""Functions and classes whose first argument is a code."""
WHERE = ("services", "streaming")
OWN = (
    "services/ringlog_sim/",
    "services/ringlog_testing/quorums/",
    "services/ringlog/kernel/",
    "services/ringlog/wire/",
)
"""The simulator raises the codes of the others; kernel and wire have separate sets."""


def raised(tree: ast.AST) -> Iterator[str]:
    """Yield the codes that a module passes to raising functions or to its error classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RAISERS:
                yield from _texts(node.args[0])
        elif isinstance(node, ast.ClassDef):
            is_error = {getattr(base, "id", "") for base in node.bases} & RAISERS
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.args:
                    if is_error and inner.func.attr == "__init__":
                        yield from _texts(inner.args[0])
                elif isinstance(inner, ast.Assign) and [getattr(one, "id", "") for one in inner.targets] == ["code"]:
                    yield from _texts(inner.value)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.replace("_", "").islower():
        yield node.value


def all_raised() -> dict[str, str]:
    """Return every such code with a file that raises it."""
    paths = [path for folder in WHERE for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {path: str(path.relative_to(ROOT)) for path in paths}
    return {
        code: names[path]
        for path in paths
        if not names[path].startswith(OWN)
        for code in raised(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_every_code_that_is_raised_is_on_the_page() -> None:
    page = (ROOT / "docs/reference/codes.md").read_text(encoding="utf-8")
    assert {code: where for code, where in all_raised().items() if f"| `{code}` |" not in page} == {}


def test_every_listed_code_is_raised() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for folder in WHERE for path in (ROOT / folder).rglob("*.py"))
    assert [code for table in PROGRAM_CODES.values() for code in table if sources.count(f'"{code}') < 2] == []


WORDS_OF_ITS_OWN = (
    "services/ringlog/kernel/balance/",
    "services/ringlog_testing/histories/",
    "services/ringlog_testing/load/",
)
"""Reasons of the planner, and of readers of histories."""


def compared(tree: ast.Module) -> Iterator[str]:
    """Yield the codes that a module compares: single ones, or members of a named collection."""
    named: dict[str, ast.expr] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            named |= {target.id: line.value for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if any("code" in (getattr(side, "attr", ""), getattr(side, "id", "")) for side in sides):
            for side in (side for side in sides if getattr(getattr(side, "func", None), "id", "") != "getattr"):
                held = named.get(side.id, side) if isinstance(side, ast.Name) else side
                yield from (text for part in ast.walk(held) for text in _texts(part) if isinstance(part, ast.expr))


def test_every_code_that_is_compared_is_on_the_page() -> None:
    page = (ROOT / "docs/reference/codes.md").read_text(encoding="utf-8")
    paths = {path: str(path.relative_to(ROOT)) for folder in WHERE for path in sorted((ROOT / folder).rglob("*.py"))}
    found = {
        f"{name}: {code}"
        for path, name in paths.items()
        if not name.startswith(WORDS_OF_ITS_OWN)
        for code in compared(ast.parse(path.read_text(encoding="utf-8")))
        if f"| `{code}` |" not in page
    }
    assert found == set()


def test_a_code_missing_on_the_page_is_found() -> None:
    own = 'class E(CdcError):\n    def __init__(self):\n        super().__init__("a_b", 1)\n'
    text = own + 'fail("c_d", "")\nRefused(code)'
    assert set(raised(ast.parse(text))) == {"a_b", "c_d"}
    text = 'LATER = frozenset({"e_f", "g"})\nanswer.code in LATER or code == "h"\nother == "i"'
    assert set(compared(ast.parse(text))) == {"e_f", "g", "h"}


# Metrics are declared once: the table and the sources have the same names.


@cache
def shown_names() -> frozenset[str]:
    """Return the first arguments of ``Sample`` in the sources."""

    def found() -> Iterator[str]:
        for path in python_files("services", "streaming"):
            content = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(content)) if "Sample(" in content else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Sample":
                    name = node.args[0]
                    assert isinstance(name, ast.Constant), f"{path}: write the name at the sample"
                    yield str(name.value)

    return frozenset(found())


def test_exported_metrics_are_in_the_table() -> None:
    assert shown_names() - ALL_METRICS.keys() == set()


def test_metrics_of_the_table_are_exported() -> None:
    assert {name for name, figure in ALL_METRICS.items() if figure.by != JOB} - shown_names() == set()


def test_the_job_exports_its_metrics_of_the_table() -> None:
    source = next(path for path in python_files("streaming") if path.name == "metrics.py")
    names = re.findall(r'(?:_counter|_gauge)\("([a-z_]+)"\)|\("([a-z_]+_seconds)", [a-z_]+\)', source.read_text())
    assert {f"ringlog_cdc_{one or other}" for one, other in names} == {
        name for name, figure in ALL_METRICS.items() if figure.by == JOB
    }
