"""``ringlog keyspace``: keyspaces and how they are replicated, changed and shown."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.following import begins
from ringlog.cli.submitting import asks
from ringlog.kernel.commands.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.values import Replication
from ringlog.operator import views
from ringlog.operator.intents import Intent, named
from ringlog.operator.replication import parse_setting, replication_words

app = typer.Typer(help="Keyspaces: create, alter, drop, list, placements.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the keyspace.")]
Factor = Annotated[int | None, typer.Option(help="Number of replicas (SimpleStrategy).")]
Setting = Annotated[
    str | None,
    typer.Option(
        "--replication",
        metavar="SETTING",
        help="Replicas by datacenter: dc1=3,dc2=2 or dc1=rack1+rack2; entire: one on every node; or zone:NAME.",
    ),
]


def given_replication(factor: int | None, setting: str | None) -> Replication:
    """What the one option says that was given; exit status 2 if it says nothing."""
    if factor is not None and setting is None:
        return Replication("simple", factor)
    if setting is None or factor is not None:
        fail("bad_usage", "give either --factor or --replication", 2)
    try:
        return parse_setting(setting)
    except ValueError as error:
        fail("bad_usage", f"--replication {error}", 2)


@app.command("create")
@asks
def create_keyspace(name: Name, factor: Factor = None, replication: Setting = None) -> Intent:
    """Create a keyspace that is replicated on a number of nodes, or on a number of nodes in each datacenter."""
    return named(CreateKeyspace(name, given_replication(factor, replication)))


@app.command("alter")
@begins
def alter_keyspace(name: Name, factor: Factor = None, replication: Setting = None) -> Intent:
    """Change how a keyspace is replicated: an operation like a join, unless no range changes hands."""
    return named(AlterKeyspace(name, given_replication(factor, replication)))


@app.command("drop")
@asks
def drop_keyspace(name: Name) -> Intent:
    """Drop an empty keyspace."""
    return named(DropKeyspace(name))


@app.command("list")
def list_keyspaces(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Keyspaces and their replication."""
    with connect(resolve(bootstrap, cluster)) as client:
        found = views.schema(client.read_barrier())["keyspaces"]
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("keyspace", "strategy", "replication", box=None, padding=(0, 2))
    for row in found:
        table.add_row(row["name"], row["replication"]["strategy"], replication_words(row["replication"]))
    out.print(table)


@app.command("placements")
def placements(name: Name, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Who reads and who writes each range of a keyspace."""
    with connect(resolve(bootstrap, cluster)) as client:
        found = views.placements(client.read_barrier(), name)
    if found is None:
        fail("unknown_keyspace", f"there is no keyspace {name}")
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("range (start, end]", "read", "write", box=None, padding=(0, 2))
    for read, write in zip(found["read"], found["write"], strict=True):
        table.add_row(f"({read['start']}, {read['end']}]", " ".join(read["replicas"]), " ".join(write["replicas"]))
    out.print(table)
