"""Stories as tests: lines of plain words, each of which one method of the actor under test understands.

The actor holds *one* production thing; everything around it, the rest of the cluster, does what the story says, when
it says so. A line that nobody understands, or that two methods claim, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def line(pattern: str) -> Callable[[Any], Any]:
    """Marks a method: it plays the lines that fit ``pattern``, with its groups as arguments."""

    def mark(method: Any) -> Any:
        method.lines = re.compile(pattern)
        return method

    return mark


class Actor:
    """Somebody who plays a story."""

    def play(self, story: str) -> None:
        """Play line after line; a failure names its line. What follows a ``#`` is for the reader."""
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
        assert len(found) == 1, f"understood by {[name for name, _ in found]}"
        name, fits = found[0]
        getattr(self, name)(*fits.groups())


def names(words: str) -> list[str]:
    """The names in ``n1, n2 and n3``."""
    return re.findall(r"\w+", words.replace(" and ", " "))
