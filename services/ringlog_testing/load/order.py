"""The check of a load's history in one pass, with memory for its keys and open operations only.

A load writes the values 1, 2, 3, … to each key. A greater value has a later timestamp, so the last write wins. Each
read must then satisfy three rules:

    invented    the value was written before the read returned, and the write was not rejected
    lost        the value is not smaller than that of any write that was acknowledged before the read began
    stale       nor smaller than the answer of any read that returned before

The rules are necessary and sufficient: a history that satisfies them is linearizable in the order of the values, and a
history that breaks one contradicts this order. Two operations at most show a violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ringlog.kernel.values import Value
from ringlog_testing.histories.events import Event, HistoryError, Op, Type

VIOLATIONS_MAX = 10
"""Violations to keep. Their number is always complete."""
REJECTED_MAX = 100_000
"""WriteRejected writes to keep. A load with more of them writes into the wrong table."""
LOST_ROWS = "rows lost on "
"""The beginning of a note: a replica lacked rows that another replica had. The names of the replicas follow."""


class ViolationKind(StrEnum):
    """The rule that an answer breaks."""

    INVENTED = "invented value"
    LOST = "lost write"
    STALE = "stale read"
    LOST_ROWS = "lost rows"


class LoadViolation(Value):
    """An answer that breaks a rule. ``lines``: of the events of the smallest witness, ascending."""

    kind: ViolationKind
    key: str
    why: str
    lines: tuple[int, ...]


class _Seen(Value):
    """The greatest value that an operation has shown: a write by its acknowledgement, a read by its answer."""

    value: int = 0
    op: Op = Op.READ
    lines: tuple[int, ...] = ()


@dataclass(slots=True)
class _Key:
    written: int
    """The last value that a write began with."""
    seen: _Seen
    rejected: dict[int, tuple[int, ...]]
    """A rejected value to the lines of its write."""
    pending: dict[int, tuple[int, ...]]
    """The value of an open write to the lines of the first read that returned it."""


class _Open(Value):
    """An operation without an outcome, and the values shown before it began."""

    event: Event
    before: _Seen


class LoadCheck:
    """The check of a growing history. Call ``take`` with each event in the order of the file.

    ``done`` and ``unknown`` count operations, ``count`` violations.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        self._open: dict[str, _Open] = {}
        self._rejected = 0
        self.violations: list[LoadViolation] = []
        self.count = 0
        self.done = 0
        self.unknown = 0

    @property
    def keys(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    @property
    def still_open(self) -> int:
        """Return the number of operations without an outcome."""
        return len(self._open)

    def take(self, event: Event) -> None:
        """Check an event. Raise HistoryError if it is not one of a load."""
        key = self._keys.setdefault(event.key, _Key(0, _Seen(), {}, {}))
        if event.type is Type.INVOKE:
            self._begin(event, key)
            return
        begun = self._open.pop(event.process, None)
        if begun is None:
            raise HistoryError("not_open", event.line, "process", "has no open operation")
        if (begun.event.op, begun.event.key) != (event.op, event.key):
            raise HistoryError("other_operation", event.line, "op", f"differs from line {begun.event.line}")
        self.unknown += event.type is Type.INFO
        self.done += event.type is not Type.INFO
        for found in self._ended(begun, event, key):
            self.count += 1
            if self.count <= VIOLATIONS_MAX:
                self.violations.append(found)

    def _begin(self, event: Event, key: _Key) -> None:
        if event.process in self._open:
            line = self._open[event.process].event.line
            raise HistoryError("still_open", event.line, "process", f"still has an open operation from line {line}")
        if event.op is Op.WRITE:
            if event.value != key.written + 1:
                raise HistoryError("bad_value", event.line, "value", f"of the next write must be {key.written + 1}")
            key.written += 1
            key.pending[key.written] = ()
        elif event.op is not Op.READ:
            raise HistoryError("other_operation", event.line, "op", "of a load is read or write")
        self._open[event.process] = _Open(event, key.seen)

    def _ended(self, begun: _Open, event: Event, key: _Key) -> Iterator[LoadViolation]:
        lines = (begun.event.line, event.line)
        if event.op is Op.WRITE:
            value = _number(begun.event)
            readers = key.pending.pop(value)
            if event.type is Type.OK:
                self._show(key, _Seen(value, Op.WRITE, lines))
            elif event.type is Type.FAIL:
                self._reject(event, key, value, lines)
                if readers:
                    yield _rejected(event.key, value, (*lines, *readers))
        elif event.type is Type.OK:
            yield from self._read(begun, event, key, lines)

    def _read(self, begun: _Open, event: Event, key: _Key, lines: tuple[int, ...]) -> Iterator[LoadViolation]:
        value = 0 if event.value is None else _number(event)
        if (event.note or "").startswith(LOST_ROWS):
            yield LoadViolation(ViolationKind.LOST_ROWS, event.key, f"{event.note}", lines)
        if value > key.written:
            yield LoadViolation(ViolationKind.INVENTED, event.key, f"no write began with the value {value}", lines)
            return
        if value in key.rejected:
            yield _rejected(event.key, value, (*key.rejected[value], *lines))
        elif key.pending.get(value) == ():
            key.pending[value] = lines
        before = begun.before
        if value < before.value:
            what = "write" if before.op is Op.WRITE else "read"
            why = f"the read returned {event.value}, but a {what} of {before.value} had ended before it began"
            kind = ViolationKind.LOST if before.op is Op.WRITE else ViolationKind.STALE
            yield LoadViolation(kind, event.key, why, tuple(sorted((*before.lines, *lines))))
        self._show(key, _Seen(value, Op.READ, lines))

    def _reject(self, event: Event, key: _Key, value: int, lines: tuple[int, ...]) -> None:
        self._rejected += 1
        if self._rejected > REJECTED_MAX:
            raise HistoryError("too_many_rejected", event.line, "type", f"is fail in more than {REJECTED_MAX} writes")
        key.rejected[value] = lines

    @staticmethod
    def _show(key: _Key, seen: _Seen) -> None:
        """Raise the greatest shown value. An acknowledged write takes precedence over a read of the same value."""
        if (seen.value, seen.op is Op.WRITE) > (key.seen.value, key.seen.op is Op.WRITE):
            key.seen = seen


def _rejected(name: str, value: int, lines: tuple[int, ...]) -> LoadViolation:
    return LoadViolation(ViolationKind.INVENTED, name, f"the write of {value} was rejected", tuple(sorted(lines)))


def _number(event: Event) -> int:
    if isinstance(event.value, bool) or not isinstance(event.value, int) or event.value < 1:
        raise HistoryError("bad_value", event.line, "value", "of a load must be a number from 1")
    return event.value
