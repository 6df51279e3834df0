"""One driver of the simulated CDC job: batches in the manner of Spark, plans and rows in the manner of ``ringlog_cdc``.

Spark's side is modelled: the end of a batch is on disk before the batch begins, a batch without a commit is handed out
again, tasks write their rows in order and again until they are acknowledged. What a plan says, which rows are held, and
what becomes of each mutation are the production functions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.effects import Newest, Steps
from ringlog.sim.actors.checkpoint import Checkpoint
from ringlog.sim.actors.imaged import ImagedParts
from ringlog.sim.actors.rows import ROW_BYTES_MAX, Places, Taken, noted, outgoing, read_input, without
from ringlog.sim.actors.writer import WRITER_NAME, SimWriter
from ringlog.sim.broker import CDC, DEAD, MUTATIONS, Record
from ringlog.sim.chance import Chance
from ringlog.sim.client import SimClient
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, SECOND, Host, Signal, Unanswered
from ringlog_cdc.decisions import (
    Draft,
    check_place,
    closed_for,
    context_of,
    decide,
    next_positions,
    still_known,
    table_of,
)
from ringlog_cdc.errors import CdcError
from ringlog_cdc.known import (
    LETTERS,
    Noted,
    cut_off,
    is_cut_off,
    is_lost,
    known_of,
    may_have_written,
    may_revive,
    settled_of,
)
from ringlog_cdc.plan import (
    PartitionFacts,
    PlanEntry,
    append_limits,
    at_most,
    is_before,
    most_used,
    next_ranges,
    used_by,
)
from ringlog_cdc.plan_store import checkpoint_lost
from ringlog_cdc.protocol.effects import AppendPlan, Locked
from ringlog_cdc.protocol.writer import Promises
from ringlog_cdc.routing import RoutingTable

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

BATCH_RECORDS = 5
"""Offsets that a batch takes at most of each partition: few, so that there are many batches."""
SPARK_JOB_US = (MS, 60 * MS)
HELD_LOOK_US: Micros = 500 * MS
ATTEMPTS = 8
SENT_TOGETHER = 2


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in hand: its number, where it ends, and its records that are mutations or claim to be."""

    number: int
    ends: Mapping[int, int]
    rows: Sequence[Taken]


