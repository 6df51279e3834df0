"""The replication strategies: **each is one row**, and code that must distinguish them uses the row.

``tests/tidy`` checks that no other module compares ``Replication.strategy``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ringlog.kernel.values import Replication, Value


class PlacedBy(Enum):
    """The mechanism that chooses the nodes of a keyspace's rows."""

    RING = "ring"
    """A walk along the token ring (``ownership.strategies``)."""
    BALANCER = "balancer"
    """Tables have their own tablet maps (``kernel.tablets``) and do not use the ring."""
    ZONE = "zone"
    """Tables have tablet maps here, too: a tablet for each partition of a zone, on the nodes of the partition."""


class Strategy(Value):
    """One strategy.

    ``has_factor``: a setting may be a number of replicas, regardless of their location. ``has_datacenters``: it may
    name for each datacenter the number of replicas, or their racks. A strategy with neither has no parameter, or only a
    zone.
    """

    name: str
    placed_by: PlacedBy
    has_factor: bool = False
    has_datacenters: bool = False

    @property
    def in_ring(self) -> bool:
        """Return True if it places ranges of the token ring."""
        return self.placed_by is PlacedBy.RING

    @property
    def by_zone(self) -> bool:
        """Return True if a setting names a zone."""
        return self.placed_by is PlacedBy.ZONE

    @property
    def is_everywhere(self) -> bool:
        """Return True if every node has all rows: the ring is one range."""
        return self.in_ring and not (self.has_factor or self.has_datacenters)

    @property
    def is_anywhere(self) -> bool:
        """Return True if a walk takes the first nodes that it meets, regardless of datacenter and rack."""
        return self.in_ring and self.has_factor


SIMPLE: Final = Strategy("simple", PlacedBy.RING, has_factor=True)
NETWORK: Final = Strategy("network", PlacedBy.RING, has_datacenters=True)
ENTIRE: Final = Strategy("entire", PlacedBy.RING)
TABLETS: Final = Strategy("tablets", PlacedBy.BALANCER, has_factor=True, has_datacenters=True)
ZONE: Final = Strategy("zone", PlacedBy.ZONE)

STRATEGIES: Final[dict[str, Strategy]] = {one.name: one for one in (SIMPLE, NETWORK, ENTIRE, TABLETS, ZONE)}


for _one in STRATEGIES.values():
    assert not (_one.in_ring and _one.has_factor and _one.has_datacenters), (
        "a strategy has either one factor or a factor for each datacenter"
    )
    assert not _one.by_zone or not (_one.has_factor or _one.has_datacenters), (
        "a keyspace in a zone has no replication factor"
    )
    assert _one.is_everywhere == (_one is ENTIRE), "only the strategy without ranges has its name as the placement key"


def strategy_of(replication: Replication) -> Strategy:
    """Return the row of a setting's strategy. It is known here: validation rejects unknown ones at the edge."""
    return STRATEGIES[replication.strategy]


def names_datacenters(replication: Replication) -> bool:
    """Return True if a setting names its datacenters, or would have to."""
    strategy = strategy_of(replication)
    return strategy.has_datacenters and (not strategy.has_factor or bool(replication.datacenters))
