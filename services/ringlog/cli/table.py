"""``ringlog table``: tables, made, dropped and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.submitting import asks
from ringlog.kernel.commands.schema import DropTable
from ringlog.operator import views
from ringlog.operator.author_json import typed
from ringlog.operator.intents import Intent, named

app = typer.Typer(help="Tables: create, drop, list.", no_args_is_help=True)
FullName = Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE", help="Name of the table.")]


@app.command("create")
@asks
def create_table(
    definition: Annotated[
        Path,
        typer.Argument(help="JSON file: keyspace, name, columns, partition_key, clustering_key, options; - = stdin."),
    ],
) -> Intent:
    """Create a table from its definition, the fields of the command CreateTable."""
    try:
        text = typer.get_text_stream("stdin").read() if str(definition) == "-" else definition.read_text("utf-8")
        given = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        fail("bad_json", f"{definition}: {error}", 2)
    if not isinstance(given, dict):
        fail("bad_json", f"{definition}: expected a JSON object", 2)
    return typed({"command": "CreateTable"} | given)


@app.command("drop")
@asks
def drop_table(full_name: FullName) -> Intent:
    """Drop a table."""
    keyspace, _, name = full_name.partition(".")
    return named(DropTable(keyspace, name))


@app.command("list")
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
