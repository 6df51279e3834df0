"""What operators are refused here, before the log is asked."""

from __future__ import annotations


class Refused(Exception):
    """A wish that would do harm, or makes no sense, as far as its author can see. ``code`` is stable."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
