"""The independent model of the ring (``ringlog_testing.placement.movements``) that the checks of one run share."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
