"""The metadata log, entry by entry with each entry's outcome, read from a broker or from a dump file."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from ringlog.files import FileUnusable, read_lines, replaceable
from ringlog.kernel.model.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand
from ringlog.kernel.model.principals import AGENT_NAMES
from ringlog.kernel.model.state import ClusterState
from ringlog.log.folding import FoldedRecord
from ringlog.log.port import LogRecord
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_past import Past, states
from ringlog.operator.intents.json_commands import to_json
from ringlog.operator.views.words import picked
from ringlog.wire.senders import EntrySender, parsed_sender

BAD_DUMP = "bad_dump"


def chosen(
    lines: Iterable[FoldedRecord], since: int, last: int | None, all_records: bool, by: str | None = None
) -> Iterable[FoldedRecord]:
    """Select the records to show, from epoch ``since`` on. ``last`` keeps only the last records.

    ``by`` keeps only the entries of one author. The name of an agent's role selects all of its instances. The result
    is lazy: a long log is not held in memory.
    """
    fitting = (x for x in lines if x.outcome.epoch >= since and (all_records or x.outcome.kind is OutcomeKind.APPLIED))
    if by is not None:
        fitting = (x for x in fitting if isinstance(x.item, Entry) and by in _authors(parsed_sender(x.item.submitter)))
    return fitting if last is None else deque(fitting, maxlen=last)


def _authors(sender: EntrySender) -> tuple[str, ...]:
    """Return the names that stand for an author: its own, the person that it acts for, and the role of an agent."""
    role = sender.name.partition("-")[0]
    return (sender.name, sender.on_behalf, role) if role in AGENT_NAMES else (sender.name, sender.on_behalf)


def write_dump(path: Path, records: Iterable[LogRecord]) -> int:
    """Write raw records to a file, one JSON object per line, and return their number.

    The file is replaced only after the last record is written. Raises FileUnusable.
    """
    count = 0
    unfinished = replaceable(path).with_name(f"{path.name}.part")
    with _opened(unfinished) as file:
        for record in records:
            file.write(json.dumps({"offset": record.offset, "data": record.data.hex()}) + "\n")
            count += 1
    try:
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise FileUnusable.of(error, path) from error
    return count


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="ascii")
    except OSError as error:
        raise FileUnusable.of(error) from error


def read_dump(path: Path) -> Iterator[LogRecord]:
    """Yield the records of a file that ``write_dump`` wrote. Raises Refused."""
    try:
        for text in read_lines(path):
            line = json.loads(text)
            yield LogRecord(int(line["offset"]), bytes.fromhex(line["data"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Refused(BAD_DUMP, f"{path}: {error}") from error


def state_at_end(past: Past) -> ClusterState:
    """Return the state after the last record. Raises Refused."""
    return deque(states(past), maxlen=1)[0]


def line_json(line: FoldedRecord) -> dict[str, Any]:
    """Return a folded record as JSON."""
    shown: dict[str, Any] = {"offset": line.offset, "outcome": line.outcome.kind.value, "epoch": line.outcome.epoch}
    if line.outcome.code:
        shown |= picked(line.outcome, "code", "detail")
    if line.after is not line.before:
        shown["chain"] = line.after.chain.hex()
    item = line.item
    if isinstance(item, Entry):
        sender = asdict(parsed_sender(item.submitter))
        shown |= picked(item, "at", "request_id", "state_id") | {"submitter": sender.pop("name")} | sender
        shown["entry"] = entry_json(line.before, item)
    return shown


def entry_json(state: ClusterState, item: Entry) -> dict[str, Any]:
    """Return an entry's command as JSON; only kind and version if this release cannot decode it."""
    if isinstance(item.command, Undecodable | UnknownCommand):
        return {"command": item.kind, "version": item.version}
    return to_json(state, item.command)
