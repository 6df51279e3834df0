"""The rebalancer at work: knows the newest word of each node and the zones' timers, looks at each change, and asks the
validator for what the core proposes.

After its take-over it reads the compacted acks topic from the beginning, as the coordinator does; then it hears what
comes in. It writes to no topic of its own, and each request names the cause or the revision that it was decided on, so
its term in the log is all the fence it needs.

While a timer runs nothing happens that would wake it: it looks at the clock whenever its driver lets it look around.

Source: Ignite 3's design of the rebalance, the placement driver.
"""

from __future__ import annotations

from dataclasses import replace

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.coordinator.coordinator import ReportRejections, Wait, ask, read_acks, update_acks
from ringlog.protocol.effects import FaultPoint, Newest, Steps, WallClock
from ringlog.protocol.rebalancer.core import RebalancerView, idle_zones, propose, refusals
from ringlog.protocol.rebalancer.data_nodes import Timers, due, followed
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.protocol.role import Accept, CheckSuperseded

_PARTS = ("settings", "nodes", "zones", "zone_partitions", "keyspaces", "pauses", "recoveries")
"""What a proposal depends on, beside words and timers; what a recovery holds up goes on when it is over."""
_DATA_PARTS = (*_PARTS, "tables", "operations", "tablets")
"""The same where a zone places a keyspace."""


def rebalance() -> Steps[None]:
    """Serve one term of the rebalancer; ends by what the driver raises."""
    timers, rest = Timers(), NO_IDLE_ZONES
    acks = yield from read_acks()
    yield Accept()
    seen: tuple[object, ...] = ()
    wait = Wait.NOTHING
    while True:
        acks = yield from update_acks(acks, wait)
        yield CheckSuperseded()
        state: ClusterState = yield Newest()
        now: Micros = yield WallClock()
        timers = followed(timers, state)
        view = RebalancerView(state, session_reports(state, acks.newest(state)), due(timers, state, now), rest)
        wait = Wait.NEWS
        if (inputs := _inputs(view)) == seen:
            continue
        seen, rest = inputs, idle_zones(view)
        view = replace(view, rest=rest)
        refused = []
        for proposal in propose(view):
            yield FaultPoint("rebalancing")
            refusal = yield from ask(proposal)
            if refusal is not None:
                refused.append(refusal)
            wait = Wait.NOTHING
        yield ReportRejections((*refusals(view), *refused))
        if refused:
            seen, wait = (), Wait.PAUSE


def _inputs(view: RebalancerView) -> tuple[object, ...]:
    """Equal as long as the proposals would be the same."""
    placed = any(one.replication.zone for one in view.state.keyspaces.values())
    changed = (view.state.changed.get(part, 0) for part in (_DATA_PARTS if placed else _PARTS))
    return (*changed, view.reports, view.data_nodes)
