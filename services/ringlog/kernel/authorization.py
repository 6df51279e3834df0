"""Authorization: whether a principal may send a command.

Each command class declares the roles that may send it (``NEEDS``). One of them is enough. The role admin includes the
role operator. The role node allows commands about the node or CDC writer with the principal's name. An operator with
keyspaces may send only schema commands, and only in these keyspaces. Each command of a schema batch or plan is checked
alone. An approval is checked for the approver and for the author of the plan, since either may have lost a role. A
command that needs an approval is refused (``approval_needed``) unless it comes in a plan.

A cluster without principals authorizes every command except the first CreatePrincipal. Only the new admin itself may
send that one: its key follows from the master secret, so the sender holds the master or got the key from its holder.

The check is not part of the fold: entries have no code, and only agents write the log. The validator checks each
request on the state that its entry would follow. So a revocation takes effect with its epoch.

``authorize_rows`` has the rule for rows and registers: the role application, in the keyspace. Data nodes check it on
their own state, by the principal that a client's certificate names.

Invariants: only agents send the commands of agents; an admin does not. No other role includes the role application.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.control.plans import ApprovePlan, StagePlan, needs_approval
from ringlog.kernel.commands.control.principals import CreatePrincipal
from ringlog.kernel.commands.control.recovery import ForceState
from ringlog.kernel.commands.schema.batch import SchemaBatch
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.principals import (
    ANY_ROLE,
    APPLICATION,
    IMPLIED_BY,
    NODE,
    SCOPED_ROLES,
    Grant,
    Principal,
    grant_of,
    principal_of,
)
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.plans import PLAN_COMMANDS, commands_of_plan, parts_of
from ringlog.kernel.values import Command

NOT_AUTHORIZED: Final = "not_authorized"
PRINCIPALS: Final = "principals"
"""The section of the state, as ForceState names it."""
_SHOWN_MAX: Final = 100
"""A request may name a keyspace of any length."""


def _node_name(state: ClusterState, command: Any) -> str:
    node = state.nodes.get(command.node)
    return "" if node is None else node.name


_OWNERS: Final[Mapping[type[Command], Callable[[ClusterState, Any], str]]] = {
    RegisterNode: lambda _, command: command.name,
    UpdateNode: _node_name,
    Join: _node_name,
    RegisterCdcWriter: lambda _, command: command.writer,
    AdvanceCdcWriter: lambda _, command: command.writer,
}
"""Command to the name of the node or CDC writer that it is about."""


def authorize(state: ClusterState, principal: str, command: Command) -> Rejected | None:
    """Return why the principal may not send the command, or None if it may. ``principal`` empty: not authenticated."""
    commands = commands_of(state, command)
    if not state.principals:
        first = next((one for one in commands if isinstance(one, CreatePrincipal) and one.name != principal), None)
        if any(isinstance(one, ForceState) and PRINCIPALS in (part.name for part in one.state) for one in commands):
            return Rejected("not_authenticated", f"ForceState: {PRINCIPALS}: only the master creates the first admin")
        if first is None:
            return None
        how = f"ringlog principal create {first.name} --role admin --request-master FILE"
        return Rejected("not_authenticated", f"CreatePrincipal: only the master creates the first admin: {how}")
    if (refused := _unauthorized(state, principal, command, commands)) is not None:
        return refused
    if isinstance(command, ApprovePlan) and (plan := state.plans.get(command.plan)) is not None:
        author = state.principals.get(plan.author)
        if author is not None and author.created > plan.staged:
            detail = f"author of the plan: {plan.author} became a principal after it. Stage the plan again"
            return Rejected("not_authorized", detail)
        lost = _unauthorized(state, plan.author, command, commands)
        return None if lost is None else Rejected("not_authorized", f"author of the plan: {lost.detail}")
    if not isinstance(command, PLAN_COMMANDS) and any(needs_approval(state, one) for one in commands):
        kinds = ", ".join(sorted({type(one).__name__ for one in commands if needs_approval(state, one)}))
        return Rejected(
            "approval_needed", f"{kinds}: needs the approval of a second principal. Run: ringlog plan stage NAME"
        )
    return None


def _unauthorized(
    state: ClusterState, principal: str, command: Command, commands: tuple[Command, ...]
) -> Rejected | None:
    """Return why the principal may not send a command that consists of these commands."""
    known = principal_of(state.principals, principal)
    if known is None or known.revoked is not None:
        return Rejected("not_authenticated", f"{type(command).__name__}: {principal or 'its sender'} {_was(known)}")
    for each in commands:
        if not any(_covers(state, principal, grant, each) for grant in known.roles):
            needed, is_scoped = " or ".join(each.NEEDS), any(role in SCOPED_ROLES for role in each.NEEDS)
            place = keyspace_of(each) if is_scoped else ""
            where = f" in the keyspace {place}" if place else ""
            role = "a role" if each.NEEDS == ANY_ROLE else f"the role {needed}"
            detail = f"{type(each).__name__}: {principal} needs {role}{where}"
            if NODE in each.NEEDS and any(grant.role == NODE for grant in known.roles):
                detail += "; a node sends it only about itself"
            return Rejected(NOT_AUTHORIZED, detail)
    return None


def authorize_rows(state: ClusterState, principal: str, keyspace: str) -> Rejected | None:
    """Return why the principal may not read and write the rows of the keyspace, or None if it may."""
    if not state.principals:
        return None
    known = state.principals.get(principal)
    grant = None if known is None else grant_of(known, APPLICATION)
    if grant is not None and (not grant.keyspaces or keyspace in grant.keyspaces):
        return None
    needed = f"rows of the keyspace {keyspace[:_SHOWN_MAX]} need the role {APPLICATION} there"
    if known is None or known.revoked is not None:
        return Rejected(NOT_AUTHORIZED, f"{principal or 'the holder of the certificate'} {_was(known)}; {needed}")
    return Rejected(NOT_AUTHORIZED, f"{principal} lacks a role: {needed}")


def _was(known: Principal | None) -> str:
    return "is not a principal" if known is None else f"was revoked with epoch {known.revoked}"


def commands_of(state: ClusterState, command: Command) -> tuple[Command, ...]:
    """Return the commands of a schema batch or plan, or the command itself. An invalid plan is its own command."""
    if not isinstance(command, PLAN_COMMANDS):
        return parts_of(command)
    staged = command if isinstance(command, StagePlan) else state.plans.get(command.plan)
    commands = () if staged is None else commands_of_plan(staged.commands)
    parts = () if isinstance(commands, Rejected) else [part for one in commands for part in parts_of(one)]
    return tuple(parts) or (command,)


def _covers(state: ClusterState, principal: str, grant: Grant, command: Command) -> bool:
    """Return True if this grant allows the command."""
    if command.NEEDS == ANY_ROLE:
        return True
    if not any(grant.role in (role, *IMPLIED_BY.get(role, ())) for role in command.NEEDS):
        return False
    if grant.role == NODE and (owner := _OWNERS.get(type(command))) is not None:
        return owner(state, command) == principal
    return not grant.keyspaces or keyspace_of(command) in grant.keyspaces


def keyspace_of(command: Any) -> str:
    """Return the keyspace of a schema command; empty for other commands, which no grant with keyspaces covers."""
    if command.PAUSED_BY != SCHEMA or isinstance(command, SchemaBatch):
        return ""
    of_keyspace = isinstance(command, CreateKeyspace | AlterKeyspace | DropKeyspace)
    keyspace: str = command.name if of_keyspace else command.keyspace
    return keyspace
