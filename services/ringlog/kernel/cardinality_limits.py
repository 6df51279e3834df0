"""How many there may be: parts of the state of which nothing is ever taken out, or only by a user, have a bound.

Names and ids of nodes and tables are never used again, so what left and what was dropped is remembered for ever; each
replica holds it, each snapshot carries it, and some rules walk it. The bounds are far above what a store needs, and
far below what a replica, a Redis or a start of a process could not bear. They are looked at as a command is decided,
once for all commands: one more is refused (``too_many``), and nothing that is there is touched.

CDC generations have no bound here: one comes with each join and move, and one for all tables that were split or merged
while the one before it was made; what is left of an expired one is some two hundred bytes. A command that ends an
operation must never be refused for what happened long before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.state_section import sections_of

COUNTS_MAX: Final[dict[str, tuple[int, str]]] = {
    "keyspaces": (10_000, "keyspaces"),
    "nodes": (100_000, "nodes, those included that left"),
    "past_ttls": (10_000, "times to live, each shorter than the one before it, that CDC rows were promised"),
    "pauses": (10_000, "pauses"),
    "table_ids": (1_000_000, "tables, those included that were dropped"),
    "terms": (64, "roles of agents"),
    "types": (100_000, "user types"),
    "writers": (10_000, "CDC writers, those included that were fenced"),
} | {part.name: part.most for part in sections_of(ClusterState) if part.most is not None}
"""Part of the state -> most entries, and what they are."""


def _beyond() -> Callable[[ClusterState, ClusterState], str]:
    """Of two states: the first part that is another one in the second, and has more than there may be; empty if none.

    A function that is written out: it looks at each part, for each command.
    """
    lines = ["def beyond(before, after):"]
    for part in COUNTS_MAX:
        most = f"max(_most[{part!r}][0], len(before.{part}))"
        lines.append(f"    if after.{part} is not before.{part} and len(after.{part}) > {most}:")
        lines.append(f"        return {part!r}")
    scope: dict[str, Any] = {"_most": COUNTS_MAX}
    exec("\n".join([*lines, "    return ''"]), scope)
    beyond: Callable[[ClusterState, ClusterState], str] = scope["beyond"]
    return beyond


_beyond_of: Final = _beyond()


def too_many(before: ClusterState, after: ClusterState) -> Rejected | None:
    """Of what the command adds, and there are as many as there may be; None if nothing. Costs a look at each part."""
    part = _beyond_of(before, after)
    if not part:
        return None
    most, subject = COUNTS_MAX[part]
    return Rejected("too_many", f"{part}: there are {len(getattr(before, part))} {subject}, and {most} at most")
