"""Whether the program has the commands that a page or a message shows. This module needs no Spark and no Arrow."""

from __future__ import annotations

import re
from typing import Any

import typer

from ringlog.cli.main import app

OPTION = re.compile(r"--?[a-z][a-z-]*")


def options_of(command: Any) -> dict[str, bool]:
    """Name to whether a value follows."""
    found = {"--help": False}
    for parameter in command.params:
        takes = not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
        found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes)
    return found


def unknown(words: list[str]) -> str | None:
    """Return the first word of a command line that the program does not know; None if it knows all."""
    command: Any = typer.main.get_command(app)
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
