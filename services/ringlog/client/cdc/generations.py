"""CDC generations as the change topic ``cdc-generations`` describes them.

A generation is active from its timestamp to the timestamp of the next one. It is *committed* first: writers may add
rows. Then it is *sealed* (``closed`` in its record): no writer adds rows, and the record contains the end offsets of
its rows in the CDC topic. Finally it *expires*: its rows need no longer be kept. Its record may be deleted later. Each
step is a record of the topic; this module uses no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.changes import GenerationChange
from ringlog.kernel.values import Micros, Value


class GenerationRecord(Value):
    """The fields of a generation that consumers use.

    ``ends``: (partition, offset) pairs of its end; None while it is not sealed.
    """

    id: str
    timestamp: Micros
    ends: tuple[tuple[int, int], ...] | None
    expired: bool


def generation_record(change: GenerationChange) -> GenerationRecord:
    """Extract the fields that consumers use."""
    ends = None
    if change.closed is not None:
        ends = tuple(sorted((place.partition, place.offset) for place in change.positions))
    return GenerationRecord(change.id, change.timestamp, ends, change.expired is not None)


class Generations:
    """The newest record of every generation. Call ``apply`` in the order of the topic."""

    __slots__ = ("_by_id",)

    def __init__(self, records: Iterable[GenerationRecord] = ()) -> None:
        self._by_id = {item.id: item for item in records}

    def apply(self, key: str, change: GenerationChange | None) -> None:
        """Apply a record. ``change``: None if the generation was deleted."""
        if change is None:
            self._by_id.pop(key, None)
        else:
            self._by_id[change.id] = generation_record(change)

    def all(self) -> tuple[GenerationRecord, ...]:
        """Return all known generations by ascending timestamp."""
        return tuple(sorted(self._by_id.values(), key=lambda item: item.timestamp))

    def at(self, timestamp: Micros) -> GenerationRecord | None:
        """Return the generation that begins at ``timestamp``."""
        return next((item for item in self._by_id.values() if item.timestamp == timestamp), None)

    def after(self, timestamp: Micros) -> GenerationRecord | None:
        """Return the first generation after ``timestamp``, expired or not."""
        return next((item for item in self.all() if item.timestamp > timestamp), None)

    def first_kept(self) -> GenerationRecord | None:
        """Return the first generation that has not expired."""
        return next((item for item in self.all() if not item.expired), None)

    def operating(self, timestamp: Micros) -> GenerationRecord | None:
        """Return the generation that is active at ``timestamp``, expired or not. None before the first known one."""
        return next((item for item in reversed(self.all()) if item.timestamp <= timestamp), None)

    def oldest_open(self) -> GenerationRecord | None:
        """Return the first generation that is not sealed. New rows belong to it or to a later one."""
        return next((item for item in self.all() if item.ends is None), None)
