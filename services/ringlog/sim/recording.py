"""The history of one run, in memory: what clients asked and what they got, in the order in which it happened."""

from __future__ import annotations

from ringlog.sim.histories.events import Event, Op, Type, Value, to_json
from ringlog.sim.histories.operations import OperationHistory, pair

LOG = "log"
"""The key under which the metadata log stands."""


class Recording:
    """Every operation has a process of its own, so one that was cut off is open for ever: its outcome is unknown."""

    def __init__(self) -> None:
        self._count = 0
        self.events: list[Event] = []

    def invoke(self, who: str, op: Op, key: str, value: Value = None) -> Event:
        """An operation of ``who`` begins; give what this returns to ``ok`` or ``fail``."""
        self._count += 1
        return self._add(Event(len(self.events) + 1, f"{who}#{self._count}", Type.INVOKE, op, key, value))

    def ok(self, begun: Event, value: Value = None) -> None:
        """It took effect and answered ``value``."""
        self._add(Event(len(self.events) + 1, begun.process, Type.OK, begun.op, begun.key, value))

    def fail(self, begun: Event, code: str) -> None:
        """It took no effect and never will."""
        self._add(Event(len(self.events) + 1, begun.process, Type.FAIL, begun.op, begun.key, code))

    def _add(self, event: Event) -> Event:
        self.events.append(event)
        return event

    def history(self) -> OperationHistory:
        """All of it, as operations by key."""
        return pair(self.events)

    def lines(self) -> list[str]:
        """All of it, as lines of JSON."""
        return [to_json(event) for event in self.events]
