"""A reader of JSON-line histories. It pairs each invoke with its completion and groups the operations by key.

Invariants: a process has at most one open operation. A completion names the operation and key of its process's open
invoke. An operation without a completion is ``info``, because the recorder or the process was stopped. A process may
continue after ``info`` (Jepsen gives it a new name). Its open operation stays concurrent with all later operations.

A killed recorder may leave an incomplete last line. It is ignored, and the history reports it. An invoke is written
before its operation begins, so an incomplete invoke means that no operation began. An incomplete completion leaves the
outcome unknown. Any other line that breaks the format is a ``HistoryError``.

A history is linearizable if and only if it is linearizable for each key (Herlihy and Wing: locality). So it is enough
to check operations by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ringlog.files import read_input
from ringlog.kernel.values import Value
from ringlog_testing.histories.events import REGISTER_OPS, Event, HistoryError, Op, OpValue, Type, parse_event


class ClientOperation(Value):
    """One operation. ``type`` is its outcome, never invoke. ``invoked`` and ``returned`` are line numbers.

    ``returned`` is None for ``info``. ``asked`` is the invoke's value, ``answer`` the completion's.
    """

    process: str
    op: Op
    key: str
    type: Type
    asked: OpValue
    answer: OpValue
    invoked: int
    returned: int | None


class OperationHistory(Value):
    """Operations by key, sorted by name. ``is_torn``: the last line was incomplete and is ignored."""

    keys: tuple[tuple[str, tuple[ClientOperation, ...]], ...]
    events: int
    is_torn: bool = False

    @property
    def operations(self) -> int:
        """Return the number of operations."""
        return sum(len(found) for _, found in self.keys)


def pair(events: Iterable[Event], is_torn: bool = False) -> OperationHistory:
    """Return the operations of ordered events. Raise HistoryError if the events do not fit together."""
    open_: dict[str, Event] = {}
    keys: dict[str, list[ClientOperation]] = {}
    count = 0
    for event in events:
        count += 1
        if event.type is Type.INVOKE:
            if event.process in open_:
                line = open_[event.process].line
                raise HistoryError("still_open", event.line, "process", f"still has an open operation from line {line}")
            open_[event.process] = event
            continue
        begun = open_.pop(event.process, None)
        if begun is None:
            raise HistoryError("not_open", event.line, "process", "has no open operation")
        for field, now, then in (("op", event.op, begun.op), ("key", event.key, begun.key)):
            if now != then:
                raise HistoryError("other_operation", event.line, field, f"is {then} on line {begun.line}")
        keys.setdefault(event.key, []).append(_operation(begun, event))
    for begun in open_.values():
        keys.setdefault(begun.key, []).append(_operation(begun, None))
    grouped = tuple((key, tuple(sorted(keys[key], key=lambda one: one.invoked))) for key in sorted(keys))
    for _, operations in grouped:
        _one_model(operations)
    return OperationHistory(grouped, count, is_torn)


def is_register(operations: tuple[ClientOperation, ...]) -> bool:
    """Return whether a key's operations are those of a register, not of a log."""
    return operations[0].op in REGISTER_OPS


def until(operations: tuple[ClientOperation, ...], line: int) -> tuple[ClientOperation, ...]:
    """Return the operations as known at ``line``. Later returns are still open; later invokes are left out."""
    known = []
    for one in operations:
        if one.invoked > line:
            continue
        if one.returned is not None and one.returned > line:
            one = ClientOperation(one.process, one.op, one.key, Type.INFO, one.asked, None, one.invoked, None)
        known.append(one)
    return tuple(known)


def _operation(begun: Event, ended: Event | None) -> ClientOperation:
    end_type = Type.INFO if ended is None else ended.type
    answer = None if ended is None else ended.value
    returned = None if ended is None or end_type is Type.INFO else ended.line
    return ClientOperation(begun.process, begun.op, begun.key, end_type, begun.value, answer, begun.line, returned)


def _one_model(operations: tuple[ClientOperation, ...]) -> None:
    """Reject a key used as register and log, and a log that is read as a whole before its end."""
    of_register = is_register(operations)
    whole: ClientOperation | None = None
    for one in operations:
        if (one.op in REGISTER_OPS) != of_register:
            rule = f"{one.op} on a key that line {operations[0].invoked} uses for {operations[0].op}"
            raise HistoryError("mixed_key", one.invoked, "op", rule)
        if whole is not None:
            raise HistoryError("applied_not_last", one.invoked, "op", "comes after the read of the whole log")
        if one.op is Op.APPLIED and one.type is Type.OK:
            whole = one
    if whole is not None:
        for one in operations:
            if one is not whole and one.returned is not None and one.returned > whole.invoked:
                raise HistoryError("applied_not_last", one.returned, "op", "ends after the read of the whole log")


HISTORY_BYTES_MAX = 2**30
"""About ten million events."""


def read(path: Path) -> OperationHistory:
    """Return the history in a file. Raise OSError, or HistoryError with line, field and rule."""
    return read_bytes(read_input(path, HISTORY_BYTES_MAX))


def read_bytes(data: bytes) -> OperationHistory:
    """Return the history in bytes of UTF-8. Raise HistoryError."""
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
            raise HistoryError("not_json", line, "line", f"must be UTF-8: {error.reason}") from error
        yield parse_event(text, line)
