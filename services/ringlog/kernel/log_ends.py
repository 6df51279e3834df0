"""Where the log may begin, and what may stand for its beginning, as the state has it."""

from __future__ import annotations

from typing import Final

from ringlog.kernel.log_marks import TakenSnapshot
from ringlog.kernel.state import ClusterState

ARCHIVED: Final = "archived"
TRUNCATED: Final = "truncated"
"""Names of bounds."""


def confirmed_snapshots(state: ClusterState) -> tuple[TakenSnapshot, ...]:
    """The marks that two readers have confirmed, by epoch."""
    return tuple(sorted((one for one in state.snapshots.values() if one.witnesses), key=lambda one: one.epoch))


def allowed_begin(state: ClusterState) -> int:
    """The offset below which records may be deleted: where the log begins at most."""
    bound = state.log_bounds.get(TRUNCATED)
    return 0 if bound is None else bound.position
