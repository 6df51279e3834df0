"""One driver of the simulated CDC job. It performs ``ringlog_cdc.protocol.batch`` on batches, as Spark does.

Spark is modelled. The end of a batch is on disk before the batch begins. A batch without a commit is run again. Tasks
write their rows in order and repeat them until they are acknowledged. Production functions decide the plans, the held
rows and the outcome of each mutation.

``facts`` is re-implemented. Arrow takes half a millisecond for any batch, and batches here have few records. A test
compares both implementations with the definition (``tests/cdc/test_columnar.py``). The disk effects of a start are also
re-implemented: production syncs files, and the simulator uses a folder and a write duration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, Value, replace
from ringlog.protocol.effects import FaultPoint
from ringlog.protocol.role import CheckSuperseded
from ringlog_cdc.definition.routing_table import RoutingTable
from ringlog_cdc.errors import CdcError, PartitionsAdded, checkpoint_lost
from ringlog_cdc.plan.decisions import context_of, table_of
from ringlog_cdc.plan.plan import PartitionFacts, PlanEntry
from ringlog_cdc.plan.recovered_rows import LETTERS, KnownRows, Noted, known_of, may_have_written
from ringlog_cdc.protocol.batch import (
    AppendedSince,
    AwaitState,
    Batches,
    Begin,
    BeginLookUp,
    CheckCheckpoint,
    ClaimCheckpoint,
    EndLookUp,
    FactsOf,
    GiveUpClaim,
    MarkDone,
    NoteTopic,
    PutContext,
    ReportHeld,
    WriteRows,
    start,
)
from ringlog_sim.actors.cdc.checkpoint import Checkpoint
from ringlog_sim.actors.cdc.images import ImagedParts
from ringlog_sim.actors.cdc.rows import ROW_BYTES_MAX, Places, Taken, new_output, part_output, read_input, record_name
from ringlog_sim.actors.cdc.writer import SimWriter
from ringlog_sim.client import SimClient
from ringlog_sim.devices.broker import CDC, DEAD, MUTATIONS, SimRecord
from ringlog_sim.devices.keys import WRITER_NAME
from ringlog_sim.devices.world import MS, SECOND, Chance, Signal, SimHost, Unanswered
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

BATCH_RECORDS = 5
"""Maximum offsets of each partition in a batch. It is small, so a run has many batches."""
SPARK_JOB_US = (MS, 60 * MS)
HELD_POLL_US: Micros = 500 * MS
ATTEMPTS = 8
SENT_TOGETHER = 2


class MicroBatch(Value):
    """The current batch: its number, its ends, and its records that are mutations or claim to be."""

    number: int
    ends: Mapping[int, int]
    rows: Sequence[Taken]


class NotedTopics:
    """The results of a look-up so far, in the driver's memory. ``settled``: as in ``KnownRows``."""

    def __init__(self, settled: Mapping[int, int]) -> None:
        self._settled = settled
        self._found: list[Noted] = []
        self._lasts: dict[tuple[int, int], int] = {}

    def add(self, names: Iterable[Noted], to: int) -> None:
        """Add names from the partition ``to`` of the CDC topic or from the ``LETTERS``."""
        for name in names:
            self._found.append(name)
            self._lasts[name[0], to] = max(name[1], self._lasts.get((name[0], to), 0))

    def known_rows(self) -> KnownRows:
        """Return all results."""
        return replace(known_of(self._found), settled=self._settled, lasts=self._lasts)


