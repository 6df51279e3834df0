"""Planted bugs: they show that the simulator finds such bugs.

Each is a piece of a production function and its replacement, both as code. They are in diff files in this folder, one
for each part of the system (``plant`` describes the notation).
"""

from __future__ import annotations

from typing import Final

from ringlog_sim.mutants.plant import Mutant, bugs_of

PARTS: Final = (
    "log",
    "operations",
    "cdc",
    "images",
    "recovery",
    "registers",
    "tablets",
    "balancer",
    "log_ends",
    "columns",
    "zones",
    "rows",
    "peers",
    "members",
    "principals",
)

MUTANTS: Final[tuple[Mutant, ...]] = tuple(bug for part in PARTS for bug in bugs_of(part))
"""All planted bugs, by part of the system. Names are unique."""
