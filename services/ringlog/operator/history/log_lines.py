"""The metadata log, entry by entry with each entry's outcome, read from a broker or from a dump file."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from ringlog.files import FileUnusable, read_lines, replaceable
from ringlog.kernel.authorization import commands_of
from ringlog.kernel.model.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand
from ringlog.kernel.model.principals import AGENT_NAMES
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command, Epoch, Micros, Value, asdict
from ringlog.log.folding import FoldedRecord, follow
from ringlog.log.port import LogRecord
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_past import Past, states
from ringlog.operator.views.words import picked
from ringlog.wire.senders import EntrySender, parsed_sender

BAD_DUMP, BAD_EXPORT = "bad_dump", "bad_export"


class LogFilter(Value):
    """Selects records of the log.

    Attributes:
        since: First epoch.
        all_records: Also records without effect.
        by: Author: a principal, a person that it acted for, or a role of agents.
        kinds: Names of commands, also inside schema batches and plans. Empty: all.
        first: Microseconds since 1970, by the clock of the author.
        until: Microseconds since 1970. Selected entries are earlier.
        refused: Only records without effect.
    """

    since: Epoch = 0
    all_records: bool = False
    by: str | None = None
    kinds: frozenset[str] = frozenset()
    first: Micros | None = None
    until: Micros | None = None
    refused: bool = False

    def fits(self, line: FoldedRecord) -> bool:
        """Return whether the record is selected."""
        is_applied = line.outcome.kind is OutcomeKind.APPLIED
        if line.outcome.epoch < self.since or (self.refused if is_applied else not (self.all_records or self.refused)):
            return False
        item = line.item
        if not isinstance(item, Entry):
            return (self.by, self.kinds, self.first, self.until) == (None, frozenset(), None, None)
        return (
            (self.by is None or self.by in _authors(parsed_sender(item.submitter)))
            and (self.first is None or item.at >= self.first)
            and (self.until is None or item.at < self.until)
            and (not self.kinds or not self.kinds.isdisjoint(_kinds(line.before, item)))
        )


def chosen(lines: Iterable[FoldedRecord], wanted: LogFilter, last: int | None) -> Iterable[FoldedRecord]:
    """Return the selected records; ``last`` keeps only the last ones. Lazy: a long log is not held in memory."""
    fitting = filter(wanted.fits, lines)
    return fitting if last is None else deque(fitting, maxlen=last)


def _kinds(state: ClusterState, item: Entry) -> set[str]:
    """Return the kind of an entry, and those of the commands inside a schema batch or plan."""
    inner = commands_of(state, item.command) if isinstance(item.command, Command) else ()
    return {item.kind, *(type(one).__name__ for one in inner)}


def _authors(sender: EntrySender) -> tuple[str, ...]:
    """Return the names that stand for an author: its own, the person that it acts for, and the role of an agent."""
    role = sender.name.partition("-")[0]
    return (sender.name, sender.on_behalf, role) if role in AGENT_NAMES else (sender.name, sender.on_behalf)


def write_dump(path: Path, records: Iterable[LogRecord]) -> int:
    """Write raw records to a file, one JSON object per line, and return their number.

    The file is replaced only after the last record is written. Raises FileUnusable.
    """
    return _write_lines(
        path, (json.dumps({"offset": record.offset, "data": record.data.hex()}) + "\n" for record in records)
    )


def _write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, and return their number. Replace the file only after the last line is written."""
    count = 0
    unfinished = replaceable(path).with_name(f"{path.name}.part")
    with _opened(unfinished) as file:
        for line in lines:
            file.write(line)
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


def write_export(path: Path, past: Past) -> dict[str, Any]:
    """Write all records to a file, each with its bytes and its readable form. Return a summary.

    A line has the members of a dump and of ``line_json``, so ``read_dump`` reads the file, too. Raises FileUnusable.
    """
    shown: dict[str, Any] = {"records": 0, "epoch": 0, "chain": ""}

    def lines() -> Iterator[str]:
        for record, line in _with_bytes(past.records, past.start.state):
            shown.update(records=shown["records"] + 1, epoch=line.after.epoch, chain=line.after.chain.hex())
            yield _export_line(record, line) + "\n"

    _write_lines(path, lines())
    return shown


def check_export(path: Path, anchors: Mapping[Epoch, str]) -> dict[str, Any]:
    """Check an exported file by its own content: each line follows from the bytes of all lines before it.

    Args:
        path: The file.
        anchors: Epoch to a chain value that was kept elsewhere. Without one, a file that was made from a rewritten log
            is valid.

    Raises Refused ``bad_export``: the file was changed. It names the line.
    """
    left, number, offset, state = dict(anchors), 0, -1, EMPTY_STATE
    pairs = zip(_texts(path), _with_bytes(read_dump(path), EMPTY_STATE), strict=True)
    try:
        for number, (text, (record, line)) in enumerate(pairs, start=1):
            told, state = json.loads(text), line.after
            if line.offset <= offset:
                raise Refused(BAD_EXPORT, f"{path}, line {number}: offset {line.offset} follows offset {offset}")
            offset = line.offset
            expected = _export_line(record, line)
            if text.strip() != expected.encode():
                shown = json.loads(expected)
                wrong = sorted(name for name in {*told, *shown} if told.get(name) != shown.get(name))
                names = ", ".join(wrong) or "the spelling"
                raise Refused(BAD_EXPORT, f"{path}, line {number}: {names} does not follow from the lines before")
            if left.get(state.epoch, state.chain.hex()) != state.chain.hex():
                raise Refused(
                    BAD_EXPORT, f"{path}, line {number}: epoch {state.epoch} has another chain than the anchor"
                )
            left.pop(state.epoch, None)
    except ValueError:
        raise Refused(BAD_EXPORT, f"{path}, line {number}: a replica would halt there, and lines follow") from None
    if left:
        raise Refused(BAD_EXPORT, f"{path} ends with epoch {state.epoch}, before the anchor of epoch {min(left)}")
    return {"records": number, "epoch": state.epoch, "chain": state.chain.hex()}


def _export_line(record: LogRecord, line: FoldedRecord) -> str:
    return json.dumps({"data": record.data.hex(), **line_json(line)})


def _texts(path: Path) -> Iterator[bytes]:
    try:
        yield from read_lines(path)
    except (OSError, ValueError) as error:
        raise Refused(BAD_DUMP, f"{path}: {error}") from error


def _with_bytes(records: Iterable[LogRecord], state: ClusterState) -> Iterator[tuple[LogRecord, FoldedRecord]]:
    """Fold records, and yield each with its result."""
    present: list[LogRecord] = []

    def noted() -> Iterator[LogRecord]:
        for record in records:
            present[:] = [record]
            yield record

    for line in follow(noted(), state):
        yield present[0], line


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
    from ringlog.operator.intents.json_commands import to_json  # pydantic, which readers of a dump do not need

    return to_json(state, item.command)