class Driver:
    """One run of the job on ``host``, with the checkpoint on the disk of ``disk``."""

    def __init__(self, sim: Simulation, host: SimHost, disk: SimHost, number: int) -> None:
        self.sim = sim
        self.host = host
        self.name = f"cdc-{number}"
        self._chance = Chance(sim.world.seed, f"driver/{number}")
        self._disk = disk
        self._limit = 2 + number % 7
        self._client = SimClient(sim, host, self.name, principal=WRITER_NAME)
        self._replica = self._client.replica
        self._tails: list[Any] = []
        self._waiting: dict[int, list[SimRecord]] = {}
        self._news = Signal()
        self._store: Checkpoint
        self._writer: SimWriter
        self._images: ImagedParts
        self._batch: MicroBatch
        self._noted: NotedTopics

    def run(self) -> Step:
        """Start and run until a CdcError is raised."""
        try:
            yield from self._client.start()
            writer = SimWriter(self.sim, self.host, self._client, self._stored)
            self._writer, promises = writer, writer.promises
            self._handle()
            epoch = yield from self._replica.perform(start(promises))
            self.sim.shared["job"].refused = ""
            self._images = ImagedParts(self, self._store, self._disk, epoch, self._chance)
            self.sim.world.tell(self.name, f"is incarnation {promises.incarnation[:6]}")
            renewal = self.sim.world.spawn(self.host, f"{self.name}.promises", writer.keep())
            try:
                folder = self._store.folder
                stored, ends = self._store.context, folder.offsets.__getitem__
                yield from self._batches(Batches(promises, {}, self._context, stored, ends, self._limit))
            finally:
                renewal.stop()
        finally:
            self._client.close()
            for tail in self._tails:
                tail.close()

    def _handle(self) -> None:
        self._replica.at_once |= {
            GiveUpClaim: lambda _: setattr(self._store.folder, "claimed", False),
            CheckSuperseded: lambda _: self._check(),
            AppendedSince: self._later,
            FactsOf: self._facts,
            ReportHeld: self._held,
        }
        self._replica.in_time |= {
            ClaimCheckpoint: self._claim,
            CheckCheckpoint: self._check_checkpoint,
            BeginLookUp: self._begin_lookup,
            NoteTopic: self._read_topic,
            EndLookUp: lambda _: self._end_lookup(),
            FaultPoint: self._at,
            PutContext: lambda effect: self._store.put_context(effect.context),
            AwaitState: self._next_state,
            Begin: self._begin,
            WriteRows: self._write,
            MarkDone: lambda effect: self._store.mark_done(effect.entry),
        }

    def _at(self, effect: FaultPoint) -> Step:
        yield from self.sim.moments.at(effect.moment, self.host)
        if effect.moment == "asked":
            yield self._chance.between(*SPARK_JOB_US)
        elif effect.moment == "decided anew":
            self.sim.did["cdc", effect.moment] += 1

    def _claim(self, effect: ClaimCheckpoint) -> Step:
        self._store = self._writer.store = Checkpoint(
            self.sim, self._disk, self.host, self._chance, self._writer.stored
        )
        folder = self._store.folder
        if folder.claimed:
            return False
        if effect.is_lost:
            raise checkpoint_lost(WRITER_NAME)
        yield from self._store.writes()
        if folder.claimed:
            return False  # another driver created the file meanwhile, and it is created only once
        folder.claimed = True
        for check in self.sim.on_claimed:
            check.claimed()
        return True

    def _check_checkpoint(self, effect: CheckCheckpoint) -> Step:
        folder = self._store.folder
        if folder.known_rows is None and not folder.recovers and may_have_written(effect.state, self._store.head):
            yield from self._store.writes()
            folder.recovers = True
        return folder.recovers

    def _begin_lookup(self, effect: BeginLookUp) -> Step:
        yield from self._store.writes()
        self._noted = NotedTopics(effect.settled)

    def _read_topic(self, effect: NoteTopic) -> Step:
        topic = DEAD if effect.letters else CDC
        for partition in self.sim.broker.topics[topic]:
            records = None
            while records is None:
                self._check()
                with suppress(Unanswered):
                    records = yield from self.sim.broker.read(self.host, topic, partition.number)
            self._noted.add(map(record_name, records), LETTERS if effect.letters else partition.number)

    def _end_lookup(self) -> Step:
        yield from self._store.writes()
        folder = self._store.folder
        if folder.known_rows is None:
            folder.known_rows, folder.recovers = self._noted.known_rows(), False
        self.sim.did["cdc", "looked up"] += 1

    # ---------------------------------------------------------------------------------------------- batches

    def _batches(self, batches: Batches) -> Step:
        folder, broker = self._store.folder, self.sim.broker
        newest = max(folder.offsets, default=-1)
        replayed = newest >= 0 and newest not in folder.commits
        begin = folder.offsets.get(newest - 1 if replayed else newest, {})
        for partition in broker.topics[MUTATIONS]:
            number = partition.number
            self._waiting[number] = []
            tail = broker.tail(self.host, MUTATIONS, number, begin.get(number, 0), self._taker(number))
            self._tails.append(tail)
        if not replayed:
            newest += 1
        while True:
            if not replayed:
                yield from self._next_batch(newest)
            replayed = False
            self._batch = yield from self._read(newest)
            if self._store.parts(newest):
                self.sim.did["cdc", "replayed"] += 1
            yield from self._replica.perform(batches.run(newest))
            yield from self._store.writes()
            folder.commits.add(newest)
            self.sim.did["cdc", "batch"] += 1
            newest += 1

    def _taker(self, partition: int) -> Any:
        def take(records: list[SimRecord]) -> None:
            self._waiting[partition] += records
            self._news.fire()

        return take

    def _next_batch(self, number: int) -> Step:
        """Wait for new records, and store the end of the batch."""
        folder = self._store.folder
        before = folder.offsets.get(number - 1)
        while True:
            self._check()
            if (count := len(self.sim.broker.topics[MUTATIONS])) > len(self._tails):
                raise PartitionsAdded(MUTATIONS, count)
            begin = before or {}
            ends = {}
            for tail in self._tails:
                partition = tail.partition.number
                ends[partition] = min(tail.position, begin.get(partition, 0) + BATCH_RECORDS)
            if ends != before:
                break
            yield self._news, SECOND
        yield from self._store.writes()
        if number in folder.offsets:
            raise CdcError("query_failed", f"another query wrote batch {number}")
        folder.offsets[number] = ends

    def _read(self, number: int) -> Step:
        ends = self._store.folder.offsets[number]
        while any(tail.position < ends.get(tail.partition.number, 0) for tail in self._tails):
            self._check()
            yield self._news, SECOND
        found = []
        for partition, end in sorted(ends.items()):
            waiting = self._waiting[partition]
            taken = [record for record in waiting if record.offset < end]
            del waiting[: len(taken)]
            found += [read_input(partition, record) for record in taken]
        return MicroBatch(number, ends, found)

    def _check(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure

    # ------------------------------------------------------------------------------------------------ plans

    def _later(self, effect: AppendedSince) -> dict[int, int | None]:
        """Return the broker's answer for the batch: per partition, the first record at or after the limit."""
        later: dict[int, int | None] = dict.fromkeys(self._batch.ends)
        for row in reversed(self._batch.rows):
            if row.item.appended >= effect.limit * 1000:
                later[row.item.partition] = row.item.offset
        return later

    def _facts(self, effect: FactsOf) -> Sequence[PartitionFacts]:
        return facts(self._batch.rows, effect.positions, effect.horizon, effect.leeway)

    def _context(self, state: ClusterState) -> dict[str, Any]:
        return context_of(state, MUTATIONS, len(self.sim.broker.topics[CDC]), ROW_BYTES_MAX)

    def _held(self, effect: ReportHeld) -> None:
        self.sim.did["cdc", "said what is decided" if effect.horizon is None else "held"] += 1

    def _next_state(self, effect: AwaitState) -> Step:
        if self._replica.state is effect.seen:
            yield self._replica.changed, HELD_POLL_US
        return self._replica.state

    def _stored(self, entry: PlanEntry) -> None:
        rows = part_rows(self._batch.rows, entry)
        for check in self.sim.on_routed:
            check.routed(entry.incarnation, entry.epoch, [(row.item.partition, row.record) for row in rows])

    # -------------------------------------------------------------------------------------------- execution

    def _begin(self, effect: Begin) -> Step:
        if effect.is_done:
            return
        yield from self.sim.moments.at("part", self.host)
        if self._images.concern(effect.entry):
            yield from self.sim.moments.at("imaged", self.host)

    def _write(self, effect: WriteRows) -> Step:
        """Write the rows and dead letters of a part, in the order of each source partition."""
        entry = effect.entry
        work = (yield from self._images.work(entry)) if self._images.concern(entry) else None
        rows, table = part_rows(self._batch.rows, entry), self._table(effect)
        if work is not None:
            yield from self._images.carry_out(rows, entry, work, table)
            return ()
        places = self.left(part_output(table, interleaved(rows, self._chance), entry))
        for topic, partition in sorted(places, key=lambda _: self._chance.random()):
            values = places[topic, partition]
            for first in range(0, len(values), SENT_TOGETHER):
                yield from self.send(self.host, topic, partition, values[first : first + SENT_TOGETHER])
        return ()

    def left(self, places: Places) -> Places:
        """Return the output without the records written before this checkpoint."""
        known_rows = self._store.folder.known_rows
        return places if known_rows is None else new_output(places, known_rows)

    def send(self, host: SimHost, topic: str, partition: int, values: Sequence[tuple[str, Any]]) -> Step:
        """Send records from ``host`` until they are acknowledged. Raise CdcError after ``ATTEMPTS`` attempts."""
        for _ in range(ATTEMPTS):
            self.sim.shared["job"].step(host)
            try:
                yield from self.sim.broker.append(host, topic, values, partition)
                return
            except Unanswered:
                continue
        raise CdcError("query_failed", f"partition {partition} of {topic} takes no rows")

    def _table(self, effect: WriteRows) -> RoutingTable:
        context, closed = effect.context, effect.closed
        tables: dict[Any, RoutingTable] = self.sim.shared.setdefault("cdc/tables", {})
        key = (effect.entry.context, closed, len(context["generations"]))
        if key not in tables:
            tables[key] = table_of(context, closed, effect.state)
        return tables[key]


def part_rows(rows: Iterable[Taken], entry: PlanEntry) -> list[Taken]:
    """Return the rows of a plan part."""
    ranges = {item.partition: item for item in entry.ranges}
    return [
        row
        for row in rows
        if (part := ranges.get(row.item.partition)) is not None and part.start <= row.item.offset < part.end
    ]


def interleaved(rows: Iterable[Taken], chance: Chance) -> list[Taken]:
    """Return a possible order of rows when the tasks of the source partitions run concurrently."""
    sources: dict[int, list[Taken]] = {}
    for row in rows:
        sources.setdefault(row.item.partition, []).append(row)
    moments: list[tuple[float, Taken]] = []
    for _, taken in sorted(sources.items()):
        times = sorted(chance.random() for _ in taken)
        moments += zip(times, taken, strict=True)
    return [row for _, row in sorted(moments, key=lambda moment: moment[0])]


def facts(rows: Iterable[Taken], positions: Mapping[int, int], horizon: int, leeway: int) -> tuple[PartitionFacts, ...]:
    """Return, per partition, the first held offset and the greatest used timestamp below the horizon."""
    found: dict[int, PartitionFacts] = {}
    for row in rows:
        item = row.item
        if item.offset < positions[item.partition]:
            continue
        so_far = found.get(item.partition, PartitionFacts(item.partition, None, 0))
        use = item.use(leeway)
        if use < horizon:
            found[item.partition] = PartitionFacts(item.partition, so_far.held, max(so_far.used, use))
        else:
            held = item.offset if so_far.held is None else so_far.held
            found[item.partition] = PartitionFacts(item.partition, held, so_far.used)
    return tuple(found[partition] for partition in sorted(found))
