"""Records histories: one line an event, in the order in which they happened, for simulated and for real processes.

The promise to the reader: an invoke is written before its operation begins, a completion after it ended. Each line goes
out in one write to a file opened for appending, so that several threads and processes may record into one file, their
lines never mix, and a killed process loses nothing that it recorded. Nothing is forced to the disk.

    recorder = Recorder(FileSink(path), clock)
    with recorder.operation("c1", Op.WRITE, "k", 5) as call:
        store.write("k", 5)          # raises: info, the outcome is unknown
        call.ok()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ringlog_testing.histories.events import Event, Op, Type, Value, event_of, to_json


class Sink(Protocol):
    """Takes lines, each without its end, and keeps their order."""

    def append(self, line: str) -> object:
        """Add one line at the end."""


class FileSink:
    """Lines at the end of a file that others may append to as well; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, line: str) -> None:
        """Write one line in one step; raises OSError, also where only a part of it went out."""
        data = line.encode() + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError("only a part of the line was written")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> FileSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recorder:
    """Writes events. ``clock`` gives microseconds; it serves people, nothing is decided by it. A list is a sink, too.

    A value that breaks the format is refused here, as a HistoryError that names the rule, before a line is written.
    """

    def __init__(self, sink: Sink, clock: Callable[[], int] | None = None) -> None:
        self._sink = sink
        self._clock = clock

    def event(self, process: str | int, type_: Type, op: Op, key: str, value: Value = None, note: str = "") -> None:
        """Record one event."""
        fields: dict[str, Any] = {"process": process, "type": type_, "op": op, "key": key, "value": value}
        if self._clock is not None:
            fields["time"] = self._clock()
        if note:
            fields["note"] = note
        checked: Event = event_of(fields, 0)
        self._sink.append(to_json(checked))

    def invoke(self, process: str | int, op: Op, key: str, value: Value = None) -> None:
        """An operation begins: call this before it does."""
        self.event(process, Type.INVOKE, op, key, value)

    def ok(self, process: str | int, op: Op, key: str, value: Value = None) -> None:
        """It took effect and answered ``value``."""
        self.event(process, Type.OK, op, key, value)

    def fail(self, process: str | int, op: Op, key: str, code: str | None = None) -> None:
        """It took no effect and never will."""
        self.event(process, Type.FAIL, op, key, code)

    def info(self, process: str | int, op: Op, key: str, code: str | None = None) -> None:
        """Nobody knows whether it took, or will take, effect."""
        self.event(process, Type.INFO, op, key, code)

    @contextmanager
    def operation(self, process: str | int, op: Op, key: str, value: Value = None) -> Iterator[Call]:
        """Record an operation around the block: ``info`` unless the block says ``ok`` or ``fail``."""
        self.invoke(process, op, key, value)
        call = Call()
        try:
            yield call
        except BaseException as error:
            if call.type is Type.INFO:
                call.value = type(error).__name__
            raise
        finally:
            self.event(process, call.type, op, key, call.value)


class Call:
    """What became of an operation that is being recorded: unknown until the block says otherwise."""

    def __init__(self) -> None:
        self.type = Type.INFO
        self.value: Value = None

    def ok(self, value: Value = None) -> None:
        """It took effect and answered ``value``."""
        self.type, self.value = Type.OK, value

    def fail(self, code: str | None = None) -> None:
        """It took no effect and never will."""
        self.type, self.value = Type.FAIL, code
