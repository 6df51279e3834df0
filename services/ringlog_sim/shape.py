"""The cluster that a run begins with: nodes, tokens and racks.

Some longer runs have a keyspace whose replicas must be in different racks. Its nodes are in two racks of one
datacenter, or in two racks of each of two datacenters. The keyspace is created early, so every later range movement
affects it. Without it only one run in a hundred skipped a node because of its rack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.values import Column, Command, DatacenterReplication, Replication
from ringlog_sim.devices.world import Chance

COLUMNS = (Column("k", "text"), Column("c", "int"), Column("v", "text"))
"""Of every table: partition key k, clustering key c."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """``founded``: nodes that own the ring when the run begins (0: there is no cluster yet); ``joining``: nodes that
    start in the run and join; ``old``: entries that have left the history; ``racked``: each of two datacenters has two
    racks, not one. That is drawn beside all else, which it does not change: so it is in no name.
    """

    founded: int
    joining: int
    factor: int
    tokens: int
    history: int
    old: bool
    racked: bool = field(default=False, repr=False)

    @property
    def datacenters(self) -> int:
        """Over how many datacenters the nodes are spread: two where they have an even number of tokens."""
        return 2 - self.tokens % 2

    @property
    def places(self) -> int:
        """Node n lies where node n minus this lies: in the same rack of the same datacenter."""
        return 4 if self.racked and self.datacenters == 2 else 2

    def rack_of(self, number: int) -> str:
        """The rack of a node. Of two datacenters that have one rack each the second's is r1."""
        return f"r{(number - 1) // 2 % 2 + 1}" if self.places == 4 else f"r{number % 2 + 1}"


def tablet_bytes(number: int) -> int:
    """What a node says that a tablet of this number holds, of whatever table and wherever it is."""
    return (4 + number % 3) << 30


RACK_PROFILES: Final = ("medium", "large")
"""The profiles that have it."""
RACK_SHARE: Final = 0.2
"""In how many of their runs without a scenario."""


def two_racks_each(seed: int, profile: str) -> bool:
    """True if each datacenter of a run has two racks, where there are two of them."""
    return profile in RACK_PROFILES and Chance(seed, "racks of two datacenters").happens(RACK_SHARE)


def keyspace_in_racks(factor: int) -> Command:
    """It has this number of replicas, each in a rack of its own as long as there are such."""
    return CreateKeyspace("racked", Replication("network", factor, (DatacenterReplication("dc1", factor),)))
