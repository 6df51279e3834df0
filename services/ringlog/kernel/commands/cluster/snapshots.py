"""Snapshots: epochs whose states are stored, so that readers need not begin with the log's first entry.

``TakeSnapshot`` is a mark in the log. It changes nothing but the list of the last marks; a replica that folds it has
the state of that very epoch at hand, and agents store it and confirm it outside the log (``ringlog.log.snapshots``).
Whether one was stored is no part of the state: a mark is a chance to store, not a promise.

The coordinator asks for one when ``snapshot_entries`` entries, or entries of ``snapshot_bytes``, were applied since the
last; operators by hand. A fold knows no sizes: who asks has counted the bytes that it read.

Source: CEP-21, log compaction and snapshots; Cassandra's TRIGGER_SNAPSHOT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringlog.kernel.history import STORED_MAX, TRUNCATED, confirmed_snapshots
from ringlog.kernel.model.modes import UNPAUSED, TakenSnapshot
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Command, Epoch

CODES: Final[dict[str, str]] = {}

SNAPSHOTS_KEPT_MAX: Final = 8
"""The newest marks, confirmed or not. The state also keeps those that readers depend on (``_kept_marks``)."""

OWN_ENTRIES_MAX: Final = 4
"""Entries that follow from a mark, with it: it is confirmed, by two at once perhaps, and the archive goes so far."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Command):
    """The state behind this entry is to be stored for readers to begin with."""

    PAUSED_BY = UNPAUSED


def decide_take_snapshot(state: ClusterState, _command: TakeSnapshot, context: EntryContext) -> Decision:
    """Always accepted. Marks that no reader depends on are removed when there are too many."""
    taken = state.snapshots.set(str(context.epoch), TakenSnapshot(context.epoch, context.time))
    kept = _kept_marks(state) | set(sorted(one.epoch for one in taken.values())[-SNAPSHOTS_KEPT_MAX:])
    for epoch in sorted(one.epoch for one in taken.values() if one.epoch not in kept):
        taken = taken.delete(str(epoch))
    assert len(taken) <= SNAPSHOTS_KEPT_MAX + STORED_MAX + 1, "marks are bounded, however many are asked for"
    assert all(str(epoch) in taken for epoch in kept), "a mark that readers depend on stays"
    return Accepted(advance(state, context.epoch, snapshots=taken))


def _kept_marks(state: ClusterState) -> set[Epoch]:
    """Epochs of marks that are never removed, however many unconfirmed ones follow.

    These are the newest ``STORED_MAX`` confirmed marks, which are what the topic stores, and the one that the log
    begins with. A lost log can be rebuilt only with the witnesses of one of them.
    """
    bound = state.log_bounds.get(TRUNCATED)
    begins = set() if bound is None or str(bound.epoch) not in state.snapshots else {bound.epoch}
    return begins | {one.epoch for one in confirmed_snapshots(state)[-STORED_MAX:]}


def last_snapshot(state: ClusterState) -> Epoch:
    """The epoch of the last mark; 0: there is none."""
    return max((one.epoch for one in state.snapshots.values()), default=0)


def is_mark(before: ClusterState, after: ClusterState) -> bool:
    """True if what made ``after`` asks for a snapshot of it."""
    return after.snapshots is not before.snapshots and last_snapshot(after) == after.epoch


def is_unconfirmed(state: ClusterState, epoch: Epoch) -> bool:
    """True if that epoch is marked, and no two roles have said so far that they have its state."""
    mark = state.snapshots.get(str(epoch))
    return mark is not None and not mark.witnesses


def is_due(state: ClusterState, entry_bytes: int = 0) -> bool:
    """True if enough was applied since the last mark, and more entries than a snapshot makes by itself.

    ``entry_bytes``: of the entries since then.
    """
    entries, size = setting(state, "snapshot_entries"), setting(state, "snapshot_bytes")
    applied = state.epoch - last_snapshot(state)
    return applied > OWN_ENTRIES_MAX and (0 < entries <= applied or 0 < size <= entry_bytes)
