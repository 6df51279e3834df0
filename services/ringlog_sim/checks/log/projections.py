"""The projections of the state: the change topics are its differences, and the cache is one of its epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.cache.projection import full_projection
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.model.state import ClusterState
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import CHANGES, Partition
from ringlog_sim.devices.memo import cached_change

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


class ChangesAreTheDifferences(Check):
    """The change topics have each epoch once, in order, complete, and with exactly its difference to the
    previous one.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._read = 0
        self._epoch = 0

    def begin(self, state: ClusterState) -> None:
        """Record that all epochs before the run are published."""
        self._epoch = state.epoch
        self._read = self.sim.broker.partition(CHANGES).visible

    def published(self, partition: Partition) -> None:
        """Check one or more transactions."""
        records = partition.records[self._read : partition.visible]
        self._read = partition.visible
        found: list[tuple[str, object]] = []
        for record in records:
            found.append((record.key, record.value))
            if record.key == "epochs":
                change = cached_change(record.value)
                assert isinstance(change, EpochChange)
                self._compare(change, found)
                found = []
        if found:
            self.sim.broken("changes", "a transaction does not end with its epoch")

    def _compare(self, change: EpochChange, found: list[tuple[str, object]]) -> None:
        if change.epoch != self._epoch + 1:
            self.sim.broken("changes", f"epoch {change.epoch} was published after {self._epoch}")
        states = self.sim.log.states
        if change.epoch >= len(states):
            self.sim.broken("changes", f"epoch {change.epoch} was published before it was in the log")
        expected = self.sim.changes(states[change.epoch - 1], states[change.epoch])
        if expected != found:
            self.sim.broken("changes", f"epoch {change.epoch} was published with other records than its difference")
        self._epoch = change.epoch


COMPARED_EVERY = 16
"""A full comparison costs as much as a small run, so it is made once in this number of epochs and at the end."""


class CacheIsAState(Check):
    """After an acknowledged write, the cache is the complete projection of one epoch of the log."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._seen = (0, 0)

    def stored(self) -> None:
        """Check that the cache's epoch does not decrease, unless it lost its content."""
        confirmed, (losses, epoch) = self.sim.cache.confirmed(), self._seen
        now = self.sim.shared.get("cache_losses", 0)
        if confirmed is None:
            return
        stamp, _ = confirmed
        if now == losses and stamp.epoch < epoch:
            self.sim.broken("cache", f"the cache went from epoch {epoch} back to {stamp.epoch}")
        self._seen = (now, stamp.epoch)

    def cached(self, state: ClusterState) -> None:
        """Check the cache after an applied write for ``state``."""
        stored = self.sim.cache.read()
        if stored is None or stored.stamp.epoch != state.epoch:
            return  # it has been flushed, or replaced by a copy
        if state.epoch % COMPARED_EVERY == 0:
            self._compare(stored.stamp.epoch)

    def quiet(self) -> None:
        """Check that the cache finally has the newest epoch."""
        stored = self.sim.cache.read()
        if stored is None or stored.stamp.epoch != self.sim.log.state.epoch:
            self.sim.broken(
                "cache", f"at the end the cache has {stored and stored.stamp}, the log {self.sim.log.state.epoch}"
            )
        self._compare(self.sim.log.state.epoch)

    def _compare(self, epoch: int) -> None:
        stored = self.sim.cache.read()
        whole = full_projection(self.sim.log.states[epoch])
        wanted: dict[str, dict[str, str]] = {}
        for part, key, value in whole.put:
            wanted.setdefault(part, {})[key] = value
        if stored is None or {part: table for part, table in stored.parts.items() if table} != wanted:
            self.sim.broken("cache", f"the cache is not the projection of epoch {epoch}")
