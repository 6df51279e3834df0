"""A Kafka consumer for the CDC topic and the change topics that a reader needs. It assigns positions and uses no
groups.

The consumer reads committed records only. A lost offset is an error; the consumer never skips it. The change topics are
read from their beginning: ``cdc-generations`` lists the generations to read, ``schemas`` contains the schemas of later
releases. Tables come from the metadata log (``ringlog.client.cdc.schema``).

Invariant: no generation is skipped because its record is unreadable, since a reader would skip its rows. An unreadable
change is kept until ``schemas`` is read to its end, because its schema may be there. If it is still unreadable and the
key has no later record, that is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ringlog.client.cdc.errors import RowsLost, UnreadableChange
from ringlog.client.cdc.generations import Generations
from ringlog.kernel.changes import GenerationChange
from ringlog.kernel.values import Value
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.adapter import OFFSET_LOST_ERRORS, reader_config
from ringlog.log.kafka.topics import admin_client, describe, topic_name
from ringlog.wire.avro import codec
from ringlog.wire.changes import decode_change
from ringlog.wire.errors import WireError

GENERATIONS, SCHEMAS, CDC = "cdc-generations", "schemas", "cdc"
ANSWER_S = 30.0
POLL_S = 0.2
RECORDS_MAX = 500
QUEUED_KB = 16_384
"""The limit of fetched but unprocessed records. It bounds the memory of a reader that is slower than the topic."""


def messages_between(consumer: Consumer, topic: str, begin: int, end: int) -> Iterator[Message]:
    """Yield the messages of partition 0 from ``begin`` to before ``end``. Raises LogUnavailable."""
    consumer.assign([TopicPartition(topic, 0, begin)])
    position, answered = begin, time.monotonic()
    while position < end:
        first = consumer.poll(POLL_S)
        for message in () if first is None else (first, *consumer.consume(100, 0)):
            offset, error, answered = message.offset(), message.error(), time.monotonic()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise LogUnavailable(f"cannot read {topic}: {error.str()}", "try again")
            assert offset is not None
            position = offset if error is not None else offset + 1
            if position > end:
                return
            if error is None:
                yield message
        if time.monotonic() - answered > ANSWER_S:
            raise LogUnavailable(f"the broker does not answer for {topic}", "check that the broker is up")


def bounds_of(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition, and the offset after its last committed record. Raises LogUnavailable."""
    try:
        low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_S, cached=False)
    except KafkaException as error:
        raise LogUnavailable(f"cannot read the end of {place.topic}: {error.args[0].str()}", "try again") from error
    return int(low), int(high)


class CdcRecord(Value):
    """A record of the CDC topic. If ``value`` is None, the partition is read up to ``offset``."""

    partition: int
    offset: int
    value: bytes | None


