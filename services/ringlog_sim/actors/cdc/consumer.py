"""A simulated consumer of the CDC log: the production core of the reading protocol and its surroundings.

It follows ``cdc-generations`` in the change topics and reads the CDC topic at the positions from
``ringlog.client.cdc.reading``. Its progress and its delivered rows are one file, so a crash cannot lose only one of
them. Dropped rows are compared with the delivered rows, which the core does not store.

The loop around the core is re-implemented, because every reader has its own: it reads, looks for the next generation
and stores its position. The core returns the same rows for any order of these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringlog.client.cdc.generations import Generations
from ringlog.client.cdc.progress import ConsumerProgress, begin_at
from ringlog.client.cdc.reading import CdcReading, RowVerdict
from ringlog.kernel.changes import GenerationChange
from ringlog.kernel.values import Micros
from ringlog.wire.records import CdcRow
from ringlog_sim.devices.broker import CDC, CHANGES, SimRecord, SimTail
from ringlog_sim.devices.memo import cached_change
from ringlog_sim.devices.world import SECOND, Chance, Signal, SimHost
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

NAME = "progress"
WRITE_US = (50, 3_000)


@dataclass(eq=False, slots=True)
class StoredRows:
    """The consumer's file. ``late``: rows that were dropped as repetitions but were never delivered."""

    progress: ConsumerProgress
    delivered: list[CdcRow] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    late: list[CdcRow] = field(default_factory=list)

    @property
    def entered(self) -> Micros:
        """Return the timestamp of the current generation, -1 before the first."""
        return self.progress.generation


class SimConsumer:
    """One consumer across its restarts."""

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self._chance = Chance(sim.world.seed, "consumer")
        self._inbox: list[tuple[int, SimRecord]] = []
        self._changes: list[SimRecord] = []
        self._generations = Generations()
        self._reading: CdcReading[CdcRow] = CdcReading(self.stored.progress)
        self._tails: list[SimTail] = []
        self._news = Signal()

    @property
    def stored(self) -> StoredRows:
        """Return the file on disk."""
        partitions = self.sim.broker.topics[CDC]
        stored: StoredRows = self.host.disk.setdefault(
            NAME, StoredRows(begin_at({part.number: 0 for part in partitions}))
        )
        return stored

    def start(self) -> None:
        """Start the consumer on its host, which is up."""
        self._inbox, self._changes, self._tails = [], [], []
        self._generations = Generations()
        self._reading = CdcReading(ConsumerProgress.from_json(self.stored.progress.to_json()))
        self.sim.world.spawn(self.host, "consumer", self._run())

    def unfinished(self) -> list[str]:
        """Return descriptions of unread rows and generations."""
        stored = self.stored
        read = {number: part.read for number, part in stored.progress.partitions}
        undone = [
            f"the consumer is at {read[partition.number]} of CDC partition {partition.number}"
            for partition in self.sim.broker.topics[CDC]
            if read[partition.number] < partition.high
        ]
        generations = self.sim.log.state.generations
        wanted = next((generation.timestamp for generation in generations if generation.closed is None), -1)
        if stored.entered != wanted and (wanted, stored.entered) != (-1, -1):
            undone.append(f"the consumer reads generation {stored.entered}, expected {wanted}")
        return undone

    def _run(self) -> Step:
        self.sim.broker.tail(self.host, CHANGES, 0, 0, self._take_changes)
        self._read_on()
        while True:
            if not self._inbox and not self._changes:
                yield self._news, 5 * SECOND
            changes, self._changes = self._changes, []
            rows, self._inbox = self._inbox, []
            yield self._chance.between(*WRITE_US)
            self._apply_changes(changes)
            for number, record in rows:
                self._handle(number, record)
            while self._reading.move_on(self._generations):
                self.sim.did["consumer", "generation"] += 1
                self._read_on()
            self.stored.progress = self._reading.progress()

    def _read_on(self) -> None:
        """Read from the current positions. Records in transit from other positions are dropped."""
        for tail in self._tails:
            tail.close()
        self._inbox = []
        self._tails = [
            self.sim.broker.tail(self.host, CDC, number, position, self._taker(number))
            for number, position in sorted(self._reading.positions().items())
        ]

    def _take_changes(self, records: list[SimRecord]) -> None:
        self._changes += [record for record in records if record.key == "cdc-generations"]
        self._news.fire()

    def _taker(self, partition: int) -> Callable[[list[SimRecord]], None]:
        def take(records: list[SimRecord]) -> None:
            self._inbox += [(partition, record) for record in records]
            self._news.fire()

        return take

    def _apply_changes(self, changes: list[SimRecord]) -> None:
        for record in changes:
            key, data = record.value
            change = None if data is None else cached_change(data)
            assert change is None or isinstance(change, GenerationChange)
            self._generations.apply(key, change)

    def _handle(self, partition: int, record: SimRecord) -> None:
        stored = self.stored
        verdict, rows = self._reading.take(partition, record.offset, record.value)
        if verdict is RowVerdict.DELIVERED:
            stored.delivered += rows
            stored.names.update(name_of(row) for row in rows)
        elif verdict in (RowVerdict.REPEATED, RowVerdict.PASSED):
            self.sim.did["consumer", f"row {verdict.value}"] += 1
            if name_of(record.value) not in stored.names:
                stored.late.append(record.value)


def name_of(row: CdcRow) -> str:
    """Return the identity of a row: the mutation's id or its source position."""
    return row.mutation_id or f"{row.source_partition}/{row.source_offset}"
