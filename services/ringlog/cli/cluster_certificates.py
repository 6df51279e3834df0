"""``ringlog cluster certificates``: what nodes and clients on several machines show each other, for a trial."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.connection import Json, out
from ringlog.operator.certificates import MASTER, make_certificates


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
    days: Annotated[int, typer.Option(help="How long they are good for.", min=1, max=3650)] = 365,
    as_json: Json = False,
) -> None:
    """Make certificates and a token, by openssl and an authority that is made beside them. Again: renew them.

    A new node takes the id that its certificate names. It gets the key by which its acknowledgements have a code.
    """
    pairs, keys = (
        [(name, node_id) for name, _, node_id in (each.partition("=") for each in given or ())]
        for given in (node, ack_key)
    )
    made = make_certificates(folder, pairs, client or (), days, agents or (), keys)
    files = [(name, node_id, str(folder / f"{name}.acks")) for name, node_id in keys]
    if as_json:
        shown = [asdict(one) | {"config": str(one.config)} for one in made]
        typer.echo(json.dumps([*shown, *({"name": name, "node": of, "ack_key": file} for name, of, file in files)]))
        return
    for one in made:
        whose = f"node {one.name} {one.node}" if one.node else one.name
        out.print(f"{one.config}: {whose}", markup=False)
    for name, of, file in files:
        out.print(f"{file}: node {name} {of}", markup=False)
    if made:
        out.print(f"keep {folder / 'ca.key'} away from the machines of the cluster", markup=False)
    out.print(f"keep {folder / MASTER} away from nodes", markup=False)
