"""The generations of CDC streams, as the change topic ``cdc-generations`` tells them.

A generation operates from its timestamp up to the next one's. Its life: committed (writers may add to it), closed (none
does any more, and the record says how far the CDC topic must be read to have all of it), expired (its rows need no
longer be kept), and perhaps its record is gone in the end. Nothing here looks at a clock: each step is a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringlog.kernel.changes import GenerationChange
from ringlog.kernel.values import Micros


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """What a consumer must know of a generation. ``ends``: (partition, offset) pairs of its close, None while open."""

    id: str
    timestamp: Micros
    ends: tuple[tuple[int, int], ...] | None
    expired: bool


def generation_record(change: GenerationChange) -> GenerationRecord:
    """The part of the record that counts here."""
    ends = None
    if change.closed is not None:
        ends = tuple(sorted((place.partition, place.offset) for place in change.positions))
    return GenerationRecord(change.id, change.timestamp, ends, change.expired is not None)


class Generations:
    """The newest record of every generation; feed it with ``apply`` in the order of the topic."""

    __slots__ = ("_by_id",)

    def __init__(self, records: Iterable[GenerationRecord] = ()) -> None:
        self._by_id = {item.id: item for item in records}

    def apply(self, key: str, change: GenerationChange | None) -> None:
        """Take a record: key and value, None if the generation is gone."""
        if change is None:
            self._by_id.pop(key, None)
        else:
            self._by_id[change.id] = generation_record(change)

    def all(self) -> tuple[GenerationRecord, ...]:
        """All that are known, by ascending timestamp."""
        return tuple(sorted(self._by_id.values(), key=lambda item: item.timestamp))

    def at(self, timestamp: Micros) -> GenerationRecord | None:
        """The one that begins at ``timestamp``."""
        return next((item for item in self._by_id.values() if item.timestamp == timestamp), None)

    def after(self, timestamp: Micros) -> GenerationRecord | None:
        """The next one behind ``timestamp``, expired or not."""
        return next((item for item in self.all() if item.timestamp > timestamp), None)

    def first_kept(self) -> GenerationRecord | None:
        """The first one that has not expired."""
        return next((item for item in self.all() if not item.expired), None)

    def operating(self, timestamp: Micros) -> GenerationRecord | None:
        """The one that operates at ``timestamp``, expired or not; None before the first that is known."""
        return next((item for item in reversed(self.all()) if item.timestamp <= timestamp), None)

    def oldest_open(self) -> GenerationRecord | None:
        """The first one that is not closed: what is appended now belongs to it or to later ones."""
        return next((item for item in self.all() if item.ends is None), None)
