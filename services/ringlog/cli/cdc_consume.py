"""``ringlog cdc tail`` and ``ringlog cdc apply``: consumers of the CDC log that keep the protocol.

One prints changes on the terminal or into a pipe, the other keeps copies of the tables in a SQLite file.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli.connection import Bootstrap, Cluster, Json, resolve
from ringlog.client.cdc.copies import UNDECODED
from ringlog.client.cdc.output import change_json, cloudevents, debezium, json_value
from ringlog.client.cdc.reader import EARLIEST, CdcReader
from ringlog.client.cdc.rows import PREIMAGE, CdcChange, LogRow
from ringlog.client.cdc.sqlite import SqliteTables
from ringlog.client.cdc.stores import log_record_of
from ringlog.operator.shown import printable, when
from ringlog.runtime.clock import SystemClock

Tables = Annotated[list[str] | None, typer.Option("--table", help="keyspace.table; may be given again. None: all.")]
From = Annotated[
    str, typer.Option("--from", help="earliest, now, microseconds since 1970, or an ISO 8601 time with its zone.")
]
Place = Annotated[
    Path | None, typer.Option("--progress", help="File that keeps the place; with it the next run goes on from there.")
]
UntilEnd = Annotated[bool, typer.Option("--until-end", help="Stop at the end that the log has now.")]
SkipLost = Annotated[bool, typer.Option("--skip-lost", help="Go on where rows are no longer kept, instead of failing.")]


class Format(Enum):
    """How a change is printed."""

    TEXT = "text"
    JSON = "json"
    DEBEZIUM = "debezium"
    CLOUDEVENTS = "cloudevents"


def tail(
    table: Tables = None,
    start: From = EARLIEST,
    form: Annotated[
        Format, typer.Option("--format", help="text, json (as --json), debezium (key and value a line), cloudevents.")
    ] = Format.TEXT,
    limit: Annotated[int | None, typer.Option(help="Stop after this number of changes.", min=1)] = None,
    until_end: UntilEnd = False,
    progress: Place = None,
    skip_lost: SkipLost = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print changes of tables, generation after generation, each once; then wait for more.

    A generation is left when it is closed and read, whatever the time is. Ctrl-C ends it.
    """
    context = resolve(bootstrap, cluster)
    chosen = Format.JSON if as_json else form
    with CdcReader(
        context.bootstrap,
        context.cluster,
        tables=table or (),
        start=start,
        progress=progress,
        lost="skip" if skip_lost else "error",
        until_end=until_end,
    ) as reader:
        for number, change in enumerate(reader, 1):
            for line in lines_of(change, chosen, context.cluster):
                typer.echo(line)
            if number == limit:
                reader.commit()
                return


def apply(
    to: Annotated[Path, typer.Option("--to", help="The SQLite file; made if it is not there, else gone on with.")],
    table: Tables = None,
    until_end: UntilEnd = False,
    commit_every: Annotated[int, typer.Option(help="Changes in a transaction, at most.", min=1)] = 1_000,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Rebuild tables from their CDC log in a SQLite file, and keep them up to date.

    Tables and place change in one transaction: each change has its effect exactly once, whatever is killed. What
    cannot be decoded is counted, and is in the table cdc$undecoded of the file. A table that was dropped keeps its
    copy; when another one is made under its name and written to, that becomes 'keyspace.table dropped ID'.
    """
    context = resolve(bootstrap, cluster)
    target = SqliteTables(to)
    count = 0
    with CdcReader(
        context.bootstrap,
        context.cluster,
        tables=table or (),
        progress=target,
        commit_every=commit_every,
        until_end=until_end,
        log_record=log_record_of(to),
    ) as reader:
        target.know(reader.lives)
        for change in reader:
            target.apply(change)
            count += 1
    undecoded = {name: dict(sorted(found.items())) for name, found in sorted(target.undecoded.items())}
    if as_json:
        typer.echo(json.dumps({"changes": count, "undecoded": undecoded}))
        return
    typer.echo(f"{count} changes")
    for name, found in undecoded.items():
        for column, number in found.items():
            what = f"{name} {column or '(whole rows)'}: {number}"
            typer.echo(printable(f"not decoded, see table {UNDECODED} of {to}: {what}"))


def lines_of(change: CdcChange, form: Format, cluster: str) -> list[str]:
    """A change as lines."""
    if form is Format.JSON:
        return [_dumped(change_json(change))]
    if form is Format.DEBEZIUM:
        now = SystemClock().now_us()
        return [_dumped({"key": key, "value": value}) for key, value in debezium(change, cluster, now)]
    if form is Format.CLOUDEVENTS:
        return [_dumped(event) for event in cloudevents(change, cluster)]
    return [printable(f"{when(change.timestamp)}  {change.name}  {_text(row)}") for row in change.rows]


def _text(row: LogRow) -> str:
    parts = [row.operation, " ".join(_pairs(row.key))]
    if row.values:
        parts.append("set " + " ".join(_pairs(row.values)))
    if row.deleted:
        parts.append(("null " if row.code == PREIMAGE else "delete ") + " ".join(row.deleted))
    if row.deleted_elements:
        parts.append("take out " + " ".join(_pairs(row.deleted_elements)))
    if row.undecoded:
        parts.append("undecoded " + " ".join(_pairs(row.undecoded)))
    if row.ttl is not None:
        parts.append(f"ttl {row.ttl} s")
    return "  ".join(part for part in parts if part)


def _pairs(names: Any) -> list[str]:
    return [f"{name}={json.dumps(json_value(value), ensure_ascii=False)}" for name, value in names.items()]


def _dumped(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False)
