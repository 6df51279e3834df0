"""``ringlog schema``: the schema, shown as CQL."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, resolve
from ringlog.operator.ddl.writing import describe
from ringlog.operator.errors import Refused

app = typer.Typer(help="The schema: describe.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group, though it has one verb."""


@app.command("describe")
def describe_schema(
    name: Annotated[str, typer.Argument(metavar="[KEYSPACE[.TABLE]]", help="None: all of it.")] = "",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """The schema as CQL, which ``ringlog ddl`` reads; with --json also its version."""
    with connect(resolve(bootstrap, cluster)) as client:
        state = client.read_barrier()
    try:
        found = describe(state, name)
    except Refused as refused:
        fail(refused.code, str(refused))
    if as_json:
        typer.echo(json.dumps({"version": state.schema_version, "epoch": state.epoch, "cql": found}))
        return
    typer.echo(found, nl=False)
