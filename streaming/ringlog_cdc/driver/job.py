"""The CDC job: wiring of metadata, writer, plans and the streaming query; start, clean stop, and the cause of its end.

A start locks and claims the checkpoint, registers a new incarnation of the writer and folds its entry. Only then does
the query start. A clean stop finishes the batch that is being written. A batch that waits for a horizon or an
unavailable broker is aborted. That loses nothing, since its plans are stored.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ringlog.client.client import Client
from ringlog.files import private_folder
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.lag import LagReader, LagView, LagWatch
from ringlog.log.kafka.topics import CDC, DEAD_LETTERS, MUTATIONS, admin_client, describe, topic_ids, verify_topics
from ringlog.log.opening import start_point_finder
from ringlog.log.replicas.identity import ClusterIdentityStore
from ringlog.log.replicas.topic_watch import LOOKUP_TIMEOUT_S, LostTopic, TopicWatch
from ringlog.runtime.kafka.config import spark_options
from ringlog.runtime.trust import BadTrustConfig
from ringlog_cdc.bulk.image_work import ImageFolder
from ringlog_cdc.definition.image_tables import keeps_images
from ringlog_cdc.driver.batch import BatchRunner
from ringlog_cdc.driver.preflight import starting
from ringlog_cdc.driver.recovery import Index, Indexing
from ringlog_cdc.driver.session import (
    CheckpointLock,
    check_session,
    check_shared,
    logs_without_shell,
    prepare_session,
)
from ringlog_cdc.driver.writer import Writer
from ringlog_cdc.errors import CdcError, PartitionsAdded, StopRequested
from ringlog_cdc.images.files import FOLDER, ImageFiles
from ringlog_cdc.lake.columns import versions_in
from ringlog_cdc.lake.opening import follow_tables, open_lake
from ringlog_cdc.plan.agreement import check_agreement, check_images, check_said
from ringlog_cdc.plan.source_partitioning import Share, shares_of, sources_of
from ringlog_cdc.plan.store import CLAIM, PlanStore, check_claim, claim_checkpoint, give_up_claim, stored_claim
from ringlog_cdc.protocol.batch import CheckCheckpoint, ClaimCheckpoint, GiveUpClaim, start
from ringlog_cdc.report.listener import Listener
from ringlog_cdc.report.metrics import Metrics
from ringlog_cdc.report.progress import BatchProgress, LagReport, unobserved
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.sink import RetentionKeeper
from ringlog_cdc.topics.source import Offsets

LOOK_S = 0.2
COMMIT_WAIT_S = 15.0
"""Wait of a stop for Spark to commit the finished batch, seconds."""
BROKER_PATIENCE_S = 10.0
"""Wait of a stop for a broker that does not answer, seconds. Then the current batch is aborted."""
CONSUMER_OPTIONS = {
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "50",  # wait at the end of a partition, in each batch; the default is ten times longer
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),  # a task fetches more only after it has read these
    "kafka.max.poll.records": "5000",
}
LAG_WAIT_S = 2.0
"""Wait of a line for a measurement of the lag, seconds."""
CAUSED_BY = "Caused by: "
SIGNALLED = "a signal asked the job to stop"
USED = (MUTATIONS, CDC, DEAD_LETTERS)
"""Topics whose settings the job depends on, above all that the broker sets the append time of mutations."""


def client_of(settings: JobSettings) -> Client:
    """Return the driver's client. It records its position in the log in the checkpoint, and reports a long replay."""
    return Client(
        settings.bootstrap_servers,
        settings.cluster,
        f"cdc-{settings.writer}",
        record=ClusterIdentityStore(settings.checkpoint, settings.cluster, "metadata"),
        start_finder=start_point_finder(settings.bootstrap_servers, settings.cluster),
        on_progress=lambda replay: print(str(replay), file=sys.stderr, flush=True),
    )


