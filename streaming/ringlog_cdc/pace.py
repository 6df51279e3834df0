"""How large the next plan part may be, so that a job that dies often still gets on.

A part that was begun is carried out again as a whole, so what is lost with a driver is the part in hand. The first part
of a run is small. Each next one may be as large as all before it, and no larger than what takes about ``PART_S``: so a
part takes no longer than those before it in the same run together, and a driver that lives as long as the one before it
finishes what that one began. Where parts are quick a whole batch soon is one.

How long something took decides sizes, and nothing else: what becomes of a write follows from its plan, as ever.
"""

from __future__ import annotations

FIRST = 20_000
"""Offsets of the first part of a run, at most."""
LEAST = 1_000
PART_S = 20.0
QUICK_S = PART_S / 4
"""What is done so soon says little of how long a large part would take."""


def next_limit(limit: int, offsets: int, seconds: float, done: int) -> int:
    """Offsets of the next part at most, after one of ``offsets`` took ``seconds`` under ``limit``.

    ``done``: all offsets of this run so far, that part's among them.
    """
    grown = max(limit, min(2 * limit, done))
    if seconds <= QUICK_S:
        return grown if 2 * offsets >= limit else limit
    return max(LEAST, min(grown, int(offsets / seconds * PART_S)))
