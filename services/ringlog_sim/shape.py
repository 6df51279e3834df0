"""The initial cluster of a run: nodes, tokens and racks.

Some longer runs have a keyspace whose replicas must be in different racks. Its nodes are in two racks of one
datacenter, or in two racks of each of two datacenters. The keyspace is created early, so every later range movement
affects it. Without it only one run in a hundred skipped a node because of its rack.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.values import Column, Command, DatacenterReplication, HidingValue, Replication
from ringlog_sim.devices.world import Chance

COLUMNS = (Column("k", "text"), Column("c", "int"), Column("v", "text"))
"""The columns of every table: partition key k, clustering key c."""


class ClusterShape(HidingValue):
    """``founded``: nodes that own the ring at the start of the run (0: no cluster yet). ``joining``: nodes that join
    later.

    ``old``: entries have left the history. ``racked``: each of two datacenters has two racks. ``guarded``: the cluster
    has principals. The last two are drawn separately and change nothing else, so they are not part of names.
    """

    HIDDEN = ("racked", "guarded")

    founded: int
    joining: int
    factor: int
    tokens: int
    history: int
    old: bool
    racked: bool = False
    guarded: bool = False

    @property
    def datacenters(self) -> int:
        """Return the number of datacenters: two for an even number of tokens per node, and otherwise one."""
        return 2 - self.tokens % 2

    @property
    def places(self) -> int:
        """Return the period of locations: node n is in the same rack and datacenter as node n minus this number."""
        return 4 if self.racked and self.datacenters == 2 else 2

    def rack_of(self, number: int) -> str:
        """Return the rack of a node. If two datacenters have one rack each, the second one's is r1."""
        return f"r{(number - 1) // 2 % 2 + 1}" if self.places == 4 else f"r{number % 2 + 1}"


def tablet_bytes(number: int) -> int:
    """Return the reported size of a tablet of this number, for every table and node."""
    return (4 + number % 3) << 30


RACK_PROFILES: Final = ("medium", "large")
"""The profiles with that keyspace."""
RACK_SHARE: Final = 0.2
"""Share of their runs without a scenario that have it."""


def two_racks_each(seed: int, profile: str) -> bool:
    """Return True if each datacenter of a run has two racks, provided that it has two datacenters."""
    return profile in RACK_PROFILES and Chance(seed, "racks of two datacenters").happens(RACK_SHARE)


def keyspace_in_racks(factor: int) -> Command:
    """Return the keyspace with this number of replicas, each in its own rack while there are enough racks."""
    return CreateKeyspace("racked", Replication("network", factor, (DatacenterReplication("dc1", factor),)))
