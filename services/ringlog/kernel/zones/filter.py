"""The grammar of zone filters: a part of JSONPath (RFC 9535) that never changes.

    filter     = "$" *(child / descendant / bracket)
    child      = "." (name / "*")
    descendant = ".." (name / "*" / bracket)
    bracket    = "[" ("*" / string / integer / "?" or) "]"
    or         = and *("||" and)
    and        = basic *("&&" basic)
    basic      = ["!"] "(" or ")" / ["!"] ("@" / "$") path / term operator term
    term       = ("@" / "$") path / string / number / "true" / "false" / "null"
    path       = *("." name / "[" (string / integer) "]")

The state holds the text, and the fold only checks its grammar. So a later JSONPath library that reads a filter
differently changes no state. The author of a command evaluates the filter (``protocol.rebalancer.data_nodes``) and puts
the matching nodes into the command.
"""

from __future__ import annotations

import re
from typing import Final

LENGTH_MAX: Final = 2_000
DEPTH_MAX: Final = 32
"""The deepest nesting of parentheses."""

_TOKEN: Final = re.compile(
    r"""[ \t\n\r]*(?:
    (?P<string>'(?:[^'\\\x00-\x1f]|\\['\\/bfnrt])*'|"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*")
    |(?P<number>-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?![0-9A-Za-z_.]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>\.\.|==|!=|<=|>=|&&|\|\||[$@.*?()\[\]!<>])
    |(?P<end>$)
    )""",
    re.VERBOSE,
)
_COMPARISONS: Final = ("==", "!=", "<=", ">=", "<", ">")
_LITERALS: Final = ("true", "false", "null")


class _Wrong(Exception):
    """A text that is not a filter; the message says why."""


def broken_filter(text: str) -> str:
    """Return why a text is not a filter, in words; empty if it is one. Never raises."""
    if not 1 <= len(text) <= LENGTH_MAX:
        return f"must have 1 to {LENGTH_MAX:,} characters"
    try:
        _Filter(text).read()
    except _Wrong as wrong:
        return str(wrong)
    return ""


class _Filter:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while not self.tokens or self.tokens[-1][0] != "end":
            match = _TOKEN.match(text, at)
            if match is None:
                raise _Wrong(f"character {at + 1} is not allowed there")
            kind = match.lastgroup
            assert kind is not None, "each token has a kind"
            assert kind == "end" or match.end() > at, "each token but the end has characters"
            self.tokens.append((kind, match[kind], match.start(kind) + 1))
            at = match.end()
        if text != text.strip():
            raise _Wrong("must have no spaces around it")
        self.at = 0

    def read(self) -> None:
        """Parse the whole text. Raises _Wrong."""
        self.need("$")
        while self.tokens[self.at][0] != "end":
            if self.take(".."):
                if not self.bracket():
                    self.name(star=True)
            elif self.take("."):
                self.name(star=True)
            elif not self.bracket():
                raise self.wrong("., .. or [")

    def bracket(self) -> bool:
        """Parse ``[...]``, if it is next; return whether it was."""
        if not self.take("["):
            return False
        if self.take("?"):
            self.either(0)
        elif not self.take("*"):
            self.key()
        self.need("]")
        return True

    def either(self, depth: int) -> None:
        """Parse conditions joined by ``&&`` or ``||``."""
        if depth > DEPTH_MAX:
            raise _Wrong(f"must have at most {DEPTH_MAX} parentheses within each other")
        self.basic(depth)
        while self.take("&&") or self.take("||"):
            self.basic(depth)

    def basic(self, depth: int) -> None:
        """Parse one condition."""
        negated = self.take("!")
        if self.take("("):
            self.either(depth + 1)
            self.need(")")
            return
        is_path = self.term()
        if negated and not is_path:
            raise self.wrong("a path behind !")
        compared = not negated and any(self.take(one) for one in _COMPARISONS)
        if compared:
            self.term()
        elif not is_path:
            raise self.wrong("a comparison")

    def term(self) -> bool:
        """Parse a path (return True) or a literal (return False)."""
        kind, text, _ = self.tokens[self.at]
        if self.take("@") or self.take("$"):
            while True:
                if self.take("."):
                    self.name(star=False)
                elif self.take("["):
                    self.key()
                    self.need("]")
                else:
                    return True
        if kind in ("string", "number") or (kind == "name" and text in _LITERALS):
            self.at += 1
            return False
        raise self.wrong("@, $ or a value")

    def name(self, *, star: bool) -> None:
        """Parse the name of a member, or ``*``."""
        if self.tokens[self.at][0] == "name":
            self.at += 1
        elif not (star and self.take("*")):
            raise self.wrong("a name")

    def key(self) -> None:
        """Parse a member in quotes, or an index of a list."""
        kind, text, _ = self.tokens[self.at]
        if kind != "string" and (kind != "number" or "." in text or text == "-0"):
            raise self.wrong("a name in quotes or a whole number")
        self.at += 1

    def take(self, mark: str) -> bool:
        """Skip this mark if it is next; return whether it was."""
        kind, text, _ = self.tokens[self.at]
        found = kind == "mark" and text == mark
        self.at += found
        assert self.at < len(self.tokens), "the parser does not skip the end token"
        return found

    def need(self, mark: str) -> None:
        """Skip this mark. Raises _Wrong if another token is next."""
        if not self.take(mark):
            raise self.wrong(mark)

    def wrong(self, expected: str) -> _Wrong:
        """Return the error for the present token."""
        _, text, at = self.tokens[self.at]
        return _Wrong(f"at character {at}: expected {expected}, found {text or 'the end'}")
