"""A keyspace whose replicas lie in different racks, in a part of the longer runs.

Their nodes lie in two racks if they lie in one datacenter; if they lie in two, each of these has two in a part of the
runs. The keyspaces of the other runs hardly ever ask for that: of
a hundred runs there was one in which a walk passed over a node for its rack. It is made early, so that all nodes that
come and go later move its ranges.
"""

from __future__ import annotations

from typing import Any, Final

from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.values import Command, DatacenterReplication, Micros, Replication
from ringlog.sim.chance import Chance
from ringlog.sim.world import MS

RUNS: Final = ("medium", "large")
"""The profiles that have it."""
SHARE: Final = 0.2
"""In how many of their runs without a scenario."""


def two_racks_each(seed: int, profile: str) -> bool:
    """True if each datacenter of a run has two racks, where there are two of them."""
    return profile in RUNS and Chance(seed, "racks of two datacenters").happens(SHARE)


def in_racks(chance: Chance, profile: str) -> list[tuple[Micros, str, tuple[Any, ...]]]:
    """(time, what happens, with which arguments); nothing in most runs."""
    if profile not in RUNS or not chance.happens(SHARE):
        return []
    return [(chance.between(0, 2_000) * MS, "in_racks", (chance.pick([2, 2, 3]),))]


def keyspace_in_racks(factor: int) -> Command:
    """It has this number of replicas, each in a rack of its own as long as there are such."""
    return CreateKeyspace("racked", Replication("network", factor, (DatacenterReplication("dc1", factor),)))