class Driver:
    """One run of the job on ``host``, with the checkpoint on ``disk``'s disk."""

    def __init__(self, sim: Simulation, host: Host, disk: Host, number: int) -> None:
        self.sim = sim
        self.host = host
        self.name = f"cdc-{number}"
        self._chance = Chance(sim.world.seed, f"driver/{number}")
        self._disk = disk
        self._limit = 2 + number % 7
        self._client = SimClient(sim, host, self.name)
        self._replica = self._client.replica
        self._tails: list[Any] = []
        self._waiting: dict[int, list[Record]] = {}
        self._news = Signal()
        self._store: Checkpoint
        self._writer: SimWriter
        self._promises: Promises
        self._images: ImagedParts
        self._batch: Batch

    @property
    def incarnation(self) -> str:
        """That of the writer."""
        return self._promises.incarnation

    def run(self) -> Step:
        """Start and work, until a CdcError is raised."""
        try:
            yield from self._client.start()
            state = yield from self._replica.barrier()
            self._store = Checkpoint(self.sim, self._disk, self.host, self._chance)
            before = state.writers.get(WRITER_NAME)
            is_new = yield from self._claim(is_lost(before))
            if is_cut_off(self._store.undone(), state):
                raise cut_off(WRITER_NAME)
            self._writer = SimWriter(self.sim, self.host, self._client, self._store, self._stored)
            self._promises = self._writer.promises
            yield from self._look_ahead(state)
            epoch = yield from self._replica.perform(self._promises.register())
            ended = set(self._promises.mine(self._replica.state).ended)
            earlier = {*before.ended, before.incarnation} if before is not None else set()
            if is_new and not ended - earlier <= set(self._promises.tried):
                self._store.folder.claimed = False
                raise checkpoint_lost(WRITER_NAME)
            if self._store.folder.recovers:
                yield from self._look_up()
            self.sim.shared["job"].refused = ""
            self._images = ImagedParts(self, self._store, self._disk, epoch, self._chance)
            self.sim.world.tell(self.name, f"is incarnation {self._promises.incarnation[:6]}")
            keeper = self.sim.world.spawn(self.host, f"{self.name}.promises", self._writer.keep())
            try:
                yield from self._batches()
            finally:
                keeper.stop()
        finally:
            self._client.close()
            for tail in self._tails:
                tail.close()

    def _claim(self, lost: bool) -> Step:
        """Tie the checkpoint to the writer; True if it is new. Raises CdcError if one was lost."""
        folder = self._store.folder
        if folder.claimed:
            return False
        if lost:
            raise checkpoint_lost(WRITER_NAME)
        yield from self._store.writes()
        folder.claimed = True
        for check in self.sim.on_claimed:
            check.claimed()
        return True

    def _look_ahead(self, state: ClusterState) -> Step:
        """Remember, before the writer's fence ends, that there may be rows which no plan of this checkpoint knows."""
        folder = self._store.folder
        if folder.known is None and not folder.recovers and may_have_written(state, self._store.head):
            yield from self._store.writes()
            folder.recovers = True

    def _look_up(self) -> Step:
        """Read both topics as they are, and keep what is there: all that earlier checkpoints have led to."""
        found: list[Noted] = []
        lasts: dict[tuple[int, int], int] = {}
        for topic in (CDC, DEAD):
            for partition in self.sim.broker.topics[topic]:
                records = None
                while records is None:
                    self._check()
                    with suppress(Unanswered):
                        records = yield from self.sim.broker.read(self.host, topic, partition.number)
                names = [*map(noted, records)]
                found += names
                to = LETTERS if topic == DEAD else partition.number
                for name in names:
                    lasts[name[0], to] = max(name[1], lasts.get((name[0], to), 0))
        yield from self._store.writes()
        folder = self._store.folder
        if folder.known is None:
            settled = settled_of(self._replica.state, MUTATIONS)
            folder.known = replace(known_of(found), settled=settled, lasts=lasts)
            folder.recovers = False
        self.sim.did["cdc", "looked up"] += 1

    # ---------------------------------------------------------------------------------------------- batches

    def _batches(self) -> Step:
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
            yield from self._run(self._batch)
            yield from self._store.writes()
            folder.commits.add(newest)
            self.sim.did["cdc", "batch"] += 1
            newest += 1

    def _taker(self, partition: int) -> Any:
        def take(records: list[Record]) -> None:
            self._waiting[partition] += records
            self._news.fire()

        return take

    def _next_batch(self, number: int) -> Step:
        """Wait until there is something new, and store where the batch ends."""
        folder = self._store.folder
        before = folder.offsets.get(number - 1)
        while True:
            self._check()
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
        while any(tail.position < ends[tail.partition.number] for tail in self._tails):
            self._check()
            yield self._news, SECOND
        found = []
        for partition, end in sorted(ends.items()):
            waiting = self._waiting[partition]
            taken = [record for record in waiting if record.offset < end]
            del waiting[: len(taken)]
            found += [read_input(partition, record) for record in taken]
        return Batch(number, ends, found)

    def _run(self, batch: Batch) -> Step:
        parts = self._store.parts(batch.number)
        before = self._store.folder.offsets.get(batch.number - 1, {}) if not parts else {}
        check_place(batch.number, parts, self._store.head, batch.ends, before)
        if parts:
            self.sim.did["cdc", "replayed"] += 1
        for entry in parts:
            yield from self._carry_out(batch, entry)
        while not parts or not parts[-1].last:
            entry = yield from self._plan(batch, len(parts))
            yield from self._carry_out(batch, entry)
            parts = (*parts, entry)
        yield from self._need(held=False)

    def _need(self, held: bool) -> Step:
        return self._replica.perform(self._promises.need(held))

    def _check(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure

    # ------------------------------------------------------------------------------------------------ plans

    def _plan(self, batch: Batch, part: int) -> Step:
        """Make and store the next part of a batch; waits while no row may be routed."""
        held = False
        while True:
            self._check()
            state = yield from self._replica.barrier()
            yield from self._until_said(state)
            horizon = self._promises.horizon(state)
            yield from self._need(held=held)
            positions = next_positions({}, batch.ends, self._store.head)
            leeway = setting(state, "cdc_leeway_us")
            greatest = self._most_used(batch, horizon, leeway)
            yield self._chance.between(*SPARK_JOB_US)
            found = facts(batch.rows, positions, horizon, leeway) if greatest is None else ()
            ranges, complete = at_most(*next_ranges(found, positions, batch.ends), self._limit)
            if not ranges and not complete:
                held = True
                self.sim.did["cdc", "held"] += 1
                yield from self._hold(horizon)
                continue
            used = used_by(found, horizon) if greatest is None else greatest
            draft = Draft(batch.number, part, complete, ranges, horizon, used if ranges else 0, positions)
            entry = yield from self._decide(draft, self._context(state))
            if entry is not None:
                yield from self._need(held=False)
                return entry

    def _until_said(self, state: ClusterState) -> Step:
        """Before anything is planned under tables that are not what they were, the log has what was decided so far."""
        before = self._store.head.context
        if not before or not may_revive(self._store.folder.contexts[before], self._context(state)):
            return
        while not (yield from self._replica.perform(self._promises.says(self._replica.state))):
            self.sim.did["cdc", "said what is decided"] += 1
            self._check()
            yield self._replica.changed, HELD_LOOK_US

    def _most_used(self, batch: Batch, horizon: int, leeway: int) -> int | None:
        """The most that routing the batch uses, if the broker can tell that it lies below the horizon."""
        for limit in append_limits(self.sim.world.clock(self.host), horizon, leeway):
            later = dict.fromkeys(batch.ends)
            for row in reversed(batch.rows):
                if row.item.appended >= limit * 1000:
                    later[row.item.partition] = row.item.offset
            if is_before(later, batch.ends):
                return most_used(limit, leeway)
        return None

    def _context(self, state: Any) -> dict[str, Any]:
        return context_of(state, MUTATIONS, len(self.sim.broker.topics[CDC]), ROW_BYTES_MAX)

    def _hold(self, horizon: int) -> Step:
        """Wait until the horizon is another one."""
        yield from self._need(held=True)
        while self._promises.horizon(self._replica.state) == horizon:
            self._check()
            yield self._replica.changed, HELD_LOOK_US

    def _decide(self, draft: Draft, context: dict[str, Any]) -> Step:
        """Store a part; None if the log has moved on meanwhile, and it must be made anew."""
        name = _name(context)
        yield from self._store.put_context(name, context)
        return (yield from self._replica.perform(self._locked(draft, context, name)))

    def _locked(self, draft: Draft, context: dict[str, Any], name: str) -> Steps[PlanEntry | None]:
        entry: PlanEntry | None = yield Locked(self._decided(draft, context, name))
        return entry

    def _decided(self, draft: Draft, context: dict[str, Any], name: str) -> Steps[PlanEntry | None]:
        now = yield Newest()
        if self._context(now) != context:
            self.sim.did["cdc", "decided anew"] += 1
            return None
        entry = decide(
            draft,
            self._store.head,
            now,
            self._promises.horizon(now),
            context=name,
            incarnation=self._promises.incarnation,
        )
        if entry is not None:
            yield AppendPlan(entry)
        return entry

    def _stored(self, entry: PlanEntry) -> None:
        rows = within(self._batch.rows, entry)
        for check in self.sim.on_routed:
            check.routed(entry.incarnation, entry.epoch, [(row.item.partition, row.record) for row in rows])

    # -------------------------------------------------------------------------------------------- execution

    def _carry_out(self, batch: Batch, entry: PlanEntry) -> Step:
        if self._store.is_done(entry):
            return
        yield from self.sim.moments.at("part", self.host)
        work = None
        if self._images.concern(entry):
            yield from self.sim.moments.at("imaged", self.host)
            self._promises.mine(self._replica.state)
            work = yield from self._images.work(entry)
        if work is None:
            yield from self._write(within(batch.rows, entry), entry)
        else:
            yield from self._images.carry_out(within(batch.rows, entry), entry, work, self._table(entry))
        yield from self._store.mark_done(entry)

    def _write(self, rows: Sequence[Taken], entry: PlanEntry) -> Step:
        """Write the rows and dead letters of a part: what comes from a source partition in its order."""
        rows = interleaved(rows, self._chance)
        self._promises.mine(self._replica.state)
        places = self.left(outgoing(self._table(entry), rows, entry, self.sim.cluster_id))
        for topic, partition in sorted(places, key=lambda _: self._chance.random()):
            values = places[topic, partition]
            for first in range(0, len(values), SENT_TOGETHER):
                yield from self.send(self.host, topic, partition, values[first : first + SENT_TOGETHER])

    def left(self, places: Places) -> Places:
        """What is to go out, without what was there before this checkpoint."""
        known = self._store.folder.known
        return places if known is None else without(places, known)

    def send(self, host: Host, topic: str, partition: int, values: Sequence[tuple[str, Any]]) -> Step:
        """Send records from ``host`` until they are acknowledged. Raises CdcError."""
        for _ in range(ATTEMPTS):
            self.sim.shared["job"].step(host)
            try:
                yield from self.sim.broker.append(host, topic, values, partition)
                return
            except Unanswered:
                continue
        raise CdcError("query_failed", f"partition {partition} of {topic} takes no rows")

    def _table(self, entry: PlanEntry) -> RoutingTable:
        state = self._replica.state
        context = still_known(self._store.folder.contexts[entry.context], state, entry.used)
        tables: dict[Any, RoutingTable] = self.sim.shared.setdefault("cdc/tables", {})
        closed = closed_for(entry, state)
        key = (entry.context, closed, len(context["generations"]))
        if key not in tables:
            tables[key] = table_of(context, closed, state)
        return tables[key]


def _name(context: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(context, sort_keys=True).encode()).hexdigest()


def within(rows: Iterable[Taken], entry: PlanEntry) -> list[Taken]:
    """The rows of a plan part."""
    ranges = {item.partition: item for item in entry.ranges}
    return [
        row
        for row in rows
        if (part := ranges.get(row.item.partition)) is not None and part.start <= row.item.offset < part.end
    ]


def interleaved(rows: Iterable[Taken], chance: Chance) -> list[Taken]:
    """An order in which the tasks of the source partitions, which run at the same time, may come to their rows."""
    sources: dict[int, list[Taken]] = {}
    for row in rows:
        sources.setdefault(row.item.partition, []).append(row)
    moments: list[tuple[float, Taken]] = []
    for _, taken in sorted(sources.items()):
        times = sorted(chance.random() for _ in taken)
        moments += zip(times, taken, strict=True)
    return [row for _, row in sorted(moments, key=lambda moment: moment[0])]


def facts(rows: Iterable[Taken], positions: Mapping[int, int], horizon: int, leeway: int) -> tuple[PartitionFacts, ...]:
    """What a look at the rows finds out, where some may be held."""
    found: dict[int, PartitionFacts] = {}
    for row in rows:
        item = row.item
        if item.offset < positions[item.partition]:
            continue
        known = found.get(item.partition, PartitionFacts(item.partition, None, 0))
        use = item.use(leeway)
        if use < horizon:
            found[item.partition] = PartitionFacts(item.partition, known.held, max(known.used, use))
        else:
            held = item.offset if known.held is None else known.held
            found[item.partition] = PartitionFacts(item.partition, held, known.used)
    return tuple(found[partition] for partition in sorted(found))
