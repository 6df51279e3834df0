"""Planted bugs: proof that the simulator finds what it is there to find.

Each is a piece of a function of the product and what stands in its place, both as code: they lie beside this module as
files of differences, one for each part of the system (``reading`` says how they are written).
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
)

MUTANTS: Final[tuple[Mutant, ...]] = tuple(bug for part in PARTS for bug in bugs_of(part))
"""All of them, by part of the system; names are unique."""
