"""The fold: one record of the metadata log in, the next state and exactly one verdict out.

The state at epoch n is the fold of the first n applied entries. The checks run in this order, and the first that
holds decides:

=========== ==========================================================================================
unreadable  the record is no envelope
foreign     it belongs to another cluster
duplicate   its state id or its request id is in the history
expired     its ``since_epoch`` has left the history, or lies above the epoch
stale       its predecessor is not the current state: it lost a race, or a zombie wrote it
halt        this release cannot tell what it does (unknown kind or version, or a defect of a rule)
refused     its payload is undecodable, a rule of its fields is broken, or the command is rejected
applied     otherwise: epoch + 1, its state id
=========== ==========================================================================================

``fold`` is total: no record makes it raise, and a record that is not applied leaves *the same object*. A reader that
gets ``halt`` stops before the record.

Founding: on the empty state nothing is foreign, and only an InitializeCluster without predecessor can apply; it gives
the cluster its id. Every other command is stale there, since no other can follow the empty state.

Defects: when a rule raises, no replica knows what the entry should have done. To refuse it would be a guess, and a
wrong one wherever the failure has a local cause (memory, recursion) or a later release repairs the rule: those
replicas would fold on to another state. To stop before it is never wrong. It is also rare: authors decide with the
same function before they append, and there a defect is a plain rejection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ringlog.kernel import history
from ringlog.kernel.commands.cluster import InitializeCluster
from ringlog.kernel.decide import DEFECT, decide
from ringlog.kernel.memory import Applied
from ringlog.kernel.outcome import (
    Accepted,
    Entry,
    EntryContext,
    Folded,
    Outcome,
    OutcomeKind,
    Rejected,
    Undecodable,
    UnknownCommand,
    UnreadableEntry,
)
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.swift import maker_of, replacer_of
from ringlog.kernel.values import is_uuid

FOUNDING = InitializeCluster.__name__
ID_STEP_MAX_MS = 2**42
"""How far, in its leading 48 bits of milliseconds (139 years), a state id may lie above the one before it.

Every state id lies above its predecessor: one near the greatest of all would be the last.
"""

_APPLIED: Final = OutcomeKind.APPLIED
_new_context: Final = maker_of(EntryContext)
_new_outcome: Final = maker_of(Outcome)
_new_applied: Final = maker_of(Applied)
_new_folded: Final = maker_of(Folded)
_with_entry: Final[Callable[..., ClusterState]] = replacer_of(
    ClusterState, ("cluster_id", "epoch", "state_id", "time", "history")
)


def fold(state: ClusterState, item: Entry | UnreadableEntry) -> Folded:
    """The state and the verdict after one record; never raises."""
    if isinstance(item, UnreadableEntry):
        return _unchanged(state, OutcomeKind.UNREADABLE, "unreadable_entry", item.detail)
    return _off_the_chain(state, item) or _on_the_chain(state, item)


def _off_the_chain(state: ClusterState, entry: Entry) -> Folded | None:
    """The verdict on an entry that does not follow the current state; None if it does."""
    if state.epoch > 0 and entry.cluster_id != state.cluster_id:
        return _unchanged(state, OutcomeKind.FOREIGN, detail=f"of cluster {entry.cluster_id}")
    if (made := history.find_state(state, entry.state_id)) is not None:
        return _unchanged(state, OutcomeKind.DUPLICATE, detail=f"its state id is that of epoch {made.epoch}")
    if (answered := history.find_request(state, entry.request_id)) is not None:
        code = "" if answered.digest == entry.digest else "request_id_reused"
        return _unchanged(state, OutcomeKind.DUPLICATE, code, f"its request id was applied with epoch {answered.epoch}")
    if history.is_expired(state, entry.since_epoch):
        detail = f"since_epoch {entry.since_epoch} is not between {state.history.oldest} and {state.epoch}"
        return _unchanged(state, OutcomeKind.EXPIRED, "request_expired", detail)
    if entry.prev_state_id != (state.state_id if state.epoch > 0 else None):
        return _unchanged(state, OutcomeKind.STALE, detail=f"it follows {entry.prev_state_id}")
    if state.epoch == 0 and entry.kind != FOUNDING:
        return _unchanged(state, OutcomeKind.STALE, detail=f"{entry.kind} cannot found a cluster")
    return None


def _on_the_chain(state: ClusterState, entry: Entry) -> Folded:
    """The verdict on an entry that follows the current state."""
    command = entry.command
    if isinstance(command, UnknownCommand):
        detail = f"{command.kind} version {command.version} needs a later release"
        return _unchanged(state, OutcomeKind.HALT, "unknown_command", detail)
    if isinstance(command, Undecodable):
        return _unchanged(state, OutcomeKind.REFUSED, "undecodable", command.detail)
    if (broken := _broken_identity(state, entry)) is not None:
        return _unchanged(state, OutcomeKind.REFUSED, broken.code, broken.detail)
    context = _new_context(state.epoch + 1, entry.state_id, max(state.time, entry.at))
    decision = decide(state, command, context)
    if isinstance(decision, Accepted):
        after = _applied(state, decision.state, entry, context)
        return _new_folded(after, _new_outcome(_APPLIED, context.epoch, "", ""))
    kind = OutcomeKind.HALT if decision.code == DEFECT else OutcomeKind.REFUSED
    return _unchanged(state, kind, decision.code, decision.detail)


def _broken_identity(state: ClusterState, entry: Entry) -> Rejected | None:
    """The rules of the envelope's own ids, which the chain rests on."""
    if not is_uuid(entry.state_id):
        return Rejected("bad_field", "state_id: not a canonical UUID")
    near = entry.state_id[:8] == state.state_id[:8]  # a minute or so: nearly always
    if not near and _milliseconds(entry.state_id) - _milliseconds(state.state_id) > ID_STEP_MAX_MS:
        return Rejected("bad_field", f"state_id: more than {ID_STEP_MAX_MS} ms above the one before: a clock is wrong")
    if state.epoch == 0:
        return None if is_uuid(entry.cluster_id) else Rejected("bad_field", "cluster_id: not a canonical UUID")
    if entry.state_id <= state.state_id:
        return Rejected("state_id_not_above", f"state_id: {entry.state_id} is not above {state.state_id}")
    return None


def _milliseconds(state_id: str) -> int:
    """The leading 48 bits of a UUID; 0 before the first one."""
    return int(state_id[:8] + state_id[9:13] or "0", 16)


def _applied(before: ClusterState, decided: ClusterState, entry: Entry, context: EntryContext) -> ClusterState:
    """The state that the decision made, with what the entry itself adds: epoch, ids, time and history."""
    applied = _new_applied(context.epoch, entry.state_id, entry.request_id, entry.digest)
    return _with_entry(
        decided,
        before.cluster_id or entry.cluster_id,
        context.epoch,
        entry.state_id,
        context.time,
        before.history.with_(applied, setting(decided, "history_entries")),
    )


def _unchanged(state: ClusterState, kind: OutcomeKind, code: str = "", detail: str = "") -> Folded:
    return Folded(state, Outcome(kind, state.epoch, code, detail))
