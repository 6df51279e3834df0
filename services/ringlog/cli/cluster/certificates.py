"""``ringlog cluster certificates``: what nodes and clients on several machines show each other, for a trial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.shared.connection import Json, fail, out
from ringlog.operator.certificates import (
    CA_DAYS,
    MASTER,
    MadeCertificate,
    add_authority,
    make_certificates,
    retire_authorities,
)


def register(app: typer.Typer) -> None:
    """Add the command to those of clusters."""
    app.command("certificates")(certificates)


def certificates(
    folder: Annotated[Path, typer.Argument(help="Folder for authority, token, certificates; closed to others.")],
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NAME[=ID]", help="A node; ID: of one that is registered. May be repeated."),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="A program, or an operator. May be repeated."),
    ] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            "--agents",
            metavar="NAME",
            help="Agents: they tell whose an acknowledgement is. May be repeated.",
        ),
    ] = None,
    ack_key: Annotated[
        list[str] | None,
        typer.Option(
            "--ack-key",
            metavar="NAME=ID",
            help="A node that has its certificate from elsewhere: only its key for acknowledgements. May be repeated.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="Days until the certificates expire.", min=1, max=3650)] = 365,
    ca_days: Annotated[int, typer.Option(help="Days until a new authority expires.", min=1, max=36_500)] = CA_DAYS,
    new_ca: Annotated[
        bool,
        typer.Option("--new-ca", help="Make a new authority that signs from now on; ca.pem keeps the old one, too."),
    ] = False,
    retire_ca: Annotated[bool, typer.Option("--retire-ca", help="Remove the old authorities from ca.pem.")] = False,
    as_json: Json = False,
) -> None:
    """Make certificates and a token, by openssl and an authority that is made beside them. Again: renew them.

    A new node takes the id that its certificate names. It gets the key by which its acknowledgements have a code.
    """
    pairs, keys = (
        [(name, node_id) for name, _, node_id in (each.partition("=") for each in given or ())]
        for given in (node, ack_key)
    )
    if new_ca or retire_ca:
        _replace_authority(folder, new_ca, retire_ca, ca_days, is_only_change=not (pairs or client or agents or keys))
        return
    made = make_certificates(folder, pairs, client or (), days, agents or (), keys, ca_days)
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
    out.print(f"keep {folder / MASTER} away from nodes", markup=False)
