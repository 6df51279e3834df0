"""``ringlog cdc tail`` and ``ringlog cdc apply``: consumers of the CDC log that follow its protocol.

``tail`` prints changes. ``apply`` maintains copies of the tables in a SQLite file.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.cdc.watching import MetricsPort, watched_reader
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, errors, report_replay, resolve
from ringlog.client.cdc.copies.sqlite import SqliteTables
from ringlog.client.cdc.copies.tables import UNDECODED
from ringlog.client.cdc.output import change_json, cloudevents, debezium, json_value
from ringlog.client.cdc.progress import NOT_ENTERED
from ringlog.client.cdc.reader import EARLIEST, CdcReader
from ringlog.client.cdc.reading import HiddenRows
from ringlog.client.cdc.rows import CdcChange, LogRow
from ringlog.client.cdc.stores import log_record_of
from ringlog.kernel.rows.log_rows import PREIMAGE
from ringlog.operator.views.words import printable, when
from ringlog.runtime.clock import SystemClock

Tables = Annotated[list[str] | None, typer.Option("--table", help="Name of a table. May be repeated. Default: all.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="KEYSPACE.TABLE.COLUMN",
        help="Column to show besides the key. May be repeated. Default: all columns of a table.",
    ),
]
From = Annotated[
    str,
    typer.Option("--start", "--from", help="earliest, now, microseconds since 1970, or an ISO 8601 time with zone."),
]
Place = Annotated[Path | None, typer.Option("--progress", help="File for the position, to continue from.")]
UntilEnd = Annotated[bool, typer.Option("--until-end", help=help_texts.UNTIL_END)]
SkipLost = Annotated[bool, typer.Option("--skip-lost", help="Skip rows that are no longer retained.")]


HOW = "run the command again when `ringlog cdc status` shows that generation as closed"


class Format(Enum):
    """The output format of a change."""

    TEXT = "text"
    JSON = "json"
    DEBEZIUM = "debezium"
    CLOUDEVENTS = "cloudevents"


def tail(
    table: Annotated[
        list[str] | None, typer.Argument(metavar="KEYSPACE.TABLE", help="Names of tables. Default: all.")
    ] = None,
    more: Tables = None,
    column: Columns = None,
    start: From = EARLIEST,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            metavar="text|json|debezium|cloudevents",
            help="Format of a change. json is the same as --json; debezium has one line with key and value.",
        ),
    ] = Format.TEXT,
    limit: Annotated[int | None, typer.Option(help="Stop after this number of changes.", min=1)] = None,
    until_end: UntilEnd = False,
    progress: Place = None,
    skip_lost: SkipLost = False,
    metrics_port: MetricsPort = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print the changes of tables, and wait for more.

    Each change is printed once, generation by generation. A generation ends when it is closed and read. Ctrl-C stops
    the command. With --until-end, standard error reports rows of later generations that could not be shown yet.
    """
    context = resolve(bootstrap, cluster)
    chosen = Format.JSON if as_json else form
    with CdcReader(
        context.bootstrap,
        context.cluster,
        tables=(*(table or ()), *(more or ())),
        columns=column or (),
        start=start,
        progress=progress,
        lost="skip" if skip_lost else "error",
        until_end=until_end,
        on_progress=report_replay,
    ) as reader:
        number = 0
        with watched_reader(context, reader, metrics_port, lambda: number, as_json=as_json, tells=False):
            for number, change in enumerate(reader, 1):
                for line in lines_of(change, chosen, context.cluster):
                    typer.echo(line)
                if number == limit:
                    reader.commit()
                    return
        _print_not_shown(reader.hidden_rows, as_json)


def apply(
    to: Annotated[
        Path, typer.Option("--sqlite", "--to", help="SQLite file. A new one is created, an existing one is continued.")
    ],
    table: Tables = None,
    until_end: UntilEnd = False,
    commit_every: Annotated[int, typer.Option(help="Most changes in a transaction.", min=1)] = 1_000,
    metrics_port: MetricsPort = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Maintain copies of tables in a SQLite file.

    Tables and position change in one transaction, so each change has its effect exactly once. Values that cannot be
    decoded are counted, and stored in the table cdc$undecoded of the file. A dropped table keeps its copy. If another
    table is created under its name and written to, the copy becomes 'keyspace.table dropped ID'.
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
        on_progress=report_replay,
    ) as reader:
        with watched_reader(context, reader, metrics_port, lambda: count, as_json=as_json, tells=True):
            for change in reader:
                target.apply(change)
                count += 1
        left = reader.hidden_rows
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
    _print_not_shown(left, as_json)


def _print_not_shown(left: HiddenRows | None, as_json: bool) -> None:
    """Print the changes that were not shown to standard error, because standard output has only changes."""
    if left is None:
        return
    if as_json:
        typer.echo(json.dumps({"not_shown": _not_shown_json(left)}), err=True)
        return
    for line in not_shown_lines(left):
        errors.print(line, markup=False)


def not_shown_lines(left: HiddenRows) -> list[str]:
    """Return the changes that were not shown, the reason, and the next step, a line each."""
    lines = []
    if left.writes:
        lines.append(f"not shown: {left.writes} writes whose last rows have not arrived yet")
    if left.places:
        where = ", ".join(f"offset {offset} of partition {number}" for number, offset in left.places)
        lines.append(f"not shown: the records from {where} on, at most {left.records}: {_why(left)}")
    return [*lines, f"to see them, {HOW}"]


def _why(left: HiddenRows) -> str:
    if left.generation == NOT_ENTERED:
        return "no generation is known yet"
    this = f"the generation of {when(left.generation)}"
    if left.is_closed:
        return f"{this} is sealed, and the next one is not known yet"
    return f"they belong to later generations, and {this} is not sealed: its remaining rows come first"


def _not_shown_json(left: HiddenRows) -> dict[str, Any]:
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
    """Return a change as lines of output."""
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
