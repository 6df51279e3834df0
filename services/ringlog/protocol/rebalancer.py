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

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.coordinator import Note, Wait, ask, book, kept_up
from ringlog.protocol.data_nodes import Timers, due, followed
from ringlog.protocol.effects import At, Newest, Steps, WallClock
from ringlog.protocol.rebalancer_core import RebalancerView, propose, refusals, rest_of
from ringlog.protocol.role import Accept, Look
from ringlog.protocol.zone_groups import words_of
from ringlog.protocol.zone_rest import NOTHING_RESTS

_PARTS = ("settings", "nodes", "zones", "zone_partitions", "keyspaces", "pauses", "recoveries")
"""What a proposal depends on, beside words and timers; what a recovery holds up goes on when it is over."""
_DATA_PARTS = (*_PARTS, "tables", "operations", "tablets")
"""The same where a zone places a keyspace."""


def rebalance() -> Steps[None]:
    """Serve one term of the rebalancer; ends by what the driver raises."""
    timers, rest = Timers(), NOTHING_RESTS
    acks = yield from book()
    yield Accept()
    seen: tuple[object, ...] = ()
    wait = Wait.NOTHING
    while True:
        acks = yield from kept_up(acks, wait)
        yield Look()
        state: ClusterState = yield Newest()
        now: Micros = yield WallClock()
        timers = followed(timers, state)
        known = RebalancerView(state, words_of(state, acks.newest(state)), due(timers, state, now), rest)
        wait = Wait.NEWS
        if (inputs := _inputs(known)) == seen:
            continue
        seen, rest = inputs, rest_of(known)
        known = replace(known, rest=rest)
        refused = []
        for proposal in propose(known):
            yield At("rebalancing")
            refusal = yield from ask(proposal)
            if refusal is not None:
                refused.append(refusal)
            wait = Wait.NOTHING
        yield Note((*refusals(known), *refused))
        if refused:
            seen, wait = (), Wait.PAUSE


def _inputs(known: RebalancerView) -> tuple[object, ...]:
    """Equal as long as the proposals would be the same."""
    placed = any(one.replication.zone for one in known.state.keyspaces.values())
    changed = (known.state.changed.get(part, 0) for part in (_DATA_PARTS if placed else _PARTS))
    return (*changed, known.words, known.due)
