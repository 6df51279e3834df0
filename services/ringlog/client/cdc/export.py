"""The export of the change stream to Kafka topics: Debezium's envelope or CloudEvents, each change exactly once.

Records and position are in one Kafka transaction. The position is a record of the topic ``cdc-exports`` with the name
of the export as its key, because it is too large for the metadata of a consumer group. A new process fences its
predecessor first, and then reads the position. So a ``read_committed`` reader sees each change once after any crash.

The key of a record is the key of the row. All records of one partition key of the base table are in one partition of
the topic, in the order of the log. So the delete of a range or partition keeps its place between the rows that it
affects. If partitions are added to the topic, that order holds again for the changes after a restart of the export.

A record that its topic does not accept because of its size ends the export, or is counted and left out if the caller
wants that. Memory is bounded by the reader, one transaction, and the queue of the producer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from ringlog.client.cdc.errors import ExportFailed, ExportReplaced, ExportTooLarge
from ringlog.client.cdc.output import cloudevents, debezium
from ringlog.client.cdc.reader import EARLIEST, CdcReader, Start
from ringlog.client.cdc.row_changes import effects
from ringlog.client.cdc.rows import CdcChange
from ringlog.client.cdc.topics import bounds_of, messages_between
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import Value
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.adapter import reader_config
from ringlog.log.kafka.producer import FRAMING_BYTES
from ringlog.log.kafka.topics import (
    CDC_EXPORTS,
    admin_client,
    copies_of,
    create_topics,
    describe,
    existing_topics,
    min_insync_of,
    settings_of,
    topic_name,
    transactional_id,
)
from ringlog.log.replicas.replay import ProgressCallback, log_progress
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.kafka.config import connection
from ringlog.wire.records import mutation_key, mutation_partition

TRANSACTION_S = 30.0
"""Timeout of one call to the broker."""
COMMIT_S = 1.0
"""A change is committed at most this long after its arrival, if the broker answers."""
REPORT_S, PLACE_S = 10.0, 60.0
POLL_S = 0.2
BATCH_BYTES = 32 * 1024 * 1024
"""The bytes after which a transaction is committed."""
RECORD_BYTES_MAX = 128 * 1024 * 1024
CHUNK = 100
"""Records of one step of the backward search for the position."""
REPLACED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
CLOUDEVENTS_TYPE = [("content-type", b"application/cloudevents+json; charset=UTF-8")]


class ExportFormat(Enum):
    """The format of the records."""

    DEBEZIUM = "debezium"
    CLOUDEVENTS = "cloudevents"


class ExportSettings(Value):
    """Settings of an export.

    Attributes:
        name: Name of the export. One process at a time works under it, and a restarted one continues.
        topic: Topic for all tables. Empty: a topic for each table, ``topic_prefix.keyspace.table``.
        partitions: Partitions of a topic that the export creates.
        tables, columns, start: As in ``CdcReader``.
        commit_every: Most changes of a transaction.
        has_tombstones: For Debezium: a record without value follows the delete of a row.
        skips_lost: Continue after rows that are no longer kept.
        skips_oversized: Leave out records that their topic does not accept.
    """

    bootstrap_servers: str
    cluster: str
    name: str
    form: ExportFormat
    topic: str = ""
    topic_prefix: str = ""
    partitions: int = 8
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    start: Start = EARLIEST
    commit_every: int = 5_000
    has_tombstones: bool = True
    skips_lost: bool = False
    skips_oversized: bool = False
    until_end: bool = False


@dataclass(slots=True)
class ExportFigures:
    """Committed changes and records since the start of the process, records left out, and rows lost.

    ``behind``: offsets of the CDC topic that are not read yet. None: the broker does not answer.
    """

    changes: int = 0
    records: int = 0
    oversized: int = 0
    lost_rows: int = 0
    behind: int | None = 0


class _Target(Value):
    """A topic of the export."""

    name: str
    partitions: int
    bytes_max: int


Record = tuple[bytes, bytes | None]


class CdcExport:
    """One process of an export, and the store of its position. ``run`` returns after ``stopping`` is set."""

    def __init__(
        self,
        settings: ExportSettings,
        report: Callable[[ExportFigures], None],
        on_progress: ProgressCallback = log_progress,
        clock: Clock | None = None,
    ) -> None:
        self.stopping = threading.Event()
        self.figures = ExportFigures()
        self._settings, self._report, self._clock = settings, report, clock or SystemClock()
        self._on_progress = on_progress
        self._admin = admin_client(settings.bootstrap_servers)
        self._positions = topic_name(settings.cluster, CDC_EXPORTS.suffix)
        self._targets: dict[str, _Target] = {}
        self._producer = Producer(
            {
                **connection(settings.bootstrap_servers),
                "transactional.id": transactional_id(settings.cluster, "export", settings.name),
                "message.max.bytes": RECORD_BYTES_MAX,
                "queue.buffering.max.kbytes": 4 * BATCH_BYTES // 1024,
                "compression.type": "lz4",
                "linger.ms": 5,
            }
        )
        self._pending = ExportFigures()
        self._bytes, self._saved = 0, ""

    def run(self) -> ExportFigures:
        """Export until ``stopping`` is set, or until the end of the topic if ``until_end`` is set.

        Raises ExportReplaced, ExportTooLarge, ExportFailed, and the errors of ``CdcReader``.
        """
        found = self._settings
        if not existing_topics(self._admin, found.cluster, (CDC_EXPORTS,)):
            create_topics(self._admin, found.cluster, specs=(CDC_EXPORTS,))
        try:
            self._producer.init_transactions(TRANSACTION_S)
            with CdcReader(
                found.bootstrap_servers,
                found.cluster,
                tables=found.tables,
                columns=found.columns,
                start=found.start,
                progress=self,
                commit_every=None,
                lost="skip" if found.skips_lost else "error",
                until_end=found.until_end,
                on_progress=self._on_progress,
            ) as reader:
                self._export(reader)
        except BaseException as error:
            reasons = [error.args[0]] if isinstance(error, KafkaException) else []
            try:
                self._producer.abort_transaction(TRANSACTION_S)
            except KafkaException as second:  # Only this error says that a fatal one is a fence.
                reasons += [second.args[0]] if reasons else []
            if any(reason.code() in REPLACED for reason in reasons):
                raise ExportReplaced(found.name) from error
            if reasons:
                raise ExportFailed(reasons[0].str()) from error
            raise
        return self.figures

    def _export(self, reader: CdcReader) -> None:
        committed = reported = placed = time.monotonic()
        while True:
            for change in reader.poll(POLL_S):
                self._add(change)
                if self._pending.changes >= self._settings.commit_every or self._bytes >= BATCH_BYTES:
                    reader.commit()
                    committed = time.monotonic()
            is_last = self.stopping.is_set() or reader.is_at_end
            if is_last or time.monotonic() - committed >= COMMIT_S:
                committed = time.monotonic()
                # Without a commit of the position alone, a filter without matches would fall behind the retention.
                if self._pending.changes or is_last or committed - placed >= PLACE_S:
                    reader.commit()
                    placed = committed
            if is_last or time.monotonic() - reported >= REPORT_S:
                self._tell(reader)
                reported = time.monotonic()
            if is_last:
                return

    def _tell(self, reader: CdcReader) -> None:
        self.figures.lost_rows = reader.lost_rows
        try:
            self.figures.behind = reader.lag().records
        except LogUnavailable:
            self.figures.behind = None
        self._report(self.figures)

    # ------------------------------------------------------------------------------------------------ position

    def load(self) -> str | None:
        """Return the position of the last transaction."""
        config = reader_config(self._settings.bootstrap_servers, "read_committed")
        consumer = Consumer(config | {"queued.max.messages.kbytes": 16_384})
        try:
            begin, end = bounds_of(consumer, TopicPartition(self._positions, 0))
            while begin < end:
                first, last = max(begin, end - CHUNK), None
                for message in messages_between(consumer, self._positions, first, end):
                    if message.key() == self._settings.name.encode():
                        last = message.value()
                if last is not None:
                    return last.decode()
                end = first
        finally:
            consumer.close()
        return None

    def save(self, text: str) -> None:
        """Commit the transaction with the position, if the position has changed."""
        if text == self._saved:
            return
        if not self._pending.changes:
            self._producer.begin_transaction()
        self._produce(self._positions, text.encode(), self._settings.name.encode(), 0)
        self._producer.commit_transaction(TRANSACTION_S)
        self.figures.changes += self._pending.changes
        self.figures.records += self._pending.records
        self.figures.oversized += self._pending.oversized
        self._pending, self._bytes, self._saved = ExportFigures(), 0, text

    def close(self) -> None:
        """Nothing remains open: the broker knows only transactions."""

    # ------------------------------------------------------------------------------------------------ records

    def _add(self, change: CdcChange) -> None:
        """Add a change to the current transaction."""
        if not self._pending.changes:
            self._producer.begin_transaction()
        self._pending.changes += 1
        target = self._target(change.name)
        parts = [part or b"" for part in change.raw[0].partition_key]
        base = mutation_key(change.keyspace, change.table, compose(parts) if parts else b"")
        headers: Any = CLOUDEVENTS_TYPE if self._settings.form is ExportFormat.CLOUDEVENTS else None
        for key, value in self._records(change):
            size = len(key) + len(value or b"") + FRAMING_BYTES
            if size > target.bytes_max:
                if not self._settings.skips_oversized:
                    raise ExportTooLarge(change.name, change.place, size, target.name, target.bytes_max)
                self._pending.oversized += 1
                continue
            self._produce(target.name, value, key, mutation_partition(base, target.partitions), headers)
            self._pending.records += 1
            self._bytes += size

    def _records(self, change: CdcChange) -> list[Record]:
        """Return (key, value) of each effect of a change."""
        found = self._settings
        if found.form is ExportFormat.CLOUDEVENTS:
            return [(_json(event["data"]["key"]), _json(event)) for event in cloudevents(change, found.cluster)]
        records: list[Record] = []
        is_whole = change.schema is not None and not change.schema.clustering_key
        envelopes = debezium(change, found.cluster, self._clock.now_us())
        for effect, (key, envelope) in zip(effects(change), envelopes, strict=True):
            records.append((_json(key), _json(envelope)))
            deletes_row = effect.operation == "row_delete" or (effect.operation == "partition_delete" and is_whole)
            if found.has_tombstones and deletes_row:
                records.append((_json(key), None))
        return records

    def _target(self, table: str) -> _Target:
        """Return the topic of a table. It is created if it does not exist."""
        name = self._settings.topic or f"{self._settings.topic_prefix}.{table}"
        if name not in self._targets:
            try:
                partitions = describe(self._admin, [name])[name].partitions
            except TopicMissing:
                partitions = self._create(name)
            limit = int(settings_of(self._admin, [name])[name]["max.message.bytes"])
            self._targets[name] = _Target(name, partitions, limit)
        return self._targets[name]

    def _create(self, name: str) -> int:
        """Create a topic, and return the number of its partitions."""
        copies = copies_of(self._admin, self._settings.cluster)
        config = {"min.insync.replicas": str(min_insync_of(copies))}
        wanted = NewTopic(name, self._settings.partitions, copies, config=config)
        made = self._admin.create_topics([wanted], request_timeout=TRANSACTION_S)
        try:
            made[name].result(TRANSACTION_S + 5)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + TRANSACTION_S
        while True:
            with suppress(TopicMissing):
                found = describe(self._admin, [name])[name]
                if found.has_leaders:
                    return found.partitions
            if time.monotonic() > deadline:
                raise LogUnavailable(f"the topic {name} exists, but has no leader yet", "try again")
            time.sleep(0.02)

    def _produce(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Any = None) -> None:
        """Produce a record. Block while the queue of the producer is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(POLL_S)


def _json(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
