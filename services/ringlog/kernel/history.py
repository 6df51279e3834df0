"""The memory of what was applied: which request and which state id made which epoch.

It answers the questions on which exactly-once rests: was this request applied already (and was it this command), what
followed that state, and is a request so old that nobody can tell. Bounded by the setting ``history_entries``.

It holds exactly the epochs from ``max(oldest, 1)`` to the state's epoch; ``oldest`` never goes back, also when the
bound is raised later (``invariants.cluster``).
"""

from __future__ import annotations

from ringlog.kernel.memory import Applied
from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import ClusterState
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


def lies_beside(state: ClusterState, entry: Entry) -> bool:
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
