"""Readers and writers of each range, compared with a naive layout from an independent model."""

from __future__ import annotations

from collections.abc import Iterator

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.movements import movements
from ringlog_testing.placement.comparison import owner_faults, placement_faults


class Placements(Check):
    """At every epoch, live placements follow from stage and token map: ranges, groups, their order, and first epochs.

    With nothing in flight, they are the canonical layout. After a cancel, they are as before the operation's admission.
    """

    def begin(self, state: ClusterState) -> None:
        """Check the placements at the start of the run."""
        self._compare(placement_faults(state, movements(self.sim).upto(state.epoch)))

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Compare whenever the placements or the model have changed."""
        record = movements(self.sim).upto(after.epoch)
        if after.placements is not before.placements or record.refreshed == after.epoch:
            self._compare(placement_faults(after, record))
        if after.token_owners is not before.token_owners or record.refreshed == after.epoch:
            self._compare(owner_faults(after, record))

    def _compare(self, faults: Iterator[str]) -> None:
        for fault in faults:
            self.sim.broken("placement", fault)
