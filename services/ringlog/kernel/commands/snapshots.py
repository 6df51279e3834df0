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

from ringlog.kernel.outcome import Accepted, Decision, EntryContext
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, TakenSnapshot, advance
from ringlog.kernel.values import Command, Epoch

CODES: Final[dict[str, str]] = {}

STORED_MAX: Final = 3
"""Confirmed snapshots that are kept to begin with: the newest, and beside them the one with which the log begins."""

REMEMBERED_MAX: Final = 8
"""Marks that are part of the state: more than are kept in the topic."""

OWN_ENTRIES_MAX: Final = 4
"""Entries that follow from a mark, with it: it is confirmed, by two at once perhaps, and the archive goes so far."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Command):
    """The state behind this entry is to be stored for readers to begin with."""


def decide_take_snapshot(state: ClusterState, _command: TakeSnapshot, context: EntryContext) -> Decision:
    """Nothing can be against it; the oldest mark goes where there are too many."""
    taken = state.snapshots.set(str(context.epoch), TakenSnapshot(context.epoch, context.time))
    if len(taken) > REMEMBERED_MAX:
        taken = taken.delete(str(min(one.epoch for one in taken.values())))
    return Accepted(advance(state, context.epoch, snapshots=taken))


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
