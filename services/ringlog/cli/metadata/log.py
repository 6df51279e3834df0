"""``ringlog log`` and ``ringlog snapshot``: entries of the metadata log, past states, snapshots, archive and
truncation.

A stored snapshot is a state that readers can start from instead of the first entry of the log. The archive keeps
entries that a truncation deletes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import TIMES, Bootstrap, Cluster, Json, fail, out, resolve, time_of
from ringlog.cli.shared.options import Output, form_of, print_value, view_command
from ringlog.cli.shared.submitting import change_command, destructive_command, submit
from ringlog.cli.shared.tables import show_table
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import RecordArchive, TruncateLog
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.outcome import OutcomeKind, UnreadableEntry
from ringlog.kernel.registry import COMMANDS
from ringlog.log.archive.archive import Archive, update_archive
from ringlog.log.archive.locations import open_location
from ringlog.log.errors import SnapshotRefused
from ringlog.log.folding import FoldedRecord
from ringlog.log.opening import open_metadata, open_snapshots
from ringlog.log.replicas.start_point import ListedSnapshot, SnapshotTopic
from ringlog.operator.history.log_lines import (
    LogFilter,
    check_export,
    chosen,
    entry_json,
    line_json,
    write_dump,
    write_export,
)
from ringlog.operator.history.log_past import archive_fault, checked, past_of, state_at
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.intents.json_shapes import near as near_words
from ringlog.operator.views import views
from ringlog.operator.views.words import is_today, picked, printable, time_of_day, when, with_names
from ringlog.runtime.context import ClusterContext
from ringlog.wire.records import StoredSnapshot
from ringlog.wire.senders import parsed_sender

app = typer.Typer()
InArchive = Annotated[str | None, typer.Option("--archive", envvar="RINGLOG_ARCHIVE", help=help_texts.ARCHIVE)]
LAST_MAX = 10_000_000
STYLES = {OutcomeKind.APPLIED: "green", OutcomeKind.DUPLICATE: "dim", OutcomeKind.STALE: "dim"}


@app.callback(invoke_without_command=True)
def show(
    ctx: typer.Context,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    since: Annotated[int, typer.Option("--from-epoch", "--from", help="First epoch to show.")] = 0,
    last: Annotated[
        int | None, typer.Option("--last", min=1, max=LAST_MAX, help="Show only the last N records.")
    ] = None,
    all_records: Annotated[bool, typer.Option("--all", help="Also show records without effect.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", help="Only entries of this author: a principal, or a role of agents.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="COMMAND", help="Only this command, also in batches and plans. Repeatable."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--since", parser=time_of, metavar="TIME", help=f"Only later entries: {TIMES}")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", parser=time_of, metavar="TIME", help=f"Only earlier entries: {TIMES}")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option("--dump", help="Write the raw log to this file, for `rehearse --from`.")
    ] = None,
    archive: InArchive = None,
    as_json: Json = False,
    output: Output = "table",
) -> None:
    """Show the entries of the metadata log.

    Each line has epoch, outcome, time, author and command. Records without effect have the reason.
    """
    if ctx.invoked_subcommand is not None:
        return
    kinds = frozenset(kind or ())
    for unknown in sorted(kinds - COMMANDS.keys()):
        fail("unknown_command", f"{unknown} is not a command{near_words(unknown, COMMANDS)}", 2)
    wanted = LogFilter(since, all_records, by, kinds, first, until)
    near, form = since - 1 if dump is None else None, form_of(as_json, output)
    with past_of(resolve(bootstrap, cluster), _opened(archive), near=near) as past:
        if dump is not None:
            if past.start.position:
                fail("log_truncated", f"the log begins with epoch {past.start.state.epoch}: pass --archive")
            count = write_dump(dump, past.records)
            if not print_value({"records": count, "file": str(dump)}, form):
                out.print(f"{count} records in {dump}")
            return
        for line in chosen(past.lines(), wanted, last):
            # In YAML, all lines together are one list.
            if not print_value([line_json(line)] if form == "yaml" else line_json(line), form):
                _print(line, is_short=form == "table")


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with a record on each line, as JSON.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the file instead of writing it. Needs no broker.")
    ] = False,
    anchor: Annotated[
        list[str] | None,
        typer.Option("--anchor", metavar="EPOCH:CHAIN", help="With --verify: a chain that `ringlog status` showed."),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    archive: InArchive = None,
    as_json: Json = False,
) -> None:
    """Write the audit trail to a file, or check such a file.

    Each line has the bytes of a record, its readable form and the chain up to it. The chain of an epoch proves that the
    log up to it has not changed since that value was noted.
    """
    if anchor and not verify:
        fail("bad_usage", "--anchor needs --verify", 2)
    if verify:
        found = check_export(file, dict(map(_anchor, anchor or ())))
    else:
        with past_of(resolve(bootstrap, cluster), _opened(archive)) as past:
            if past.start.position:
                fail("log_truncated", f"the log begins with epoch {past.start.state.epoch}: pass --archive")
            found = write_export(file, past)
    if as_json:
        typer.echo(json.dumps(found))
        return
    done = "valid" if verify else "written"
    out.print(f"{found['records']} records {done}, chain {found['epoch']}:{found['chain']}", markup=False)
    if verify and not anchor:
        out.print("no --anchor: a file made from a rewritten log would be valid, too")


def _anchor(text: str) -> tuple[int, str]:
    epoch, _, chain = text.partition(":")
    if not epoch.isdecimal() or re.fullmatch("[0-9a-f]{64}", chain) is None:
        fail("bad_option", f"--anchor: {text[:80]!r} is not EPOCH:CHAIN with 64 hex digits", 2)
    return int(epoch), chain


@app.command("at")
def at(
    epoch: Annotated[int, typer.Argument(metavar="EPOCH", min=1, help="Epoch of the state.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    archive: InArchive = None,
    as_json: Json = False,
) -> None:
    """Print the state at an epoch as JSON.

    The state is replayed from the newest snapshot before the epoch, or with an archive from the first entry. It
    includes the digest, settings, nodes, schema and placements.
    """
    with past_of(resolve(bootstrap, cluster), _opened(archive), near=epoch) as past:
        state = state_at(past, epoch)
    keyspaces = sorted(state.keyspaces)
    shown = {"digest": digest(state), **views.cluster(state), "settings": views.settings(state)}
    shown |= {"members": views.nodes(state), "schema": views.schema(state)}
    shown |= {"placements": {keyspace: views.placements(state, keyspace) for keyspace in keyspaces}}
    typer.echo(json.dumps(shown, indent=None if as_json else 2))


@app.command("verify")
def verify(
    bootstrap: Bootstrap = None, cluster: Cluster = None, archive: InArchive = None, as_json: Json = False
) -> None:
    """Check all stored snapshots against a replay of the log.

    Replays the archive and the log. The exit status is 1 if a snapshot or the archive does not match.
    """
    context, held = resolve(bootstrap, cluster), _opened(archive)
    segments = () if held is None else held.existing_segments()
    with closing(open_snapshots(context.bootstrap, context.cluster)) as topic, past_of(context, held) as past:
        heads = [one.head for one in topic.listed()]
        with closing(open_metadata(context.bootstrap, context.cluster, "verify")) as metadata:
            identity = metadata.identity()
        state, rows = checked(past, identity, heads)
        wrong = {row.head.epoch: row.why or _broken(topic, row.head) for row in rows}
    fault = archive_fault(state, segments) if held is not None else ""
    archived = segments[-1].last if segments else 0
    if as_json:
        found = [{"epoch": row.head.epoch, "digest": row.folded, "why": wrong[row.head.epoch] or None} for row in rows]
        ends = {"from_epoch": past.start.state.epoch, "archived": archived}
        typer.echo(json.dumps({"epoch": state.epoch, "digest": digest(state), **ends, "snapshots": found}))
    else:
        since = f", from the snapshot of epoch {past.start.state.epoch} on" if past.start.position else ""
        out.print(f"epoch {state.epoch}, digest {digest(state)}{since}")
        for row in rows:
            verdict = wrong[row.head.epoch] or "matches the log"
            out.print(printable(f"snapshot of epoch {row.head.epoch}: {verdict}"), markup=False)
        if held is not None:
            out.print(f"archive up to epoch {archived}, {len(segments)} segments: complete")
    if any(wrong.values()):
        fail("snapshot_forged", f"{sum(map(bool, wrong.values()))} of {len(rows)} snapshots do not match the log")
    if fault:
        fail("archive_forged", fault)


@app.command("archive")
def archive_log(
    to: Annotated[str, typer.Option("--archive", "--to", envvar="RINGLOG_ARCHIVE", help=help_texts.ARCHIVE)],
    record: Annotated[
        bool,
        typer.Option(
            "--record/--no-record", help="Record the archive in the log: a truncation then keeps unarchived entries."
        ),
    ] = True,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Append new entries of the log to the archive.

    Reads the archive back to check it. The cache writer does this automatically if RINGLOG_ARCHIVE is set.
    """
    context, held = resolve(bootstrap, cluster), Archive(open_location(to))
    place = context.bootstrap, context.cluster
    with closing(open_metadata(*place, "archive")) as metadata:
        update_archive(held, metadata, lambda: open_snapshots(*place))
    segments = held.segments()
    if not segments:
        fail("not_founded", "the log has no applied entry")
    last = segments[-1]
    if as_json:
        typer.echo(json.dumps({"epoch": last.last, "digest": last.digest, "segments": len(segments)}))
    else:
        out.print(f"archive up to epoch {last.last}, {len(segments)} segments")
    if record:
        submit(context, named(RecordArchive(last.last, last.next, last.digest)), as_json)


