"""Pauses: operators hold up a kind of change, everywhere, in a keyspace or of a table, until they resume it.

A scope says what is held up, and who holds back:

=========  ==========================================================================================================
balancing  the balancer begins no transition of a tablet, drains included
splits     the balancer decides no split and no merge
repairs    repairs of tablets are refused
schema     commands of the schema are refused: keyspaces, tables, types, views, indexes, functions, aggregates
topology   requests of node operations are refused, but for the last resort (Assassinate)
all        each of these
=========  ==========================================================================================================

What runs goes on to its end. ``balancing`` and ``splits`` bind the balancer alone: an operator who has paused it may
still move and split by hand. A refusal names the pause. Only ``balancing``, ``splits`` and ``repairs`` can be limited
to a keyspace or a table.

Source: ScyllaDB's switch of the tablet balancer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from ringlog.kernel.commands import functions, keyspaces, movements, schema, schema_batch, user_types, views
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.commands.tablets import MigrateTablets
from ringlog.kernel.modes import ALL, LIMITED, REPAIRS, SCHEMA, SCOPES, TOPOLOGY, pause_key
from ringlog.kernel.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.state import ClusterState, Pause, advance
from ringlog.kernel.tablets.stages import KINDS
from ringlog.kernel.values import Before, Command

CODES: Final = {"changes_paused": "Operators hold up changes of this kind until they resume them."}

_SCHEMA_FAMILIES: Final = tuple(
    family.__name__ for family in (keyspaces, schema, user_types, views, functions, schema_batch)
)
_REQUESTS: Final = movements.__name__


@dataclass(frozen=True, slots=True)
class PauseChanges(Command):
    """Changes of these scopes are held up from now on. What is paused already stays so, with the new reason."""

    scopes: Annotated[tuple[str, ...], "all, schema, topology, balancing, repairs or splits; at least one."]
    of: Annotated[str, "A keyspace or keyspace.table; empty: everywhere.", Before("")] = ""
    reason: Annotated[str, "Why.", Before("")] = ""


def decide_pause_changes(state: ClusterState, command: PauseChanges, context: EntryContext) -> Decision:
    """Each scope is paused there."""
    if (wrong := _broken(state, command.scopes, command.of)) is not None:
        return wrong
    if len(command.reason) > REASON_LENGTH_MAX:
        return Rejected("bad_field", f"reason: must be at most {REASON_LENGTH_MAX} characters")
    pauses = state.pauses
    for scope in command.scopes:
        pauses = pauses.set(pause_key(scope, command.of), Pause(scope, command.of, command.reason, context.epoch))
    return Accepted(advance(state, context.epoch, pauses=pauses))


@dataclass(frozen=True, slots=True)
class ResumeChanges(Command):
    """Changes of these scopes are not held up there any more. Other pauses stay."""

    scopes: Annotated[tuple[str, ...], "all, schema, topology, balancing, repairs or splits; at least one."]
    of: Annotated[str, "A keyspace or keyspace.table, as it was paused; empty: everywhere.", Before("")] = ""


def decide_resume_changes(state: ClusterState, command: ResumeChanges, context: EntryContext) -> Decision:
    """Nothing that is paused or exists can be against it."""
    if unknown := [scope for scope in command.scopes if scope not in SCOPES]:
        return Rejected("bad_field", f"scopes: {unknown[0]!r} is none of {', '.join(SCOPES)}")
    pauses = state.pauses
    for scope in command.scopes:
        if pause_key(scope, command.of) in pauses:
            pauses = pauses.delete(pause_key(scope, command.of))
    return Accepted(state if pauses is state.pauses else advance(state, context.epoch, pauses=pauses))


def pause_of(state: ClusterState, scope: str, table: str = "") -> Pause | None:
    """The pause that holds up ``scope`` of ``keyspace.table``; empty: everywhere."""
    places = ("", table.partition(".")[0], table) if table else ("",)
    found = (state.pauses.get(pause_key(name, of)) for of in places for name in (scope, ALL))
    return next((pause for pause in found if pause is not None), None)


def paused(state: ClusterState, command: Command) -> Rejected | None:
    """The refusal of a command that a pause holds up; None if none does."""
    pause: Pause | None = None
    family = type(command).__module__
    if family in _SCHEMA_FAMILIES:
        pause = pause_of(state, SCHEMA)
    elif family == _REQUESTS and not isinstance(command, movements.Assassinate):
        pause = pause_of(state, TOPOLOGY)
    elif isinstance(command, MigrateTablets):
        kept = {name for name, kind in KINDS.items() if not kind.exchanges}
        repairs = {one.table for one in command.migrations if one.kind in kept}
        pause = next((found for table in sorted(repairs) if (found := pause_of(state, REPAIRS, table))), None)
    if pause is None:
        return None
    where = f" of {pause.of}" if pause.of else ""
    why = f": {pause.reason}" if pause.reason else ""
    return Rejected("changes_paused", f"{pause.scope}{where} is paused since epoch {pause.since}{why}")


def _broken(state: ClusterState, scopes: tuple[str, ...], of: str) -> Rejected | None:
    if not scopes or len(set(scopes)) < len(scopes):
        return Rejected("bad_field", "scopes: must name at least one, each once")
    for scope in scopes:
        if scope not in SCOPES:
            return Rejected("bad_field", f"scopes: {scope!r} is none of {', '.join(SCOPES)}")
        if of and scope not in LIMITED:
            return Rejected("bad_field", f"of: {scope} is paused everywhere or not at all")
    if of and of not in state.keyspaces and of not in state.tables:
        code = "unknown_table" if "." in of else "unknown_keyspace"
        return Rejected(code, f"of: there is no {of}")
    return None
