"""The zone rebalancer's controller: its sources are acknowledgements and the zones' timers, its planner is ``core``.

After the take-over it reads the compacted acks topic from the beginning, then new records, as the coordinator does. It
writes to no topic, and each request names its cause or revision, so its term in the log is
a sufficient fence.

No record announces the end of a timer. The driver's longest wait (``Wait.NEWS``) bounds the delay.

Source: Ignite 3, the rebalance design and its placement driver.
"""

from __future__ import annotations

from ringlog.kernel.values import replace
from ringlog.protocol.controller import Controller, RoundPlan, Wait, control
from ringlog.protocol.coordinator.ack_book import AckBook, read_acks, update_acks
from ringlog.protocol.effects import Newest, Steps, WallClock
from ringlog.protocol.rebalancer.core import RebalancerView, idle_zones, propose, rejections
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES
from ringlog.protocol.rebalancer.zone_groups import session_reports

_PARTS = ("settings", "nodes", "zones", "zone_partitions", "keyspaces", "pauses", "recoveries")
"""The state sections that a proposal depends on. ``recoveries``: proposals that a recovery held back follow its end."""
_DATA_PARTS = (*_PARTS, "tables", "operations", "tablets")
"""The same if a zone places a keyspace."""


class RebalancerController(Controller):
    """One term of the zone rebalancer. ``_seen``: the inputs of the last plan."""

    fault_point = "rebalancing"

    def __init__(self) -> None:
        self._acks = AckBook()
        self._timers, self._idle = Timers(), NO_IDLE_ZONES
        self._seen: tuple[object, ...] = ()

    async def start(self) -> None:
        """Read all acknowledgements."""
        self._acks = await read_acks()

    async def update(self, wait: Wait) -> None:
        """Read new acknowledgements."""
        self._acks = await update_acks(self._acks, wait)

    async def plan(self) -> RoundPlan | None:
        """Return the next steps of zone partitions, and data nodes with an expired timer."""
        state = await Newest()
        now = await WallClock()
        self._timers = updated_timers(self._timers, state)
        reports = session_reports(state, self._acks.newest(state))
        view = RebalancerView(state, reports, new_data_nodes(self._timers, state, now), self._idle)
        if (inputs := _inputs(view)) == self._seen:
            return None
        self._seen, self._idle = inputs, idle_zones(view)
        view = replace(view, idle=self._idle)
        return RoundPlan(tuple(propose(view)), tuple(rejections(view)))

    def forget_inputs(self) -> None:
        """RoundPlan in the next round."""
        self._seen = ()


def rebalance() -> Steps[None]:
    """Serve one term of the rebalancer. Only an exception of the driver ends it."""
    return control(RebalancerController())


def _inputs(view: RebalancerView) -> tuple[object, ...]:
    """Return values that are equal if the proposals would be equal."""
    placed = any(one.replication.zone for one in view.state.keyspaces.values())
    changed = (view.state.changed.get(part, 0) for part in (_DATA_PARTS if placed else _PARTS))
    return (*changed, view.reports, view.data_nodes)
