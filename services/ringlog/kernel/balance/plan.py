"""One plan: drains, then the hosts of each datacenter, then the shards of each host, then tables above their shares,
then siblings that are to merge.

Each kind of step lowers its own measure and raises none that comes before it (``spread`` has the argument), so plans
asked for again and again end with an empty one; and equal pictures give equal plans, so a stand-by decides the same.
"""

from __future__ import annotations

from ringlog.kernel.balance.drain import drain
from ringlog.kernel.balance.ledger import Ledger
from ringlog.kernel.balance.model import BalancePicture, BalancePlan, BalanceStop, Obstacle
from ringlog.kernel.balance.rules import OpenRacks, Shares
from ringlog.kernel.balance.shards import even_out
from ringlog.kernel.balance.siblings import bring_together
from ringlog.kernel.balance.spread import Spread, stop_of


def make_plan(picture: BalancePicture) -> BalancePlan:
    """The next migrations; empty when nothing may or need move, and ``stops`` says which."""
    if picture.busy:
        return BalancePlan(stops=(BalanceStop("cluster", picture.busy),))
    ledger = Ledger(picture)
    shares, racks = Shares(ledger), OpenRacks(ledger)
    stops: list[BalanceStop] = []
    obstacles: list[Obstacle] = []
    spreads: list[Spread] = []
    draining = False
    for datacenter, members in ledger.in_datacenter.items():
        stops += [_left_alone(node.host.id, node.host.alive, node.incomplete) for node in members if not node.movable]
        why, blocked, is_open = drain(ledger, shares, datacenter)
        stops += why
        obstacles += blocked
        draining |= is_open
        if is_open:
            stops.append(BalanceStop(datacenter, "drain_first"))
            continue
        spread = Spread(ledger, shares, racks, datacenter)
        spread.run()
        spreads.append(spread)
        stops.append(stop_of(datacenter, spread.stops))
        if stops[-1].code != "limits":
            for node in members:
                if node.movable:
                    even_out(ledger, node, datacenter in ledger.by_size)
    if not ledger.planned:
        for spread in spreads:
            spread.relieve()
    if not ledger.planned and not draining:
        bring_together(ledger)
    assert len({(row.table, row.tablet) for row in ledger.planned}) == len(ledger.planned), "a tablet moves once"
    return BalancePlan(tuple(ledger.planned), tuple(stops), tuple(obstacles))


def _left_alone(node: str, alive: bool, incomplete: str) -> BalanceStop:
    if not alive:
        return BalanceStop(node, "dead")
    return BalanceStop(node, "statistics_missing", incomplete) if incomplete else BalanceStop(node, "draining")
