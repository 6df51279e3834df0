"""``ringlog log``: the metadata log, entry by entry, with what became of each."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ringlog.cli.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.cli.shown import printable, time_of_day
from ringlog.kernel.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.log.folding import FoldedRecord, follow
from ringlog.log.kafka import KafkaLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.runtime.context import Context
from ringlog.wire.author_json import to_json

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
            typer.echo(json.dumps(_as_json(line)))
        else:
            _print(line)


def chosen(lines: Iterable[FoldedRecord], since: int, last: int | None, all_records: bool) -> Iterable[FoldedRecord]:
    """The lines to show, each as it comes: a log of years needs no memory. At most ``last`` are kept."""
    fitting = (x for x in lines if x.outcome.epoch >= since and (all_records or x.outcome.kind is OutcomeKind.APPLIED))
    return fitting if last is None else deque(fitting, maxlen=last)


def write_dump(path: Path, records: Iterable[LogRecord]) -> int:
    """Write raw records, a line of JSON each; returns how many. What the file held before is replaced at the end."""
    count = 0
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("w", encoding="ascii") as file:
        for record in records:
            file.write(json.dumps({"offset": record.offset, "data": record.data.hex()}) + "\n")
            count += 1
    unfinished.replace(path)
    return count


def read_log(context: Context) -> Iterator[LogRecord]:
    """Every record from the beginning to the end that the log has now. Raises LogUnavailable."""
    log = KafkaLog(context.bootstrap, context.cluster)
    try:
        tail = log.tail(log.begin_offset())
        try:
            yield from read_to_end(log, tail)
        finally:
            tail.close()
    finally:
        log.close()


def read_dump(path: Path) -> Iterator[LogRecord]:
    """The records of a file that ``ringlog log --dump`` wrote."""
    try:
        with path.open(encoding="ascii") as file:
            for text in file:
                line = json.loads(text)
                yield LogRecord(int(line["offset"]), bytes.fromhex(line["data"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        fail("bad_dump", f"{path}: {error}", 2)


def _as_json(line: FoldedRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "offset": line.offset,
        "outcome": line.outcome.kind.value,
        "epoch": line.outcome.epoch,
    }
    if line.outcome.code:
        shown |= {"code": line.outcome.code, "detail": line.outcome.detail}
    item = line.item
    if isinstance(item, Entry):
        shown |= {
            "at": item.at,
            "submitter": item.submitter,
            "request_id": item.request_id,
            "state_id": item.state_id,
            "entry": _command(line.before, item),
        }
    return shown


def _command(state: ClusterState, item: Entry) -> dict[str, Any]:
    """The entry's command as JSON; only its kind where it could not be read."""
    if isinstance(item.command, Undecodable | UnknownCommand):
        return {"command": item.kind, "version": item.version}
    return to_json(state, item.command)


def _print(line: FoldedRecord) -> None:
    item, outcome = line.item, line.outcome
    shown = Text.assemble((f"{outcome.epoch:>6} {outcome.kind.value:<9}", STYLES.get(outcome.kind, "red")), " ")
    if isinstance(item, Unreadable):
        out.print(shown.append(printable(f"offset {line.offset}: {item.detail}")))
        return
    command = _command(line.before, item)
    fields = ", ".join(f"{k}={_short(v)}" for k, v in command.items() if k != "command")
    why = f"  {outcome.code}: {outcome.detail}" if outcome.code else ""
    shown.append(printable(f"{time_of_day(item.at)} {item.submitter:<14} "))
    shown.append(printable(item.kind), "bold")
    out.print(shown.append(printable(f" {fields}{why}")))


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
