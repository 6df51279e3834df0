"""The log adapter for a Kafka topic with one partition.

Appends use an acknowledged producer (``acks=all``). A reader is assigned partition 0 and does not join a group. So no
rebalance removes its partition, and committed offsets are not used. An offset that the topic no longer contains is an
error, never a silent jump (``auto.offset.reset=error``).

The position comes from end-of-partition events. They contain the next offset to fetch, past control records and aborted
transactions, which consumers never return.

The metadata topic is read uncommitted. Its entries are plain records, every replica sees the same bytes, and an open
transaction of another program cannot block readers. The results topic is read committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ringlog.log.errors import LogTruncated, LogUnavailable, TopicMissing
from ringlog.log.kafka.producer import AckedProducer, Delivered
from ringlog.log.kafka.topics import (
    LOOK_AGAIN_S,
    METADATA,
    RECORD_BYTES_MAX,
    TopicSpec,
    admin_client,
    delete_before,
    describe,
    kafka_id,
    topic_name,
    verify_topics,
)
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord
from ringlog.runtime.kafka.config import READER_GROUP, connection

Isolation = Literal["read_uncommitted", "read_committed"]

OFFSET_LOST_ERRORS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""Errors for an offset that the topic no longer contains."""
STALE_METADATA_ERRORS = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
"""Errors that the client library itself produces for a missing topic, and also after the death of a broker.

In the second case the library may repeat the error although a broker reports the topic. A new client asks the broker
again.
"""


def reader_config(bootstrap_servers: str, isolation: Isolation) -> dict[str, Any]:
    """Return the settings of a consumer with assigned partitions that never skips records or stores offsets."""
    return {
        **connection(bootstrap_servers),
        "group.id": READER_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 250,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 20,
        "fetch.message.max.bytes": 4 * RECORD_BYTES_MAX,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "socket.nagle.disable": True,
        "allow.auto.create.topics": False,
        "check.crcs": True,
    }


