"""Imports of the product in tests and benchmarks exist; a removed name is found without running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.tidy.files import ROOT, python_files, shown, text

FOLDERS = {"ringlog": "services", "ringlog_cdc": "streaming", "ringlog_schemas": "schemas"}


@cache
def names_of(module: str) -> frozenset[str] | None:
    """Return the importable names of a module; None if the module does not exist."""
    place = ROOT / FOLDERS[module.split(".")[0]] / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not path.exists():
        return None
    beside = {one.stem for one in place.iterdir()} if place.is_dir() else set[str]()
    return frozenset({*beside, *_defined(ast.parse(path.read_text(encoding="utf-8")).body)})


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, including conditional ones."""
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
"""One import statement, also inside program text in a test. Parsing whole files takes many times as long."""


def missing(content: str) -> Iterator[str]:
    """Yield imports of the product that do not exist."""
    for found in IMPORT.findall(content):
        (node,) = ast.parse(found.strip()).body
        assert isinstance(node, ast.ImportFrom)
        assert node.module
        there = names_of(node.module)
        yield from (f"{node.module}.{one.name}" for one in node.names if there is None or one.name not in there)


def _python_of(*folders: str) -> Iterator[tuple[Path, str]]:
    for path in python_files(*folders):
        yield path, text(path) or ""


def test_imports_of_the_product_exist() -> None:
    found = {shown(path): list(missing(content)) for path, content in _python_of("tests", "bench")}
    assert {name: lost for name, lost in found.items() if lost} == {}


def test_a_removed_name_is_found() -> None:
    content = (
        "from ringlog.wire.ids import (\n    gone,  # for good\n    new_state_id,\n)\n  from ringlog.nowhere import x\n"
    )
    assert list(missing(content)) == ["ringlog.wire.ids.gone", "ringlog.nowhere.x"]


# No import cycle exists: each module can be imported after its dependencies.


PACKAGES = (
    "ringlog",
    "ringlog_audit",
    "ringlog_demo",
    "ringlog_sim",
    "ringlog_testing",
    "ringlog_cdc",
    "ringlog_cdc_reader",
    "ringlog_debezium",
    "ringlog_schemas",
)


LAZY = ("ringlog", "ringlog.testing")


def order(imports: dict[str, set[str]]) -> tuple[str, ...]:
    """Return the modules in the order of their imports. Raises CycleError."""
    return tuple(TopologicalSorter(imports).static_order())


def test_no_module_imports_itself_indirectly() -> None:
    """Imports for types only count, too, except in the packages that import their public names when they are used."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    imports |= {package: set[str]() for package in LAZY}
    assert len(order(imports)) == len(imports) > 700


def test_a_cycle_is_found() -> None:
    with pytest.raises(CycleError):
        order({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def _arrows(package: str) -> set[tuple[str, str]]:
    """Return pairs (folder, imported folder) directly below a package."""
    graph = grimp.build_graph(package.split(".")[0], cache_dir=None)

    def folder(module: str) -> str:
        place, _, rest = module.removeprefix(f"{package}.").partition(".")
        return place if rest and module.startswith(f"{package}.") else ""

    pairs = ((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))
    arrows = {(folder(one), folder(other)) for one, other in pairs}
    return {(one, other) for one, other in arrows if one and other and one != other}


@pytest.mark.parametrize("package", ["ringlog.kernel", "ringlog_cdc"])
def test_folders_have_an_order(package: str) -> None:
    """The import linter checks the other packages."""
    arrows = _arrows(package)
    assert len(arrows) > 3
    assert order({one: {to for of, to in arrows if of == one} for one, _ in arrows})
