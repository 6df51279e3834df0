"""``ringlog principal`` and ``ringlog whoami``: the senders of requests, their roles and their keys.

A key follows from the master of the validator (``request.master``), so commands that write a key file read the master
from a file. Only its holder can create the first admin: that request is signed with the founding key of the new admin,
which no key file has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import change_command, show_answer, submitted
from ringlog.cli.shared.tables import show_table
from ringlog.files import private_draft, write_private
from ringlog.kernel.commands.control.principals import (
    CreatePrincipal,
    GrantRole,
    RevokePrincipal,
    RevokeRole,
    RotatePrincipalKey,
)
from ringlog.kernel.model.principals import FIRST_KEY, FOUNDING_KEY, PRINCIPAL_ROLES, Principal
from ringlog.kernel.values import Command
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.views import views
from ringlog.operator.views.words import printable
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.trust import BadTrustConfig, read_secrets, request_keys
from ringlog.wire.requests import PrincipalKey, chosen_key, key_of_principal

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the principal.")]
OneRole = Annotated[str, typer.Option("--role", help=f"One of: {', '.join(PRINCIPAL_ROLES)}.")]
Keyspaces = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="KEYSPACE", help="Limit the role to this keyspace. May be repeated. Default: all."),
]
Master = Annotated[Path | None, typer.Option("--request-master", help="File of the validator's request.master.")]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Key file to write. Needs --request-master.")]


@app.command("create")
def create(
    name: Name,
    role: OneRole,
    scope: Keyspaces = None,
    master: Master = None,
    to: To = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create a principal with a role.

    The first principal of a cluster is an admin, and needs --request-master. From then on, each request needs a key.

    An application uses the data. A node is a data node or a CDC writer. An operator runs the cluster. An admin is also
    allowed to recover it, to truncate the log and to manage principals. The role agent is for a program that
    replaces an agent.
    """
    command = CreatePrincipal(name, role, _sorted(scope))
    _change(resolve(bootstrap, cluster), command, FIRST_KEY, _master_of(master, to), to, as_json)


@app.command("list")
@view_command
def list_principals(context: ClusterContext) -> Iterator[Any]:
    """List principals with their roles and key numbers.

    Revoked principals stay in the list, because their names are never used again.
    """
    rows = views.principals(newest(context))
    yield rows
    none = "requests are not authenticated: the cluster has no principals"
    shown = [
        (row["name"], _roles(row), str(row["key"]), str(row["created"]), str(row["revoked"] or "")) for row in rows
    ]
    show_table(("principal", "roles", "key", "created", "revoked"), shown, none)


@app.command("grant")
@change_command
def grant(name: Name, role: OneRole, scope: Keyspaces = None) -> Intent:
    """Grant a role to a principal.

    If it has the role already, its keyspaces are replaced.
    """
    return named(GrantRole(name, role, _sorted(scope)))


@app.command("revoke")
@change_command
def revoke(name: Name, role: OneRole = "") -> Intent:
    """Revoke a principal; with --role, only that role.

    A revoked name can never be used again.
    """
    return named(RevokeRole(name, role) if role else RevokePrincipal(name))


@app.command("key")
def key(
    name: Name,
    master: Master = None,
    to: To = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Replace the key. Ends the previous one.")] = False,
    with_next: Annotated[bool, typer.Option("--next", help="Write the next key, too. For a later rotation.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Write the key file of a principal, or rotate its key.

    To rotate without interruption, give the holder a file with --next, then run this with --rotate.
    """
    context, held = resolve(bootstrap, cluster), _master_of(master, to)
    state = newest(context)
    known = state.principals.get(name)
    if known is None or known.revoked is not None:
        fail("unknown_principal", f"{name} is not an active principal. See: ringlog principal list")
    if rotate:
        _change(context, RotatePrincipalKey(name, known.key + 1), known.key + 1, held, to, as_json)
        return
    if to is None:
        raise typer.BadParameter("pass --request-master and --to, or --rotate")
    _write(to, *(key_of_principal(held, state.cluster_id, name, known.key + more) for more in range(1 + with_next)))
    if as_json:
        typer.echo(json.dumps({"principal": name, "key": known.key, "file": str(to)}))
    else:
        out.print(f"key {known.key} of {name} is in {to}")


@view_command
def whoami(context: ClusterContext) -> Iterator[Any]:
    """Show the principal that signs this user's requests.

    Shows its roles, and whether the number of its key is the present one. Only the validator can check the key itself.
    """
    state = newest(context)
    own = chosen_key(state, request_keys())
    known = None if own is None else state.principals.get(own.name)
    is_valid = own is not None and known is not None and known.revoked is None and known.key == own.number
    view = {
        "principal": own and own.name,
        "key": own and own.number,
        "valid": is_valid,
        "roles": views.principal(known)["roles"] if known is not None else [],
        "authenticated": bool(state.principals),
    }
    yield view
    if own is None:
        out.print("this user has no key: get one from an admin (ringlog principal key), and pass --request-key")
    else:
        out.print(printable(f"{own.name}, key {own.number}: {_roles(view) if is_valid else _invalid(known)}"))
    if not state.principals:
        out.print(views.NOT_AUTHENTICATED)


def _invalid(known: Principal | None) -> str:
    """Return why the cluster does not accept a key of this principal."""
    if known is None:
        return "not a principal of this cluster"
    return f"not valid, key {known.key} is" if known.revoked is None else f"revoked with epoch {known.revoked}"


def _change(
    context: ClusterContext, command: Command, number: int, master: str, to: Path | None, as_json: bool
) -> None:
    """Submit a command that makes a key valid, and write that key. The first admin signs its own creation."""
    name = str(getattr(command, "name", "") or getattr(command, "principal", ""))
    with connect(context) as client:
        state = client.read_barrier()
        own = key_of_principal(master, state.cluster_id, name, number)
        if master and not state.principals:
            founding = key_of_principal(master, state.cluster_id, name, FOUNDING_KEY)
            client.keys = lambda: (founding,)
        # The draft is opened first, so that a principal is not created without a file for its key.
        with private_draft(to) if to is not None else nullcontext() as draft:
            answer, _ = submitted(client, named(command))
            show_answer(answer, None, as_json)
            if draft is not None:
                draft.write(f"{own}\n")
    if not as_json:
        write = f"valid; to write its file: ringlog principal key {name} --request-master FILE --to FILE"
        out.print(f"key {number} of {name} is {write if to is None else f'in {to}'}")


def _master_of(path: Path | None, to: Path | None) -> str:
    """Return the first master of the file; empty without a file."""
    if path is None and to is not None:
        raise typer.BadParameter("--to needs --request-master, the file of the validator's request.master")
    try:
        return next(iter(read_secrets(path)), "")
    except BadTrustConfig as bad:
        fail(bad.code, str(bad))


def _write(path: Path, *keys: PrincipalKey) -> None:
    write_private(path, "".join(f"{key}\n" for key in keys))


def _sorted(keyspaces: list[str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(keyspaces or ())))


def _roles(row: dict[str, Any]) -> str:
    """Return the roles of a view in words: ``operator (orders, shop), application``."""
    found = (
        f"{one['role']} ({', '.join(one['keyspaces'])})" if one["keyspaces"] else one["role"] for one in row["roles"]
    )
    return ", ".join(found) or "no roles"
