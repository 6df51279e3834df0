"""``ringlog cluster certificates``: create certificates of nodes and clients for a trial on several machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.shared.connection import Json, fail, out
from ringlog.kernel.values import asdict
from ringlog.operator.certificates import (
    CA_DAYS,
    DAYS,
    MASTER,
    REQUESTS,
    MadeCertificate,
    add_authority,
    make_certificates,
    renew_certificates,
    retire_authorities,
)


def register(app: typer.Typer) -> None:
    """Add the command to ``ringlog cluster``."""
    app.command("certificates")(certificates)


def certificates(
    folder: Annotated[Path, typer.Argument(help="Private folder for authority, token and certificates.")],
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="NAME[=ID]", help="Name of a node, and its id if it is registered. May be repeated."
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Name of a program or an operator. May be repeated."),
    ] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option("--agents", metavar="NAME", help="Name for agents, which check codes. May be repeated."),
    ] = None,
    ack_key: Annotated[
        list[str] | None,
        typer.Option("--ack-key", metavar="NAME=ID", help="Node with a certificate of another authority: only a key."),
    ] = None,
    days: Annotated[int, typer.Option(help="Days until the certificates expire.", min=1, max=3650)] = DAYS,
    ca_days: Annotated[int, typer.Option(help="Days until a new authority expires.", min=1, max=36_500)] = CA_DAYS,
    new_ca: Annotated[
        bool, typer.Option("--new-ca", help="Create a new signing authority. The old one stays valid in ca.pem.")
    ] = False,
    retire_ca: Annotated[bool, typer.Option("--retire-ca", help="Remove the old authorities from ca.pem.")] = False,
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id",
            metavar="ID",
            help="Id of the cluster, for keys that sign requests of nodes and clients as principals. Default: no keys.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Create or renew certificates and a token.

    The first run creates an authority with openssl. A new node gets the id that its certificate names, and a key for
    its acknowledgements. Without names, the command renews the certificates in the last third of their life.
    """
    pairs, keys = (
        [(name, node_id) for name, _, node_id in (each.partition("=") for each in given or ())]
        for given in (node, ack_key)
    )
    if new_ca or retire_ca:
        _replace_authority(folder, new_ca, retire_ca, ca_days, is_only_change=not (pairs or client or agents or keys))
        return
    if pairs or client or agents or keys:
        made = make_certificates(folder, pairs, client or (), days, agents or (), keys, ca_days, cluster_id)
    else:
        made = renew_certificates(folder, days)
    files = [(name, node_id, str(folder / f"{name}.acks")) for name, node_id in keys]
    if as_json:
        shown = [asdict(one) | {"config": str(one.config)} for one in made]
        typer.echo(json.dumps([*shown, *({"name": name, "node": of, "ack_key": file} for name, of, file in files)]))
        return
    _show(folder, made, files)


def _replace_authority(folder: Path, new_ca: bool, retire_ca: bool, days: int, *, is_only_change: bool) -> None:
    if (new_ca and retire_ca) or not is_only_change:
        fail("bad_usage", "pass --new-ca or --retire-ca alone: each machine needs the new ca.pem first", 2)
    if new_ca:
        add_authority(folder, days)
    else:
        retire_authorities(folder)
    then = "then renew each certificate, then run it with --retire-ca" if new_ca else "the replacement is complete"
    out.print(f"{folder / 'ca.pem'}: copy it to each machine, {then}", markup=False)


def _show(folder: Path, made: Sequence[MadeCertificate], keys: Sequence[tuple[str, str, str]]) -> None:
    for one in made:
        subject = f"node {one.name} {one.node}" if one.node else one.name
        out.print(f"{one.config}: {subject}", markup=False)
    for name, of, file in keys:
        out.print(f"{file}: node {name} {of}", markup=False)
    if made:
        out.print(f"keep {folder / 'ca.key'} away from the machines of the cluster", markup=False)
    if made or keys:
        masters = f"{folder / MASTER} and {folder / REQUESTS}" if made else str(folder / MASTER)
        out.print(f"keep {masters} away from nodes", markup=False)
    else:
        out.print("no certificate is in the last third of its life", markup=False)
