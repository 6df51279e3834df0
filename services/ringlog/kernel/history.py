"""The applied entries that a state remembers, and the allowed start of the log.

Exactly-once rests on this memory: it shows whether a request was applied and as which command, which entry followed a
state, and whether a request is too old to decide. The setting ``history_entries`` bounds it. It holds exactly the
epochs from ``max(oldest, 1)`` to the state's epoch. ``oldest`` never decreases, even if the bound is raised later
(``invariants.cluster``).

The log may begin at a confirmed snapshot instead of its first entry.

The *chain* of a log covers its applied entries: chain(n) = SHA-256(chain(n-1) followed by the bytes of the record of
epoch n), and chain(0) is empty. Two logs with the same chain have the same entries, byte by byte. So an auditor who
keeps one chain value elsewhere detects each later change of an earlier entry. Entries without effect are not covered.
"""

from __future__ import annotations

import hashlib
from typing import Final

from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.modes import TakenSnapshot
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch

CHAIN_BYTES: Final = 32


def chained(chain: bytes, data: bytes) -> bytes:
    """Return the chain after an applied entry with these bytes."""
    return hashlib.sha256(chain + data).digest()


def find_request(state: ClusterState, request_id: str) -> Applied | None:
    """Return the applied entry of a request, or None if it is not remembered."""
    return state.history.of_request(request_id)


def find_state(state: ClusterState, state_id: str) -> Applied | None:
    """Return the applied entry that made a state, or None if it is not remembered."""
    return state.history.of_state(state_id)


def state_id_at(state: ClusterState, epoch: Epoch) -> str:
    """Return the state id of an epoch; empty if the epoch is not remembered or in the future."""
    applied = state.history.at(epoch)
    return "" if applied is None else applied.state_id


def contradicts_history(state: ClusterState, entry: Entry) -> bool:
    """Return True if the author of a stale entry decided on a state that this history should contain but does not.

    An author has folded at most the log before its entry. So the author folded another log or invented the id.
    """
    oldest = state_id_at(state, state.history.first)
    before = entry.prev_state_id
    return state.epoch > 0 and before is not None and before > oldest and find_state(state, before) is None


def is_expired(state: ClusterState, since_epoch: Epoch) -> bool:
    """Return True if a request made at ``since_epoch`` may be applied and forgotten, or claims a future epoch."""
    return since_epoch < state.history.oldest or since_epoch > state.epoch


def contradicts(state: ClusterState, epoch: Epoch, state_id: str) -> bool:
    """Return True if the state id at ``epoch`` is known and differs from ``state_id``; False if either is unknown."""
    known = state_id_at(state, epoch)
    return bool(known and state_id) and known != state_id


ARCHIVED: Final = "archived"
TRUNCATED: Final = "truncated"
"""Names of bounds."""

STORED_MAX: Final = 3
"""Number of confirmed snapshots to keep for readers: the newest ones, and the one that the log begins with."""


def confirmed_snapshots(state: ClusterState) -> tuple[TakenSnapshot, ...]:
    """Return the marks that two readers have confirmed, by epoch."""
    return tuple(sorted((one for one in state.snapshots.values() if one.witnesses), key=lambda one: one.epoch))


def allowed_begin(state: ClusterState) -> int:
    """Return the lower bound of records that must stay: those below this offset may be deleted."""
    bound = state.log_bounds.get(TRUNCATED)
    return 0 if bound is None else bound.position
