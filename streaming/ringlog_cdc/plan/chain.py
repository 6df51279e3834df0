"""The plan chain: queries on its entries and marks, and the port for its storage.

The two adapters, ``PlanStore`` on disk and the simulator's ``Checkpoint``, pass one suite
(``tests/cdc/test_plan_store_conformance.py``).

An entry is *settled* when nothing is left to do for it: a part when all its rows are durable in their topics, a closing
at once. The source is durable as far as settled parts cover it without a gap.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from ringlog_cdc.plan.plan import GENESIS, PlanEntry
from ringlog_cdc.stored_files import encode_file

Done = TypeVar("Done")
Named = TypeVar("Named")


class PlanChain:
    """Entries by sequence number, without a gap, and the sequence numbers of the finished ones."""

    def __init__(self, entries: Mapping[int, PlanEntry], done: Collection[int]) -> None:
        self._entries = dict(entries)
        self._done = set(done)

    @property
    def head(self) -> PlanEntry:
        """The newest entry, or GENESIS."""
        return self._entries[max(self._entries)] if self._entries else GENESIS

    def parts(self, batch: int) -> tuple[PlanEntry, ...]:
        """Return the stored parts of a batch, in order."""
        found = [entry for entry in self._entries.values() if entry.kind == "route" and entry.batch == batch]
        return tuple(sorted(found, key=lambda entry: entry.sequence))

    def before(self, entry: PlanEntry) -> PlanEntry | None:
        """Return the newest part with rows before this entry, or None if the chain has none."""
        older = (found for found in self._entries.values() if found.sequence < entry.sequence and found.ranges)
        return max(older, key=lambda found: found.sequence, default=None)

    def replayed_from(self, batch: int) -> dict[int, int]:
        """Return source partition to the first offset that Spark may replay while this batch is processed.

        Spark replays this batch, or the previous one if that was not committed. It goes back no further.
        """
        starts: dict[int, int] = {}
        for part in (*self.parts(batch - 1), *self.parts(batch)):
            for item in part.ranges:
                starts.setdefault(item.partition, item.start)
        return starts

    def is_done(self, entry: PlanEntry) -> bool:
        """Return True if the entry is marked as done, by this driver or an earlier one."""
        return entry.sequence in self._done

    def undone(self) -> tuple[PlanEntry, ...]:
        """Return the parts with rows that are not marked as done, in order."""
        found = [entry for entry in self._entries.values() if entry.ranges and not self.is_settled(entry)]
        return tuple(sorted(found, key=lambda entry: entry.sequence))

    def is_settled(self, entry: PlanEntry) -> bool:
        """Return True if nothing is left to do for the entry."""
        return entry.kind == "close" or entry.sequence in self._done

    def durable_positions(self) -> dict[int, int]:
        """Return source partition to the first offset whose row may not be durable yet."""
        last: PlanEntry | None = None
        for sequence in sorted(self._entries):
            entry = self._entries[sequence]
            if not self.is_settled(entry):
                break
            last = entry
        return {} if last is None else dict(last.positions)

    def is_closing_durable(self) -> bool:
        """Return True if every part before the newest closing is done.

        The closed generations then receive no more rows.
        """
        closings = [entry.sequence for entry in self._entries.values() if entry.kind == "close"]
        newest = max(closings, default=-1)
        return all(self.is_settled(entry) for entry in self._entries.values() if entry.sequence < newest)


class StoredChain(PlanChain, ABC, Generic[Done, Named]):
    """A chain that survives its driver: after a restart it has each stored entry, mark and context.

    ``Done`` is the result of a store operation: None, or steps that perform it. ``Named`` is the same with a name as
    result. If an operation raises anything but ChainMoved and ChainBroken, it may have stored its argument.
    """

    @abstractmethod
    def append(self, entry: PlanEntry) -> Done:
        """Store the next entry.

        Raises:
            ChainMoved: Another entry has its sequence number.
            ChainBroken: The entry does not fit the chain.
        """

    @abstractmethod
    def mark_done(self, entry: PlanEntry) -> Done:
        """Record that all rows of the entry are durable in their topics."""

    @abstractmethod
    def put_context(self, context: Mapping[str, Any]) -> Named:
        """Store a context unless it exists. The result is its ``context_name``."""

    @abstractmethod
    def context(self, name: str) -> Mapping[str, Any]:
        """Return the context stored under ``name``.

        Raises:
            ChainBroken: It is missing or was changed.
        """


def canonical(context: Mapping[str, Any]) -> bytes:
    """Encode a context as the file that stores it."""
    return encode_file("context", dict(context))


def context_name(data: bytes) -> str:
    """Return the name of a context: the SHA-256 of its canonical bytes in hex."""
    return hashlib.sha256(data).hexdigest()
