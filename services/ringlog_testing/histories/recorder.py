"""A recorder of histories: one line per event, in order of occurrence, for simulated and real processes.

Guarantee to the reader: an invoke is written before its operation begins, a completion after it has ended. Each line is
one write to a file opened for appending. So several threads and processes may share a file without mixing their lines,
and a killed process loses no recorded event. The recorder does not sync the file to disk.

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

from ringlog_testing.histories.events import Event, Op, OpValue, Type, event_of, to_json


class Sink(Protocol):
    """A receiver of lines without line ends. It keeps their order."""

    def append(self, line: str) -> object:
        """Add one line at the end."""


class FileSink:
    """The end of a file that other processes may also append to. It is a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, line: str) -> None:
        """Write one line in one call. Raise OSError, also if only a part was written."""
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
    """A writer of events. ``clock`` returns microseconds, which are only for people. A list can be the sink.

    A value that breaks the format raises a HistoryError with the rule, before a line is written.
    """

    def __init__(self, sink: Sink, clock: Callable[[], int] | None = None) -> None:
        self._sink = sink
        self._clock = clock

    def event(self, process: str | int, type_: Type, op: Op, key: str, value: OpValue = None, note: str = "") -> None:
        """Record one event."""
        fields: dict[str, Any] = {"process": process, "type": type_, "op": op, "key": key, "value": value}
        if self._clock is not None:
            fields["time"] = self._clock()
        if note:
            fields["note"] = note
        checked: Event = event_of(fields, 0)
        self._sink.append(to_json(checked))

    def invoke(self, process: str | int, op: Op, key: str, value: OpValue = None) -> None:
        """Record that an operation begins. Call this before it begins."""
        self.event(process, Type.INVOKE, op, key, value)

    def ok(self, process: str | int, op: Op, key: str, value: OpValue = None) -> None:
        """Record that the operation took effect and answered ``value``."""
        self.event(process, Type.OK, op, key, value)

    def fail(self, process: str | int, op: Op, key: str, code: str | None = None) -> None:
        """Record that the operation took no effect and never will."""
        self.event(process, Type.FAIL, op, key, code)

    def info(self, process: str | int, op: Op, key: str, code: str | None = None) -> None:
        """Record that the outcome is unknown."""
        self.event(process, Type.INFO, op, key, code)

    @contextmanager
    def operation(self, process: str | int, op: Op, key: str, value: OpValue = None) -> Iterator[Call]:
        """Record an operation around the block: ``info`` unless the block calls ``ok`` or ``fail``."""
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
    """The outcome of the current operation. It is unknown until the block sets it."""

    def __init__(self) -> None:
        self.type = Type.INFO
        self.value: OpValue = None

    def ok(self, value: OpValue = None) -> None:
        """Set the outcome: it took effect and answered ``value``."""
        self.type, self.value = Type.OK, value

    def fail(self, code: str | None = None) -> None:
        """Set the outcome: it took no effect and never will."""
        self.type, self.value = Type.FAIL, code
