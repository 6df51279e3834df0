"""Pauses: operators stop a kind of change, everywhere, in a keyspace or of a table, until they resume it.

=============  ======================================================================================================
scope          changes that it stops
=============  ======================================================================================================
balancing      the balancer begins no transition of a tablet, drains included
splits         the balancer decides no split and no merge
repairs        repairs of tablets
schema         commands of the schema: keyspaces, tables, types, views, indexes, functions, aggregates
topology       requests of node operations; Remove, and Replace of a node that is declared down, are admitted
zones          changes of zones, triggers of rebalances, restarts of replicas
service        requests to change the members of the metadata service
settings       changes of settings, features, truncation of the log
cdc            requests for a new CDC generation
registrations  RegisterNode and UnregisterNode
all            each change: all of these, and moves, splits and merges that operators request
=============  ======================================================================================================

Each command class declares its scope (``PAUSED_BY``). No pause stops steps of running changes, cancels and reverts,
Assassinate, resets of partitions, a recovery (with its truncation of the log), or a resume. Reports of nodes and agents
are also admitted (UpdateNode, DeclareDown, acknowledged steps, snapshots, verdicts). Tablets of zones still follow the
partitions that move.

``balancing`` and ``splits`` bind the balancer alone: an operator who has paused it may still move and split by hand. A
refusal names the pause. Only ``balancing``, ``splits`` and ``repairs`` can be limited to a keyspace or a table.

``topology`` admits commands that node failures need, so that a dead node can be replaced while other operations are
stopped; ``all`` does not. To relax it, pause the other scopes by name and resume ``all``.

Source: ScyllaDB's switch of the tablet balancer; CEP-21, migration, for the switch and for node failures.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.cluster.truncation import TruncateLog
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.commands.topology import movements
from ringlog.kernel.model.modes import ALL, LIMITED, REPAIRS, SCOPES, UNPAUSED, Pause, pause_key, pause_text
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.service import in_recovery
from ringlog.kernel.tablets.stages import KINDS
from ringlog.kernel.values import Before, Command

_KEEP: Final = frozenset(name for name, kind in KINDS.items() if not kind.exchanges)
"""Kinds of transitions that leave a tablet on the same nodes: repairs."""

CODES: Final = {"changes_paused": "An operator paused changes of this kind. Resume them with `ringlog resume`."}


class PauseChanges(Command):
    """Pause changes of these scopes. Scopes that are already paused get the new reason."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    scopes: Annotated[
        tuple[str, ...],
        f"One or more of {', '.join(SCOPES)}.",
    ]
    of: Annotated[str, "Keyspace or keyspace.table to pause. Empty: the whole cluster.", Before("")] = ""
    reason: Annotated[str, "Reason, in free text.", Before("")] = ""


def decide_pause_changes(state: ClusterState, command: PauseChanges, context: EntryContext) -> Decision:
    """Pause each scope for the keyspace or table, or everywhere."""
    if (wrong := _broken(state, command.scopes, command.of)) is not None:
        return wrong
    if len(command.reason) > REASON_LENGTH_MAX:
        return Rejected("bad_field", f"reason: must be at most {REASON_LENGTH_MAX} characters")
    pauses = state.pauses
    for scope in command.scopes:
        pauses = pauses.set(pause_key(scope, command.of), Pause(scope, command.of, command.reason, context.epoch))
    return Accepted(advance(state, context.epoch, pauses=pauses))


class ResumeChanges(Command):
    """Resume changes of these scopes at this place. Other pauses stay."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    scopes: Annotated[
        tuple[str, ...],
        f"One or more of {', '.join(SCOPES)}.",
    ]
    of: Annotated[str, "Keyspace or keyspace.table of the pause. Empty: that of the whole cluster.", Before("")] = ""


def decide_resume_changes(state: ClusterState, command: ResumeChanges, context: EntryContext) -> Decision:
    """Resume these scopes there. Accept scopes that are not paused, and keyspaces or tables that no longer exist."""
    if unknown := [scope for scope in command.scopes if scope not in SCOPES]:
        return Rejected("bad_field", f"scopes: {unknown[0]!r} is none of {', '.join(SCOPES)}")
    pauses = state.pauses
    for scope in command.scopes:
        if pause_key(scope, command.of) in pauses:
            pauses = pauses.delete(pause_key(scope, command.of))
    return Accepted(state if pauses is state.pauses else advance(state, context.epoch, pauses=pauses))


def pause_of(state: ClusterState, scope: str, table: str = "") -> Pause | None:
    """Return the pause that stops ``scope`` of ``keyspace.table``; without a table, everywhere. None if there
    is none.
    """
    places = ("", table.partition(".")[0], table) if table else ("",)
    found = (state.pauses.get(pause_key(name, of)) for of in places for name in (scope, ALL))
    return next((pause for pause in found if pause is not None), None)


def paused(state: ClusterState, command: Command) -> Rejected | None:
    """Reject a command that a pause stops; None if none does."""
    if command.PAUSED_BY == UNPAUSED or (isinstance(command, TruncateLog) and in_recovery(state) is not None):
        return None
    if isinstance(command, MigrateTablets):
        pause = _of_migrations(state, command)
    elif isinstance(command, (movements.Remove, movements.Replace)) and _after_failure(state, command):
        pause = state.pauses.get(pause_key(ALL, ""))
    else:
        pause = pause_of(state, command.PAUSED_BY)
    if pause is None:
        return None
    why = f": {pause.reason}" if pause.reason else ""
    return Rejected("changes_paused", f"{pause_text(pause.scope, pause.of)} since epoch {pause.since}{why}")


def _of_migrations(state: ClusterState, command: MigrateTablets) -> Pause | None:
    """Return the pause of repairs of one of these tables, or the pause of all changes, if a tablet outside of zones
    moves.
    """
    tables = sorted({one.table for one in command.migrations if one.kind in _KEEP})
    if (found := next((found for table in tables if (found := pause_of(state, REPAIRS, table))), None)) is not None:
        return found
    spaces = {one.table.partition(".")[0] for one in command.migrations}
    placed = (state.keyspaces.get(space) for space in spaces)
    if all(keyspace is not None and keyspace.replication.zone for keyspace in placed):
        return None
    return state.pauses.get(pause_key(ALL, ""))


def _after_failure(state: ClusterState, command: movements.Remove | movements.Replace) -> bool:
    """Return whether the node that leaves was declared down."""
    node = state.nodes.get(command.node if isinstance(command, movements.Remove) else command.replaced)
    return node is not None and node.down


def _broken(state: ClusterState, scopes: tuple[str, ...], of: str) -> Rejected | None:
    if not scopes or len(set(scopes)) < len(scopes):
        return Rejected("bad_field", "scopes: must name at least one, each once")
    for scope in scopes:
        if scope not in SCOPES:
            return Rejected("bad_field", f"scopes: {scope!r} is none of {', '.join(SCOPES)}")
        if of and scope not in LIMITED:
            return Rejected("bad_field", f"of: {scope} can be paused only for the whole cluster")
    if of and of not in state.keyspaces and of not in state.tables:
        code = "unknown_table" if "." in of else "unknown_keyspace"
        return Rejected(code, f"of: there is no {of}")
    return None
