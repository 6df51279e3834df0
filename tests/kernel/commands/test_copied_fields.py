"""Check of calls that copy fields from a command by name, which the type checker does not check.

Each field of the result is passed in the call, or exists in the command with the same type, or has a default.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest

import ringlog.kernel.commands as commands
from ringlog.kernel.values import NODEFAULT, Value, defaults_of

MAKERS = {"made_of": set[str](), "part_of": {"version", "changed"}}
"""Functions that copy fields by name, and the fields that they add."""

Makes = tuple[str, str, str, frozenset[str]]
"""Module, class of the result, class of the command, fields passed in the call."""


def makes() -> Iterator[Makes]:
    for path in sorted(Path(commands.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if function.name in MAKERS:
                continue
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                    made, given = call.args[0], MAKERS[call.func.id] | set(given_at(call, function))
                    (command,) = (one.annotation for one in function.args.args if one.arg == "command")
                    assert isinstance(made, ast.Name)
                    assert isinstance(command, ast.Name)
                    module = f"{commands.__name__}.{path.parent.name}.{path.stem}"
                    yield module, made.id, command.id, frozenset(given)


def given_at(call: ast.Call, function: ast.FunctionDef) -> Iterator[str]:
    dicts = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg
            continue
        assert isinstance(keyword.value, ast.Name), "a dict literal in the function"
        for key in dicts[keyword.value.id].keys:
            assert isinstance(key, ast.Constant)
            yield str(key.value)


MAKES = list(makes())


def wrong(kind: type[Value], command: type[Any], given: frozenset[str]) -> list[str]:
    """Return the problems of one call."""
    wanted, there = get_type_hints(kind), get_type_hints(command)
    found = [f"{name} is no field" for name in given - wanted.keys()]
    for name, default in defaults_of(kind).items():
        if name in given:
            continue
        if name in there and there[name] != wanted[name]:
            found.append(f"{name} is {wanted[name]}, and {there[name]} of the command")
        if name not in there and default is NODEFAULT:
            found.append(f"{name} is nowhere")
    return sorted(found)


@pytest.mark.parametrize("makes", MAKES, ids=lambda makes: makes[1])
def test_fields_are_those_of_the_command(makes: Makes) -> None:
    module, kind, command, given = makes
    there = importlib.import_module(module)
    assert wrong(getattr(there, kind), getattr(there, command), given) == []


def test_each_call_is_checked_and_problems_are_found() -> None:
    assert len(MAKES) == sum(
        path.read_text(encoding="utf-8").count(f" = {name}(")
        for path in Path(commands.__path__[0]).rglob("*.py")
        for name in MAKERS
    )
    assert len(MAKES) > len(MAKERS)
    assert wrong(Made, Asks, frozenset({"of", "size"})) == []
    assert wrong(Made, Asks, frozenset({"of", "size", "colour"})) == ["colour is no field"]
    assert wrong(Made, Asks, frozenset()) == ["of is nowhere", f"size is {int}, and {str} of the command"]


class Made(Value):
    name: str
    size: int
    of: str
    more: str = ""


class Asks(Value):
    name: Annotated[str, "of what is made"]
    size: str
