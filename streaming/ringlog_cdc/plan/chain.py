"""The plan chain: what its entries and marks say together, and the port of what keeps it.

Two adapters, ``PlanStore`` on disk and the simulator's ``Checkpoint``, pass one suite
(``tests/cdc/test_plan_store_conformance.py``).

A part is *settled* when all its rows are durable in their topics, a closing at once. What is durable of the source is
what the settled parts cover without a gap.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from ringlog_cdc.plan.plan import GENESIS, PlanEntry

Done = TypeVar("Done")
Named = TypeVar("Named")


class PlanChain:
    """Entries by sequence number, without a gap, and the sequence numbers of those carried out."""

    def __init__(self, entries: Mapping[int, PlanEntry], done: Collection[int]) -> None:
        self._entries = dict(entries)
        self._done = set(done)

    @property
    def head(self) -> PlanEntry:
        """The newest entry, GENESIS if there is none."""
        return self._entries[max(self._entries)] if self._entries else GENESIS

    def parts(self, batch: int) -> tuple[PlanEntry, ...]:
        """The stored plan parts of a batch, in order."""
        found = [entry for entry in self._entries.values() if entry.kind == "route" and entry.batch == batch]
        return tuple(sorted(found, key=lambda entry: entry.sequence))

    def before(self, entry: PlanEntry) -> PlanEntry | None:
        """The newest plan part before that one which has rows; None if the chain remembers none."""
        older = (found for found in self._entries.values() if found.sequence < entry.sequence and found.ranges)
        return max(older, key=lambda found: found.sequence, default=None)

    def replayed_from(self, batch: int) -> dict[int, int]:
        """Source partition to the first offset that may be handed out again while this batch is carried out.

        It, or the one before it if that one was not committed: Spark goes no further back.
        """
        starts: dict[int, int] = {}
        for part in (*self.parts(batch - 1), *self.parts(batch)):
            for item in part.ranges:
                starts.setdefault(item.partition, item.start)
        return starts

    def is_done(self, entry: PlanEntry) -> bool:
        """True if the entry was marked as carried out, by this driver or one before it."""
        return entry.sequence in self._done

    def undone(self) -> tuple[PlanEntry, ...]:
        """Plan parts with rows that are not marked as carried out, in order."""
        found = [entry for entry in self._entries.values() if entry.ranges and not self.is_settled(entry)]
        return tuple(sorted(found, key=lambda entry: entry.sequence))

    def is_settled(self, entry: PlanEntry) -> bool:
        """True if nothing of the entry is left to do."""
        return entry.kind == "close" or entry.sequence in self._done

    def durable_positions(self) -> dict[int, int]:
        """Source partition to the first offset whose row may not be durable yet."""
        positions: dict[int, int] = {}
        for sequence in sorted(self._entries):
            entry = self._entries[sequence]
            if not self.is_settled(entry):
                break
            positions = dict(entry.positions)
        return positions

    def is_closing_durable(self) -> bool:
        """True if every part before the newest closing is carried out: what it closes takes no more rows."""
        closings = [entry.sequence for entry in self._entries.values() if entry.kind == "close"]
        newest = max(closings, default=-1)
        return all(self.is_settled(entry) for entry in self._entries.values() if entry.sequence < newest)


class StoredChain(PlanChain, ABC, Generic[Done, Named]):
    """A chain that outlives its driver: opened again, it has each entry, mark and context that was stored.

    ``Done``: what storing gives, None after it or steps that perform it; ``Named``: likewise, a name. One that raises
    anything but ChainMoved and ChainBroken may have stored what it was given.
    """

    @abstractmethod
    def append(self, entry: PlanEntry) -> Done:
        """Store the next entry. Raises ChainMoved if that place is taken, ChainBroken if it does not fit."""

    @abstractmethod
    def mark_done(self, entry: PlanEntry) -> Done:
        """All rows of the entry are durable in their topics."""

    @abstractmethod
    def put_context(self, context: Mapping[str, Any]) -> Named:
        """Store what parts are decided with, if it is absent, under its ``context_name``, which is the outcome."""

    @abstractmethod
    def context(self, name: str) -> Mapping[str, Any]:
        """The context stored under ``name``. Raises ChainBroken if it is missing or was changed."""


def canonical(context: Mapping[str, Any]) -> bytes:
    """The one JSON text of a context."""
    return json.dumps(dict(context), sort_keys=True, separators=(",", ":")).encode()


def context_name(data: bytes) -> str:
    """The name of a context with these canonical bytes: hex SHA-256."""
    return hashlib.sha256(data).hexdigest()
