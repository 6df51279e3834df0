"""The verdict on a recorded history of a load.

Two checkers decide. ``order`` reads the file once, with memory for the keys only, so that a load may run for days.
``histories`` decides whether the history is linearizable, without knowledge of the values' order. It needs all
operations in memory and therefore skips large files. Both must agree: a history without a violation is linearizable.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ringlog.kernel.values import Value
from ringlog_testing.histories.check import check
from ringlog_testing.histories.events import Event, HistoryError, parse_event
from ringlog_testing.histories.operations import read
from ringlog_testing.histories.verdict import Linearizability
from ringlog_testing.load.order import LoadCheck, LoadViolation

EVENTS_MAX = 400_000
"""Events of a file that the checker of linearizability reads: about 400 MB of memory."""
LINE_BYTES_MAX = 65_536


class LoadVerdict(Value):
    """The verdict on a history.

    ``done``, ``unknown``: number of operations. ``violations``: the first ones, of ``count``. ``witness``: the events
    of the first violation. ``linearizable``: None if the file is too large. ``is_torn``: the last line is incomplete.
    """

    done: int
    unknown: int
    keys: int
    count: int
    violations: tuple[LoadViolation, ...]
    witness: tuple[Event, ...]
    linearizable: Linearizability | None
    is_torn: bool

    @property
    def disagrees(self) -> bool:
        """Return whether the checkers contradict each other: one of them has a defect."""
        return not self.count and self.linearizable is Linearizability.NOT_LINEARIZABLE


def judge(path: Path, events_max: int = EVENTS_MAX) -> LoadVerdict:
    """Return the verdict on a history. Raise OSError, or HistoryError with line, field and rule."""
    found, events, is_torn = LoadCheck(), 0, False
    for event in _events(path):
        if event is None:
            is_torn = True
        else:
            found.take(event)
            events += 1
    violations = tuple(found.violations)
    lines = frozenset(violations[0].lines) if violations else frozenset[int]()
    linearizable = check(read(path)).verdict if events <= events_max else None
    unknown = found.unknown + found.still_open
    witness = tuple(event for event in _events(path) if event is not None and event.line in lines) if lines else ()
    return LoadVerdict(found.done, unknown, found.keys, found.count, violations, witness, linearizable, is_torn)


def _events(path: Path) -> Iterator[Event | None]:
    """Yield the events of a file; None for an incomplete last line, which a killed process may leave."""
    with path.open("rb") as file:
        for number, raw in enumerate(_lines(file), start=1):
            if not raw.strip():
                continue
            try:
                yield parse_event(raw.decode(), number)
            except UnicodeDecodeError as error:
                raise HistoryError("not_json", number, "line", f"must be UTF-8: {error.reason}") from error
            except HistoryError as error:
                if error.code != "not_json" or raw.endswith(b"\n"):
                    raise
                yield None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. An overlong line is not an event; it must not fill the memory."""
    while raw := file.readline(LINE_BYTES_MAX):
        yield raw
