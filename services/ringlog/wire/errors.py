"""The only error of this package: bytes or values that violate the wire format."""

from __future__ import annotations

from ringlog.errors import RinglogError


class WireError(RinglogError, ValueError):
    """A violation of the wire format.

    ``code`` is stable. ``field`` is the full name of the record or of another object. ``rule`` is the violated
    condition.
    """

    def __init__(self, code: str, field: str, rule: str) -> None:
        super().__init__(f"{code}: {field}: {rule}")
        self.code = code
        self.field = field
        self.rule = rule
