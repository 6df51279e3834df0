"""One micro-batch: plans made or looked up, held writes waited for, rows written; nothing is passed over.

The stored plan parts of a batch are carried out first; then, until all its rows are planned, the next part is made:
read barrier, the writer's horizon in that very state, a look at what the rows would use, the entry of the chain, and
only then the rows. Where not a single row may be routed yet, the batch waits, visibly.

The look seldom reads a row: if the broker says that nothing of the batch was appended after some time, the batch can
use no more than that and the leeway. Only where that is not below the horizon the rows are gone through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import Accumulator, Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.log.errors import WaitTimedOut
from ringlog.log.replica import Replica
from ringlog_cdc.arrow import ADDRESSED_TYPE, FACTS_TYPE, NEVER, addressed, facts_function, rows_function
from ringlog_cdc.decisions import (
    Draft,
    check_place,
    closed_for,
    context_of,
    decide,
    is_first,
    next_positions,
    still_known,
    table_of,
)
from ringlog_cdc.errors import ChainBroken, StopRequested
from ringlog_cdc.frames import within
from ringlog_cdc.images.tables import image_tables
from ringlog_cdc.images.work import ImageFolder, ImageWork
from ringlog_cdc.known import may_revive
from ringlog_cdc.lake.columns import TableFields, fields_of
from ringlog_cdc.lake.sink import KEPT, KEPT_TYPE, Lake, with_heads
from ringlog_cdc.pace import FIRST, next_limit
from ringlog_cdc.plan import (
    OffsetRange,
    PartitionFacts,
    PlanEntry,
    append_limits,
    at_most,
    is_before,
    most_used,
    next_ranges,
    used_by,
)
from ringlog_cdc.plan_store import PlanStore
from ringlog_cdc.progress import BatchFigures, Progress
from ringlog_cdc.recovery import Index, without
from ringlog_cdc.rows import Part
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.shares import batch_ends
from ringlog_cdc.sink import sink_options
from ringlog_cdc.sizes import CUT, Records, left_of
from ringlog_cdc.source import Offsets
from ringlog_cdc.tally import GENERATION, REASON, RECORDS, WITH_STATES, Tally, TallyParam, of_kind
from ringlog_cdc.verdicts import CODES, KNOWN, ROUTED, SKIPPED
from ringlog_cdc.writer import Writer

BARRIER_S = 30.0
HELD_LOOK_S = 0.5
HELD_REPORT_S = 5.0
TABLES_KEPT = 4


@dataclass(frozen=True, slots=True)
class Work:
    """A batch in hand: records as Spark hands them over, and where it ends."""

    frame: DataFrame
    batch: int
    ends: dict[int, int]
    figures: BatchFigures


class BatchRunner:
    """What ``foreachBatch`` calls. ``idle``: no batch is being worked on; ``stopping``, once set, lets none begin."""

    def __init__(
        self,
        session: SparkSession,
        settings: JobSettings,
        replica: Replica,
        writer: Writer,
        store: PlanStore,
        offsets: Offsets,
        progress: Progress,
        partitions: int,
        starts: Mapping[int, int],
        images: ImageFolder,
        index: Index,
        lake: Lake | None = None,
    ) -> None:
        self.idle = threading.Event()
        self.idle.set()
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.last_batch = -1
        self._session = session
        self._settings = settings
        self._replica = replica
        self._writer = writer
        self._store = store
        self._offsets = offsets
        self._progress = progress
        self._partitions = partitions
        self._counts: Accumulator[Tally] | None = None
        self._starts = dict(starts)
        self._images = images
        self._index = index
        self._lake = lake
        self._all_small = True
        self._limit = FIRST
        self._done = 0
        self._records = Records()
        self._tables: dict[tuple[str, tuple[str, ...]], Broadcast[Any]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Carry out a batch. Any exception ends the query; ``failure`` keeps it."""
        self.idle.clear()
        try:
            if self.stopping.is_set():
                raise StopRequested
            self._run(frame, batch)
            self.last_batch = batch
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.idle.set()

    def _run(self, frame: DataFrame, batch: int) -> None:
        started = time.monotonic()
        figures = BatchFigures(batch)
        ends = batch_ends(self._settings.checkpoint, batch, self._settings.source_topic)
        parts = self._store.parts(batch)
        self._check_place(batch, parts, ends)
        work = Work(frame, batch, ends, figures)
        try:
            for entry in parts:
                self._carry_out(work, entry)
            while not parts or not parts[-1].last:
                entry = self._plan(work, len(parts))
                self._carry_out(work, entry)
                parts = (*parts, entry)
        finally:
            self._writer.note_need(held=False)
        figures.duration_ms = round((time.monotonic() - started) * 1000)
        self._progress.finished(figures)

    def _check_place(self, batch: int, parts: Sequence[PlanEntry], ends: Mapping[int, int]) -> None:
        needed = not parts and batch > 0
        before = batch_ends(self._settings.checkpoint, batch - 1, self._settings.source_topic) if needed else {}
        check_place(batch, parts, self._store.head, ends, before)

    # ---------------------------------------------------------------------------------------------- plans

    def _plan(self, work: Work, part: int) -> PlanEntry:
        """Make and store the next part of a batch; waits while no row may be routed."""
        since: float | None = None
        while True:
            state = self._replica.read_barrier(BARRIER_S)
            self._until_said(state)
            self._replica.remember()  # a plan made on a history that the log loses must be known by its state id
            horizon = self._writer.horizon(state)
            self._writer.note_need(held=since is not None)
            positions = self._positions(work)
            found: list[PartitionFacts] = []
            leeway = setting(state, "cdc_leeway_us")
            greatest = self._most_used(work, horizon, leeway)
            if greatest is None:
                found = self._facts(work, positions, horizon, leeway)
            ranges, complete = at_most(*next_ranges(found, positions, work.ends), self._limit)
            if not ranges and not complete:
                since = self._hold(work.batch, part, state, horizon, since)
                continue
            used = used_by(found, horizon) if greatest is None else greatest
            draft = Draft(work.batch, part, complete, ranges, horizon, used if ranges else 0, positions)
            entry = self._decide(draft, self._context(state))
            if entry is not None:
                self._writer.note_need(held=False)
                work.figures.held_ms += 0 if since is None else round((time.monotonic() - since) * 1000)
                return entry

    def _until_said(self, state: ClusterState) -> None:
        """Before anything is planned under tables that are not what they were, the log has what was decided so far."""
        before = self._store.head.context
        if not before or not may_revive(self._store.context(before), self._context(state)):
            return
        since = time.monotonic()
        while not self._writer.has_said(self._replica.state):
            self._writer.check()
            if self.stopping.is_set():
                raise StopRequested
            try:
                self._replica.wait_for(self._writer.has_said, HELD_REPORT_S, "what is decided to be in the log")
            except WaitTimedOut:
                waiting = "the metadata log to have what was decided under the tables as they were"
                ends = "when a validator answers; SIGTERM gives up without loss"
                self._progress.emit("held", waiting=waiting, seconds=round(time.monotonic() - since, 1), ends=ends)

    def _most_used(self, work: Work, horizon: int, leeway: int) -> int | None:
        """The most that routing the batch uses, if the broker can tell that it lies below the horizon."""
        topic = self._settings.source_topic
        for limit in append_limits(time.time_ns() // 1000, horizon, leeway):
            if is_before(self._offsets.later(topic, limit), work.ends):
                return most_used(limit, leeway)
        return None

    def _facts(self, work: Work, positions: Mapping[int, int], horizon: int, leeway: int) -> list[PartitionFacts]:
        """What a plan must know of the rows from ``positions`` on, where some may be held."""
        ranges = [OffsetRange(partition, start, work.ends[partition]) for partition, start in sorted(positions.items())]
        records = self._records.of(work.frame.where(within(ranges)))
        found = records.mapInArrow(facts_function(horizon, leeway), FACTS_TYPE)
        parted = found.groupBy("partition").agg(F.min("held").alias("held"), F.max("used").alias("used")).collect()
        return [
            PartitionFacts(row["partition"], None if row["held"] == NEVER else row["held"], row["used"])
            for row in parted
        ]

    def _decide(self, draft: Draft, context: dict[str, Any]) -> PlanEntry | None:
        """Store a part decided under ``context``; None if the log has moved on meanwhile, and it must be made anew.

        Knowledge and horizon must be of one and the same state: after the rows were looked at, the horizon may have
        been lowered, a generation committed above it, and the horizon raised again. Under the lock no lowering
        begins, and one that begins later stays above all that stored plans use.
        """
        name = self._store.put_context(context)
        with self._writer.lock:
            now = self._replica.state
            if self._context(now) != context:
                return None
            entry = decide(
                draft,
                self._store.head,
                now,
                self._writer.horizon(now),
                context=name,
                incarnation=self._writer.incarnation,
            )
            if entry is not None:
                self._store.append(entry)
        return entry

    def _positions(self, work: Work) -> dict[int, int]:
        """Where the next part begins, for every partition of the batch."""
        return next_positions(self._starts, work.ends, self._store.head)

    def _hold(self, batch: int, part: int, state: ClusterState, horizon: int, since: float | None) -> float:
        """Wait until the horizon is another one; say for what, since when, and how it ends."""
        now = time.monotonic()
        began = now if since is None else since
        self._writer.note_need(held=True)
        reported = since is None
        while True:
            if reported or time.monotonic() - now >= HELD_REPORT_S:
                now, reported = time.monotonic(), False
                waiting = f"generation {state.prepared.id} to be committed" if state.prepared else "its extension"
                self._progress.emit(
                    "held",
                    batch=batch,
                    part=part,
                    horizon=horizon,
                    waiting=waiting,
                    seconds=round(now - began, 1),
                    ends="when the horizon is raised past the first write that waits; SIGTERM gives up without loss",
                )
            self._writer.check()
            if self.stopping.is_set():
                raise StopRequested
            try:
                self._replica.wait_for(
                    lambda state: self._writer.horizon(state) != horizon or None, HELD_LOOK_S, "the horizon to change"
                )
                return began
            except WaitTimedOut:
                state = self._replica.state

    def _context(self, state: ClusterState) -> dict[str, Any]:
        settings = self._settings
        ttl = settings.image_ttl_s * 1_000_000
        context = context_of(state, settings.source_topic, self._partitions, settings.row_bytes_max, ttl)
        return context if self._lake is None else context | {"columns": fields_of(state)}

    # ------------------------------------------------------------------------------------------ execution

    def _carry_out(self, work: Work, entry: PlanEntry) -> None:
        """Write the rows of a part, or count them if they are durable already."""
        figures, ends = work.figures, work.ends
        figures.parts += 1
        figures.epoch = entry.epoch
        planned = sum(item.end - item.start for item in entry.ranges)
        if any(item.end > ends.get(item.partition, item.end) for item in entry.ranges):
            raise ChainBroken(f"plan {entry.sequence} goes beyond the end of batch {entry.batch}")
        if self._store.is_done(entry):
            figures.rows += planned
            figures.repeated += planned
            return
        if entry.ranges:
            began = time.monotonic()
            self._write(work, entry)
            self._done += planned
            self._limit = next_limit(self._limit, planned, time.monotonic() - began, self._done)
        with self._writer.lock:
            self._store.mark_done(entry)

    def _write(self, work: Work, entry: PlanEntry) -> None:
        """Rows and dead letters of a part; in two passes where a record is not small (``ringlog_cdc.sizes``)."""
        frame = work.frame
        if entry.part or not entry.last:
            frame = frame.where(within(entry.ranges))
        cut = self._write_rows(frame, entry, work.figures)
        if cut:
            self._all_small = False
            self._write_rows(frame.where(within(left_of(entry.ranges, cut))), entry, work.figures)

    def _write_rows(self, frame: DataFrame, entry: PlanEntry, figures: BatchFigures) -> dict[int, int]:
        """Those of a source partition go out in its order: by one task, with one producer. Returns what was cut."""
        state = self._replica.state
        context = dict(still_known(self._store.context(entry.context), state, entry.used))
        part = Part(
            source_topic=self._settings.source_topic,
            cluster_id=context["cluster_id"],
            incarnation=entry.incarnation,
            epoch=entry.epoch,
            row_bytes_max=context["row_bytes_max"],
            is_first=is_first(context),
        )
        # Another incarnation may have carried the part out, and closed its generation: these rows are no late ones.
        self._writer.mine(state)
        closed = closed_for(entry, state)
        counts, images = self._nothing_counted(), self._images_of(entry, context)
        function = rows_function(self._table(entry.context, context, closed, state), part, counts, images)
        known = self._index.known(entry)
        if known is not None:
            function = without(function, self._session.sparkContext.broadcast(known), counts)
        function, columns = addressed(function, self._settings.sink_topic, self._settings.letters_topic), ADDRESSED_TYPE
        if self._lake is not None:
            function, columns = with_heads(function, self._settings.sink_topic), KEPT_TYPE
        options = sink_options(self._settings.bootstrap_servers, self._settings.producer)
        # States, and the lake, take a part as a whole.
        is_lean = self._all_small and images is None and self._lake is None
        out = self._records.of(frame, only_small=is_lean).mapInArrow(function, columns)
        with self._both_sinks(out, entry, context.get("columns") or fields_of(state)) as out:
            out.write.format("kafka").options(**options).mode("append").save()
            _add(figures, counts.value)
        if images is not None:
            self._images.settle(images, of_kind(counts.value, WITH_STATES))
        return of_kind(counts.value, CUT)

    @contextmanager
    def _both_sinks(self, out: DataFrame, entry: PlanEntry, fields: Mapping[str, TableFields]) -> Iterator[DataFrame]:
        """What goes out, made once for topic and lake; the lake gets it when the block that fills the topic ends."""
        if self._lake is None:
            yield out
            return
        self._lake.describe(self._replica.state)
        ends = self._offsets.ends(self._settings.sink_topic)
        kept = out.persist()
        try:
            yield kept.drop(*KEPT)
            rows = kept.where(F.col("table").isNotNull()).select(*KEPT, "value")
            self._lake.append(rows, entry, fields, ends)
        finally:
            kept.unpersist()

    def _images_of(self, entry: PlanEntry, context: dict[str, Any]) -> ImageWork | None:
        """What the tasks of a part must know of images; None if its tables have none."""
        before = self._store.before(entry)
        is_first = before is None or not self._store.context(before.context).get("images")
        kept_from = self._store.replayed_from(entry.batch)
        return self._images.work(image_tables(context), entry.ranges, kept_from, is_first)

    def _nothing_counted(self) -> Accumulator[Tally]:
        """The accumulator of all batches, at its begin: the driver's part of Spark never forgets one."""
        if self._counts is None:
            self._counts = self._session.sparkContext.accumulator({}, TallyParam())
        self._counts.value = {}
        return self._counts

    def _table(
        self, name: str, context: dict[str, Any], closed: tuple[str, ...], state: ClusterState
    ) -> Broadcast[Any]:
        """The routing table of a context: broadcast once and kept for the batches that share it."""
        key = (name, closed)
        if key not in self._tables:
            table = table_of(context, closed, state)
            self._tables[key] = self._session.sparkContext.broadcast(table)
            while len(self._tables) > TABLES_KEPT:
                self._tables.pop(next(iter(self._tables))).unpersist()
        return self._tables[key]


def _add(figures: BatchFigures, tally: Tally) -> None:
    reasons = of_kind(tally, REASON)
    figures.rows += tally.get(RECORDS, 0)
    figures.skipped += reasons.pop(SKIPPED, 0)
    figures.repeated += reasons.pop(KNOWN, 0)
    figures.written += reasons.pop(ROUTED, 0)
    for number, count in reasons.items():
        figures.rejected[CODES[number]] = figures.rejected.get(CODES[number], 0) + count
    for timestamp, count in of_kind(tally, GENERATION).items():
        figures.generations[str(timestamp)] = figures.generations.get(str(timestamp), 0) + count
