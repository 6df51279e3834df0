"""``ringlog log``: the metadata log, entry by entry, with what became of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ringlog.cli.connection import Bootstrap, Cluster, Json, out, resolve
from ringlog.kernel.outcome import OutcomeKind, Unreadable
from ringlog.log.folding import FoldedRecord, follow
from ringlog.operator.log_lines import chosen, entry_json, line_json, read_log, write_dump
from ringlog.operator.shown import printable, time_of_day

STYLES = {OutcomeKind.APPLIED: "green", OutcomeKind.DUPLICATE: "dim", OutcomeKind.STALE: "dim"}


def show(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    since: Annotated[int, typer.Option("--from", help="First epoch to show.")] = 0,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Show only the last N records.")] = None,
    all_records: Annotated[bool, typer.Option("--all", help="Show records without effect too.")] = False,
    dump: Annotated[
        Path | None, typer.Option("--dump", help="Write the raw log to a file for `rehearse --from`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the log: epoch, time, who, what, and for records without effect why."""
    context = resolve(bootstrap, cluster)
    if dump is not None:
        out.print(f"{write_dump(dump, read_log(context))} records in {dump}")
        return
    for line in chosen(follow(read_log(context)), since, last, all_records):
        if as_json:
            typer.echo(json.dumps(line_json(line)))
        else:
            _print(line)


def _print(line: FoldedRecord) -> None:
    item, outcome = line.item, line.outcome
    shown = Text.assemble((f"{outcome.epoch:>6} {outcome.kind.value:<9}", STYLES.get(outcome.kind, "red")), " ")
    if isinstance(item, Unreadable):
        out.print(shown.append(printable(f"offset {line.offset}: {item.detail}")))
        return
    command = entry_json(line.before, item)
    fields = ", ".join(f"{k}={_short(v)}" for k, v in command.items() if k != "command")
    why = f"  {outcome.code}: {outcome.detail}" if outcome.code else ""
    shown.append(printable(f"{time_of_day(item.at)} {item.submitter:<14} "))
    shown.append(printable(item.kind), "bold")
    out.print(shown.append(printable(f" {fields}{why}")))


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
