"""Errors of the local stack, each with the next step."""

from __future__ import annotations


class StackError(Exception):
    """The stack cannot do the requested operation. ``code`` is stable; ``hint`` is the next command or check."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{detail} {hint}".strip())
        self.code = code
        self.detail = detail
        self.hint = hint
