"""A short second implementation of the log protocol: one chain, each request at most once, epochs without a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog_sim.checks.base import Check

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


class ChainCheck(Check):
    """An applied entry follows the previous one, has a new request id and makes the next epoch. Others
    change nothing.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._last: Entry | None = None
        self._requests: dict[str, int] = {}
        self._state_ids: set[str] = set()
        self._epoch = 0

    def begin(self, state: ClusterState) -> None:
        """Record the log before the run."""
        for entry in self.sim.log.entries[1:]:
            assert entry is not None, "an applied record is an entry"
            self._epoch += 1
            self._requests[entry.request_id] = self._epoch
            self._state_ids.add(entry.state_id)
            self._last = entry

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """Check one more record of the true log."""
        if outcome.kind is not OutcomeKind.APPLIED:
            if after is not before:
                self.sim.broken("chain", f"offset {offset} was {outcome.kind.value}, but changed the state")
            return
        if not isinstance(item, Entry):
            self.sim.broken("chain", f"offset {offset} is not an entry, but was applied")
            return
        last = self._last
        expected = None if last is None else last.state_id
        if item.prev_state_id != expected:
            self.sim.broken("chain", f"offset {offset} follows {item.prev_state_id}, the last applied is {expected}")
        if item.cluster_id != self.sim.log.states[1].cluster_id:
            self.sim.broken("chain", f"offset {offset} belongs to another cluster")
        if item.request_id in self._requests:
            self.sim.broken(
                "exactly_once",
                f"request {item.request_id} made epochs {self._requests[item.request_id]} and {after.epoch}",
            )
        if item.state_id in self._state_ids or (last is not None and item.state_id <= last.state_id):
            self.sim.broken("chain", f"state id {item.state_id} of offset {offset} does not ascend")
        self._epoch += 1
        if (after.epoch, after.state_id) != (self._epoch, item.state_id):
            self.sim.broken("chain", f"offset {offset} made epoch {after.epoch}, expected {self._epoch}")
        if after.time < before.time:
            self.sim.broken("chain", f"the state time decreased at epoch {after.epoch}")
        self._requests[item.request_id] = after.epoch
        self._state_ids.add(item.state_id)
        self._last = item
