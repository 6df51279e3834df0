"""Replicas of partitions on a simulated node: each takes its time to start, and is gone when its host crashes. Some
never start: then the step is turned back, unless there is no way back.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from ringlog.kernel.values import Micros
from ringlog.kernel.zones.model import ZonePartition, partition_key
from ringlog.sim.chance import Chance
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, Signal, SimHost

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

STARTS_US: tuple[Micros, ...] = (1, 20 * MS, 300 * MS, 1_500 * MS)
FAILS = 0.03
"""How often a replica can never follow the step for which it was asked."""


class SimReplicas:
    """The port ``node.protocol.groups.GroupReplicas`` for one life of a node; ``ready`` is fired when a replica runs,
    or has failed.

    ``sim.shared["replicas"]`` has (node, partition, revision) of each that ever ran.
    """

    def __init__(self, sim: Simulation, host: SimHost, node: str, ready: Signal) -> None:
        self._sim = sim
        self._host = host
        self._node = node
        self._ready = ready
        self._chance = Chance(sim.world.seed, f"replicas/{host.name}/{host.life}")
        self._starting: set[tuple[str, int]] = set()
        self._running: set[tuple[str, int]] = set()
        self._failed: set[tuple[str, int]] = set()

    def runs(self, partition: ZonePartition) -> bool:
        """After a while."""
        one = _step(partition)
        if one not in self._starting:
            self._starting.add(one)
            has_way_back = partition.reached is not None and not partition.pending[0].forced
            fails = has_way_back and self._chance.happens(FAILS)
            self._sim.world.spawn(self._host, f"{self._host.name}.replica", self._start(one, fails))
        return one in self._running

    def fails(self, partition: ZonePartition) -> bool:
        """Now and then, after a while."""
        return _step(partition) in self._failed

    def log(self, partition: ZonePartition) -> int:
        """Another one on each node."""
        return zlib.crc32(f"{self._node}/{partition.zone}/{partition.number}".encode()) % 7

    def _start(self, one: tuple[str, int], fails: bool) -> Step:
        yield self._chance.pick(STARTS_US)
        if fails:
            self._failed.add(one)
        else:
            self._running.add(one)
            self._sim.shared["replicas"].add((self._node, *one))
        self._ready.fire()


def _step(partition: ZonePartition) -> tuple[str, int]:
    return partition_key(partition.zone, partition.number), partition.revisions.pending
