"""Commands about principals: create, grant, revoke, and replace a key.

The first principal must be an admin, and the last admin cannot be revoked. So each principal can be managed. The key of
a principal is not in the log, only its number. Each key follows from a master secret, the cluster, the name and the
number (``wire.requests``), so a command that raises the number ends the previous key.

A revoked name stays in the state, and is never used again.

Source: the decision record on principals (docs/decisions).
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, NAME_RULE, broken_field
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import (
    ADMIN,
    FIRST_KEY,
    KEYSPACES_MAX,
    PRINCIPAL_ROLES,
    SCOPED_ROLES,
    Grant,
    Principal,
    grant_of,
    has_admin,
    is_reserved,
)
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Command, is_identifier, is_name, replace

CODES: Final = {
    "admin_needed": "The cluster would have principals, but no admin.",
    "not_authenticated": "The request has no valid code of an active principal.",
    "not_authorized": "The principal does not have a role that may send this command.",
    "principal_exists": "The name belongs to a principal, or to a revoked one. Names are never used again.",
    "principal_revoked": "The principal was revoked.",
    "role_not_granted": "The principal does not have the role.",
    "stale_key": "The number is not the one that follows the number of the present key.",
    "unknown_principal": "The cluster does not have the principal.",
}


class CreatePrincipal(Command):
    """Create a principal with one role. The first principal of a cluster is an admin."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)

    name: Annotated[str, "Name of the principal. It can never be used again."]
    role: Annotated[str, f"One of {', '.join(PRINCIPAL_ROLES)}."]
    keyspaces: Annotated[
        tuple[str, ...],
        "Keyspaces that the role is limited to, by ascending name. Empty: all. Only for application and operator.",
    ] = ()


def decide_create_principal(state: ClusterState, command: CreatePrincipal, context: EntryContext) -> Decision:
    """Add the principal if its name was never used."""
    broken = broken_field(
        (is_name(command.name), "name", NAME_RULE),
        (not is_reserved(command.name), "name", f"{command.name} looks like a name of an agent"),
    ) or _broken_grant(command.role, command.keyspaces)
    if broken is not None:
        return broken
    known = state.principals.get(command.name)
    if known is not None:
        since = (
            f"created with epoch {known.created}" if known.revoked is None else f"revoked with epoch {known.revoked}"
        )
        return Rejected("principal_exists", f"name: {command.name} was {since}")
    principal = Principal(command.name, (Grant(command.role, command.keyspaces),), FIRST_KEY, context.epoch)
    return _with(state, principal, context)


class GrantRole(Command):
    """Give a principal a role. If it has the role already, replace the keyspaces."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)
    DANGEROUS = True

    principal: Annotated[str, "Name of the principal."]
    role: Annotated[str, f"One of {', '.join(PRINCIPAL_ROLES)}."]
    keyspaces: Annotated[
        tuple[str, ...],
        "Keyspaces that the role is limited to, by ascending name. Empty: all. Only for application and operator.",
    ] = ()


def decide_grant_role(state: ClusterState, command: GrantRole, context: EntryContext) -> Decision:
    """Set the grant of this role."""
    known = _active(state, command.principal)
    if (broken := _broken_grant(command.role, command.keyspaces)) is not None:
        return broken
    if isinstance(known, Rejected):
        return known
    others = tuple(grant for grant in known.roles if grant.role != command.role)
    roles = tuple(sorted((*others, Grant(command.role, command.keyspaces)), key=lambda grant: grant.role))
    return _with(state, replace(known, roles=roles), context)


class RevokeRole(Command):
    """Take a role from a principal. The principal stays, even without roles."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)

    principal: Annotated[str, "Name of the principal."]
    role: Annotated[str, "The role."]


def decide_revoke_role(state: ClusterState, command: RevokeRole, context: EntryContext) -> Decision:
    """Remove the grant, unless it is the last admin's."""
    known = _active(state, command.principal)
    if isinstance(known, Rejected):
        return known
    if grant_of(known, command.role) is None:
        return Rejected("role_not_granted", f"role: {known.name} does not have the role {command.role[:100]}")
    left = tuple(grant for grant in known.roles if grant.role != command.role)
    return _with(state, replace(known, roles=left), context)


class RevokePrincipal(Command):
    """Revoke a principal permanently. Requests with its key are refused from this epoch on."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)

    principal: Annotated[str, "Name of the principal."]


def decide_revoke_principal(state: ClusterState, command: RevokePrincipal, context: EntryContext) -> Decision:
    """Mark the principal as revoked, unless it is the last admin. Its name stays in the state."""
    known = _active(state, command.principal)
    if isinstance(known, Rejected):
        return known
    return _with(state, replace(known, roles=(), revoked=context.epoch), context)


class RotatePrincipalKey(Command):
    """Replace the key of a principal by the next one. Requests with the previous key are refused from this epoch on."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)

    principal: Annotated[str, "Name of the principal."]
    key: Annotated[int, "Number of the new key: one above the present number."]


def decide_rotate_principal_key(state: ClusterState, command: RotatePrincipalKey, context: EntryContext) -> Decision:
    """Raise the number of the key by one. The number in the command makes a repeated request harmless."""
    known = _active(state, command.principal)
    if isinstance(known, Rejected):
        return known
    if command.key != known.key + 1:
        return Rejected("stale_key", f"key: {command.key} does not follow {known.key}, the present key of {known.name}")
    return _with(state, replace(known, key=command.key), context)


def _with(state: ClusterState, principal: Principal, context: EntryContext) -> Decision:
    """Return the state with this principal, or reject a state without an admin."""
    principals = state.principals.set(principal.name, principal)
    if not has_admin(principals):
        return Rejected("admin_needed", f"role: without {principal.name} as admin, the cluster has no admin")
    return Accepted(advance(state, context.epoch, principals=principals))


def _active(state: ClusterState, name: str) -> Principal | Rejected:
    """Return the principal, or why it cannot be changed."""
    known = state.principals.get(name)
    if known is None:
        return Rejected("unknown_principal", f"principal: there is no {name[:100]}")
    if known.revoked is not None:
        return Rejected("principal_revoked", f"principal: {name} was revoked with epoch {known.revoked}")
    return known


def _broken_grant(role: str, keyspaces: tuple[str, ...]) -> Rejected | None:
    """Return the broken rule of a role and its keyspaces, or None. Keyspaces that do not exist yet are allowed."""
    return broken_field(
        (role in PRINCIPAL_ROLES, "role", f"must be one of {', '.join(PRINCIPAL_ROLES)}"),
        (not keyspaces or role in SCOPED_ROLES, "keyspaces", f"only for the roles {' and '.join(SCOPED_ROLES)}"),
        (len(keyspaces) <= KEYSPACES_MAX, "keyspaces", f"must be at most {KEYSPACES_MAX}"),
        (all(map(is_identifier, keyspaces)), "keyspaces", f"each {IDENTIFIER_RULE}"),
        (tuple(sorted(set(keyspaces))) == keyspaces, "keyspaces", "must be in ascending order, each once"),
    )