def without_prefetch(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same settings for a reader that pauses between polls.

    The client fetches nothing while fetched records wait. So the broker answers once for all records that arrive during
    a pause.
    """
    return {**config, "queued.min.messages": 1, "fetch.queue.backoff.ms": 5}


class KafkaLog:
    """A topic with one partition as a log. It connects at the first use.

    Args:
        is_relaxed: Its readers pause between polls (``ringlog.log.replicas.poll_policy``).
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        spec: TopicSpec = METADATA,
        *,
        isolation: Isolation = "read_uncommitted",
        delivery_timeout_s: float = 10.0,
        is_relaxed: bool = False,
    ) -> None:
        if spec.partitions != 1:
            raise ValueError(f"a log has one partition, but {spec.suffix} has {spec.partitions}")
        self._bootstrap = bootstrap_servers
        self._cluster = cluster
        self._spec = spec
        self._topic = topic_name(cluster, spec.suffix)
        self._isolation: Isolation = isolation
        self._delivery_timeout_s = delivery_timeout_s
        self._is_relaxed = is_relaxed
        self._lock = threading.Lock()
        self._producer: AckedProducer | None = None
        self._offset_consumer: Consumer | None = None
        self._admin: Any = None

    @property
    def name(self) -> str:
        return self._topic

    def append(self, records: Sequence[bytes]) -> None:
        """Append in order and wait for every acknowledgement.

        Raises:
            LogUnavailable: The outcome of all records is unknown.
            RecordTooLarge: A record exceeds the size limit, so a retry fails, too.
        """
        handed = self.append_async(records)
        try:
            handed.result(timeout=self._delivery_timeout_s + 5)
        except FutureTimeout as error:
            raise LogUnavailable(f"{self._topic}: no acknowledgement in time", "the outcome is unknown") from error

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """Append in order without waiting; see ``AckedProducer.send_all``."""
        return self._sender().send_all(self._topic, records)

    def send(self, data: bytes, key: bytes | None = None) -> Future[Delivered]:
        """Append one record without waiting; see ``AckedProducer.send``."""
        return self._sender().send(self._topic, data, key=key, partition=0)

    def put(self, key: str, data: bytes | None) -> int:
        """Append one record under a key and return its offset after the acknowledgement. None deletes the key.

        Raises LogUnavailable, RecordTooLarge.
        """
        sent = self._sender().send(self._topic, data, key=key.encode(), partition=0)
        try:
            return sent.result(timeout=self._delivery_timeout_s + 5).offset
        except FutureTimeout as error:
            raise LogUnavailable(f"{self._topic}: no acknowledgement in time", "the outcome is unknown") from error

    def begin_offset(self) -> int:
        """Return the offset of the oldest record."""
        return self._offsets(LOOKUP_TIMEOUT_S)[0]

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        """Return the offset after the last record that is visible at this log's isolation level."""
        return self._offsets(timeout_s)[1]

    def identity(self) -> str:
        """Return the topic id (KIP-516), 32 hex digits."""
        return describe(self._current_admin(), [self._topic], LOOKUP_TIMEOUT_S)[self._topic].topic_id

    def kafka_id(self) -> str:
        """Return the Kafka cluster's id as reported by its brokers."""
        return kafka_id(self._current_admin())

    def verify(self) -> None:
        """Check the topic against its spec. Raises TopicMisconfigured, TopicMissing."""
        verify_topics(self._current_admin(), self._cluster, self._bootstrap, [self._spec])

    def tail(self, from_offset: int) -> KafkaTail:
        """Return a reader that is assigned partition 0 from ``from_offset`` on."""
        config = reader_config(self._bootstrap, self._isolation)
        return KafkaTail(without_prefetch(config) if self._is_relaxed else config, self._topic, from_offset)

    def delete_before(self, offset: int) -> None:
        """Delete all records before ``offset``, which must not be above the end. Raises LogUnavailable.

        Raises ValueError for the metadata log, which keeps every entry.
        """
        if self._spec is METADATA:
            raise ValueError(f"{self._topic} never deletes records")
        delete_before(self._current_admin(), self._topic, offset)

    def close(self) -> None:
        """Flush and close the producer, and close the other clients."""
        with self._lock:
            producer, self._producer = self._producer, None
            consumer, self._offset_consumer = self._offset_consumer, None
            self._admin = None
        if producer is not None:
            producer.close()
        if consumer is not None:
            consumer.close()

    def _sender(self) -> AckedProducer:
        with self._lock:
            if self._producer is None:
                self._producer = AckedProducer(
                    self._bootstrap, f"ringlog-{self._topic}", self._delivery_timeout_s, not self._spec.is_deduplicated
                )
            return self._producer

    def _offsets(self, timeout_s: float) -> tuple[int, int]:
        deadline = time.monotonic() + timeout_s
        while True:
            consumer = self._current_offset_consumer()
            left = max(deadline - time.monotonic(), LOOK_AGAIN_S)
            try:
                found = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=left, cached=False)
                why = "no answer in time"
            except KafkaException as error:
                if self._is_missing(consumer, error.args[0], left):
                    raise TopicMissing(self._topic) from error
                found, why = None, error.args[0].str()
                # The topic exists, but this client may keep its error.
                if error.args[0].code() in STALE_METADATA_ERRORS:
                    self._discard(consumer)
            if found is not None:
                return int(found[0]), int(found[1])
            # A new partition leader may not know its role yet, right after its creation or a restart.
            if time.monotonic() + LOOK_AGAIN_S >= deadline:
                raise LogUnavailable(f"cannot read the end of {self._topic}: {why}", "check that the broker is up")
            time.sleep(LOOK_AGAIN_S)

    def _current_admin(self) -> Any:
        with self._lock:
            if self._admin is None:
                self._admin = admin_client(self._bootstrap)
            return self._admin

    def _current_offset_consumer(self) -> Consumer:
        with self._lock:
            if self._offset_consumer is None:
                self._offset_consumer = Consumer(reader_config(self._bootstrap, self._isolation))
            return self._offset_consumer

    def _discard(self, consumer: Consumer) -> None:
        """Use a new client next time, because this one may repeat its error for minutes.

        Other threads may still use this one, so it is not closed here. The last reference closes it.
        """
        with self._lock:
            if self._offset_consumer is consumer:
                self._offset_consumer = None

    def _is_missing(self, consumer: Consumer, error: KafkaError, timeout_s: float) -> bool:
        """Return True if a broker itself reports the topic as missing."""
        if error.code() not in STALE_METADATA_ERRORS:
            return error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        try:
            found = consumer.list_topics(self._topic, timeout=timeout_s).topics.get(self._topic)
        except KafkaException:
            return False
        said = None if found is None else found.error
        return said is not None and said.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


class KafkaTail:
    """A reader of one partition. For use by one thread."""

    def __init__(self, config: dict[str, Any], topic: str, from_offset: int) -> None:
        self._topic = topic
        self._position = from_offset
        self._lost: LogTruncated | None = None
        self._consumer = Consumer(config)
        self._consumer.assign([TopicPartition(topic, 0, from_offset)])

    @property
    def position(self) -> int:
        """The offset that will be read next, past control records."""
        return self._position

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        """Wait up to ``timeout_s`` for the first record, then return the fetched ones. Raises LogTruncated.

        An end-of-partition event also ends the wait: the position may have moved without a record.
        """
        # If the offset is lost after some records, return these first. The next call raises.
        first = self._consumer.poll(timeout_s) if self._lost is None else None
        records: list[LogRecord] = []
        if first is not None:
            self._take(first, records)
            if first.error() is None and records_max > 1:
                for message in self._consumer.consume(records_max - 1, timeout=0):
                    self._take(message, records)
        if self._lost is not None and not records:
            raise self._lost
        return records

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message, records: list[LogRecord]) -> None:
        error = message.error()
        if error is None:
            offset = message.offset()
            assert offset is not None
            assert message.partition() == 0
            assert offset >= self._position, f"{self._topic}: offset {offset} came after {self._position}"
            self._position = offset + 1
            records.append(LogRecord(offset, message.value() or b"", max(message.timestamp()[1], 0) * 1_000))
        elif error.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position, message.offset() or 0)
        elif error.code() in OFFSET_LOST_ERRORS:
            self._lost = LogTruncated(
                f"{self._topic}: the log no longer contains offset {self._position}: {error.str()}",
            )
