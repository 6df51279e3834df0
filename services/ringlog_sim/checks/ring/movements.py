"""Readers and writers of each range, compared with an independent model (``ringlog_testing.placement.movements``).

The checks of one run share the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog_sim.checks.base import Check
from ringlog_testing.placement.comparison import owner_faults, placement_faults
from ringlog_testing.placement.movements import Movements

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


def movements(sim: Simulation) -> Movements:
    """Return the model that the checks of one run share."""
    found = sim.shared.get("movements")
    if not isinstance(found, Movements):
        found = sim.shared["movements"] = _begun(sim)
    return found


_KEPT_MAX = 512
_kept: dict[int, tuple[object, Movements]] = {}
"""The model at the end of a log from before a run, by the id of that log, which many runs share."""


def _begun(sim: Simulation) -> Movements:
    """Return the model of the log that the run began with."""
    if sim.prefix is None:
        return Movements(sim.log)
    kept = _kept.get(id(sim.prefix))
    if kept is None:
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        # The log is stored with it, so that its id is not reused.
        kept = _kept[id(sim.prefix)] = sim.prefix, Movements(sim.log).upto(sim.preloaded).of(sim.log)
    return kept[1].of(sim.log)


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
