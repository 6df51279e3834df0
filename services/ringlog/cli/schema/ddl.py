"""``ringlog ddl`` and ``ringlog schema``: change and describe the schema in CQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve, seconds_of
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import (
    WaitCounted,
    applied_text,
    counts_json,
    print_counts,
    submitted,
    wait_until_counted,
)
from ringlog.client.client import Client
from ringlog.files import read_text
from ringlog.kernel.values import Micros
from ringlog.operator.answers import TIMEOUT_S, answer_json, counts_from
from ringlog.operator.ddl.reading import DdlError, DdlStatement, batch_json, located, read_ddl
from ringlog.operator.ddl.writing import describe
from ringlog.operator.errors import Refused
from ringlog.operator.intents.json_commands import intent_of_json
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.runtime.context import ClusterContext


def ddl(
    file: Annotated[Path, typer.Argument(help="File with CQL statements. Default: standard input.")] = Path("-"),
    keyspace: Annotated[str, typer.Option(help="Keyspace of unqualified names.")] = "",
    each: Annotated[bool, typer.Option("--each", help="Submit statements one by one until one is rejected.")] = False,
    wait: WaitCounted = False,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for each answer.")] = TIMEOUT_S,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Change the schema with CQL statements.

    Supports CREATE, ALTER and DROP of keyspaces, tables, types, views, indexes, functions and aggregates. All
    statements apply, or none. For tables with a CDC log, the answer has a time: the change counts for writes that are
    appended from then on. The exit status is 2, and nothing changes, if the text is not valid CQL or a statement is
    not supported.
    """
    try:
        statements = read_ddl(read_text(file), keyspace)
        parts = [(one,) for one in statements] if each else [statements]
        asked = [(part, batch_json(part)) for part in parts]
    except (OSError, UnicodeDecodeError) as error:
        fail("bad_ddl", f"{file}: {error}", 2)
    except DdlError as error:
        fail(error.code, f"{file}: {error}", 2)
    counts: dict[str, Micros] = {}
    with connect(resolve(bootstrap, cluster)) as client:
        for part, given in asked:
            counts |= _submit(client, part, given, timeout, as_json)
    if wait:
        wait_until_counted(counts, timeout)


def _submit(
    client: Client, part: tuple[DdlStatement, ...], given: object, timeout_s: float, as_json: bool
) -> dict[str, Micros]:
    """Submit one command; exit status 1 unless it is applied. Return from when it counts for writes, by table."""
    answer, began = submitted(client, intent_of_json(given), timeout_s)
    if isinstance(answer, RejectedResult) and not as_json:
        fail(answer.code, located(part, answer.detail))
    counts = counts_from(client.replica.state, answer)
    found = answer_json(answer, began) | counts_json(counts)
    if isinstance(answer, RejectedResult):
        found["detail"] = located(part, answer.detail)
    count = f"{len(part)} statement" + ("s" if len(part) > 1 else "")
    if as_json:
        typer.echo(json.dumps({"line": part[0].line, "statements": len(part), **found}))
    elif isinstance(answer, AppliedResult):
        out.print(f"{count} {applied_text(answer.epoch, began)}")
        print_counts(counts)
    if not isinstance(answer, AppliedResult):
        if not as_json:
            fail("request_expired", f"unknown, and final now: see ringlog log --from-epoch {found['since_epoch']}")
        raise typer.Exit(1)
    return counts


app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``describe`` as a subcommand: typer would merge the only command of an app into the app."""


@app.command("describe")
@view_command
def describe_schema(
    context: ClusterContext,
    name: Annotated[
        str,
        typer.Argument(metavar="KEYSPACE[.TABLE]", help="Keyspace or table to describe. Default: the whole schema."),
    ] = "",
) -> Iterator[Any]:
    """Print the schema as CQL.

    `ringlog ddl` accepts the output. `--json` also prints the schema version.
    """
    state = newest(context)
    try:
        found = describe(state, name)
    except Refused as refused:
        fail(refused.code, str(refused))
    yield {"version": state.schema_version, "epoch": state.epoch, "cql": found}
    typer.echo(found, nl=False)
