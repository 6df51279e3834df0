"""Check whether the program knows the commands in pages and messages. This module needs neither Spark nor Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from ringlog.cli.main import CONNECTION_OPTIONS, app

OPTION = re.compile(r"--?[a-z][a-z-]*")
OPENS_FILES = frozenset({"--kafka-config", "--request-key", "--trust-config"})
"""Options with files that the parser reads."""
BEFORE = frozenset(f"--{name.replace('_', '-')}" for name in CONNECTION_OPTIONS)
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*")


@cache
def program() -> Any:
    """Return the program's commands."""
    return typer.main.get_command(app)


def options_of(command: Any) -> dict[str, bool]:
    """Return whether a value follows, per option name."""
    found = {"--help": False}
    for parameter in command.params:
        takes = not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
        found |= dict.fromkeys(
            (*parameter.opts, *parameter.secondary_opts, *getattr(parameter, "old_names", ())), takes
        )
    return found


def unknown(words: list[str]) -> str | None:
    """Return the first word of a command line that the program does not know; None if it knows all."""
    command = program()
    is_value = False
    for word in words[1:]:
        if is_value:
            is_value = False
        elif OPTION.fullmatch(word):
            if word not in options_of(command):
                return f"{word} of {' '.join(words)}"
            is_value = options_of(command)[word]
        elif hasattr(command, "get_command"):
            inner = command.get_command(None, word)
            if inner is None:
                return f"{word} in {' '.join(words)}"
            command = inner
    return None


def parse(arguments: Sequence[str]) -> None:
    """Parse a command line like the program, and execute nothing. Raises TyperException for a wrong one."""
    found = program()
    context, rest = typer.Context(found, info_name="ringlog"), list(arguments)
    while isinstance(found, TyperGroup):
        if found.invoke_without_command and (not rest or rest[0].startswith("-")):
            break
        name, found, rest = found.resolve_command(context, rest)
        context = typer.Context(found, info_name=name, parent=context)
    found.make_context(context.info_name, rest, parent=context.parent)


def hidden_words(words: list[str]) -> list[str]:
    """Return the words of a command line that are old names: options and commands that the help does not show."""
    command = program()
    found = []
    for word in words[1:]:
        name = word.partition("=")[0]
        if OPTION.fullmatch(name):
            found += [name for one in command.params if name in getattr(one, "old_names", ())]
        elif hasattr(command, "get_command") and (inner := command.get_command(None, word)) is not None:
            command = inner
            found += [word] if command.hidden else []
    return found


def _without(options: frozenset[str], words: list[str]) -> list[str]:
    """Return the words without these options and their values."""
    left: list[str] = []
    given = iter(words)
    for word in given:
        name, equals, _ = word.partition("=")
        if name not in options:
            left.append(word)
        elif not equals:
            next(given, None)
    return left


def wrong_use(words: list[str]) -> str | None:
    """Return why the program refuses a command line that begins with its name; None if it accepts it.

    A placeholder in capital letters (``NODE``) may be the value of any argument. A named file need not exist.
    """
    wrong = unknown(words)
    if wrong is not None or "--help" in words or "--version" in words:
        return wrong
    rest = _without(OPENS_FILES, words[1:])
    while rest and rest[0].partition("=")[0] in BEFORE:
        rest = rest[1 if "=" in rest[0] else 2 :]
    if not rest:
        return None
    try:
        parse(rest)
    except TyperException as error:
        message = str(getattr(error, "message", "")) or str(error)
        is_placeholder = "Input should be" in message and any(PLACEHOLDER.fullmatch(word) for word in rest)
        if not is_placeholder and not message.endswith("does not exist."):
            return f"{message} ({' '.join(words)})"
    return None
