"""The memory of what was applied: which request and which state id made which epoch.

It answers the questions on which exactly-once rests: was this request applied already (and was it this command), what
followed that state, and is a request so old that nobody can tell. Bounded by the setting ``history_entries``.

It holds exactly the epochs from ``max(oldest, 1)`` to the state's epoch; ``oldest`` never goes back, also when the
bound is raised later (``invariants.cluster``).
"""

from __future__ import annotations

from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import Applied, ClusterState, History
from ringlog.kernel.values import Epoch


def remember(history: History, applied: Applied, entries_max: int) -> History:
    """``history`` after ``applied``, with the oldest entries dropped so that at most ``entries_max`` remain."""
    entries = history.entries.set(applied.epoch, applied)
    requests = history.requests.set(applied.request_id, applied.epoch)
    states = history.states.set(applied.state_id, applied.epoch)
    oldest = max(history.oldest, applied.epoch - entries_max + 1) if applied.epoch >= entries_max else history.oldest
    for epoch in range(max(history.oldest, 1), oldest):
        forgotten = entries[epoch]
        entries = entries.delete(epoch)
        requests = requests.delete(forgotten.request_id)
        states = states.delete(forgotten.state_id)
    return History(oldest, entries, requests, states)


def find_request(state: ClusterState, request_id: str) -> Applied | None:
    """The applied entry of that request, if it is still remembered."""
    epoch = state.history.requests.get(request_id)
    return None if epoch is None else state.history.entries[epoch]


def find_state(state: ClusterState, state_id: str) -> Applied | None:
    """The applied entry that made that state, if it is still remembered."""
    epoch = state.history.states.get(state_id)
    return None if epoch is None else state.history.entries[epoch]


def state_id_at(state: ClusterState, epoch: Epoch) -> str:
    """The state id of that epoch; empty if it is not remembered, or still to come."""
    applied = state.history.entries.get(epoch)
    return "" if applied is None else applied.state_id


def lies_beside(state: ClusterState, entry: Entry) -> bool:
    """True if the author of an entry that does not follow decided on a state that this history lacks, and would know.

    An author has folded no more of the log than there is before its entry. So it has folded another log, or made the
    id up.
    """
    oldest = state_id_at(state, max(state.history.oldest, 1))
    before = entry.prev_state_id
    return state.epoch > 0 and before is not None and before > oldest and before not in state.history.states


def is_expired(state: ClusterState, since_epoch: Epoch) -> bool:
    """True if a request made at ``since_epoch`` could have been applied and forgotten, or claims an epoch to come."""
    return since_epoch < state.history.oldest or since_epoch > state.epoch


def contradicts(state: ClusterState, epoch: Epoch, state_id: str) -> bool:
    """True if another state than ``state_id`` was the cluster's at ``epoch``; False also where nobody can tell."""
    known = state_id_at(state, epoch)
    return bool(known and state_id) and known != state_id
