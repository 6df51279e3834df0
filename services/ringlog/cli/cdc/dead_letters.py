"""``ringlog cdc dead-letters``: list, count and show rejected writes, and send them again.

Names, details and values come from strangers. They are printed without control characters and with bounded length.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.tables import show_table
from ringlog.client.cdc.dead_letters import (
    OTHERS,
    DeadLetterReader,
    LetterChoice,
    LetterCounts,
    LetterFilter,
    LetterRecord,
    LetterSummary,
)
from ringlog.client.cdc.errors import NotResendable
from ringlog.client.cdc.output import json_value, mutation_json
from ringlog.client.cdc.reader import EARLIEST, NOW, start_of
from ringlog.client.cdc.rows import TableTypes
from ringlog.kernel.changes import table_change
from ringlog.kernel.model.state import ClusterState
from ringlog.operator.views.words import picked, printable, when
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.wire.errors import WireError
from ringlog.wire.records import decode_mutation

LIST_MAX, RESEND_MAX = 10_000, 100_000
BYTES_SHOWN = 256

Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="CODE", help="Reason of a letter. May be repeated. Default: all."),
]
Tables = Annotated[list[str] | None, typer.Option("--table", help="Name of a table. May be repeated. Default: all.")]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        help="Letters written at this time or later: microseconds since 1970, or an ISO 8601 time with zone.",
    ),
]
Name = Annotated[
    str, typer.Argument(metavar="ID", help="Id that `list` prints, or TOPIC/PARTITION/OFFSET of the rejected record.")
]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """List, count, show and resend rejected writes."""


@app.command("list")
@view_command
def list_letters(
    context: ClusterContext,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = EARLIEST,
    limit: Annotated[int, typer.Option("--limit", help="Most letters to list.", min=1, max=LIST_MAX)] = 50,
) -> Iterator[Any]:
    """List dead letters, newest first."""
    with DeadLetterReader(context.bootstrap, context.cluster) as letters:
        found = letters.latest(_filter(reason, table, since), limit)
    yield [_summary_json(one) for one in found]
    rows = [
        (str(one.offset), when(one.time), *map(printable, (one.reason, one.table, one.position)), _again(one))
        for one in found
    ]
    show_table(("id", "written", "reason", "table", "record", "resent"), rows, "no dead letter matches")


@app.command("count")
@view_command
def count(
    context: ClusterContext, reason: Reasons = None, table: Tables = None, since: Since = EARLIEST
) -> Iterator[Any]:
    """Show the number of dead letters by reason and table.

    A letter that was written twice counts once. Beyond 1,000 groups, the last line has the remaining ones.
    """
    with DeadLetterReader(context.bootstrap, context.cluster) as letters:
        found = letters.count(_filter(reason, table, since))
    yield {"letters": found.letters.total(), "resent": found.resent.total(), "groups": _groups(found)}
    rows = [
        (printable(one["reason"]), printable(one["table"]), str(one["letters"]), str(one["resent"]))
        for one in _groups(found)
    ]
    show_table(("reason", "table", "letters", "resent"), rows, "no dead letter matches")


@app.command("show")
@view_command
def show(context: ClusterContext, name: Name) -> Iterator[Any]:
    """Show a dead letter with its original record.

    Values have the types of the table's present columns. A value that does not fit is shown as hex digits.
    """
    with DeadLetterReader(context.bootstrap, context.cluster) as letters:
        record = letters.find(name)
        unfit = letters.unfit(record)
    mutation = _mutation(record, newest(context))
    letter, found = record.letter, record.summary
    original = {
        name: None if data is None else data.hex() for name, data in (("key", letter.key), ("value", letter.value))
    }
    yield _summary_json(found) | original | {"epoch": letter.epoch, "not_resendable": unfit, "mutation": mutation}
    lines = [
        f"{found.offset}: {found.reason}",
        f"detail: {found.detail}",
        f"record {found.position}, appended at {when(found.append_time)}",
        f"rejected by {found.writer} at epoch {letter.epoch}, written at {when(found.time)}",
    ]
    if mutation is not None:
        lines += [f"{name}: {_text(value)}" for name, value in mutation.items() if value not in (None, [], {})]
    lines += [
        f"{name}: {_hex(data)}" for name, data in (("original key", letter.key), ("original value", letter.value))
    ]
    lines.append("resent: yes" if found.is_resent else f"cannot be sent again: {unfit}" if unfit else "resent: no")
    for line in lines:
        out.print(printable(line))


@app.command("resend")
def resend(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Ids of letters. Default: those that match the options."),
    ] = None,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = EARLIEST,
    limit: Annotated[
        int, typer.Option("--limit", help="Most letters to resend, the oldest first.", min=1, max=RESEND_MAX)
    ] = 1_000,
    again: Annotated[bool, typer.Option("--again", help="Also letters that were sent again before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=help_texts.DRY_RUN)] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Send rejected records to the mutations topic again.

    Key and value are unchanged. The record gets a new append time and a new decision. Its own timestamp remains, so a
    write that was too old is rejected again. A letter is sent again once, unless you pass --again.
    """
    context, wanted = resolve(bootstrap, cluster), _filter(reason, table, since)
    if bool(names) == (wanted != LetterFilter()):
        fail("bad_usage", "pass ids of letters, or at least one of --reason, --table and --since", 2)
    with DeadLetterReader(context.bootstrap, context.cluster) as letters:
        choice = _named(letters, names, again) if names else letters.choose(wanted, limit, again)
        sent, late = 0, 0
        if choice.letters and not dry_run:
            _confirm(choice, letters.source, yes)
            sent, late = letters.resend(choice.letters, again, _print_nothing if as_json else _print_sent)
    if as_json:
        found = {"dry_run": dry_run, "sent": sent, "already_resent": choice.resent + late}
        found |= {"not_resendable": choice.unfit, "more": choice.has_more}
        typer.echo(json.dumps(found | {"letters": [_summary_json(one) for one in choice.letters]}))
        return
    if dry_run:
        for one in choice.letters:
            out.print(printable(f"would send {one.offset}: {one.reason} {one.table}"))
    out.print(f"{sent} sent, {choice.resent + late} were sent before, {choice.unfit} cannot be sent")
    if choice.has_more:
        out.print("more letters match: repeat the command")


