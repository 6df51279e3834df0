"""``ringlog schema``: the schema, shown as CQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ringlog.cli.connection import fail
from ringlog.cli.verbs import looks, newest
from ringlog.operator.ddl.writing import describe
from ringlog.operator.errors import Refused
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group, though it has one verb."""


@app.command("describe")
@looks
def describe_schema(
    context: ClusterContext,
    name: Annotated[str, typer.Argument(metavar="[KEYSPACE[.TABLE]]", help="None: all of it.")] = "",
) -> Iterator[Any]:
    """The schema as CQL, which ``ringlog ddl`` reads; with --json also its version."""
    state = newest(context)
    try:
        found = describe(state, name)
    except Refused as refused:
        fail(refused.code, str(refused))
    yield {"version": state.schema_version, "epoch": state.epoch, "cql": found}
    typer.echo(found, nl=False)
