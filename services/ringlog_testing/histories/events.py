"""One line of a history: the start of an operation, or its outcome.

A history is the list of client operations, in Jepsen's terms. A process writes ``invoke`` when it begins an operation,
and later one of these:

    ok      it took effect, once, between the two lines; ``value`` is the answer
    fail    it took no effect and never will
    info    the outcome is unknown: it may take effect once, at any time after its invoke, or never

A line is an object with ``process``, ``type``, ``op``, ``key`` and, if the table requires it, ``value``. ``time``
(microseconds) and ``note`` are for people. A broken rule is a ``HistoryError`` with line, field and rule. Scalars are
null, true, false, integers of 64 bits and text. Null is the value of a register before its first write.

    op        invoke's value      ok's value                                  object
    read      none                scalar: the value read                      register
    write     scalar              none                                        register
    cas       [expected, new]     true: swapped; false: found another value   register
    commit    request id          epoch (1 and more)                          log
    barrier   none                epoch (0 and more) of the state then seen   log
    applied   none                [[request id, epoch], …], the whole log     log

The value of ``fail`` and ``info`` is a word on the reason, or none. The order in the file is the order of events.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn, TypeAlias

Scalar: TypeAlias = bool | int | str | None
Pair: TypeAlias = tuple[Scalar, Scalar]
Applied: TypeAlias = tuple[tuple[str, int], ...]
OpValue: TypeAlias = Scalar | Pair | Applied

INT_MAX = 2**63 - 1
_ENCODER = json.JSONEncoder(separators=(",", ":"))
FIELDS = frozenset({"process", "type", "op", "key", "value", "time", "note"})


class Type(StrEnum):
    """The type of a line."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Op(StrEnum):
    """The operation of a line."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"
    COMMIT = "commit"
    BARRIER = "barrier"
    APPLIED = "applied"


REGISTER_OPS = frozenset({Op.READ, Op.WRITE, Op.CAS})
"""Operations of a register. The others are those of a log."""


class HistoryError(ValueError):
    """A broken rule of the format. ``code``: stable word. ``line``: from 1. ``field``: field of the line. ``rule``: the
    rule.
    """

    def __init__(self, code: str, line: int, field: str, rule: str) -> None:
        super().__init__(f"line {line}: {field}: {rule}")
        self.code = code
        self.line = line
        self.field = field
        self.rule = rule

    def __reduce__(self) -> tuple[type[HistoryError], tuple[str, int, str, str]]:
        return type(self), (self.code, self.line, self.field, self.rule)


class Event(NamedTuple):
    """One line. ``value`` follows the table above. ``time`` is in microseconds, for people. ``line`` (from 1) is the
    order.
    """

    line: int
    process: str
    type: Type
    op: Op
    key: str
    value: OpValue = None
    time: int | None = None
    note: str | None = None


def parse_event(text: str, line: int) -> Event:
    """Return the event of one line of JSON. Raise HistoryError."""
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HistoryError("not_json", line, "line", f"must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise HistoryError("not_json", line, "line", "must be a JSON object")
    return event_of(found, line)


def event_of(found: dict[str, Any], line: int) -> Event:
    """Return the event in a decoded object. Raise HistoryError."""
    for name in found:
        if name not in FIELDS:
            _refuse("unknown_field", line, name, f"must be one of {', '.join(sorted(FIELDS))}")
    process, key = found.get("process"), found.get("key")
    if isinstance(process, bool) or not isinstance(process, str | int) or process == "" or not _is_scalar(process):
        _refuse("bad_field", line, "process", "must be text or an integer")
    if not isinstance(key, str) or not _is_scalar(key):
        _refuse("bad_field", line, "key", "must be text")
    kind, op = _choice(Type, found, "type", line), _choice(Op, found, "op", line)
    time, note = found.get("time"), found.get("note")
    if time is not None and (isinstance(time, bool) or not isinstance(time, int) or not _is_scalar(time)):
        _refuse("bad_field", line, "time", "must be an integer: microseconds")
    if note is not None and not isinstance(note, str):
        _refuse("bad_field", line, "note", "must be text")
    value = _value(kind, op, found, line)
    return Event(line, str(process), kind, op, key, value, time, note)


def to_json(event: Event) -> str:
    """Return the line of an event, without its end."""
    shown: dict[str, Any] = {"process": event.process, "type": event.type, "op": event.op, "key": event.key}
    if event.value is not None or _asks_for_value(event.type, event.op):
        shown["value"] = event.value
    shown |= {} if event.time is None else {"time": event.time}
    shown |= {} if event.note is None else {"note": event.note}
    return _ENCODER.encode(shown)


def _asks_for_value(kind: Type, op: Op) -> bool:
    return (kind, op) in VALUES and VALUES[kind, op] is not _nothing


def _choice(choices: Any, found: dict[str, Any], field: str, line: int) -> Any:
    try:
        return choices(found.get(field))
    except ValueError:
        _refuse("bad_field", line, field, f"must be one of {', '.join(choices)}")


def _value(kind: Type, op: Op, found: dict[str, Any], line: int) -> OpValue:
    value = found.get("value")
    if kind in (Type.FAIL, Type.INFO):
        if value is not None and not (isinstance(value, str) and _is_scalar(value)):
            _refuse("bad_value", line, "value", f"of {kind} must be a word about the reason, or null")
        return value
    read = VALUES[kind, op]
    if read is not _nothing and "value" not in found:
        _refuse("missing", line, "value", f"of {op} {kind} is missing")
    return read(value, line, f"of {op} {kind}")


def _nothing(value: Any, line: int, what: str) -> OpValue:
    if value is not None:
        _refuse("bad_value", line, "value", f"{what} must be null")
    return None


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return not any(0xD800 <= ord(sign) <= 0xDFFF for sign in value)
    if isinstance(value, int):
        return -INT_MAX - 1 <= value <= INT_MAX
    return value is None


def _scalar(value: Any, line: int, what: str) -> Scalar:
    if not _is_scalar(value):
        _refuse("bad_value", line, "value", f"{what} must be null, true, false, an integer of 64 bits or text")
    found: Scalar = value
    return found


def _pair(value: Any, line: int, what: str) -> OpValue:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_scalar, value)):
        _refuse("bad_value", line, "value", f"{what} must be [expected, new], two scalars")
    return value[0], value[1]


def _truth(value: Any, line: int, what: str) -> OpValue:
    if not isinstance(value, bool):
        _refuse("bad_value", line, "value", f"{what} must be true (swapped) or false (found another value)")
    return value


def _request(value: Any, line: int, what: str) -> OpValue:
    if not isinstance(value, str) or not value or not _is_scalar(value):
        _refuse("bad_value", line, "value", f"{what} must be a request id, text")
    return value


def _is_epoch(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= INT_MAX


def _committed(value: Any, line: int, what: str) -> OpValue:
    if not _is_epoch(value, 1):
        _refuse("bad_value", line, "value", f"{what} must be an epoch, 1 or more")
    epoch: int = value
    return epoch


def _seen(value: Any, line: int, what: str) -> OpValue:
    if not _is_epoch(value, 0):
        _refuse("bad_value", line, "value", f"{what} must be an epoch, 0 or more")
    epoch: int = value
    return epoch


def _applied(value: Any, line: int, what: str) -> OpValue:
    entries = []
    listed: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    for one in listed:
        is_entry = isinstance(one, list | tuple) and len(one) == 2
        if not is_entry or not isinstance(one[0], str) or not _is_scalar(one[0]) or not _is_epoch(one[1], 1):
            _refuse("bad_value", line, "value", f"{what} must be a list of [request id, epoch]")
        entries.append((one[0], one[1]))
    return tuple(entries)


VALUES: dict[tuple[Type, Op], Callable[[Any, int, str], OpValue]] = {
    (Type.INVOKE, Op.READ): _nothing,
    (Type.INVOKE, Op.WRITE): _scalar,
    (Type.INVOKE, Op.CAS): _pair,
    (Type.INVOKE, Op.COMMIT): _request,
    (Type.INVOKE, Op.BARRIER): _nothing,
    (Type.INVOKE, Op.APPLIED): _nothing,
    (Type.OK, Op.READ): _scalar,
    (Type.OK, Op.WRITE): _nothing,
    (Type.OK, Op.CAS): _truth,
    (Type.OK, Op.COMMIT): _committed,
    (Type.OK, Op.BARRIER): _seen,
    (Type.OK, Op.APPLIED): _applied,
}
"""Reader of ``value`` by the line's type and operation: the table of this module as code."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field occurs twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _refuse(code: str, line: int, field: str, rule: str) -> NoReturn:
    raise HistoryError(code, line, field, rule)
