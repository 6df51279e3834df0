"""The size and shape of the code base: budgets of code lines, small folders, standard names.

Code lines are lines with code: no blank line, comment or docstring. The commit that exceeds a budget raises
it, so that a reviewer sees the change.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.files import ROOT, python_files, shown

MODULES_MAX = 15
SHORT_LINES, SHORT_MODULES_MAX = 60, 30
BUDGETS = {
    "ringlog/agents": 2_640,
    "ringlog/cache": 670,
    "ringlog/cli": 6_420,
    "ringlog/client": 6_820,
    "ringlog/kernel": 17_900,
    "ringlog/log": 4_860,
    "ringlog/node": 5_820,
    "ringlog/operator": 5_660,
    "ringlog/protocol": 3_410,
    "ringlog/console": 2_680,
    "ringlog/runtime": 2_010,
    "ringlog/stack": 1_790,
    "ringlog/wire": 1_840,
    "ringlog/testing": 20,
    "ringlog_audit": 2_460,
    "ringlog_cdc": 7_950,
    "ringlog_cdc_reader": 1_030,
    "ringlog_debezium": 550,
    "ringlog_demo": 950,
    "ringlog_schemas": 290,
    "ringlog_sim": 13_040,
    "ringlog_testing": 5_310,
    "tests": 86_390,
}
"""The maximum of code lines per package."""
PRIVATE_WORDS = frozenset(
    {
        "beside",
        "doorkeeper",
        "fate",
        "fates",
        "foreseen",
        "foretold",
        "hearer",
        "hearsay",
        "hurry",
        "misbeliefs",
        "peek",
        "rivals",
        "soundness",
        "undisturbed",
    }
    | {"standin", "swift", "untold"}
)
"""Words that only this project uses. Names use the terms of the field (docs/glossary.md)."""

_NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def code_lines(source: str) -> int:
    """Return the number of lines with code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - docstrings)


def package_of(path: Path) -> str:
    """Return the budget that covers a file."""
    top, *rest = path.relative_to(ROOT).parts
    if top not in ("services", "streaming", "schemas"):
        return top
    return "/".join(rest[:2]) if rest[0] == "ringlog" else rest[0]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines: classes, functions, arguments, variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def words_of(name: str) -> list[str]:
    """Return the words of an identifier in either style, in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


@cache
def product() -> tuple[Path, ...]:
    return python_files("services", "streaming", "schemas")


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_keeps_its_budget(package: str) -> None:
    files = [path for path in python_files() if package_of(path) == package]
    lines = sum(code_lines(path.read_text(encoding="utf-8")) for path in files)
    assert 0 < lines <= BUDGETS[package]


def test_each_package_has_a_budget() -> None:
    folders = {package_of(path) for path in product() if path.parent.name != "ringlog"}
    assert folders <= set(BUDGETS)


def test_a_folder_has_few_modules() -> None:
    modules = Counter(shown(path.parent) for path in product() if path.name != "__init__.py")
    assert {folder: count for folder, count in modules.items() if count > MODULES_MAX} == {}


def test_few_modules_are_short() -> None:
    own = (path for path in product() if path.name not in ("__init__.py", "__main__.py"))
    short = [shown(path) for path in own if path.read_text(encoding="utf-8").count("\n") < SHORT_LINES]
    assert len(short) <= SHORT_MODULES_MAX, short


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    again = re.compile(r"^\s*from \S+ import (\w+) as \1$", re.MULTILINE)
    files = (path for path in product() if path.name != "__init__.py")
    assert [shown(path) for path in files if again.search(path.read_text(encoding="utf-8"))] == []


def test_names_are_terms_of_the_field() -> None:
    found = {
        shown(path): sorted({name for name in names if not PRIVATE_WORDS.isdisjoint(words_of(name))})
        for path in product()
        for names in [[path.stem, *identifiers(ast.parse(path.read_text(encoding="utf-8")))]]
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_the_checks_find_violations() -> None:
    source = (
        '"""Text."""\n\n# why\nclass SwiftThing:\n    """Text."""\n\n    def f(self, hearsay):\n        x = (\n1)\n'
    )
    assert code_lines(source) == 4
    assert {*identifiers(ast.parse(source))} == {"SwiftThing", "f", "x", "self", "hearsay"}
    assert words_of("SwiftThing") == ["swift", "thing"]
    assert package_of(ROOT / "services/ringlog/kernel/model/state.py") == "ringlog/kernel"
