"""What a participant says of itself, and whether it can be used: reports of rows, and acknowledged epochs.

A participant may be anybody's program. What it says is checked one by one, so that what cannot be used stops nobody but
the operation that needs it, and its collector can say who said what.

A **report** counts rows and sums them up: ``checksum`` is the sum in lower-case hex, 2 to 128 digits. The log compares
it with nothing: it is for people and for the store itself, whose nodes must make the same sum of the same rows in
whatever order they came. The reference nodes take SHA-256; ``ringlog.client.reports`` has a sum for others.
"""

from __future__ import annotations

import re

from ringlog.kernel.values import Epoch, StreamReport

_CHECKSUM = re.compile(r"[0-9a-f]{2,128}")
CHECKSUM_RULE = "must be 2 to 128 lower-case hex digits"


def broken_report(report: StreamReport) -> str | None:
    """The field of a report that cannot be used, and its rule; None if it is sound."""
    if report.rows < 0:
        return f"rows {report.rows} must be 0 or above"
    if not _CHECKSUM.fullmatch(report.checksum):
        return f"checksum {report.checksum[:40]!r} {CHECKSUM_RULE}"
    return None


def broken_epochs(applied: Epoch, drained: Epoch) -> str | None:
    """Why an acknowledgement cannot be used; None if it is sound."""
    if applied < 0 or drained < 0:
        return f"applied {applied} and drained {drained} must be 0 or above"
    return None
