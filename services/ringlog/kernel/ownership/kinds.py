"""The replication strategies: **each is one row**, and code that must distinguish them asks the row.

``tests/tidy`` holds that no other module compares ``Replication.strategy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ringlog.kernel.values import Replication


class PlacedBy(Enum):
    """What says which nodes have the rows of a keyspace."""

    RING = "ring"
    """A walk along the token ring (``ownership.strategies``)."""
    BALANCER = "balancer"
    """Tables have maps of their own (``kernel.tablets``); of the ring they use nothing."""
    ZONE = "zone"
    """So they have here: a tablet for each partition of a zone, on the nodes that have the partition."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy.

    ``has_factor``: a setting may be a number of replicas, wherever they are. ``has_datacenters``: it may say for each
    datacenter how many there are, or in which racks. One with neither needs nothing to be said, or a zone.
    """

    name: str
    placed_by: PlacedBy
    has_factor: bool = False
    has_datacenters: bool = False

    @property
    def in_ring(self) -> bool:
        """True if it places ranges of the token ring."""
        return self.placed_by is PlacedBy.RING

    @property
    def by_zone(self) -> bool:
        """True if a setting names a zone."""
        return self.placed_by is PlacedBy.ZONE

    @property
    def is_everywhere(self) -> bool:
        """True if every node has all rows: the ring is one range."""
        return self.in_ring and not (self.has_factor or self.has_datacenters)

    @property
    def is_anywhere(self) -> bool:
        """True if the first nodes that a walk meets are taken, wherever they are."""
        return self.in_ring and self.has_factor


SIMPLE: Final = Strategy("simple", PlacedBy.RING, has_factor=True)
NETWORK: Final = Strategy("network", PlacedBy.RING, has_datacenters=True)
ENTIRE: Final = Strategy("entire", PlacedBy.RING)
TABLETS: Final = Strategy("tablets", PlacedBy.BALANCER, has_factor=True, has_datacenters=True)
ZONE: Final = Strategy("zone", PlacedBy.ZONE)

STRATEGIES: Final[dict[str, Strategy]] = {one.name: one for one in (SIMPLE, NETWORK, ENTIRE, TABLETS, ZONE)}


def strategy_of(replication: Replication) -> Strategy:
    """The row of a setting's strategy, which is known: another release's is refused at the edge."""
    return STRATEGIES[replication.strategy]


def names_datacenters(replication: Replication) -> bool:
    """True if a setting says for each datacenter what is there, or would have to."""
    strategy = strategy_of(replication)
    return strategy.has_datacenters and (not strategy.has_factor or bool(replication.datacenters))