@app.command("forget-archive")
@destructive_command
def forget_archive() -> Intent:
    """Forget the recorded archive, which no longer exists.

    A truncation then deletes entries that no archive has.
    """
    return named(RecordArchive(0, 0, ""))


@app.command("truncate")
@destructive_command
def truncate(
    below: Annotated[int, typer.Option("--below", min=1, help="Entries of epochs below this one may be deleted.")],
) -> Intent:
    """Truncate the log at a confirmed snapshot.

    The log then begins with the newest confirmed snapshot that is not above the epoch. The cache writer deletes earlier
    entries as soon as the snapshot, the archive and the change topics allow it.
    """
    return named(TruncateLog(below))


def _opened(archive: str | None) -> Archive | None:
    return None if archive is None else Archive(open_location(archive))


def _broken(topic: SnapshotTopic, head: StoredSnapshot) -> str:
    """Return why the snapshot's chunks cannot be read; empty if they can."""
    try:
        topic.state(head)
    except SnapshotRefused as refused:
        return f"{refused.code}: {refused.message}"
    return ""


def _print(line: FoldedRecord, *, is_short: bool) -> None:
    item, outcome = line.item, line.outcome
    shown = Text.assemble((f"{outcome.epoch:>6} {outcome.kind.value:<9}", STYLES.get(outcome.kind, "red")), " ")
    if isinstance(item, UnreadableEntry):
        out.print(shown.append(printable(f"offset {line.offset}: {outcome.code}: {item.detail}")))
        return
    command = entry_json(line.before, item)
    fields = ", ".join(f"{k}={_value(v, is_short)}" for k, v in command.items() if k != "command")
    why = f"  {outcome.code}: {with_names(line.before, outcome.detail)}" if outcome.code else ""
    sender = parsed_sender(item.submitter)
    author = f"{sender.name} for {sender.on_behalf}" if sender.on_behalf else sender.name
    moment = time_of_day(item.at) if is_today(item.at) else when(item.at)
    shown.append(printable(f"{moment} {author:<20} "))
    shown.append(printable(item.kind), "bold")
    out.print(shown.append(printable(f" {fields}{why}")))


