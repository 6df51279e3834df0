"""Snapshots: epochs whose states are stored, so that readers need not start with the log's first entry.

``TakeSnapshot`` is a mark in the log. It changes only the list of the last marks. A replica that folds it has the state
of that epoch; agents store the state and confirm it outside the log (``ringlog.log.snapshots``). The state does not say
whether one was stored: a mark is a chance to store, not a promise.

The coordinator requests one when ``snapshot_entries`` entries, or entries of ``snapshot_bytes``, were applied since the
last one. Operators may also request one. A fold knows no sizes: the requester counts the bytes that it reads.

Source: CEP-21, log compaction and snapshots; Cassandra's TRIGGER_SNAPSHOT.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.history import STORED_MAX, TRUNCATED, confirmed_snapshots
from ringlog.kernel.model.modes import UNPAUSED, TakenSnapshot
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Command, Epoch

CODES: Final[dict[str, str]] = {}

SNAPSHOTS_KEPT_MAX: Final = 8
"""The newest marks, confirmed or not. The state also keeps those that readers depend on (``_kept_marks``)."""

OWN_ENTRIES_MAX: Final = 4
"""The most entries that a mark causes, itself included: two confirmations at once, perhaps, and a record of the
archive.
"""


class TakeSnapshot(Command):
    """Request a snapshot of the state after this entry."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)


def decide_take_snapshot(state: ClusterState, _command: TakeSnapshot, context: EntryContext) -> Decision:
    """Record a mark. Remove marks that no reader depends on, if there are too many."""
    taken = state.snapshots.set(str(context.epoch), TakenSnapshot(context.epoch, context.time))
    kept = _kept_marks(state) | set(sorted(one.epoch for one in taken.values())[-SNAPSHOTS_KEPT_MAX:])
    for epoch in sorted(one.epoch for one in taken.values() if one.epoch not in kept):
        taken = taken.delete(str(epoch))
    assert len(taken) <= SNAPSHOTS_KEPT_MAX + STORED_MAX + 1, "the number of marks is bounded"
    assert all(str(epoch) in taken for epoch in kept), "marks that readers need are kept"
    return Accepted(advance(state, context.epoch, snapshots=taken))


def _kept_marks(state: ClusterState) -> set[Epoch]:
    """Return the epochs of marks that are never removed, however many unconfirmed ones follow.

    These are the newest ``STORED_MAX`` confirmed marks, whose states the topic stores, and the mark at the log's begin.
    A lost log can be rebuilt only with the witnesses of one of them.
    """
    bound = state.log_bounds.get(TRUNCATED)
    begins = set() if bound is None or str(bound.epoch) not in state.snapshots else {bound.epoch}
    return begins | {one.epoch for one in confirmed_snapshots(state)[-STORED_MAX:]}


def last_snapshot(state: ClusterState) -> Epoch:
    """Return the epoch of the last mark; 0 if there is none."""
    return max((one.epoch for one in state.snapshots.values()), default=0)


def is_mark(before: ClusterState, after: ClusterState) -> bool:
    """Return whether the entry that made ``after`` requests a snapshot of it."""
    return after.snapshots is not before.snapshots and last_snapshot(after) == after.epoch


def is_unconfirmed(state: ClusterState, epoch: Epoch) -> bool:
    """Return whether that epoch is marked, and two roles have not yet confirmed its state."""
    mark = state.snapshots.get(str(epoch))
    return mark is not None and not mark.witnesses


def is_due(state: ClusterState, entry_bytes: int = 0) -> bool:
    """Return whether enough was applied since the last mark, and more entries than a snapshot itself causes.

    ``entry_bytes``: the size of the entries since then.
    """
    entries, size = setting(state, "snapshot_entries"), setting(state, "snapshot_bytes")
    applied = state.epoch - last_snapshot(state)
    return applied > OWN_ENTRIES_MAX and (0 < entries <= applied or 0 < size <= entry_bytes)
