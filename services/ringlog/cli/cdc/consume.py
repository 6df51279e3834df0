"""``ringlog cdc tail`` and ``ringlog cdc apply``: consumers of the CDC log that keep the protocol.

One prints changes on the terminal or into a pipe, the other keeps copies of the tables in a SQLite file.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, errors, report_replay, resolve
from ringlog.client.cdc.copies.sqlite import SqliteTables
from ringlog.client.cdc.copies.tables import UNDECODED
from ringlog.client.cdc.output import change_json, cloudevents, debezium, json_value
from ringlog.client.cdc.progress import NOT_ENTERED
from ringlog.client.cdc.reader import EARLIEST, CdcReader
from ringlog.client.cdc.reading import NotShown
from ringlog.client.cdc.rows import PREIMAGE, CdcChange, LogRow
from ringlog.client.cdc.stores import log_record_of
from ringlog.operator.views.words import printable, when
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


HOW = "run it again when `ringlog cdc status` shows that generation as closed"


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

    A generation is left when it is closed and read, whatever the time is. Ctrl-C ends it. Where --until-end stops
    before rows of a generation that it may not begin yet, it says so on standard error.
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
        tell=report_replay,
    ) as reader:
        for number, change in enumerate(reader, 1):
            for line in lines_of(change, chosen, context.cluster):
                typer.echo(line)
            if number == limit:
                reader.commit()
                return
        _say_not_shown(reader.not_shown, as_json)


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
        tell=report_replay,
    ) as reader:
        for change in reader:
            target.apply(change)
            count += 1
        left = reader.not_shown
    undecoded = {name: dict(sorted(found.items())) for name, found in sorted(target.undecoded.items())}
    if as_json:
        more = {} if left is None else {"not_shown": _not_shown_json(left)}
        typer.echo(json.dumps({"changes": count, "undecoded": undecoded, **more}))
        return
    typer.echo(f"{count} changes")
    for name, found in undecoded.items():
        for column, number in found.items():
            entry = f"{name} {column or '(whole rows)'}: {number}"
            typer.echo(printable(f"not decoded, see table {UNDECODED} of {to}: {entry}"))
    _say_not_shown(left, as_json)


def _say_not_shown(left: NotShown | None, as_json: bool) -> None:
    """On standard error: what is on standard output are changes."""
    if left is None:
        return
    if as_json:
        typer.echo(json.dumps({"not_shown": _not_shown_json(left)}), err=True)
        return
    for line in not_shown_lines(left):
        errors.print(line, markup=False)


def not_shown_lines(left: NotShown) -> list[str]:
    """What was not shown, why, and what to do."""
    lines = []
    if left.writes:
        lines.append(f"not shown: {left.writes} writes whose last rows have not come yet")
    if left.places:
        where = ", ".join(f"offset {offset} of partition {number}" for number, offset in left.places)
        lines.append(f"not shown: what the log has from {where} on, at most {left.records} records: {_why(left)}")
    return [*lines, f"to see it, {HOW}"]


def _why(left: NotShown) -> str:
    if left.generation == NOT_ENTERED:
        return "no generation is known yet"
    this = f"the generation of {when(left.generation)}"
    if left.is_closed:
        return f"{this} is closed, and the next one is not known yet"
    return f"it is of later generations, and {this} is not closed: more of its rows may come, which are first"


def _not_shown_json(left: NotShown) -> dict[str, Any]:
    places = [{"partition": number, "offset": offset} for number, offset in left.places]
    return {
        "generation": None if left.generation == NOT_ENTERED else left.generation,
        "closed": left.is_closed,
        "from": places,
        "records_max": left.records,
        "writes": left.writes,
        "why": _why(left) if left.places else "",
        "hint": HOW,
    }


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
