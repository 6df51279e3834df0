"""The one error of this package: bytes or values that break the contract of the wire."""

from __future__ import annotations


class WireError(ValueError):
    """``code``: stable word; ``field``: full name of the record, or what else is meant; ``rule``: what it should have
    been.
    """

    def __init__(self, code: str, field: str, rule: str) -> None:
        super().__init__(f"{code}: {field}: {rule}")
        self.code = code
        self.field = field
        self.rule = rule

    def __reduce__(self) -> tuple[type[WireError], tuple[str, str, str]]:
        return type(self), (self.code, self.field, self.rule)
