"""Errors of commands as JSON: ``{"code", "detail", "ways_out"}`` on standard output, if ``--json`` was given.

So a script finds one JSON value on standard output, a result or an error; the exit status tells which.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer

OPTION = "--json"
BAD_USAGE = "bad_usage"


def wants_json() -> bool:
    """Return True if the command line has the option. A mistake in it may come before any of it was read."""
    arguments = sys.argv[1:]
    return OPTION in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def print_error(code: str, detail: str, ways_out: Sequence[str] = ()) -> None:
    """Print an error as JSON."""
    typer.echo(json.dumps({"code": code, "detail": detail, "ways_out": list(ways_out)}))


def print_exception(code: str, error: BaseException, ways_out: Sequence[str] = ()) -> None:
    """Print an exception with a code as JSON; its hint, if it has one, is the first way out."""
    hint = str(getattr(error, "hint", ""))
    print_error(code, str(getattr(error, "message", error)), (*([hint] if hint else ()), *ways_out))


def print_usage(detail: str, command: str) -> None:
    """Print a mistake in the words of a command as JSON."""
    print_error(BAD_USAGE, detail, (f"{command} --help",))
