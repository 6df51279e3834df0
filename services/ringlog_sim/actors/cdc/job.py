"""The supervisor of the CDC job's drivers. It restarts a failed driver, and sometimes starts a second one.

A replaced driver is not restarted. A driver with a lost checkpoint refuses to start and waits for an operator. A second
driver on another machine shares the checkpoint. Production locks the checkpoint, but a suspended machine or a shared
file system may lose the lock. So no guarantee may depend on the lock alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringlog.kernel.model.settings import leeway_at
from ringlog.kernel.values import Micros
from ringlog_cdc.errors import CdcError
from ringlog_sim.actors.cdc.checkpoint import NAME
from ringlog_sim.actors.cdc.driver import Driver
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_sim.devices.world import SECOND, SimHost
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

SECOND_HOST = "spark-2"
AGAIN_US: Micros = SECOND
GIVE_UP_US: Micros = 20 * SECOND
"""Limit for waiting until a generation closes. It takes longer only after a wrong clock or with a large leeway."""


class SimCdcJob:
    """The job. ``refused``: the error while it waits for an operator. ``seconds``: number of second drivers so far."""

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self.refused = ""
        self.seconds = 0
        self._drivers = 0
        self._left = 0
        self._late: list[int] = []
        self._die: Callable[[SimHost], None] = lambda _: None

    def start(self, host: SimHost | None = None) -> None:
        """Start a driver on the host, which is up. Default: the job's own host."""
        self.sim.world.spawn(host or self.host, "cdc", self._supervise(host or self.host))

    def again(self) -> None:
        """Start the job again after an operator has resolved the error."""
        if self.refused and self.host.up and not self.host.processes:
            self.start()

    def second(self) -> None:
        """Start a driver on another machine, concurrently with the first one."""
        host = self.sim.world.host(SECOND_HOST)
        if host.up and not host.processes:
            self.seconds += 1
            self.start(host)

    def calm(self) -> None:
        """End the faults: no driver dies, and if there were two drivers, an operator stops both and starts one.

        A driver that began next to another one does not know all of the other's finished work.
        """
        self.die_after(0, lambda _: None)
        self._late.clear()
        if self.seconds:
            for host in (self.host, self.sim.world.host(SECOND_HOST)):
                for process in tuple(host.processes):
                    process.stop()
            self.start()

    def die_after(self, steps: int, die: Callable[[SimHost], None]) -> None:
        """Let the driver that takes the ``steps``-th step from now die in it. 0: no driver dies."""
        self._left, self._die = steps, die

    def straggle(self, delay: int) -> None:
        """Let the next task with images have a late attempt, this many milliseconds later."""
        self._late.append(delay)

    def straggles(self) -> int:
        """Return the delay of a late attempt for the task that begins, 0 for none."""
        return self._late.pop() if self._late else 0

    def step(self, host: SimHost) -> None:
        """Count a step of the driver on ``host``: it is about to wait for a file write or a send."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.sim.world.on(None, 0, lambda _: self._die(host))

    def unfinished(self) -> list[str]:
        """Return descriptions of unfinished work."""
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

    def open_generations(self) -> list[str]:
        """Return descriptions of overdue generations, whose own and earlier writes are long past."""
        state = self.sim.log.state
        soon = self.sim.world.clock(self.host) + GIVE_UP_US
        late: list[str] = []
        for earlier, later in zip(state.generations, state.generations[1:], strict=False):
            if earlier.closed is not None:
                continue
            if self.refused or later.timestamp + leeway_at(state, later) >= soon:
                break
            late.append(f"{earlier.id} is {earlier.status}, though {later.id} began at {later.timestamp}")
        return late

    def _supervise(self, host: SimHost) -> Step:
        while True:
            self._drivers += 1
            driver = Driver(self.sim, host, self.host, self._drivers)
            try:
                yield from driver.run()
            except CdcError as error:
                self.sim.did["cdc", error.code] += 1
                self.sim.world.tell(driver.name, f"ends: {error}")
                # With a second driver, the folder changes during the start. The driver detects this and stops.
                if error.code in ("plan_chain_broken", "plan_chain_moved") and not self.seconds:
                    self.sim.broken("cdc_chain", f"{driver.name}: {error}")
                if error.code in ("images_lost", "images_taken") and not self.seconds:
                    self.sim.broken("cdc_images", f"{driver.name}: {error}")
                if error.code == "checkpoint_cut_off":
                    # An operator follows the instruction in the message.
                    self.host.disk.pop(NAME, None)
                if error.code == "checkpoint_lost":
                    self.refused = error.code
                    return
                if error.code == "writer_replaced":
                    return
            yield AGAIN_US