class Topics:
    """The consumer. Not thread-safe. ``generations`` reflects the change topic at the last poll."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self.generations = Generations()
        self._bootstrap = bootstrap_servers
        self._cdc = topic_name(cluster, CDC)
        self._changes = {topic_name(cluster, suffix): suffix for suffix in (GENERATIONS, SCHEMAS)}
        self._read: dict[str, int] = {}
        self._caught_up: set[str] = set()
        self._unread: dict[str, tuple[int, bytes, str]] = {}
        config = reader_config(bootstrap_servers, "read_committed") | {"fetch.wait.max.ms": 100}
        self._changes_consumer = Consumer(config)
        # A separate consumer, because ``read_from`` drops all records that its consumer has fetched.
        self._consumer = Consumer(config | {"queued.max.messages.kbytes": QUEUED_KB})
        self._paused: list[TopicPartition] = []

    def start(self) -> None:
        """Read the change topics to their current end. Raises LogUnavailable, TopicMissing, UnreadableChange."""
        places = []
        for topic in self._changes:
            self._partitions_of(topic)
            places.append(TopicPartition(topic, 0, self._bounds(TopicPartition(topic, 0))[0]))
        self._changes_consumer.assign(places)
        last_answer = time.monotonic()
        while len(self._caught_up) < len(self._changes):
            last_answer = time.monotonic() if self._read_changes(POLL_S) else last_answer
            if time.monotonic() - last_answer > ANSWER_S:
                raise LogUnavailable(
                    f"the broker does not answer for the change topics of {self._cdc}", "check that the broker is up"
                )
        self._check_unread()

    def topic_id(self) -> str:
        """Return the id of the CDC topic. It changes when the topic is recreated."""
        return describe(admin_client(self._bootstrap), [self._cdc])[self._cdc].topic_id

    def partitions(self) -> tuple[int, ...]:
        """Return the partition numbers of the CDC topic."""
        return self._partitions_of(self._cdc)

    def bounds(self) -> Mapping[int, tuple[int, int]]:
        """Return for each partition the first kept offset and the offset after the last committed record."""
        return {number: self.bounds_of(number) for number in self.partitions()}

    def bounds_of(self, partition: int) -> tuple[int, int]:
        """Return the bounds of one partition; see ``bounds``."""
        return self._bounds(TopicPartition(self._cdc, partition))

    def read_from(self, positions: Mapping[int, int]) -> None:
        """Read exactly these partitions of the CDC topic from these offsets. Fetched records are dropped."""
        if self._paused:
            # A paused partition would remain paused after the new assignment.
            self._consumer.resume(self._paused)
            self._paused = []
        self._consumer.assign(
            [TopicPartition(self._cdc, number, offset) for number, offset in sorted(positions.items())]
        )

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop fetching these partitions until the next ``read_from``."""
        places = [TopicPartition(self._cdc, number) for number in partitions]
        if places:
            self._consumer.pause(places)
            self._paused += places

    def poll(self, timeout_s: float, records_max: int = RECORDS_MAX) -> list[CdcRecord]:
        """Return new records of the CDC topic, in order within a partition.

        Raises RowsLost, LogUnavailable, UnreadableChange.
        """
        while self._read_changes(0):
            pass
        self._check_unread()
        first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first, *self._consumer.consume(records_max - 1, 0)]
        found = (self._record(message) for message in messages)
        return [record for record in found if record is not None]

    def close(self) -> None:
        """Close the connections."""
        self._changes_consumer.close()
        self._consumer.close()

    def _read_changes(self, timeout_s: float) -> bool:
        """Apply new records of the change topics. Return False if there are none."""
        first = self._changes_consumer.poll(timeout_s)
        if first is None:
            return False
        for message in (first, *self._changes_consumer.consume(RECORDS_MAX, 0)):
            self._change(message)
        return True

    def _record(self, message: Message) -> CdcRecord | None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None
        if error is None:
            assert offset is not None
            return CdcRecord(partition, offset, message.value() or b"")
        if error.code() == KafkaError._PARTITION_EOF:
            assert offset is not None
            return CdcRecord(partition, offset, None)
        if error.code() in OFFSET_LOST_ERRORS:
            raise RowsLost(partition, offset or 0, self._bounds(TopicPartition(self._cdc, partition))[0])
        return None

    def _change(self, message: Message) -> None:
        error, topic, offset = message.error(), message.topic(), message.offset()
        assert topic is not None
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._caught_up.add(topic)
                self._read[topic] = offset or 0
            return
        assert offset is not None
        self._read[topic] = offset + 1
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        suffix = self._changes[topic]
        if suffix == SCHEMAS:
            if value is not None:
                self._learn(value)
        elif value is None:
            self._unread.pop(key, None)
            self.generations.apply(key, None)
        else:
            self._apply_change(key, offset, value)

    def _apply_change(self, key: str, offset: int, value: bytes) -> None:
        self._unread.pop(key, None)
        try:
            found = decode_change(value)
        except WireError as error:
            self._unread[key] = offset, value, str(error)
            return
        if isinstance(found, GenerationChange):
            self.generations.apply(key, found)

    def _learn(self, value: bytes) -> None:
        try:
            codec.learn(value.decode())
        except (WireError, UnicodeDecodeError):
            # Later releases may publish other kinds of schemas. Records that need such a schema are reported when they
            # are read.
            return
        for key, (offset, waiting, _) in list(self._unread.items()):
            self._apply_change(key, offset, waiting)

    def _check_unread(self) -> None:
        """Raise UnreadableChange if both topics are read to their end and a change is still unreadable."""
        if not self._unread:
            return
        for topic in self._changes:
            begin, end = self._bounds(TopicPartition(topic, 0))
            if self._read.get(topic, begin) < end:
                return
        offset, _, why = next(iter(self._unread.values()))
        raise UnreadableChange(self._cdc.removesuffix(CDC) + GENERATIONS, offset, why)

    def _partitions_of(self, topic: str) -> tuple[int, ...]:
        try:
            found = self._consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        except KafkaException as error:
            raise LogUnavailable(
                f"the broker does not answer for {topic}: {error.args[0].str()}", "check that the broker is up"
            ) from error
        if found.error is not None or not found.partitions:
            raise TopicMissing(topic)
        return tuple(sorted(found.partitions))

    def _bounds(self, place: TopicPartition) -> tuple[int, int]:
        return bounds_of(self._consumer, place)
