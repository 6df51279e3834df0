"""Errors of commands as JSON on standard output: ``{"code", "detail", "ways_out"}``, for ``--json`` and ``-o json``.

Invariant: standard output contains exactly one JSON value, a result or an error. The exit status distinguishes them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

OPTIONS = re.compile(r"\0(--json|(-o\0?|--output[=\0])(json|yaml))(?=\0)")
"""The options for JSON and YAML in a command line whose words are separated by NUL. Each JSON value is YAML, too."""
BAD_USAGE = "bad_usage"


def wants_json() -> bool:
    """Return True if the command line asks for JSON or YAML.

    This reads ``sys.argv``, because an error may occur before the command line is parsed.
    """
    arguments = sys.argv[1:]
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return OPTIONS.search("\0".join(("", *before, ""))) is not None


def print_error(code: str, detail: str, ways_out: Sequence[str] = ()) -> None:
    """Print an error as JSON."""
    print(json.dumps({"code": code, "detail": detail, "ways_out": list(ways_out)}))


def print_exception(code: str, error: BaseException, ways_out: Sequence[str] = ()) -> None:
    """Print an exception as JSON. Its hint, if it has one, is the first way out."""
    hint = str(getattr(error, "hint", ""))
    print_error(code, str(getattr(error, "message", error)), (*([hint] if hint else ()), *ways_out))


def print_usage(detail: str, command: str) -> None:
    """Print a usage error of a command as JSON."""
    print_error(BAD_USAGE, detail, (f"{command} --help",))
