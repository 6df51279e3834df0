"""What can go wrong with the local stack, each with the next thing to do."""

from __future__ import annotations


class StackError(Exception):
    """The stack cannot do what was asked. ``code`` is stable; ``hint`` is the next command or look."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{detail} {hint}".strip())
        self.code = code
        self.detail = detail
        self.hint = hint
