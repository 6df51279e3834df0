"""The stage that imports: change events from their topics, mutations to the mutations topic, refused ones to the
dead letters.

It is a plain consumer and producer, no part of the Spark job: a mutation is no bigger for having been an event, and the
job then treats all mutations alike. Each batch is one Kafka transaction with the offsets that it consumed, so every
event has exactly one mutation for every reader of what is committed, as the job does. What the next event's timestamp
depends on (``EventClock``) travels as metadata of the offset, in the same transaction: a restart goes on as if there
had been none. Several instances of one group share the partitions; each has a name of its own.
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
from ringlog.log.kafka.topics import DEAD_LETTERS, MUTATIONS, topic_name
from ringlog.runtime.kafka.config import connection
from ringlog.wire.records import (
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

LIMITS = {"message.max.bytes": 4 * 1024 * 1024}
MUTATION_BYTES_MAX = 2_000_000
VALUE_KEPT, KEY_KEPT = 3 * 1024 * 1024, 64 * 1024
"""Bytes of an event that a dead letter keeps; its place in its topic leads to the rest."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """``group``: the consumer group, which names the import; ``instance``: which of its processes this is.

    ``until_end``: stop at the end that the topics have.
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
    """What became of the events that were read."""

    mutations: int = 0
    refused: int = 0
    tombstones: int = 0
    unchanged: int = 0


class Import:
    """One instance. ``run`` returns when ``stopping`` is set, or at the end if so wished; raises KafkaException."""

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
        # A process that was killed leaves a transaction open, which its successor of this name ends; one that lost its
        # partitions is fenced by the group's generation, which the transaction carries.
        name = f"{settings.cluster}-{settings.group}-{settings.instance}"
        self._producer = Producer(common | LIMITS | {"transactional.id": name, "linger.ms": 5})
        metadata = self._consumer.list_topics(topic_name(settings.cluster, MUTATIONS.suffix), timeout=TRANSACTION_S)
        self._partitions = len(metadata.topics[topic_name(settings.cluster, MUTATIONS.suffix)].partitions)

    def run(self) -> ImportFigures:
        """Import until asked to stop."""
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
        """Where each partition goes on, and what its clock showed there."""
        for found in consumer.committed(places, timeout=TRANSACTION_S):
            self._clocks[found.topic, found.partition] = _clock(found.metadata)
        self._assigned = {(place.topic, place.partition) for place in places}
        self._ended = set()

    def _is_ended(self) -> bool:
        return bool(self._assigned) and self._ended >= self._assigned

    def _is_record(self, message: Message) -> bool:
        error, place = message.error(), (message.topic() or "", message.partition() or 0)
        if error is None:
            self._ended.discard(place)
            return True
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        self._ended.add(place)
        return False

    def _carry_out(self, batch: list[Message]) -> None:
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
        except KafkaException:
            self._producer.abort_transaction(TRANSACTION_S)
            raise

    def _one(self, message: Message, place: Place, offset: int, state: ClusterState) -> None:
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
        table = state.tables.get(self._settings.rules.tables.get(source, source))
        if table is None:
            raise BadRecord("unknown_source", f"{source[:100]} has no table here")
        return table

    def _refuse(self, message: Message, place: Place, offset: int, bad: BadRecord, epoch: int) -> None:
        self.figures.refused += 1
        letter = DeadLetter(
            reason=bad.code,
            detail=bad.detail,
            topic=place[0],
            partition=place[1],
            offset=offset,
            append_time=message.timestamp()[1] * 1_000,
            key=key[:KEY_KEPT] if (key := message.key()) is not None else None,
            value=(message.value() or b"")[:VALUE_KEPT],
            writer=f"import {self._settings.group}",
            epoch=epoch,
        )
        self._send(DEAD_LETTERS.suffix, 0, dead_letter_key(*place, offset), encode_dead_letter(letter))

    def _send(self, suffix: str, partition: int, key: bytes, value: bytes) -> None:
        topic = topic_name(self._settings.cluster, suffix)
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                return
            except BufferError:
                self._producer.poll(POLL_S)


def _encoded(mutation: Mutation) -> tuple[bytes, bytes]:
    """(the composed partition key, the bytes) of a mutation."""
    parts = [part for part in mutation.partition_key if part is not None]
    if any(len(part) > COMPONENT_BYTES_MAX for part in parts):
        raise BadRecord("bad_value", "a component of the partition key is too long")
    encoded = encode_mutation(mutation)
    if len(encoded) > MUTATION_BYTES_MAX:
        raise BadRecord("bad_value", f"the mutation has {len(encoded)} bytes, more than {MUTATION_BYTES_MAX}")
    return compose(parts), encoded


def _clock(metadata: str | None) -> EventClock:
    """The clock that was committed beside an offset; a new one if there is none."""
    if not metadata:
        return EventClock()
    base, count = json.loads(f"[{metadata}]")
    return EventClock(int(base), int(count))


def rename(pairs: Sequence[str]) -> Mapping[str, str]:
    """``NAME=VALUE`` pairs as a mapping; raises ValueError."""
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(found) < len(pairs):
        raise ValueError(f"{', '.join(pairs)}: each must be NAME=VALUE, a name once")
    return found
