"""A consumer of the CDC log, as the guide for consumers tells: generation after generation, without a clock.

It follows ``cdc-generations`` in the change topics, stays with a generation until that is closed and read up to the
positions of its close, keeps rows of later generations that it passes on the way, and drops repetitions. Its progress,
and what it has delivered, are one file: a crash loses neither without the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringlog.kernel.changes import GenerationChange
from ringlog.kernel.values import Micros
from ringlog.sim.broker import CDC, CHANGES, Record
from ringlog.sim.chance import Chance
from ringlog.sim.memo import cached_change
from ringlog.sim.replica import Step
from ringlog.sim.world import SECOND, Host, Signal
from ringlog.wire.records import CdcRow

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

NAME = "progress"
WRITE_US = (50, 3_000)


@dataclass(eq=False, slots=True)
class Progress:
    """``entered``: timestamp of the generation that it is in, -1 before the first; ``kept``: rows of later ones;
    ``late``: rows of generations that it had left and that were none of the delivered ones.
    """

    positions: dict[int, int]
    entered: Micros = -1
    kept: list[CdcRow] = field(default_factory=list)
    delivered: list[CdcRow] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    late: list[CdcRow] = field(default_factory=list)


class SimConsumer:
    """One consumer over its lives."""

    def __init__(self, sim: Simulation, host: Host) -> None:
        self.sim = sim
        self.host = host
        self._chance = Chance(sim.world.seed, "consumer")
        self._inbox: list[tuple[int, Record]] = []
        self._changes: list[Record] = []
        self._known: dict[Micros, GenerationChange] = {}
        self._news = Signal()

    @property
    def progress(self) -> Progress:
        """What is on disk."""
        partitions = self.sim.broker.topics[CDC]
        stored: Progress = self.host.disk.setdefault(NAME, Progress({part.number: 0 for part in partitions}))
        return stored

    def start(self) -> None:
        """Begin a life on the host, which is up."""
        self._inbox, self._changes, self._known = [], [], {}
        self.sim.world.spawn(self.host, "consumer", self._run())

    def unfinished(self) -> list[str]:
        """What it has not read yet, in sentences."""
        progress = self.progress
        undone = [
            f"the consumer is at {progress.positions[partition.number]} of CDC partition {partition.number}"
            for partition in self.sim.broker.topics[CDC]
            if progress.positions[partition.number] < partition.high
        ]
        generations = self.sim.log.state.generations
        wanted = next((generation.timestamp for generation in generations if generation.closed is None), -1)
        if progress.entered != wanted and (wanted, progress.entered) != (-1, -1):
            undone.append(f"the consumer is in the generation of {progress.entered}, not in that of {wanted}")
        return undone

    def _run(self) -> Step:
        broker = self.sim.broker
        tails = [broker.tail(self.host, CHANGES, 0, 0, self._take_changes)]
        for partition in broker.topics[CDC]:
            start = self.progress.positions[partition.number]
            tails.append(broker.tail(self.host, CDC, partition.number, start, self._taker(partition.number)))
        while True:
            if not self._inbox and not self._changes:
                yield self._news, 5 * SECOND
            changes, self._changes = self._changes, []
            rows, self._inbox = self._inbox, []
            yield self._chance.between(*WRITE_US)
            self._note(changes)
            for number, record in rows:
                self._handle(number, record)
            while self._move_on():
                pass

    def _take_changes(self, records: list[Record]) -> None:
        self._changes += [record for record in records if record.key == "cdc-generations"]
        self._news.fire()

    def _taker(self, partition: int) -> Callable[[list[Record]], None]:
        def take(records: list[Record]) -> None:
            self._inbox += [(partition, record) for record in records]
            self._news.fire()

        return take

    def _note(self, changes: list[Record]) -> None:
        for record in changes:
            _, data = record.value
            if data is not None:
                change = cached_change(data)
                assert isinstance(change, GenerationChange)
                self._known[change.timestamp] = change

    def _handle(self, partition: int, record: Record) -> None:
        progress, row = self.progress, record.value
        assert record.offset >= progress.positions[partition], "a partition is read once"
        progress.positions[partition] = record.offset + 1
        if row.generation == progress.entered:
            self._deliver(row)
        elif row.generation > progress.entered:
            progress.kept.append(row)
        elif name_of(row) not in progress.names:
            progress.late.append(row)
        else:
            self.sim.did["consumer", "repetition of a closed generation"] += 1

    def _deliver(self, row: CdcRow) -> None:
        progress = self.progress
        if name_of(row) in progress.names:
            self.sim.did["consumer", "repetition"] += 1
            return
        progress.names.add(name_of(row))
        progress.delivered.append(row)

    def _move_on(self) -> bool:
        """Enter the next generation if the present one is closed and read; False if not."""
        progress = self.progress
        current = self._known.get(progress.entered)
        if progress.entered >= 0:
            if current is None or current.closed is None:
                return False
            if any(progress.positions.get(place.partition, 0) < place.offset for place in current.positions):
                return False
        following = min((timestamp for timestamp in self._known if timestamp > progress.entered), default=None)
        if following is None:
            return False
        progress.entered = following
        self.sim.did["consumer", "generation"] += 1
        kept, progress.kept = progress.kept, []
        for row in kept:
            if row.generation == following:
                self._deliver(row)
            else:
                progress.kept.append(row)
        return True


def name_of(row: CdcRow) -> str:
    """What a row is known by: the mutation's id, or where it was."""
    return row.mutation_id or f"{row.source_partition}/{row.source_offset}"
