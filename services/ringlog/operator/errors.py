"""Errors that operator actions raise before they submit a command."""

from __future__ import annotations

from ringlog.errors import RinglogError


class Refused(RinglogError):
    """An action that is refused before it is submitted, because it is unsafe or impossible. ``code`` is stable."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
