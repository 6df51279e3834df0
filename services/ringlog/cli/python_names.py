"""The reference page of the Python package: the public names of ``ringlog`` and ``ringlog.commands``, and errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ringlog
from ringlog import commands
from ringlog.errors import RinglogError

_ABOUT_PYTHON = """\
`import ringlog` provides these names, and `ringlog.commands` a class for each [command of the log](log-commands.md).
They are the public interface. Modules behind them may change. [The Python client](../build/python-client.md) explains
their use.
"""
_ABOUT_CONSTRUCTORS = """\
Functions of `ringlog.commands` that choose omitted values. Those that need the state return a function of the state,
which `submit` calls. Nodes may be given by name there.
"""
_ABOUT_ERRORS = """\
All derive from `ringlog.RinglogError` and have `code` and `hint`. If `retriable` is true, the same call may succeed
later. Time-outs also derive from `TimeoutError`. [Codes](codes.md) lists all codes.
"""


def python_names(
    head: str, table: Callable[[Sequence[str], Sequence[Sequence[object]]], Iterator[str]], prose: Callable[[str], str]
) -> Iterator[str]:
    """Yield the lines of the page. ``head``, ``table`` and ``prose``: as in the other pages (``cli.reference``)."""

    def meaning(found: Any) -> str:
        name = next((name for name in _PLAIN if getattr(ringlog, name) is found), "")
        return _PLAIN.get(name) or prose(found.__doc__ or "").split("\n\n")[0]

    yield from ("# Names of the Python package", "", head, "", _ABOUT_PYTHON)
    found = {name: getattr(ringlog, name) for name in ringlog.__all__}
    errors = {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, RinglogError)}
    rows = [(f"`{name}`", meaning(one)) for name, one in found.items() if name not in errors]
    yield from table(("name", "meaning"), rows)
    yield from ("## Constructors of commands", "", _ABOUT_CONSTRUCTORS)
    made = {name: getattr(commands, name) for name in commands.__all__ if name[0].islower()}
    shown = [(f"`{name}{_arguments(one)}`", meaning(one)) for name, one in made.items()]
    yield from table(("function", "meaning"), shown)
    yield from ("## Errors", "", _ABOUT_ERRORS)
    mine = [
        (f"`{name}`", f"`{one.code}`", "yes" if one.retriable else "no", meaning(one)) for name, one in errors.items()
    ]
    yield from table(("error", "code", "retriable", "meaning"), mine)


_PLAIN = {
    "FEATURES": "Features that this release adds.",
    "Submitted": "The answer to a submission, one of three results.",
}
"""Meanings of public names that have no docstring."""


def _arguments(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    more = any(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)
    return f"({', '.join([*needed, *(['…'] if more else [])])})"
