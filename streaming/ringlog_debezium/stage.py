"""The import process: read change events, write mutations and dead letters.

The import is a plain Kafka consumer and producer, separate from the Spark job. An imported mutation looks like any
other, so the job needs no special case.

Invariants:

* Each batch is one Kafka transaction with the offsets that it consumed. A ``read_committed`` consumer sees exactly one
  mutation or dead letter for each event.
* The state of the partition's ``EventClock`` is stored as offset metadata in the same transaction. A restart therefore
  assigns the same timestamps as an uninterrupted run.
* Instances of one consumer group share the partitions. Each has its own transactional id.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ringlog.client.client import Client
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX, compose
from ringlog.kernel.values import Value
from ringlog.log.kafka.topics import DEAD_LETTERS, MUTATIONS, topic_name, transactional_id
from ringlog.runtime.kafka.config import connection
from ringlog.wire.records import (
    KEY_KEPT,
    VALUE_KEPT,
    DeadLetter,
    Mutation,
    dead_letter_key,
    encode_dead_letter,
    encode_mutation,
    mutation_key,
    mutation_partition,
)
from ringlog_debezium.envelope import BadRecord, Form, read_envelope, read_key
from ringlog_debezium.mutations import EventClock, ImportRules, mutation_id, mutation_of, source_name, source_time

RECORDS_PER_BATCH = 1_000
POLL_S = 0.2
TRANSACTION_S = 30.0
"""Timeout of one call to the broker, seconds."""

LIMITS = {"message.max.bytes": 4 * 1024 * 1024}
"""A dead letter has at most ``VALUE_KEPT`` + ``KEY_KEPT`` bytes of the event and must fit."""
MUTATION_BYTES_MAX = 2_000_000

Place = tuple[str, int]
"""Topic and partition."""


class ImportSettings(Value):
    """Settings of one import process.

    Attributes:
        topics: Topics with change events.
        group: Consumer group. It identifies the import.
        form: Encoding of the records.
        until_end: Stop at the current end of the topics.
        instance: Name of this process within the group. Two running processes must not share it.
    """

    bootstrap_servers: str
    cluster: str
    topics: tuple[str, ...]
    group: str
    form: Form
    rules: ImportRules
    until_end: bool = False
    instance: str = "1"


@dataclass(slots=True)
class ImportFigures:
    """Counters of the events read so far, by outcome."""

    mutations: int = 0
    refused: int = 0
    tombstones: int = 0
    unchanged: int = 0


class Import:
    """One import process. ``run`` returns after ``stopping`` is set."""

    def __init__(self, settings: ImportSettings, client: Client, say: Callable[[ImportFigures], None]) -> None:
        self.stopping = threading.Event()
        self.figures = ImportFigures()
        self._settings = settings
        self._client = client
        self._say = say
        self._clocks: dict[Place, EventClock] = {}
        self._ended: set[Place] = set()
        self._assigned: set[Place] = set()
        common = {**connection(settings.bootstrap_servers)}
        self._consumer = Consumer(
            common
            | {
                "group.id": settings.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        # A killed process leaves a transaction open. Its successor with the same transactional id aborts it. A process
        # that lost its partitions is fenced by the group generation, which the transaction carries.
        name = transactional_id(settings.cluster, "import", settings.group, settings.instance)
        self._producer = Producer(common | LIMITS | {"transactional.id": name, "linger.ms": 5})
        metadata = self._consumer.list_topics(topic_name(settings.cluster, MUTATIONS.suffix), timeout=TRANSACTION_S)
        self._partitions = len(metadata.topics[topic_name(settings.cluster, MUTATIONS.suffix)].partitions)

    def run(self) -> ImportFigures:
        """Import until ``stopping`` is set, or until the end of the topics if ``until_end`` is set.

        Raises:
            KafkaException: The broker failed. The current transaction is aborted.
        """
        self._producer.init_transactions(TRANSACTION_S)
        self._consumer.subscribe(list(self._settings.topics), on_assign=self._on_assign)
        try:
            while not self.stopping.is_set() and not (self._settings.until_end and self._is_ended()):
                batch = [one for one in self._consumer.consume(RECORDS_PER_BATCH, POLL_S) if self._is_record(one)]
                if batch:
                    self._carry_out(batch)
                    self._say(self.figures)
        finally:
            self._consumer.close()
        return self.figures

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Restore the event clock of each assigned partition from its committed offset metadata."""
        for found in consumer.committed(places, timeout=TRANSACTION_S):
            self._clocks[found.topic, found.partition] = _clock(found.metadata)
        self._assigned = {(place.topic, place.partition) for place in places}
        self._ended = set()

    def _is_ended(self) -> bool:
        """Return True if every assigned partition has reached its end."""
        return bool(self._assigned) and self._ended >= self._assigned

    def _is_record(self, message: Message) -> bool:
        """Return True for a record, False for an end-of-partition event. Raises KafkaException for any other error."""
        error, place = message.error(), (message.topic() or "", message.partition() or 0)
        if error is None:
            self._ended.discard(place)
            return True
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        self._ended.add(place)
        return False

    def _carry_out(self, batch: list[Message]) -> None:
        """Import one batch in one transaction."""
        # All events of a batch are converted with one schema, at least as new as the one at the time of this call.
        state = self._client.read_barrier()
        self._producer.begin_transaction()
        try:
            ends: dict[Place, TopicPartition] = {}
            for message in batch:
                place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                self._one(message, place, offset, state)
                clock = self._clocks[place]
                ends[place] = TopicPartition(*place, offset + 1, f"{clock.base},{clock.count}")
            self._producer.send_offsets_to_transaction(
                list(ends.values()), self._consumer.consumer_group_metadata(), TRANSACTION_S
            )
            self._producer.commit_transaction(TRANSACTION_S)
        except BaseException:
            self._producer.abort_transaction(TRANSACTION_S)
            raise

    def _one(self, message: Message, place: Place, offset: int, state: ClusterState) -> None:
        """Produce the mutation or the dead letter of one event, and count it."""
        value, key = message.value(), message.key()
        if value is None:
            self.figures.tombstones += 1
            return
        try:
            envelope = read_envelope(self._settings.form, value)
            self._clocks[place] = clock = self._clocks[place].next(source_time(envelope))
            columns = read_key(self._settings.form, key)
            table = self._table(source_name(envelope), state)
            name = mutation_id(*place, offset)
            mutation = mutation_of(envelope, columns, table, self._settings.rules, name=name, timestamp=clock.now)
            composed, encoded = _encoded(mutation) if mutation is not None else (b"", b"")
        except BadRecord as bad:
            self._refuse(message, place, offset, bad, state.epoch)
            return
        if mutation is None:
            self.figures.unchanged += 1
            return
        self.figures.mutations += 1
        where = mutation_key(mutation.keyspace, mutation.table, composed)
        self._send(MUTATIONS.suffix, mutation_partition(where, self._partitions), where, encoded)

    def _table(self, source: str, state: ClusterState) -> Table:
        """Return the target table. Raises BadRecord ``unknown_source``."""
        table = state.tables.get(self._settings.rules.tables.get(source, source))
        if table is None:
            raise BadRecord("unknown_source", f"the cluster has no table for {source[:100]}")
        return table

    def _refuse(self, message: Message, place: Place, offset: int, bad: BadRecord, epoch: int) -> None:
        """Produce the dead letter of an event."""
        self.figures.refused += 1
        letter = DeadLetter(
            reason=bad.code,
            detail=bad.detail,
            topic=place[0],
            partition=place[1],
            offset=offset,
            # Kafka's timestamps are milliseconds.
            append_time=message.timestamp()[1] * 1_000,
            key=key[:KEY_KEPT] if (key := message.key()) is not None else None,
            value=(message.value() or b"")[:VALUE_KEPT],
            writer=f"import {self._settings.group}",
            epoch=epoch,
        )
        self._send(DEAD_LETTERS.suffix, 0, dead_letter_key(*place, offset), encode_dead_letter(letter))

    def _send(self, suffix: str, partition: int, key: bytes, value: bytes) -> None:
        """Produce one record. Block while the producer's queue is full."""
        topic = topic_name(self._settings.cluster, suffix)
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                return
            except BufferError:
                self._producer.poll(POLL_S)


def _encoded(mutation: Mutation) -> tuple[bytes, bytes]:
    """Return (composed partition key, encoded mutation). Raises BadRecord if either is too large."""
    parts = [part for part in mutation.partition_key if part is not None]
    if any(len(part) > COMPONENT_BYTES_MAX for part in parts):
        raise BadRecord("bad_value", "a component of the partition key is too long")
    encoded = encode_mutation(mutation)
    if len(encoded) > MUTATION_BYTES_MAX:
        raise BadRecord("bad_value", f"the mutation has {len(encoded)} bytes; the limit is {MUTATION_BYTES_MAX}")
    return compose(parts), encoded


def _clock(metadata: str | None) -> EventClock:
    """Parse the clock from offset metadata (``base,count``). Return a new clock if the offset has none."""
    if not metadata:
        return EventClock()
    base, count = json.loads(f"[{metadata}]")
    return EventClock(int(base), int(count))


def rename(pairs: Sequence[str]) -> Mapping[str, str]:
    """Parse ``NAME=VALUE`` pairs.

    Raises:
        ValueError: A pair has no ``=``, or a name occurs twice.
    """
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(found) < len(pairs):
        raise ValueError(f"{', '.join(pairs)}: each must be NAME=VALUE, with different names")
    return found
