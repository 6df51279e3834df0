"""The metadata log, entry by entry, with what became of each: from a broker, or from a file that was written of it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ringlog.kernel.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.log.folding import FoldedRecord, follow
from ringlog.log.kafka import KafkaLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.operator.author_json import to_json
from ringlog.operator.errors import Refused
from ringlog.runtime.context import Context

BAD_DUMP = "bad_dump"


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
    """The records of a file that ``write_dump`` wrote. Raises Refused."""
    try:
        with path.open(encoding="ascii") as file:
            for text in file:
                line = json.loads(text)
                yield LogRecord(int(line["offset"]), bytes.fromhex(line["data"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Refused(BAD_DUMP, f"{path}: {error}") from error


def state_at_end(records: Iterator[LogRecord]) -> ClusterState:
    """The state that they fold to. Raises Refused."""
    state = EMPTY_STATE
    for line in follow(records):
        if line.outcome.kind is OutcomeKind.HALT:
            raise Refused("replica_halted", f"offset {line.offset}: {line.outcome.code}: {line.outcome.detail}")
        state = line.after
    return state


def line_json(line: FoldedRecord) -> dict[str, Any]:
    """A line as JSON."""
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
            "entry": entry_json(line.before, item),
        }
    return shown


def entry_json(state: ClusterState, item: Entry) -> dict[str, Any]:
    """The entry's command as JSON; only its kind where it could not be read."""
    if isinstance(item.command, Undecodable | UnknownCommand):
        return {"command": item.kind, "version": item.version}
    return to_json(state, item.command)
