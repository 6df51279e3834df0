"""The applied entries that a state remembers, and where the log may begin.

Exactly-once rests on this memory: whether a request was applied (and with which command), which entry followed a state,
and whether a request is too old to tell. The setting ``history_entries`` bounds it. It holds exactly the epochs from
``max(oldest, 1)`` to the state's epoch; ``oldest`` never goes back, even if the bound is raised later
(``invariants.cluster``).

The log may begin at a confirmed snapshot instead of its first entry.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.modes import TakenSnapshot
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch


def find_request(state: ClusterState, request_id: str) -> Applied | None:
    """The applied entry of that request, if it is still remembered."""
    return state.history.of_request(request_id)


def find_state(state: ClusterState, state_id: str) -> Applied | None:
    """The applied entry that made that state, if it is still remembered."""
    return state.history.of_state(state_id)


def state_id_at(state: ClusterState, epoch: Epoch) -> str:
    """The state id of that epoch; empty if it is not remembered, or still to come."""
    applied = state.history.at(epoch)
    return "" if applied is None else applied.state_id


def contradicts_history(state: ClusterState, entry: Entry) -> bool:
    """True if the author of an entry that does not follow decided on a state that this history lacks, and would know.

    An author has folded no more of the log than there is before its entry. So it has folded another log, or made the
    id up.
    """
    oldest = state_id_at(state, state.history.first)
    before = entry.prev_state_id
    return state.epoch > 0 and before is not None and before > oldest and find_state(state, before) is None


def is_expired(state: ClusterState, since_epoch: Epoch) -> bool:
    """True if a request made at ``since_epoch`` could have been applied and forgotten, or claims an epoch to come."""
    return since_epoch < state.history.oldest or since_epoch > state.epoch


def contradicts(state: ClusterState, epoch: Epoch, state_id: str) -> bool:
    """True if another state than ``state_id`` was the cluster's at ``epoch``; False also where nobody can tell."""
    known = state_id_at(state, epoch)
    return bool(known and state_id) and known != state_id


ARCHIVED: Final = "archived"
TRUNCATED: Final = "truncated"
"""Names of bounds."""

STORED_MAX: Final = 3
"""Confirmed snapshots that are kept to begin with: the newest, and beside them the one with which the log begins."""


def confirmed_snapshots(state: ClusterState) -> tuple[TakenSnapshot, ...]:
    """The marks that two readers have confirmed, by epoch."""
    return tuple(sorted((one for one in state.snapshots.values() if one.witnesses), key=lambda one: one.epoch))


def allowed_begin(state: ClusterState) -> int:
    """The offset below which records may be deleted: where the log begins at most."""
    bound = state.log_bounds.get(TRUNCATED)
    return 0 if bound is None else bound.position
