"""The function that Spark calls for each micro-batch. It performs ``ringlog_cdc.protocol.batch`` with Spark's jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import Accumulator, Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import WaitTimedOut
from ringlog.log.replicas.driver import LogDriver
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.role import CheckSuperseded
from ringlog_cdc.bulk.arrow import ADDRESSED_TYPE, FACTS_TYPE, NEVER, addressed, facts_function, rows_function
from ringlog_cdc.bulk.arrow_batching import RecordColumns, left_of
from ringlog_cdc.bulk.choice import RecordPath
from ringlog_cdc.bulk.image_work import ImageFolder
from ringlog_cdc.bulk.routing import bulk_table
from ringlog_cdc.bulk.tally import Tally, TallyParam
from ringlog_cdc.definition.decision import PartContext
from ringlog_cdc.definition.reasons import CODES, KNOWN, ROUTED, SKIPPED
from ringlog_cdc.driver.recovery import Index, without
from ringlog_cdc.driver.writer import Writer
from ringlog_cdc.errors import StopRequested
from ringlog_cdc.lake.columns import Versions, all_versions, ids_of, versions_in
from ringlog_cdc.lake.sink import KEPT, KEPT_TYPE, Lake, with_heads
from ringlog_cdc.plan.decisions import context_of, table_of
from ringlog_cdc.plan.plan import FIRST, OffsetRange, PartitionFacts, PlanEntry, next_limit
from ringlog_cdc.plan.source_partitioning import batch_ends
from ringlog_cdc.plan.store import PlanStore
from ringlog_cdc.protocol.batch import (
    AppendedSince,
    AwaitState,
    Batches,
    Begin,
    FactsOf,
    MarkDone,
    PutContext,
    ReportHeld,
    WriteRows,
)
from ringlog_cdc.protocol.effects import Locked, OfChain, Wake
from ringlog_cdc.report.progress import BatchFigures, BatchProgress
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.frames import within
from ringlog_cdc.topics.sink import sink_options
from ringlog_cdc.topics.source import Offsets

HELD_LOOK_S = 0.5
HELD_REPORT_S = 5.0
"""Interval of reports about a waiting batch, seconds."""
WRITING_REPORT_S = 30.0
"""Interval of reports about a slow write, seconds."""
GROUP = "ringlog-cdc-batch"
"""Spark's job group, used to cancel the jobs of a batch."""
TABLES_KEPT = 4
"""Broadcast routing tables that are kept."""


