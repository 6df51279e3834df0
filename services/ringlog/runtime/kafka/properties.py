r"""A parser of property files: ``name=value`` lines in Java's format.

``#`` and ``!`` begin comments. ``=`` or ``:`` ends a name. A backslash at the end of a line continues it on the next
line. A backslash before another character is removed, except in ``\t``, ``\n``, ``\r``, ``\f`` and ``\uXXXX``. So a
literal backslash is written twice. Trailing spaces are removed.

The parser is stricter than Java: it rejects a line without a separator, and a name that is given twice.

Source: ``java.util.Properties.load``.
"""

from __future__ import annotations

import re

from ringlog.errors import RinglogError
from ringlog.kernel.values import HidingValue

_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadPropertyLine(RinglogError):
    """A line that cannot be parsed. ``rule`` contains no part of a value, which may be a secret."""

    def __init__(self, number: int, rule: str) -> None:
        super().__init__(f"line {number}: {rule}")
        self.number = number
        self.rule = rule


class Property(HidingValue):
    """An option, and the number of its first line."""

    HIDDEN = ("value",)

    number: int
    name: str
    value: str


def read_properties(text: str) -> tuple[Property, ...]:
    """Return the options of a file, in its order. Raises BadPropertyLine."""
    found: dict[str, Property] = {}
    for number, line in _logical_lines(text):
        matched = re.match(r"((?:[^\\=:\s]|\\.)+)\s*[=:]\s*", line, re.DOTALL)
        if matched is None:
            raise BadPropertyLine(number, "not a name=value line")
        name = _plain(number, matched[1])
        if name in found:
            raise BadPropertyLine(number, f"{name} is already set in line {found[name].number}")
        found[name] = Property(number, name, _plain(number, line[matched.end() :]).rstrip())
    return tuple(found.values())


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return each line joined with its continuation lines, and its number. Comments and empty lines are removed."""
    found: list[tuple[int, str]] = []
    goes_on = False
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(" \t\f")
        if not goes_on and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        begun, so_far = found.pop() if goes_on else (number, "")
        goes_on = backslashes % 2 == 1
        found.append((begun, so_far + (line[:-1] if goes_on else line)))
    return found


def _plain(number: int, text: str) -> str:
    """Replace the escape sequences of a name or value."""

    def meant(matched: re.Match[str]) -> str:
        options_text = matched[1]
        if options_text.startswith("u"):
            code = int(options_text[1:] or "d800", 16)
            if 0xD800 <= code <= 0xDFFF:
                raise BadPropertyLine(number, "\\u needs four hexadecimal digits and complete surrogate pairs")
            return chr(code)
        return _ESCAPED.get(options_text, options_text)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", meant, text, flags=re.DOTALL)
