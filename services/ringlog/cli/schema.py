"""``ringlog keyspace`` and ``ringlog table``: the schema, changed and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringlog.cli import views
from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.following import Timeout, Wait, ask
from ringlog.cli.replication import Factor, Setting, given_replication, replication_words
from ringlog.cli.submitting import submit_json

keyspace_app = typer.Typer(help="Keyspaces: create, alter, drop, list, placements.", no_args_is_help=True)
table_app = typer.Typer(help="Tables: create, drop, list.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the keyspace.")]
FullName = Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE", help="Name of the table.")]


@keyspace_app.command("create")
def create_keyspace(
    name: Name,
    factor: Factor = None,
    replication: Setting = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create a keyspace that is replicated on so many nodes, or so many in each datacenter."""
    command = {"command": "CreateKeyspace", "name": name, "replication": given_replication(factor, replication)}
    submit_json(resolve(bootstrap, cluster), command, as_json)


@keyspace_app.command("alter")
def alter_keyspace(
    name: Name,
    factor: Factor = None,
    replication: Setting = None,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Change how a keyspace is replicated: an operation like a join, unless no range changes hands."""
    command = {"command": "AlterKeyspace", "name": name, "replication": given_replication(factor, replication)}
    ask(resolve(bootstrap, cluster), command, as_json, wait=wait, timeout_s=timeout)


@keyspace_app.command("drop")
def drop_keyspace(name: Name, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Drop an empty keyspace."""
    submit_json(resolve(bootstrap, cluster), {"command": "DropKeyspace", "name": name}, as_json)


@keyspace_app.command("list")
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


@keyspace_app.command("placements")
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


@table_app.command("create")
def create_table(
    definition: Annotated[
        Path,
        typer.Argument(help="JSON file: keyspace, name, columns, partition_key, clustering_key, options; - = stdin."),
    ],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create a table from its definition, the fields of the command CreateTable."""
    try:
        text = typer.get_text_stream("stdin").read() if str(definition) == "-" else definition.read_text("utf-8")
        given = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        fail("bad_json", f"{definition}: {error}", 2)
    if not isinstance(given, dict):
        fail("bad_json", f"{definition}: expected a JSON object", 2)
    submit_json(resolve(bootstrap, cluster), {"command": "CreateTable"} | given, as_json)


@table_app.command("drop")
def drop_table(
    full_name: FullName, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False
) -> None:
    """Drop a table."""
    keyspace, _, name = full_name.partition(".")
    submit_json(resolve(bootstrap, cluster), {"command": "DropTable", "keyspace": keyspace, "name": name}, as_json)


@table_app.command("list")
def list_tables(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Tables with keys and CDC options."""
    with connect(resolve(bootstrap, cluster)) as client:
        found = views.schema(client.read_barrier())["tables"]
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("table", "partition key", "clustering key", "columns", "cdc", "version", box=None, padding=(0, 2))
    for row in found:
        table.add_row(
            f"{row['keyspace']}.{row['name']}",
            ", ".join(row["partition_key"]),
            ", ".join(row["clustering_key"]),
            str(len(row["columns"])),
            "on" if row["cdc"]["enabled"] else "off",
            row["version"],
        )
    out.print(table)
