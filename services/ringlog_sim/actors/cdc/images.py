"""Plan parts of tables with images, as the simulated job executes them.

Each source partition has a task. The task opens the states, makes rows of the writes in order, and sends them. It
commits the states at some time between its first and its last row, because a sink may still buffer rows. An abandoned
task may run again much later, on its own machine. The folder, the store and the rows are production code. The order in
which the driver and its tasks use them is re-implemented, because Spark decides when and how often a task runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ringlog_cdc.bulk.image_work import ImageFolder, ImageWork
from ringlog_cdc.definition.image_tables import tables_with_images
from ringlog_cdc.definition.routing_table import RoutingTable
from ringlog_cdc.errors import CdcError
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry
from ringlog_sim.actors.cdc.checkpoint import Checkpoint
from ringlog_sim.actors.cdc.image_states import SimFiles
from ringlog_sim.actors.cdc.rows import Places, Taken, part_output
from ringlog_sim.devices.world import MS, Chance, SimHost
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

EXECUTOR = "executor"
COMMIT_US = (50, 1_500)


class Sender(Protocol):
    """The interface of the driver that its tasks need."""

    sim: Simulation
    host: SimHost

    def left(self, places: Places) -> Places:
        """Return the output without the records written before this checkpoint."""

    def send(self, host: SimHost, topic: str, partition: int, values: Sequence[tuple[str, Any]]) -> Step:
        """Send records from ``host`` until they are acknowledged. Raise CdcError."""


class ImagedParts:
    """The image parts of one driver. ``epoch``: epoch of its registration. ``disk``: host with the checkpoint."""

    def __init__(self, driver: Sender, store: Checkpoint, disk: SimHost, epoch: int, chance: Chance) -> None:
        self.sim = driver.sim
        self._driver = driver
        self._store = store
        self._disk = disk
        self._chance = chance
        self._files = self._seen_from(driver.host)
        self._folder = ImageFolder(self._files, epoch)

    def concern(self, entry: PlanEntry) -> bool:
        """Return True if a table has images now or had images before."""
        kept = self._store.folder
        has_images = bool(tables_with_images(self._store.context(entry.context)))
        return bool(entry.ranges) and (kept.images is not None or has_images)

    def work(self, entry: PlanEntry) -> Step:
        """Return the work for the tasks of a part, or None if its tables have no images."""
        yield from self._files.free(self._files.partitions())
        return self._folder.part(self._store, entry, self._store.context(entry.context))

    def carry_out(self, rows: Sequence[Taken], entry: PlanEntry, work: ImageWork, table: RoutingTable) -> Step:
        """Write the rows and dead letters of a part, and store its states."""
        self.sim.did["cdc", "imaged"] += 1
        for item in sorted(work.ranges, key=lambda _: self._chance.random()):
            own_rows = [row for row in rows if row.item.partition == item.partition]
            late = self.sim.shared["job"].straggles()
            if late:
                self._again_later(own_rows, entry, work, table, item, late)
            yield from self._task(self._driver.host, self._chance, own_rows, entry, work, table, item)
        yield from self._files.free(item.partition for item in work.ranges)
        self._folder.settle(work, {row.item.partition for row in rows})

    def _task(
        self,
        host: SimHost,
        chance: Chance,
        rows: Sequence[Taken],
        entry: PlanEntry,
        work: ImageWork,
        table: RoutingTable,
        item: OffsetRange,
    ) -> Step:
        files = self._seen_from(host)
        yield from files.free([item.partition])
        store, found = work.opened(item.partition)
        try:
            sends = _sends(self._driver.left(part_output(table, rows, entry, store)), chance)
            commits = chance.between(0, len(sends))
            for number in range(len(sends) + 1):
                if number == commits:
                    self.sim.shared["job"].step(host)
                    yield chance.between(*COMMIT_US)
                    work.commit(store, found, rows[-1].item.appended)
                    store.close()
                    yield from self.sim.moments.at("states", host)
                if number < len(sends):
                    yield from self._driver.send(host, *sends[number])
        finally:
            store.close()

    def _again_later(
        self,
        rows: Sequence[Taken],
        entry: PlanEntry,
        work: ImageWork,
        table: RoutingTable,
        item: OffsetRange,
        delay: int,
    ) -> None:
        """Run a second, late attempt of a task after the driver has abandoned it."""
        host = self.sim.world.host(EXECUTOR)
        chance = Chance(self.sim.world.seed, f"late/{entry.sequence}/{item.partition}")

        def attempt() -> Step:
            yield delay * MS
            try:
                yield from self._task(host, chance, rows, entry, work, table, item)
                self.sim.did["cdc", "late task"] += 1
            except CdcError as error:
                self.sim.did["cdc", f"late task {error.code}"] += 1

        self.sim.world.spawn(host, "late task", attempt())

    def _seen_from(self, host: SimHost) -> SimFiles:
        return SimFiles(Path(), self._store.folder, self._disk, host)


def _sends(places: Places, chance: Chance) -> list[tuple[str, int, list[tuple[str, Any]]]]:
    """Return sends of (topic, partition, records), in order per partition and interleaved between partitions."""
    left = {place: values[:] for place, values in sorted(places.items())}
    found = []
    while left:
        place = chance.pick([*left])
        together, left[place] = left[place][:2], left[place][2:]
        found.append((*place, together))
        if not left[place]:
            del left[place]
    return found