class BatchRunner:
    """The callback of ``foreachBatch``.

    Attributes:
        idle: Set while no batch is processed.
        stopping: Once set, no batch starts.
        failure: The error that ended the query.
        batch: Number of the current or last batch.
        last_batch: Number of the last finished batch.
    """

    def __init__(
        self,
        session: SparkSession,
        settings: JobSettings,
        replica: LogReplica,
        writer: Writer,
        store: PlanStore,
        offsets: Offsets,
        progress: BatchProgress,
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
        self.batch = self.last_batch = -1
        self._session = session
        self._settings = settings
        self._replica = replica
        self._writer = writer
        self._store = store
        self._offsets = offsets
        self._progress = progress
        self._partitions = partitions
        self._counts: Accumulator[Tally] | None = None
        self._images = images
        self._index = index
        self._lake = lake
        self._read_by: tuple[Any, Any, Versions] | None = None
        self._all_small = True
        self._done = 0
        self._began = self._report_at = self._writing_said = 0.0
        self._writing_since: float | None = None
        self._given_up = False
        self._held_since: float | None = None
        self._records = RecordColumns()
        self._tables: dict[tuple[str, tuple[str, ...]], Broadcast[Any]] = {}
        self.batches = Batches(writer.promises, starts, self._context, store.context, self._ends, FIRST)
        self.driver = LogDriver(replica.log, replica, check=self._check, check_s=HELD_LOOK_S)
        self.driver.handlers |= {kind: writer.driver.handlers[kind] for kind in (Wake, Locked, OfChain)} | {
            CheckSuperseded: lambda _: self._check(),
            AppendedSince: lambda effect: offsets.later(settings.source_topic, effect.limit),
            FactsOf: self._facts,
            PutContext: self._put_context,
            ReportHeld: self._held,
            AwaitState: self._news,
            Begin: self._begin,
            WriteRows: self._write,
            MarkDone: self._mark_done,
        }

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Process a batch. Any exception ends the query and is kept in ``failure``."""
        self.idle.clear()
        self.batch, self._given_up = batch, False
        try:
            if self.stopping.is_set():
                raise StopRequested
            self._run(frame, batch)
            self.last_batch = batch
        except BaseException as error:
            self.failure = StopRequested() if self._given_up else error
            raise
        finally:
            self.idle.set()

    def give_up(self) -> None:
        """Abort the current batch, as a killed process would. Return when it has ended."""
        self._given_up = True
        while not self.idle.wait(HELD_LOOK_S):  # repeated, since the batch may be between two Spark jobs
            self._session.sparkContext.cancelJobGroup(GROUP)

    def _for_giving_up(self) -> None:
        """Put the next Spark jobs of this thread into the group that ``give_up`` cancels."""
        self._session.sparkContext.setJobGroup(GROUP, f"batch {self.batch}", interruptOnCancel=True)

    def report_writing(self) -> None:
        """Report a write that takes long: its start, and how it ends. Called from another thread."""
        began = self._writing_since
        if began is None or (now := time.monotonic()) < max(began, self._writing_said) + WRITING_REPORT_S:
            return
        self._writing_said = now
        self._progress.emit(
            "writing",
            batch=self.batch,
            seconds=round(now - began, 1),
            waiting="the brokers to store the rows and dead letters of the current part",
            ends="when the brokers have stored them; SIGTERM stops the job without loss if the brokers are down",
        )

    def _run(self, frame: DataFrame, batch: int) -> None:
        started = time.monotonic()
        self._frame, self._figures = frame, BatchFigures(batch)
        self.driver.run_steps(self.batches.run(batch))
        self._figures.duration_ms = round((time.monotonic() - started) * 1000)
        self._progress.finished(self._figures)

    def _ends(self, batch: int) -> dict[int, int]:
        return batch_ends(self._settings.checkpoint, batch, self._settings.source_topic)

    def _check(self) -> None:
        """Raise the writer's failure, or StopRequested."""
        self._writer.check()
        if self.stopping.is_set():
            raise StopRequested

    # ---------------------------------------------------------------------------------------------- plans

    def _facts(self, effect: FactsOf) -> list[PartitionFacts]:
        """Read the rows of the batch, if some of them may be held."""
        ranges = [
            OffsetRange(partition, start, effect.ends[partition])
            for partition, start in sorted(effect.positions.items())
        ]
        self._for_giving_up()
        records = self._records.of(self._frame.where(within(ranges)))
        found = records.mapInArrow(facts_function(effect.horizon, effect.leeway), FACTS_TYPE)
        # One partition may be in several Arrow batches and tasks.
        parted = found.groupBy("partition").agg(F.min("held").alias("held"), F.max("used").alias("used")).collect()
        return [
            PartitionFacts(row["partition"], None if row["held"] == NEVER else row["held"], row["used"])
            for row in parted
        ]

    def _put_context(self, effect: PutContext) -> str:
        # If the log loses this history, the plan must be recognizable by the history's state id.
        self._replica.save_position()
        return self._store.put_context(effect.context)

    def _held(self, effect: ReportHeld) -> None:
        """Report why the batch waits, since when, and how the wait ends.

        Waits for the log are reported only if they take long.
        """
        now, since = time.monotonic(), effect.since / 1e6
        if now < self._report_at or (effect.horizon is None and now - since < HELD_REPORT_S):
            return
        self._report_at, fields = now + HELD_REPORT_S, {"seconds": round(now - since, 1)}
        if effect.horizon is None:
            waiting = "the metadata log to contain all entries that were decided under the old tables"
            self._progress.emit(
                "held", waiting=waiting, ends="when a validator answers; SIGTERM stops the job without loss", **fields
            )
            return
        self._held_since = since
        prepared = self._replica.state.prepared
        self._progress.emit(
            "held",
            batch=effect.batch,
            part=effect.part,
            horizon=effect.horizon,
            waiting=f"generation {prepared.id} to be committed" if prepared else "its extension",
            ends=("when the write lease is extended past the first waiting write; SIGTERM stops the job without loss"),
            **fields,
        )

    def _news(self, effect: AwaitState) -> ClusterState:
        with suppress(WaitTimedOut):
            self._replica.wait_for(
                lambda state: state is not effect.seen or None, HELD_LOOK_S, "a new entry of the metadata log"
            )
        return self._replica.state

    def _context(self, state: ClusterState) -> dict[str, Any]:
        settings = self._settings
        ttl = settings.image_ttl_s * 1_000_000
        context = context_of(state, settings.source_topic, self._partitions, settings.row_bytes_max, ttl)
        return context if self._lake is None else context | {"columns": self._versions(state)}

    def _versions(self, state: ClusterState) -> Versions:
        """Return the table versions that can read the rows of a part. The last result is reused for the same tables."""
        tables = state.tables, state.table_lives
        if self._read_by is None or self._read_by[0] is not tables[0] or self._read_by[1] is not tables[1]:
            self._read_by = *tables, all_versions(versions_in(state), sorted({*state.tables, *state.table_lives}))
        return self._read_by[2]

    # ------------------------------------------------------------------------------------------ execution

    def _begin(self, effect: Begin) -> None:
        """Count the part, and its offsets as repeated if it is done already."""
        entry, figures = effect.entry, self._figures
        figures.parts += 1
        figures.epoch = entry.epoch
        self._began = time.monotonic()
        if self._held_since is not None:
            figures.held_ms += round((self._began - self._held_since) * 1000)
            self._held_since, self._report_at = None, 0.0
        if effect.is_done:
            figures.rows += _offsets(entry)
            figures.repeated += _offsets(entry)

    def _mark_done(self, effect: MarkDone) -> None:
        """Mark the part as done, and adapt the size of the next one to its duration."""
        entry, planned = effect.entry, _offsets(effect.entry)
        if planned:
            self._done += planned
            seconds = time.monotonic() - self._began
            self.batches.limit = next_limit(self.batches.limit, planned, seconds, self._done)
        with self._writer.lock:
            self._store.mark_done(entry)

    def _write(self, effect: WriteRows) -> tuple[OffsetRange, ...]:
        """Write the rows of a part, each source partition in order by one task with one producer.

        Return the ranges left to write: a record that is not small cuts its partition
        (``ringlog_cdc.bulk.arrow_batching``).
        """
        entry, frame = effect.entry, self._frame
        # A part that is the whole batch needs no filter.
        if entry.part or not entry.last or effect.ranges != entry.ranges:
            frame = frame.where(within(effect.ranges))
        self._for_giving_up()
        self._writing_since = time.monotonic()
        try:
            cut = self._write_rows(frame, effect)
        finally:
            self._writing_since = None
        self._all_small = self._all_small and not cut
        return tuple(left_of(effect.ranges, cut))

    def _write_rows(self, frame: DataFrame, effect: WriteRows) -> dict[int, int]:
        """Write rows and return the cuts, source partition to offset."""
        entry, state, context = effect.entry, effect.state, dict(effect.context)
        part = PartContext(
            source_topic=self._settings.source_topic,
            incarnation=entry.incarnation,
            epoch=entry.epoch,
            row_bytes_max=context["row_bytes_max"],
        )
        counts, images = self._nothing_counted(), self._images.part(self._store, entry, context)
        function = rows_function(self._table(entry.context, context, effect.closed, state), part, counts, images)
        known = self._index.known(entry)
        if known is not None:
            function = without(function, self._session.sparkContext.broadcast(known), counts)
        function, columns = addressed(function, self._settings.sink_topic, self._settings.letters_topic), ADDRESSED_TYPE
        if self._lake is not None:
            selects = self._lake.identity.selects
            function, columns = with_heads(function, self._settings.sink_topic, selects), KEPT_TYPE
        options = sink_options(self._settings.bootstrap_servers, self._settings.producer)
        # States and the lake process a part as a whole, so it must not be cut.
        is_lean = self._all_small and images is None and self._lake is None
        out = self._records.of(frame, only_small=is_lean).mapInArrow(function, columns)
        with self._both_sinks(out, entry, context.get("columns")) as out:
            out.write.format("kafka").options(**options).mode("append").save()
            _add(self._figures, counts.value)
        if images is not None:
            self._images.settle(images, counts.value.with_states)
        return counts.value.cuts

    @contextmanager
    def _both_sinks(self, out: DataFrame, entry: PlanEntry, versions: Versions | None) -> Iterator[DataFrame]:
        """Yield the frame for the topic.

        If there is a lake, cache the frame, and append to the lake when the block ends. A part that was planned without
        a lake has no ``versions``: those of the state read its rows.
        """
        if self._lake is None:
            yield out
            return
        self._lake.check_there()
        state = self._replica.state
        self._lake.describe(state)
        # Read before the topic gets the rows: the lake's commit records where they start.
        ends = self._offsets.ends(self._settings.sink_topic)
        kept = out.persist()
        try:
            yield kept.drop(*KEPT)
            rows = kept.where(F.col("table").isNotNull()).select(*KEPT, "value")
            self._lake.append(rows, entry, versions or self._versions(state), ends, ids_of(state))
        finally:
            kept.unpersist()

    def _nothing_counted(self) -> Accumulator[Tally]:
        """Return the accumulator of all batches, reset.

        There is only one, because Spark's driver never frees an accumulator.
        """
        if self._counts is None:
            self._counts = self._session.sparkContext.accumulator(Tally(), TallyParam())
        self._counts.value = Tally()
        return self._counts

    def _table(
        self, name: str, context: dict[str, Any], closed: tuple[str, ...], state: ClusterState
    ) -> Broadcast[Any]:
        """Return the routing table of a context, broadcast once for all batches that share it."""
        key = (name, closed)
        if key not in self._tables:
            table = bulk_table(table_of(context, closed, state))
            self._tables[key] = self._session.sparkContext.broadcast(table)
            while len(self._tables) > TABLES_KEPT:
                self._tables.pop(next(iter(self._tables))).unpersist()
        return self._tables[key]


def _offsets(entry: PlanEntry) -> int:
    """Return the number of offsets in the entry's ranges."""
    return sum(item.end - item.start for item in entry.ranges)


def _add(figures: BatchFigures, tally: Tally) -> None:
    """Add a tally to the counts of the batch."""
    reasons, paths = dict(tally.reasons), dict(tally.paths)
    figures.rows += tally.records
    figures.skipped += reasons.pop(SKIPPED, 0)
    figures.repeated += reasons.pop(KNOWN, 0)
    figures.written += reasons.pop(ROUTED, 0)
    paths.pop(RecordPath.BULK, None)
    _add_counts(figures.rejected, {CODES[number]: count for number, count in reasons.items()})
    _add_counts(figures.generations, {str(timestamp): count for timestamp, count in tally.generations.items()})
    _add_counts(figures.one_by_one, {RecordPath(number).name.lower(): count for number, count in paths.items()})


def _add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add counts by name, without zeros."""
    for name, count in sorted(more.items()):
        if count:
            counts[name] = counts.get(name, 0) + count
