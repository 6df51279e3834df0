"""Reports of a node of one's own: how many rows it got for an operation, and their sum, in the form that the log takes.

A source sums up what it sends and a gaining node what it gets, with one ``RowsSum`` each, rows in any order; when the
two sums agree the gaining node puts the report into its acknowledgement. The sum is that of the rows' SHA-256, as
numbers, modulo 2**256: the same rows give the same sum in whatever order and pages they came, a row that came twice
counts twice. What a row's bytes are is the store's own affair; they must be the same on both sides.
"""

from __future__ import annotations

import hashlib

from ringlog.kernel.operations.reports import broken_report
from ringlog.kernel.values import StreamReport

_MODULUS = 2**256
_DIGITS = 64


class RowsSum:
    """Counts rows and sums them up. Not for several threads at once."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, row: bytes) -> None:
        """One row, as the bytes that both sides make of it."""
        self.rows += 1
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(row).digest(), "big")) % _MODULUS

    @property
    def checksum(self) -> str:
        """The sum so far: 64 hex digits, all zero without rows."""
        return f"{self._sum:0{_DIGITS}x}"

    def report(self, node_id: str, operation: str) -> StreamReport:
        """The report of the node with this id (not its name) on an operation."""
        return checked(StreamReport(node_id, operation, self.rows, self.checksum))


def checked(report: StreamReport) -> StreamReport:
    """The report, if the log takes it; for a store with a sum of its own. Raises ValueError, naming field and rule."""
    broken = broken_report(report)
    if broken is not None:
        raise ValueError(f"report of {report.node} on {report.operation}: {broken}")
    return report