class CdcJob:
    """One run of the job on a session that the caller owns. Call ``start``, ``wait`` and ``stop``, once each.

    Setting the event ``stopping`` asks the job to stop.
    """

    def __init__(self, settings: JobSettings, session: SparkSession, stopping: threading.Event | None = None) -> None:
        self.settings = settings
        self.stopping = threading.Event() if stopping is None else stopping
        self.metrics_port: int | None = None
        self.progress = BatchProgress()
        self._stop_reported = threading.Lock()
        self._metrics: Metrics | None = None
        self._session = session
        self._name = f"ringlog-cdc-{settings.cluster}-{settings.writer}"
        self._opened: list[Any] = []
        self._begins: dict[int, int] | None = None
        self._query: StreamingQuery | None = None
        self._lost: list[LostTopic] = []
        self._source_partitions = 0
        """How many partitions of the source topic there are, as far as is known."""

    def start(self) -> CdcJob:
        """Lock the checkpoint, register the writer, start the query.

        Raises:
            CdcError, LogError: The job cannot start.
        """
        settings = self.settings
        check_session(self._session)
        # Other masters may run workers of other users, who need access.
        if str(self._session.sparkContext.master).startswith("local"):
            private_folder(settings.checkpoint, CLAIM)
        settings.checkpoint.mkdir(parents=True, exist_ok=True)
        prepare_session(self._session)
        try:
            emit = self.progress.emit
            self._open(CheckpointLock(self._session, settings.checkpoint, self.stopping, emit).release)
            claim = stored_claim(settings.checkpoint)
            if claim is not None:  # the client records its position in the checkpoint
                check_claim(claim, claim["cluster_id"], settings.writer)
            starting(emit, "the metadata log to be read")
            client = client_of(settings).start()
            self._open(client.close)
            self._replica = client.replica
            offsets = Offsets(settings.bootstrap_servers, self.stopping)
            self._open(offsets.close)
            submit = client.direct.submit if settings.direct else client.submit
            self.writer = Writer(
                client.replica, submit, settings.writer, offsets, settings.source_topic, settings.sink_topic
            )
            self.writer.driver.handlers |= {
                ClaimCheckpoint: lambda effect: self._claim(effect, offsets),
                CheckCheckpoint: lambda effect: self._check(effect.state, client, offsets),
                GiveUpClaim: lambda _: give_up_claim(settings.checkpoint),
            }
            starting(emit, f"the registration of the writer {settings.writer}")
            epoch = self.writer.run_steps(start(self.writer.promises), self.stopping)
            self._open(self.writer.stop)
            self._meet_lake(client, offsets)
            self.writer.start()
            images = ImageFolder(self._files, epoch, settings.images_anew, self.progress.emit)
            self.runner = self._runner(client, images)
            self._open(Listener(self._session, self._name, self.progress.reported).close)
            self._watch_topics()
            starting(emit, "Spark to start the streaming query")
            self._query = self._begin()
            self.progress.emit(
                "started",
                cluster=settings.cluster,
                writer=settings.writer,
                incarnation=self.writer.promises.incarnation,
                epoch=epoch,
            )
        except BaseException:
            self._close()
            raise
        return self

    def _watch_topics(self) -> None:
        """Watch the topics. Writes wait for their topic (``ringlog_cdc.topics.sink``), and would wait forever for a
        deleted one.

        The watch also counts source partitions. Spark reads the partitions that it got at the start, while producers
        use added ones at once.
        """
        settings = self.settings
        names = (settings.sink_topic, settings.letters_topic, settings.source_topic)
        admin = admin_client(settings.bootstrap_servers)
        found = topic_ids(admin, names, LOOKUP_TIMEOUT_S)
        ids = {name: topic_id for name, topic_id in found.items() if topic_id is not None}

        def count() -> None:
            with suppress(LogUnavailable, TopicMissing):  # the watch reports it
                self._source_partitions = describe(admin, [settings.source_topic])[settings.source_topic].partitions

        watch = TopicWatch(settings.bootstrap_servers, ids, self._lost.append, answers=count)
        self._open(watch.stop)
        watch.start()

    def _check_topics(self) -> None:
        """Check the results of the watch.

        Raises:
            CdcError: A topic was deleted. The current batch is aborted, as if the process had been killed.
            PartitionsAdded: The source has more partitions than the query reads.
        """
        if self._source_partitions > sum(len(share.partitions) for share in self._shares):
            raise PartitionsAdded(self.settings.source_topic, self._source_partitions)
        if not self._lost:
            return
        self.runner.stopping.set()
        self.runner.give_up()
        code, _, what = str(self._lost[0]).partition(": ")
        raise CdcError(code, what, "restore the topic, or run ringlog cluster repair-topics; then start the job again")

    def _claim(self, effect: ClaimCheckpoint, offsets: Offsets) -> bool:
        """Perform ``ClaimCheckpoint``, and open the plan store."""
        settings, state = self.settings, effect.state
        self._partitions = offsets.partitions(settings.sink_topic)
        is_new = claim_checkpoint(
            settings.checkpoint, state.cluster_id, settings.writer, self._partitions, effect.is_lost
        )
        if any(keeps_images(table) for _, table in in_order(state.tables)):
            check_shared(self._session, settings.checkpoint / CLAIM)
        self._store = PlanStore(settings.checkpoint)
        self.writer.use(self._store)
        return is_new

    def _check(self, state: ClusterState, client: Client, offsets: Offsets) -> bool:
        """Perform ``CheckCheckpoint`` for checkpoint and topics. Return True if the checkpoint replaces a lost one."""
        settings, store = self.settings, self._store
        self._index = Index(settings.checkpoint)
        self._files = ImageFiles(settings.checkpoint / FOLDER)
        check_agreement(settings.checkpoint, store, settings.source_topic)
        check_said(state, settings.writer, settings.source_topic, store, self._index.settled)
        if not settings.images_anew:
            check_images(self._files, store)
        admin = admin_client(settings.bootstrap_servers)
        starting(self.progress.emit, "the settings of the topics to be checked")
        verify_topics(admin, settings.cluster, settings.bootstrap_servers, USED, tend=True)
        self._metrics = self._served(client)
        observe = unobserved if self._metrics is None else self._metrics.observe
        self.progress.record(settings.checkpoint / "progress.jsonl", observe)
        self._open(self.progress.close)
        self._retention = RetentionKeeper(admin, settings.sink_topic, self.progress.emit)
        self._starts = self._first_offsets(offsets, state, store)
        sources = offsets.partitions(settings.source_topic)
        self._shares = shares_of(sources, settings.max_offsets_per_trigger, sources_of(settings.checkpoint))
        indexing = Indexing(self._index, self._session, settings, offsets, self._starts, self.progress)
        self.writer.driver.handlers |= indexing.handlers
        self._watch_lag()
        return self._index.is_needed(state, store.head)

    def _meet_lake(self, client: Client, offsets: Offsets) -> None:
        """Open the lake, if any, and fill it from the topic. Unfinished plan parts keep their own rows."""
        with self.writer.lock:
            planned = self._store.durable_positions()
            takes_all = self._index.is_made and self._store.head.sequence < 0
        state = client.read_barrier()
        left = None if takes_all else planned
        known = versions_in if self.settings.lake is None else follow_tables(client.replica, self._open)
        self._lake = open_lake(self._session, self.settings, state, left, offsets, self.progress, known)

    def _runner(self, client: Client, images: ImageFolder) -> BatchRunner:
        """Return the callback of ``foreachBatch``. ``Offsets`` serves one thread, so ``is_idle`` has another one."""
        self._ends, looks = (Offsets(self.settings.bootstrap_servers, self.stopping) for _ in range(2))
        self._open(self._ends.close)
        self._open(looks.close)
        return BatchRunner(
            self._session,
            self.settings,
            client.replica,
            self.writer,
            self._store,
            looks,
            self.progress,
            self._partitions,
            self._starts,
            images,
            self._index,
            self._lake,
        )

    def _watch_lag(self) -> None:
        """Measure the lag in a thread, also while a batch runs or the broker is silent."""
        settings = self.settings
        report = LagReport(self.progress.emit, settings.bootstrap_servers)

        def positions() -> dict[int, int]:
            with self.writer.lock:
                return self._starts | self._store.durable_positions()

        def observe(view: LagView) -> None:
            report.observe(view)
            if self._metrics is not None:
                self._metrics.lag(view)

        self._lag = LagWatch(lambda: LagReader(settings.bootstrap_servers, settings.source_topic), positions, observe)
        self.progress.measure(lambda: self._lag.measured(LAG_WAIT_S))
        self._open(self._lag.stop)
        self._lag.start()

    def _served(self, client: Client) -> Metrics | None:
        """Serve the metrics, if requested."""
        port, name = self.settings.metrics_port, self.settings.writer
        if port is None:
            return None
        try:
            metrics = Metrics(port)
        except BadTrustConfig as error:
            raise CdcError(error.code, str(error)) from error
        except OSError as error:
            raise CdcError(
                "port_in_use", f"cannot serve metrics on port {port}: {error}", "pass another --metrics-port"
            ) from error
        self._open(metrics.close)
        writers = client.replica
        metrics.watch(
            lambda: writers.state.writers[name].low_watermark if name in writers.state.writers else 0,
            lambda: writers.state.writers[name].horizon if name in writers.state.writers else 0,
        )
        self.metrics_port = metrics.port
        return metrics

    def _first_offsets(self, offsets: Offsets, state: ClusterState, store: PlanStore) -> dict[int, int]:
        """Return the first offset of each source partition for this checkpoint.

        An empty checkpoint skips writes that only closed generations would accept. Every write of an open generation is
        appended after the generation's start minus the allowed lateness. The setting may have been larger once, so its
        maximum is used.
        """
        topic = self.settings.source_topic
        oldest = next((found for found in state.generations if found.closed is None), None)
        is_empty = store.head.sequence < 0 and not (self.settings.checkpoint / "spark" / "offsets" / "0").exists()
        if not is_empty or oldest is None or oldest is state.generations[0]:
            return offsets.begins(topic)
        begins = offsets.begins_at(topic, oldest.timestamp - SETTINGS["cdc_leeway_us"].maximum)
        self._begins = begins
        return begins

    def _open(self, close: Any) -> None:
        self._opened.append(close)

    def _begin(self) -> StreamingQuery:
        """Start the streaming query."""
        settings = self.settings
        try:
            sources = [self._source(share) for share in self._shares]
        except AnalysisException as error:
            raise CdcError(
                "connector_missing",
                str(error).splitlines()[0],
                "pass the jars of the Kafka connector with --jars, to this command or to spark-submit",
            ) from error
        source = reduce(DataFrame.union, sources)
        with logs_without_shell(self._session):
            return (
                source.writeStream.foreachBatch(self.runner)
                .queryName(self._name)
                .trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds")
                # A ``file:`` address: a folder of this host, not of the cluster's file system.
                .option("checkpointLocation", (settings.checkpoint / "spark").as_uri())
                .start()
            )

    def _source(self, share: Share) -> DataFrame:
        """Return a frame with the source partitions of a share."""
        topic, begins = self.settings.source_topic, self._begins
        reader = (
            self._session.readStream.format("kafka")
            .options(**spark_options(self.settings.bootstrap_servers))
            .options(**CONSUMER_OPTIONS)
            .option("assign", json.dumps({topic: share.partitions}))
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", share.limit)
        )
        if begins is None:
            return reader.option("startingOffsets", "earliest").load()
        offsets = {str(partition): begins[partition] for partition in share.partitions}
        return reader.option("startingOffsets", json.dumps({topic: offsets})).load()

    def wait(self) -> None:
        """Wait until ``stopping`` is set, the job is idle (with ``stop_when_idle``), or it failed. Raise the cause of a
        failure.

        PartitionsAdded means that the next job on this checkpoint would read more partitions. ``stop`` this one first.
        """
        assert self._query is not None, "the job was started"
        while not self.stopping.wait(LOOK_S):
            self.writer.check()
            self._check_topics()
            self.runner.report_writing()
            self._retention.keep(self._replica.state)
            if not self._query.isActive:
                self._raise_failure()
                return
            if self._lake is not None:
                self._lake.describe(self._replica.state)
            if self.settings.stop_when_idle and self.is_idle():
                self.report_stopping("all mutations are durable")
                return

    def is_idle(self) -> bool:
        """Return True if every mutation is durable as a row or dead letter, and the last batch is committed."""
        with self.writer.lock:
            durable = self._store.durable_positions()
        ends = self._ends.ends(self.settings.source_topic)
        return all(durable.get(partition, 0) >= end for partition, end in ends.items()) and self._is_committed()

    def _is_committed(self) -> bool:
        """Return True if Spark has committed the last finished batch."""
        batch = self.runner.last_batch
        return batch < 0 or (self.settings.checkpoint / "spark" / "commits" / str(batch)).exists()

    def report_stopping(self, reason: str) -> None:
        """Write the line that the job stops, once. Then come the end of its batch and the line ``stopped``."""
        if self._stop_reported.acquire(blocking=False):
            batch = None if self._query is None or self.runner.idle.is_set() else self.runner.batch
            self.progress.emit("stopping", reason=reason, batch=batch)

    def stop(self) -> None:
        """Finish the current batch, stop the query and release everything. Raise the cause if the job had failed."""
        self.report_stopping("the job was asked to stop")
        self.stopping.set()
        try:
            if self._query is not None:
                self.runner.stopping.set()
                self._finish_batch()
                deadline = time.monotonic() + COMMIT_WAIT_S
                while self._query.isActive and not self._is_committed() and time.monotonic() < deadline:
                    threading.Event().wait(LOOK_S / 4)
                self._query.stop()
                if self._lag.view.known is not None and self.writer.failure is None:
                    self.writer.report()
                self.progress.emit("stopped", batch=self.runner.last_batch)
                self._raise_failure()
        finally:
            self._close()

    def _finish_batch(self) -> None:
        """Wait for the current batch.

        A write waits for an unavailable broker without limit (``ringlog_cdc.topics.sink``). A stop does not: it aborts
        the batch, as if the process had been killed.
        """
        sink = self.settings.sink_topic
        offsets = Offsets(self.settings.bootstrap_servers, self.runner.idle, BROKER_PATIENCE_S)
        try:
            while not self.runner.idle.wait(LOOK_S):
                offsets.ends(sink)
        except StopRequested:  # the batch ended during the query
            pass
        except LogUnavailable as error:
            self.progress.emit("given_up", batch=self.runner.batch, why=str(error), then="the next start repeats it")
            self.runner.give_up()
        finally:
            offsets.close()

    def _raise_failure(self) -> None:
        """Raise the error that ended the query, unless that was the requested stop."""
        self.writer.check()
        failure = self.runner.failure
        if isinstance(failure, (Py4JJavaError, PySparkException)):
            raise query_failed(failure) from failure
        if failure is not None and not isinstance(failure, StopRequested):
            raise failure
        assert self._query is not None
        error = self._query.exception()
        if error is not None and failure is None and isinstance(error, StreamingQueryException):
            raise query_failed(error)

    def _close(self) -> None:
        while self._opened:
            self._opened.pop()()


def query_failed(error: Exception) -> CdcError:
    """Return the error for a failed batch or query: the deepest cause that Spark names, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line.removeprefix(CAUSED_BY) for line in lines if line.startswith(CAUSED_BY)]
    return CdcError("query_failed", causes[-1] if causes else lines[0], "the checkpoint is intact: start the job again")
