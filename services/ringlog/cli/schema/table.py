"""``ringlog table``: create, drop and list tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import fail
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import change_command, destructive_command
from ringlog.cli.shared.tables import show_fields, show_table
from ringlog.files import read_text
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.intents.json_commands import intent_of_json
from ringlog.operator.views import views
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)
FullName = Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE", help="Name of the table.")]


@app.command("create")
@change_command
def create_table(
    definition: Annotated[
        Path,
        typer.Argument(help="JSON file: keyspace, name, columns, partition_key, clustering_key, options. -: stdin."),
    ],
) -> Intent:
    """Create a table from a JSON definition.

    The definition has the fields of the command CreateTable.
    """
    try:
        given = json.loads(read_text(definition))
    except OSError as error:
        fail("bad_json", f"{definition}: {error.strerror}", 2)
    except (ValueError, RecursionError) as error:
        fail("bad_json", f"{definition}: {error}", 2)
    if not isinstance(given, dict):
        fail("bad_json", f"{definition}: expected a JSON object", 2)
    return intent_of_json({"command": "CreateTable"} | given)


@app.command("drop")
@destructive_command
def drop_table(full_name: FullName) -> Intent:
    """Drop a table."""
    keyspace, _, name = full_name.partition(".")
    return named(DropTable(keyspace, name))


@app.command("show")
@view_command
def show_table_command(context: ClusterContext, full_name: FullName) -> Iterator[Any]:
    """Show the columns, keys and options of a table."""
    tables = views.schema(newest(context))["tables"]
    found = next((row for row in tables if f"{row['keyspace']}.{row['name']}" == full_name), None)
    if found is None:
        fail("unknown_table", f"the table {full_name} does not exist")
    yield found
    columns = [f"{one['name']} {one['type']}{' static' if one.get('static') else ''}" for one in found["columns"]]
    show_fields(found | {"columns": columns})


@app.command("list")
@view_command
def list_tables(context: ClusterContext) -> Iterator[Any]:
    """List tables with their keys and CDC options."""
    found = views.schema(newest(context))["tables"]
    yield found
    rows = (
        (
            f"{row['keyspace']}.{row['name']}",
            ", ".join(row["partition_key"]),
            ", ".join(row["clustering_key"]),
            str(len(row["columns"])),
            "on" if row["cdc"]["enabled"] else "off",
            row["version"],
        )
        for row in found
    )
    show_table(("table", "partition key", "clustering key", "columns", "cdc", "version"), rows)
