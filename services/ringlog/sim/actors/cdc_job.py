"""Who runs drivers of the CDC job: a supervisor that starts one again when it fails, and sometimes a second one.

A driver that was replaced is not started again; one whose checkpoint is lost refuses to start, and waits for an
operator. A second driver on another machine shares the checkpoint: production holds a lock on it, which a suspended
machine or a shared file system may lose, so nothing may rest on the lock alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.values import Micros
from ringlog.sim.actors.checkpoint import NAME
from ringlog.sim.actors.driver import Driver
from ringlog.sim.broker import MUTATIONS
from ringlog.sim.replica import Step
from ringlog.sim.world import SECOND, Host
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

SECOND_HOST = "spark-2"
AGAIN_US: Micros = SECOND


class SimCdcJob:
    """The job. ``refused``: why it waits for an operator, if it does; ``seconds``: second drivers so far."""

    def __init__(self, sim: Simulation, host: Host) -> None:
        self.sim = sim
        self.host = host
        self.refused = ""
        self.seconds = 0
        self._drivers = 0

    def start(self, host: Host | None = None) -> None:
        """Start a driver on the host, which is up; by default on its own."""
        self.sim.world.spawn(host or self.host, "cdc", self._supervise(host or self.host))

    def second(self) -> None:
        """Start a driver on another machine, whatever the first one does."""
        host = self.sim.world.host(SECOND_HOST)
        if host.up and not host.processes:
            self.seconds += 1
            self.start(host)

    def unfinished(self) -> list[str]:
        """What is left to do, in sentences."""
        if self.refused:
            return []
        folder = self.host.disk.get(NAME)
        durable = folder.durable_positions() if folder is not None else {}
        return [
            f"mutations of partition {partition.number} are durable up to {durable.get(partition.number, 0)}, "
            f"not {partition.high}"
            for partition in self.sim.broker.topics[MUTATIONS]
            if durable.get(partition.number, 0) < partition.high
        ]

    def _supervise(self, host: Host) -> Step:
        while True:
            self._drivers += 1
            driver = Driver(self.sim, host, self.host, self._drivers)
            try:
                yield from driver.run()
            except CdcError as error:
                self.sim.did["cdc", error.code] += 1
                self.sim.world.tell(driver.name, f"ends: {error}")
                if error.code == "plan_chain_broken" or (error.code == "plan_chain_moved" and not self.seconds):
                    self.sim.broken("cdc_chain", f"{driver.name}: {error}")
                if error.code in ("checkpoint_lost", "writer_replaced"):
                    self.refused = error.code if error.code == "checkpoint_lost" else self.refused
                    return
            yield AGAIN_US
