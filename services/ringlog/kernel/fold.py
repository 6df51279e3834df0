"""The fold: it takes one record of the metadata log and returns the next state and exactly one verdict.

The state at epoch n is the fold of the first n applied entries. The checks run in this order, and the first that holds
decides:

=========== ==========================================================================================
unreadable  the record is not an envelope
foreign     the entry belongs to another cluster
duplicate   its state id or its request id is in the history
expired     its ``since_epoch`` has left the history, or is above the epoch
stale       its predecessor is not the current state: it lost a race, or a fenced author wrote it
halt        this release cannot apply it (unknown kind or version, or a defect of a rule)
refused     its payload is undecodable, breaks a rule of its fields, or the command is rejected
applied     otherwise: epoch + 1, its state id
=========== ==========================================================================================

``fold`` is total: no record makes it raise. A record that is not applied leaves *the same object*. A reader that gets
``halt`` stops before the record.

Initial entry: on the empty state no entry is foreign, and only an InitializeCluster without predecessor can apply. It
gives the cluster its id. Every other command is stale there.

Defects: if a rule raises, no replica knows the intended effect of the entry. Refusing it would be a guess. The guess is
wrong if the failure has a local cause (memory, recursion) or a later release repairs the rule: those replicas would
fold to another state. Stopping before the entry is never wrong. It is also rare: authors decide with the same function
before they append, and there a defect is a plain rejection.

Decisions: ``decide`` refuses commands that operators have paused or that a recovery does not allow, for all commands in
one place (``commands.control.pauses``, ``commands.control.recovery``). The commands of a plan are decided one by one,
with all of these checks (``kernel.plans``).

A rule checks the command's own fields first (code ``bad_field``), then its conditions on the state, and only then makes
the next state. ``decide`` then rejects a state that is too large for its readers (``kernel.size_limits``).

An entry gives its state id to the schema and to each table that it changes. In a recovery the log does not vouch for
the state. So these versions are hex SHA-256 digests of the content, and the table's ``committed_by_log`` is false until
an entry outside a recovery changes the table again. ``by_log_or_digest`` runs after every rule, so no rule implements
this.

Source: ScyllaDB, ``docs/dev`` on Raft, "Group 0 schema versioning": recovery mode forces the old behaviour, hashes.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel import history
from ringlog.kernel.cardinality_limits import too_many
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.control.pauses import paused
from ringlog.kernel.commands.control.plans import ApprovePlan, StagePlan
from ringlog.kernel.commands.control.recovery import held_by_recovery
from ringlog.kernel.encoding.encoder import encode, sha256_of
from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.outcome import (
    Accepted,
    Decision,
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
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, advance, in_order
from ringlog.kernel.model.tables import Table, TableLifetime
from ringlog.kernel.plans import with_plan
from ringlog.kernel.registry import CODES, RULES
from ringlog.kernel.schema.sizes import LIVING
from ringlog.kernel.sections import PARTS, SCHEMA
from ringlog.kernel.service import in_recovery
from ringlog.kernel.size_limits import too_large
from ringlog.kernel.values import Command, is_uuid, replace

SCHEMA_PARTS: Final = tuple(part.name for part in PARTS if part.topic == SCHEMA)
"""The sections that the schema version covers: any change in them gives a new version, also in a recovery."""
assert {*LIVING} < {*SCHEMA_PARTS}, "the schema version covers each section of the schema"


def by_log_or_digest(before: ClusterState, after: ClusterState, context: EntryContext) -> ClusterState:
    """Return the state that a command made, with new versions as a recovery or normal operation requires."""
    # The command did not change the schema.
    if after.schema_version != context.state_id:
        return after
    recovery = in_recovery(before) is not None
    tables, lifetimes = after.tables, after.table_lives
    for name, table in in_order(after.tables) if after.tables is not before.tables else ():
        if table.version == context.state_id and table.committed_by_log == recovery:
            marked = digested(table) if recovery else replace(table, committed_by_log=True)
            tables = tables.set(name, marked)
            if name in lifetimes:
                lifetimes = lifetimes.set(name, tuple(_with(lifetime, table, marked) for lifetime in lifetimes[name]))
    if not recovery:
        return advance(after, context.epoch, tables=tables, table_lives=lifetimes)
    after = advance(after, context.epoch, tables=tables, table_lives=lifetimes)
    whole = tuple(getattr(after, name) for name in SCHEMA_PARTS)
    return advance(after, context.epoch, schema_version=sha256_of(encode(whole)))


def digested(table: Table) -> Table:
    """Return the table with its digest as version.

    The digest covers the epoch of the change. So no other table has it, nor does another change of this table.
    """
    return replace(table, version=sha256_of(encode(replace(table, version=""))), committed_by_log=False)


def _with(lifetime: TableLifetime, table: Table, marked: Table) -> TableLifetime:
    versions = tuple(replace(one, table=marked) if one.table == table else one for one in lifetime.versions)
    return replace(lifetime, versions=versions)


_WITH_PLAN: Final = (StagePlan, ApprovePlan)
DEFECT: Final = "broken_rule"
"""The code of a decision that failed: an author answers it with a rejection, a fold halts on it."""
assert DEFECT in CODES, "each code of a rejection has a meaning"


def decide(state: ClusterState, command: Command, context: EntryContext) -> Decision:
    """Return the decision of ``command`` on ``state``. Never raise.

    A rule that raises has a defect. An author must survive it, or one request could stop every validator that reads it.
    So the defect becomes a rejection (code ``broken_rule``), and nothing is appended.
    """
    try:
        if state.pauses and (held := paused(state, command)) is not None:
            return held
        decision = RULES[type(command)](state, command, context)
        if isinstance(decision, Accepted):
            if isinstance(command, _WITH_PLAN):
                # The commands of the plan were checked one by one; the sum of their changes is left.
                decision = with_plan(state, command, decision.state, context, decide)
                if isinstance(decision, Rejected):
                    return decision
                return too_many(state, decision.state) or too_large(state, decision.state, command) or decision
            if decision.state is state:
                return decision
            assert decision.state.epoch == state.epoch, "a decision does not change the epoch"
            assert decision.state.history is state.history, "a decision does not change the history"
            if state.recoveries:
                if (held := held_by_recovery(state, decision.state, command)) is not None:
                    return held
                decision = Accepted(by_log_or_digest(state, decision.state, context))
            return too_many(state, decision.state) or too_large(state, decision.state, command) or decision
        return decision
    except Exception as defect:
        return Rejected(DEFECT, f"{type(command).__name__}: {type(defect).__name__}: {defect}")


FOUNDING = InitializeCluster.__name__
ID_STEP_MAX_MS = 2**42
"""The maximum distance of a state id from the previous one, in its leading 48 bits of milliseconds (139 years).