def _filter(reasons: list[str] | None, tables: list[str] | None, since: str) -> LetterFilter:
    begin = start_of(since)
    micros = 0 if begin == EARLIEST else SystemClock().now_us() if begin == NOW else int(begin)
    return LetterFilter(frozenset(reasons or ()), frozenset(tables or ()), micros)


def _named(letters: DeadLetterReader, names: list[str], again: bool) -> LetterChoice:
    """Return the letters with these names. Raises UnknownLetter, NotResendable."""
    found = []
    for name in names:
        record = letters.find(name)
        if why := letters.unfit(record):
            raise NotResendable(name, why)
        if record.summary.is_resent and not again:
            raise NotResendable(name, "its record was sent again before; pass --again to repeat that")
        found.append(record.summary)
    return LetterChoice(tuple(found), 0, 0, False)


def _confirm(choice: LetterChoice, topic: str, yes: bool) -> None:
    """Ask before more than one record is sent; exit status 1 without a yes."""
    if yes or len(choice.letters) == 1:
        return
    asked = f"{len(choice.letters)} records go to {topic} again"
    if not sys.stdin.isatty():
        fail("not_confirmed", f"{asked}: pass --yes to confirm")
    if not typer.confirm(f"{asked}. Continue?", err=True):
        fail("not_confirmed", "nothing was sent")


def _print_sent(found: LetterSummary) -> None:
    out.print(printable(f"sent {found.offset}: {found.reason} {found.table}"))


def _print_nothing(_found: LetterSummary) -> None:
    """Ignore a sent letter: with ``--json`` the final value is the only output."""


def _again(found: LetterSummary) -> str:
    return "yes" if found.is_resent else ""


def _summary_json(found: LetterSummary) -> dict[str, Any]:
    names = ("time", "reason", "detail", "table", "position", "append_time", "writer")
    return {"id": found.offset} | picked(found, *names) | {"resent": found.is_resent}


def _groups(counts: LetterCounts) -> list[dict[str, Any]]:
    """Return the counts by reason and table, the greatest first."""
    ordered = sorted(counts.letters.items(), key=lambda one: (one[0][0] == OTHERS, -one[1], one[0]))
    return [
        {"reason": reason, "table": table, "letters": number, "resent": counts.resent[reason, table]}
        for (reason, table), number in ordered
    ]


def _mutation(record: LetterRecord, state: ClusterState) -> dict[str, Any] | None:
    """Return the rejected mutation as JSON; None if the original is not a readable mutation."""
    try:
        found = decode_mutation(record.letter.value or b"")
    except WireError:
        return None
    table = state.tables.get(f"{found.keyspace}.{found.table}")
    return mutation_json(found, TableTypes(None if table is None else table_change(table, state.epoch)))


def _text(value: Any) -> str:
    """Return a value in at most a few lines."""
    text = value if isinstance(value, str) else json.dumps(json_value(value), ensure_ascii=False)
    return text if len(text) <= 4 * BYTES_SHOWN else f"{text[: 4 * BYTES_SHOWN]}… ({len(text)} characters)"


def _hex(data: bytes | None) -> str:
    if data is None:
        return "none"
    more = "…" if len(data) > BYTES_SHOWN else ""
    return f"{len(data)} bytes {data[:BYTES_SHOWN].hex()}{more}"
