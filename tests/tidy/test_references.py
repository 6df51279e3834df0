"""What docstrings and comments name in code is there: modules and what is in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ringlog_schemas import catalog
from tests.tidy.files import ROOT, python_files, shown, text

SOURCES = ("services", "streaming", "schemas", "bench")
REFERENCE = re.compile(r"``([a-z_]+(?:\.[A-Za-z_]+)+)(?:\(\))?``")
OTHERS = {
    "ringlog.oauth.hook": "a property of Kafka clients",
    "client.properties": "a file",
    "ringlog.Uuid": "a type within schemas",
    "ringlog.commands.Position": "a type within schemas",
}
"""What begins as a folder does, and is none."""


@cache
def modules() -> dict[str, tuple[Path, ...]]:
    """Each end of a module's full name to the files that it stands for."""
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
    """The last names of packages."""
    paths = python_files("services", "streaming", "schemas")
    return frozenset(path.parent.name for path in paths if path.name == "__init__.py")


@cache
def names_in(module: str) -> frozenset[str]:
    """What the modules of that end define, at whatever depth."""
    nodes = [node for path in modules()[module] for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(defined | stored)


def is_there(name: str) -> bool:
    """True for a module, for something in one, and for a schema."""
    if name in modules() or name in catalog() or name in OTHERS:
        return True
    module, _, last = name.rpartition(".")
    while module and module not in modules():
        module, _, last = module.rpartition(".")
    return bool(module) and last in names_in(module)


def missing(content: str) -> Iterator[str]:
    """References of a text that name nothing, of those that begin with a folder."""
    for name in REFERENCE.findall(content):
        if name.partition(".")[0] in folders() and not is_there(name):
            yield name


def test_what_is_referred_to_is_there() -> None:
    found = {shown(path): list(missing(text(path) or "")) for path in python_files(*SOURCES)}
    assert {name: lost for name, lost in found.items() if lost} == {}


def test_what_is_gone_would_be_missed() -> None:
    words = "``kernel.fold.fold``, ``ringlog.kernel.nowhere``, ``keyspace.table``, ``tablets.groups.gone()``"
    assert list(missing(words)) == ["ringlog.kernel.nowhere", "tablets.groups.gone"]