Every state id is above its predecessor: an id near the maximum would leave no room for later entries.
"""
assert ID_STEP_MAX_MS < 1 << 48, "no single step exhausts the 48 bits"

_APPLIED: Final = OutcomeKind.APPLIED


def fold(state: ClusterState, item: Entry | UnreadableEntry) -> Folded:
    """Return the state and the verdict after one record. Never raise."""
    if isinstance(item, UnreadableEntry):
        return _unchanged(state, OutcomeKind.UNREADABLE, "unreadable_entry", item.detail)
    return _off_the_chain(state, item) or _on_the_chain(state, item)


def _off_the_chain(state: ClusterState, entry: Entry) -> Folded | None:
    """Return the verdict on an entry that does not follow the current state, or None if the entry does follow it."""
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
        return _unchanged(state, OutcomeKind.STALE, detail=f"{entry.kind} cannot create a cluster")
    return None


def _on_the_chain(state: ClusterState, entry: Entry) -> Folded:
    """Return the state and the verdict for an entry that follows the current state."""
    command = entry.command
    if isinstance(command, UnknownCommand):
        detail = f"{command.kind} version {command.version} needs a later release"
        return _unchanged(state, OutcomeKind.HALT, "unknown_command", detail)
    if isinstance(command, Undecodable):
        return _unchanged(state, OutcomeKind.REFUSED, "undecodable", command.detail)
    if (broken := _broken_identity(state, entry)) is not None:
        return _unchanged(state, OutcomeKind.REFUSED, broken.code, broken.detail)
    # State time must not decrease if an author's clock is behind.
    context = EntryContext(state.epoch + 1, entry.state_id, max(state.time, entry.at), entry.submitter, 0)
    decision = decide(state, command, context)
    if isinstance(decision, Accepted):
        after = _applied(state, decision.state, entry, context)
        return Folded(after, Outcome(_APPLIED, context.epoch, "", ""))
    kind = OutcomeKind.HALT if decision.code == DEFECT else OutcomeKind.REFUSED
    return _unchanged(state, kind, decision.code, decision.detail)


def _broken_identity(state: ClusterState, entry: Entry) -> Rejected | None:
    """Return the broken rule of the envelope's ids, or None. The order of the log rests on these ids."""
    if not is_uuid(entry.state_id):
        return Rejected("bad_field", "state_id: not a canonical UUID")
    near = entry.state_id[:8] == state.state_id[:8]  # same minute, so the step is small: the usual case
    if not near and _milliseconds(entry.state_id) - _milliseconds(state.state_id) > ID_STEP_MAX_MS:
        return Rejected(
            "bad_field", f"state_id: more than {ID_STEP_MAX_MS} ms above the previous state id: a clock is wrong"
        )
    if state.epoch == 0:
        return None if is_uuid(entry.cluster_id) else Rejected("bad_field", "cluster_id: not a canonical UUID")
    if entry.state_id <= state.state_id:
        return Rejected("state_id_not_above", f"state_id: {entry.state_id} is not above {state.state_id}")
    return None


def _milliseconds(state_id: str) -> int:
    """Return the leading 48 bits of a UUID; 0 for the empty state id."""
    return int(state_id[:8] + state_id[9:13] or "0", 16)


def _applied(before: ClusterState, decided: ClusterState, entry: Entry, context: EntryContext) -> ClusterState:
    """Return the decided state with the entry's epoch, ids, time, history and chain."""
    applied = Applied(context.epoch, entry.state_id, entry.request_id, entry.digest)
    return replace(
        decided,
        cluster_id=before.cluster_id or entry.cluster_id,
        epoch=context.epoch,
        state_id=entry.state_id,
        time=context.time,
        history=before.history.with_(applied, setting(decided, "history_entries")),
        chain=history.chained(before.chain, entry.data),
    )


def _unchanged(state: ClusterState, kind: OutcomeKind, code: str = "", detail: str = "") -> Folded:
    return Folded(state, Outcome(kind, state.epoch, code, detail))
