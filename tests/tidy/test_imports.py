"""What tests and benchmarks import of the product is there: a name that goes is missed at once, not when they run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.files import ROOT, python_files, shown, text

FOLDERS = {"ringlog": "services", "ringlog_cdc": "streaming", "ringlog_schemas": "schemas"}


@cache
def names_of(module: str) -> frozenset[str] | None:
    """What can be imported from a module; None if there is no such module."""
    place = ROOT / FOLDERS[module.split(".")[0]] / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not path.exists():
        return None
    beside = {one.stem for one in place.iterdir()} if place.is_dir() else set[str]()
    return frozenset({*beside, *_defined(ast.parse(path.read_text(encoding="utf-8")).body)})


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind, also under conditions."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((one.asname or one.name).split(".")[0] for one in node.names)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            for part in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined(handler.body)
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


IMPORT = re.compile(rf"^ *from (?:{'|'.join(FOLDERS)})\b[\w.]* import (?:\([^)]*\)|[^\n(]*)", re.MULTILINE)
"""One statement, also of a program that a test has as text. To parse whole files takes many times as long."""
EARLIER = "tests/system/test_upgrade.py"
"""Its programs run in an earlier release."""


def missing(content: str) -> Iterator[str]:
    """Imports of the product that find nothing."""
    for found in IMPORT.findall(content):
        (node,) = ast.parse(found.strip()).body
        assert isinstance(node, ast.ImportFrom)
        assert node.module
        there = names_of(node.module)
        yield from (f"{node.module}.{one.name}" for one in node.names if there is None or one.name not in there)


def _python_of(*folders: str) -> Iterator[tuple[Path, str]]:
    for path in python_files(*folders):
        yield path, text(path) or ""


def test_what_is_imported_of_the_product_is_there() -> None:
    found = {shown(path): list(missing(content)) for path, content in _python_of("tests", "bench")}
    assert found.pop(EARLIER) != []
    assert {name: lost for name, lost in found.items() if lost} == {}


def test_a_name_that_is_gone_would_be_missed() -> None:
    content = (
        "from ringlog.wire.ids import (\n    gone,  # for good\n    new_state_id,\n)\n  from ringlog.nowhere import x\n"
    )
    assert list(missing(content)) == ["ringlog.wire.ids.gone", "ringlog.nowhere.x"]
