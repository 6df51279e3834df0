"""Each function, class and value of a module is used there or by an importing product module; tests do not count.

``vulture`` (``test_dead``) counts a name as used if any code has the name. This check resolves a name to its module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from tests.tidy.files import ROOT, python_files, shown
from tests.tidy.test_dead import FOR_TESTS, HOOKS, PRODUCT, _guides

Name = tuple[str, str]
"""A module and a name that it defines."""
FOUND_BY_NAME = re.compile(r"services/ringlog/cli/|services/ringlog/kernel/commands/.*: (CODES|decide_\w+)$")
"""Commands of the program, and names that the registry finds."""
HERE = {
    "encode": "of a record of any schema: what ships writes with functions that are made of the schema",
    "rebalance": "a role's steps, by their name in its row",
}


def defined(module: str, tree: ast.Module) -> Iterator[tuple[Name, ast.stmt]]:
    """Yield the undecorated definitions of a module."""
    for line in tree.body:
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not line.decorator_list or isinstance(line, ast.ClassDef):
                yield (module, line.name), line
        elif isinstance(line, ast.Assign | ast.AnnAssign):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            yield from (((module, name.id), line) for name in names if not name.id.startswith("__"))


def used(module: str, tree: ast.Module) -> Iterator[Name]:
    """Yield the imports of a module, the names read from them, and its other names outside of their definitions."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                yield node.module, one.name
                modules[one.asname or one.name] = f"{node.module}.{one.name}"
        elif isinstance(node, ast.Import):
            modules |= {one.asname or one.name: one.name for one in node.names}
    for line in tree.body:
        own = {name for (_, name), where in defined(module, ast.Module([line], [])) if where is line}
        for node in ast.walk(line):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
                yield module, node.id
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in modules:
                yield modules[getattr(node.value, "id", "")], node.attr


def dead(sources: Mapping[str, str]) -> set[Name]:
    """Return the unused names of modules by full name."""
    trees = {module: ast.parse(content) for module, content in sources.items()}
    alive = {name for module, tree in trees.items() for name in used(module, tree)}
    return {name for module, tree in trees.items() for name, _ in defined(module, tree)} - alive


def _full_name(path: str) -> str:
    return path.partition("/")[2].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_every_name_of_a_module_has_a_user() -> None:
    files = {_full_name(shown(path)): path for path in python_files(*PRODUCT)}
    excused = set().union(*HOOKS.values(), FOR_TESTS, HERE)
    found = dead({module: path.read_text(encoding="utf-8") for module, path in files.items()})
    left = {f"{files[module].relative_to(ROOT)}: {name}" for module, name in found if name not in excused}
    guides = _guides()
    left = {one for one in left if not re.search(rf"\b{one.rpartition(' ')[2]}\b", guides)}
    assert {one for one in left if not FOUND_BY_NAME.search(one)} == set()
    assert HERE.keys() <= {name for _, name in found}, "every exception is needed"


def test_a_name_shared_with_another_module_is_found() -> None:
    sources = {
        "a": "from b import go\ndef stop(): return stop()\ngo()\n",
        "b": "def go(): pass\ndef stop(): pass\nstop()\n",
    }
    assert dead(sources) == {("a", "stop")}
