"""Runs test scripts written as lines of plain words. Each line calls one method of the actor under test.

The actor contains one production object. The script controls the rest of the cluster and the order of events. A line
that matches no method, or several, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def line(pattern: str) -> Callable[[Any], Any]:
    """Mark a method as the handler of lines that match ``pattern``. The groups are its arguments."""

    def mark(method: Any) -> Any:
        method.lines = re.compile(pattern)
        return method

    return mark


class Actor:
    """Base class of the objects that run a script."""

    def play(self, story: str) -> None:
        """Run the lines in order and add the line to a failure. Text after ``#`` is a comment."""
        for number, text in enumerate(story.splitlines()):
            words = text.partition("#")[0].strip()
            if not words:
                continue
            try:
                self._method(words)
            except BaseException as error:
                error.add_note(f"line {number} of the story: {words}")
                raise

    def _method(self, words: str) -> None:
        found = []
        for name in dir(type(self)):
            pattern = getattr(getattr(type(self), name), "lines", None)
            if isinstance(pattern, re.Pattern) and (fits := pattern.fullmatch(words)):
                found.append((name, fits))
        assert len(found) == 1, f"line matches {[name for name, _ in found]}"
        name, fits = found[0]
        getattr(self, name)(*fits.groups())


def names(words: str) -> list[str]:
    """Return the names in ``n1, n2 and n3``."""
    return re.findall(r"\w+", words.replace(" and ", " "))
