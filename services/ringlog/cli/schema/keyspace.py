"""``ringlog keyspace``: create, alter, drop and show keyspaces and their placements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import fail
from ringlog.cli.shared.following import operation_command
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import change_command, destructive_command
from ringlog.cli.shared.tables import show_fields, show_table
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.values import Replication
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.intents.replication import format_replication, parse_setting
from ringlog.operator.views import views
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the keyspace.")]
Factor = Annotated[int | None, typer.Option(help=help_texts.FACTOR)]
Setting = Annotated[
    str | None,
    typer.Option(
        "--replication",
        metavar="SETTING",
        help="Replicas by datacenter: dc1=3,dc2=2 or dc1=rack1+rack2. In tablets: tablets:3 or tablets:dc1=3,dc2=2. "
        "On every node: entire. By a zone: zone:NAME.",
    ),
]


def given_replication(factor: int | None, setting: str | None) -> Replication:
    """Return the replication of the given option; exit status 2 if none or both are given, or if it is not valid."""
    if factor is not None and setting is None:
        return Replication("simple", factor)
    if setting is None or factor is not None:
        fail("bad_usage", "pass either --factor or --replication", 2)
    try:
        return parse_setting(setting)
    except ValueError as error:
        fail("bad_usage", f"--replication {error}", 2)


@app.command("create")
@change_command
def create_keyspace(name: Name, factor: Factor = None, replication: Setting = None) -> Intent:
    """Create a keyspace.

    `--factor` sets the number of replicas, `--replication` the replicas of each datacenter. `--replication tablets:3`
    creates a keyspace in tablets, which the balancer moves between nodes.
    """
    return named(CreateKeyspace(name, given_replication(factor, replication)))


@app.command("alter")
@operation_command
def alter_keyspace(name: Name, factor: Factor = None, replication: Setting = None) -> Intent:
    """Change the replication of a keyspace.

    If ranges change their replicas, this starts an operation, as a join does.
    """
    return named(AlterKeyspace(name, given_replication(factor, replication)))


@app.command("drop")
@destructive_command
def drop_keyspace(name: Name) -> Intent:
    """Drop an empty keyspace."""
    return named(DropKeyspace(name))


@app.command("list")
@view_command
def list_keyspaces(context: ClusterContext) -> Iterator[Any]:
    """List keyspaces and their replication."""
    found = views.schema(newest(context))["keyspaces"]
    yield found
    rows = ((row["name"], row["replication"]["strategy"], format_replication(row["replication"])) for row in found)
    show_table(("keyspace", "strategy", "replication"), rows)


@app.command("show")
@view_command
def show_keyspace(context: ClusterContext, name: Name) -> Iterator[Any]:
    """Show the replication and the tables of a keyspace."""
    schema = views.schema(newest(context))
    found = next((row for row in schema["keyspaces"] if row["name"] == name), None)
    if found is None:
        fail("unknown_keyspace", f"the keyspace {name} does not exist")
    view = found | {"tables": [row["name"] for row in schema["tables"] if row["keyspace"] == name]}
    yield view
    show_fields(view | {"replication": format_replication(view["replication"])})


@app.command("placements")
@view_command
def placements(context: ClusterContext, name: Name) -> Iterator[Any]:
    """Show the read and write replicas of each range."""
    found = views.placements(newest(context), name)
    if found is None:
        fail("unknown_keyspace", f"the keyspace {name} does not exist")
    yield found
    rows = (
        (f"({read['start']}, {read['end']}]", " ".join(read["replicas"]), " ".join(write["replicas"]))
        for read, write in zip(found["read"], found["write"], strict=True)
    )
    show_table(("range (start, end]", "read", "write"), rows)