def _value(value: object, is_short: bool) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:57] + "…" if is_short and len(text) > 60 else text


snapshots = typer.Typer(no_args_is_help=True)


@snapshots.command("take")
@change_command
def take() -> Intent:
    """Take a snapshot of the state after this command.

    The agents store it. `ringlog snapshot list` shows when it is confirmed.
    """
    return named(TakeSnapshot())


@snapshots.command("list")
@view_command
def list_snapshots(context: ClusterContext) -> Iterator[Any]:
    """List stored snapshots, the newest first.

    Each row has the confirming readers, or the reason why the snapshot is not usable.
    """
    with closing(open_snapshots(context.bootstrap, context.cluster)) as topic:
        rows = [_row(one) for one in topic.listed()]
    yield rows
    lines = []
    for row in rows:
        cells = str(row["epoch"]), time_of_day(row["at"]), f"{row['bytes']:,}", row["by"]
        lines.append(
            (*cells, ", ".join(row["confirmed_by"]) or "none", row["digest"][:16], row["code"] or _outvoted(row))
        )
    columns = ("epoch", "taken", "bytes", "stored by", "confirmed by", "digest", "")
    show_table(columns, lines, "no snapshots: take one with `ringlog snapshot take`")


def _row(one: ListedSnapshot) -> dict[str, Any]:
    head = one.head
    return picked(head, "epoch", "state_id", "position", "digest") | {
        "bytes": sum(part.size for part in head.parts),
        **picked(head, "by", "at"),
        "confirmed_by": list(one.confirmed_by),
        "code": one.code or None,
        "disputed_by": list(one.disputed_by),
    }


def _outvoted(row: dict[str, Any]) -> str:
    return f"outvoted: {', '.join(row['disputed_by'])}" if row["disputed_by"] else ""
