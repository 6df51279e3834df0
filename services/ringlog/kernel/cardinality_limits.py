"""Maximum numbers of items in sections of the state that never shrink, or shrink only by a user's command.

Names and ids of nodes and tables are never used again, so nodes that left and tables that were dropped stay in the
state. Every replica holds them, every snapshot contains them, and some rules iterate over them. The bounds are far
above the needs of a store, and far below the capacity of a replica, of Redis and of a process start. They are checked
as a command is decided, once for all commands: one item more is rejected (``too_many``), and existing items stay.

CDC generations have no bound here. One comes with each join and move, and one for all tables that were split or merged
during the previous one; an expired one takes some two hundred bytes. A command that ends an operation must never be
rejected because of old generations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import PARTS, RECORD_SECTIONS, ClusterState

COUNTS_MAX: Final[dict[str, tuple[int, str]]] = {
    "keyspaces": (10_000, "keyspaces"),
    "nodes": (100_000, "nodes, including those that left"),
    "past_ttls": (10_000, "past TTLs of CDC rows, each shorter than the previous one"),
    "pauses": (10_000, "pauses"),
    "table_ids": (1_000_000, "tables, including dropped ones"),
    "terms": (64, "roles of agents"),
    "types": (100_000, "user types"),
    "writers": (10_000, "CDC writers, including fenced ones"),
} | {part.name: part.most for part in RECORD_SECTIONS if part.most is not None}
"""Section of the state to its maximum number of items, and a description of them."""
assert COUNTS_MAX.keys() < {*PARTS}, "each name is a section of the state"


def _beyond() -> Callable[[ClusterState, ClusterState], str]:
    """Return a function of two states that names the first section that changed and exceeds its maximum; empty if none.

    The function is generated with one line per section, because it runs for every command.
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
    """Return a rejection if the command adds an item to a full section, or None."""
    part = _beyond_of(before, after)
    if not part:
        return None
    most, subject = COUNTS_MAX[part]
    assert most < len(getattr(after, part)) > len(getattr(before, part)), "only a growing section is rejected"
    return Rejected("too_many", f"{part}: the state has {len(getattr(before, part))} {subject}, the limit is {most}")
