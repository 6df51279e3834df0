"""Reads histories: a file of JSON lines to operations.

A recorder that was killed may leave half a line at the end. It is left out, and the history says so: an invoke is
written before its operation begins, so half of one means that nothing was asked; half of a completion leaves the
outcome unknown. Any other line that breaks the format is a ``HistoryError``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ringlog.runtime.inputs import read_input
from ringlog.sim.histories.events import Event, HistoryError, parse_event
from ringlog.sim.histories.operations import OperationHistory, pair

HISTORY_BYTES_MAX = 2**30
"""Ten million events or so."""


def read(path: Path) -> OperationHistory:
    """The history in a file; raises OSError, or HistoryError with line, field and rule."""
    return read_bytes(read_input(path, HISTORY_BYTES_MAX))


def read_bytes(data: bytes) -> OperationHistory:
    """The history in bytes of UTF-8; raises HistoryError."""
    whole, newline, rest = data.rpartition(b"\n")
    events = list(_events(whole + newline))
    is_torn = False
    if rest.strip():
        try:
            events += _events(rest, first=whole.count(b"\n") + bool(newline) + 1)
        except HistoryError as error:
            if error.code != "not_json":
                raise
            is_torn = True
    return pair(events, is_torn)


def _events(data: bytes, first: int = 1) -> Iterator[Event]:
    for line, raw in enumerate(data.split(b"\n"), start=first):
        if not raw.strip():
            continue
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise HistoryError("not_json", line, "line", f"is UTF-8: {error.reason}") from error
        yield parse_event(text, line)
