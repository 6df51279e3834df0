"""CQL literals: a syntax check of a text. The meaning of a literal depends on a type and is not checked here.

A literal is a word (text in quotes, a number, a blob, a UUID, ``true``, ``false``, ``null``) or a list, set, map, tuple
or user type of literals. Brackets enclose the members, commas separate them, and a colon follows a key.
"""

from __future__ import annotations

import re
from typing import Final

from ringlog.kernel.cql.collections import DEPTH_MAX

LITERAL_MAX: Final = 1_000
"""Maximum number of characters of a literal."""

_SCALAR: Final = re.compile(
    r"'(?:[^']|'')*'|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]*|-?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?"
    r"|(?:true|false|null|nan|infinity)\b",
    re.IGNORECASE,
)
_FIELD: Final = re.compile(r'[a-z][a-z0-9_]*|"(?:[^"]|"")+"', re.IGNORECASE)
"""The name of a field, also allowed before a colon."""
_BLANK: Final = re.compile(r"\s*")
_CLOSED: Final = {"(": ")", "[": "]", "{": "}"}


def is_literal(text: str) -> bool:
    """Return True for one literal of at most ``LITERAL_MAX`` characters, with or without blanks around it."""
    if len(text) > LITERAL_MAX:
        return False
    end = _literal(text, _blank(text, 0), 0)
    return end is not None and _blank(text, end) == len(text)


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None, "the pattern matches the empty text"
    return found.end()


def _literal(text: str, at: int, depth: int) -> int | None:
    """Return the end of the literal that begins at ``at``; None if there is none."""
    assert depth <= DEPTH_MAX, "the recursion is bounded"
    closing = _CLOSED.get(text[at : at + 1])
    if closing is None:
        scalar = _SCALAR.match(text, at)
        return None if scalar is None else scalar.end()
    end = _blank(text, at + 1)
    if text.startswith(closing, end):
        return end + 1
    while depth < DEPTH_MAX:
        found = _member(text, end, depth + 1)
        if found is None:
            return None
        end = _blank(text, found)
        if text.startswith(closing, end):
            return end + 1
        if not text.startswith(",", end):
            return None
        end = _blank(text, end + 1)
    return None


def _member(text: str, at: int, depth: int) -> int | None:
    """Return the end of a literal, or of two with a colon between them; None if there is none."""
    end = _literal(text, at, depth)
    if end is None:
        field = _FIELD.match(text, at)
        end = None if field is None else field.end()
        if end is None or not text.startswith(":", _blank(text, end)):
            return None
    colon = _blank(text, end)
    return _literal(text, _blank(text, colon + 1), depth) if text.startswith(":", colon) else end
