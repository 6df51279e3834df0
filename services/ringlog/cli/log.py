"""``ringlog log``: the metadata log, entry by entry, with what became of each; its past, what is stored of it, and its
ends: the archive and the truncation.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ringlog.cli.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.cli.submitting import asks, submit
from ringlog.kernel.commands.truncation import RecordArchive, TruncateLog
from ringlog.kernel.encoding import digest
from ringlog.kernel.outcome import OutcomeKind, UnreadableEntry
from ringlog.log.archive import Archive, grown
from ringlog.log.archive_places import place_of
from ringlog.log.beginning import SnapshotTopic
from ringlog.log.errors import SnapshotRefused
from ringlog.log.folding import FoldedRecord
from ringlog.log.opening import open_metadata, open_snapshots
from ringlog.operator import views
from ringlog.operator.intents import Intent, named
from ringlog.operator.log_lines import chosen, entry_json, line_json, write_dump
from ringlog.operator.log_past import archive_fault, checked, past_of, state_at
from ringlog.operator.shown import printable, time_of_day
from ringlog.wire.records import StoredSnapshot

app = typer.Typer()
ARCHIVE_HELP = "The archive: a folder, or a URL that fsspec knows."
InArchive = Annotated[str | None, typer.Option("--archive", envvar="RINGLOG_ARCHIVE", help=ARCHIVE_HELP)]
LAST_MAX = 10_000_000
STYLES = {OutcomeKind.APPLIED: "green", OutcomeKind.DUPLICATE: "dim", OutcomeKind.STALE: "dim"}


@app.callback(invoke_without_command=True)
def show(
    ctx: typer.Context,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    since: Annotated[int, typer.Option("--from", help="First epoch to show.")] = 0,
    last: Annotated[
        int | None, typer.Option("--last", min=1, max=LAST_MAX, help="Show only the last N records.")
    ] = None,
    all_records: Annotated[bool, typer.Option("--all", help="Show records without effect too.")] = False,
    dump: Annotated[
        Path | None, typer.Option("--dump", help="Write the raw log to a file for `rehearse --from`.")
    ] = None,
    archive: InArchive = None,
    as_json: Json = False,
) -> None:
    """Show the log: epoch, time, who, what, and for records without effect why."""
    if ctx.invoked_subcommand is not None:
        return
    near = since - 1 if dump is None else None
    with past_of(resolve(bootstrap, cluster), _opened(archive), near=near) as past:
        if dump is not None:
            if past.start.position:
                fail("log_truncated", f"the log begins with epoch {past.start.state.epoch}: name the archive")
            count = write_dump(dump, past.records)
            if as_json:
                typer.echo(json.dumps({"records": count, "file": str(dump)}))
            else:
                out.print(f"{count} records in {dump}")
            return
        for line in chosen(past.lines(), since, last, all_records):
            if as_json:
                typer.echo(json.dumps(line_json(line)))
            else:
                _print(line)


@app.command("at")
def at(
    epoch: Annotated[int, typer.Argument(metavar="EPOCH", min=1, help="An epoch of the past.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    archive: InArchive = None,
    as_json: Json = False,
) -> None:
    """The state at an epoch: its digest, the cluster in short, the placements.

    Folded from the newest snapshot before it; with an archive, from the log's first entry.
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
    """Fold archive and log anew and compare every stored snapshot with them; exit status 1 if one does not fit."""
    context, held = resolve(bootstrap, cluster), _opened(archive)
    segments = () if held is None else held.present()
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
            said = wrong[row.head.epoch] or "as the log says"
            out.print(printable(f"snapshot of epoch {row.head.epoch}: {said}"), markup=False)
        if held is not None:
            out.print(f"archive up to epoch {archived}, {len(segments)} segments: whole")
    if any(wrong.values()):
        fail("snapshot_forged", f"{sum(map(bool, wrong.values()))} of {len(rows)} snapshots do not fit the log")
    if fault:
        fail("archive_forged", fault)


@app.command("archive")
def archive_log(
    to: Annotated[str, typer.Option("--to", envvar="RINGLOG_ARCHIVE", help=ARCHIVE_HELP)],
    record: Annotated[
        bool, typer.Option("--record/--no-record", help="Let the log know, so that a truncation spares what lacks.")
    ] = True,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Add to the archive what it lacks of the log, and read it back. The keeper does so by itself: RINGLOG_ARCHIVE."""
    context, held = resolve(bootstrap, cluster), Archive(place_of(to))
    place = context.bootstrap, context.cluster
    with closing(open_metadata(*place, "archive")) as metadata:
        grown(held, metadata, lambda: open_snapshots(*place))
    segments = held.segments()
    if not segments:
        fail("not_founded", "the log has no entry that applied")
    last = segments[-1]
    if as_json:
        typer.echo(json.dumps({"epoch": last.last, "digest": last.digest, "segments": len(segments)}))
    else:
        out.print(f"archive up to epoch {last.last}, {len(segments)} segments")
    if record:
        submit(context, named(RecordArchive(last.last, last.next, last.digest)), as_json)


@app.command("truncate")
@asks
def truncate(
    below: Annotated[int, typer.Option("--below", min=1, help="Entries of epochs below this one may go.")],
) -> Intent:
    """Let the log begin with the newest confirmed snapshot that is not above an epoch.

    The keeper deletes what is before it, once snapshot, archive and change topics allow that.
    """
    return named(TruncateLog(below))


def _opened(archive: str | None) -> Archive | None:
    return None if archive is None else Archive(place_of(archive))


def _broken(topic: SnapshotTopic, head: StoredSnapshot) -> str:
    """What is wrong with its chunks."""
    try:
        topic.state(head)
    except SnapshotRefused as refused:
        return f"{refused.code}: {refused.message}"
    return ""


def _print(line: FoldedRecord) -> None:
    item, outcome = line.item, line.outcome
    shown = Text.assemble((f"{outcome.epoch:>6} {outcome.kind.value:<9}", STYLES.get(outcome.kind, "red")), " ")
    if isinstance(item, UnreadableEntry):
        out.print(shown.append(printable(f"offset {line.offset}: {outcome.code}: {item.detail}")))
        return
    command = entry_json(line.before, item)
    fields = ", ".join(f"{k}={_short(v)}" for k, v in command.items() if k != "command")
    why = f"  {outcome.code}: {outcome.detail}" if outcome.code else ""
    shown.append(printable(f"{time_of_day(item.at)} {item.submitter:<20} "))
    shown.append(printable(item.kind), "bold")
    out.print(shown.append(printable(f" {fields}{why}")))


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
