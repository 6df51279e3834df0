"""A CDC log without Spark: change topics of a publisher, and rows of a writer that embeds the client.

The job would write the same rows, streams and partitions for the same mutations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from confluent_kafka import Producer, TopicPartition
from tests.cdc.partitions import cdc_partition
from tests.system.cdc_world import SEED, World, now_us
from tests.time_uuids import timeuuid

from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.generations.acceptance import generation_at, stream_of
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.values import Position, replace
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.runtime.kafka.config import QUIET
from ringlog.wire.changes import encode_change_record
from ringlog.wire.records import CdcRow, Cell, encode_cdc_row

CDC_PARTITIONS = 8
WRITER = "test"
MINUTE_US = 60_000_000
KEYS = 11
TOKENS = ((-5_000_000_000_000_000_000, 0, 7_000_000_000_000_000_000), (-2 * 10**18, 10**18), (4 * 10**18,))


class CdcLog:
    """Writes the topics that consumers read."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._published: ClusterState = EMPTY_STATE
        self._producer = Producer(
            {**QUIET, "bootstrap.servers": world.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._offset = 0
        self._incarnation = SEED.hex()
        world.apply(RegisterCdcWriter(WRITER, self._incarnation, "nowhere"))

    def publish(self) -> None:
        """Update the change topics to the current state."""
        state = self.world.state
        for record in diff(self._published, state):
            suffix, key, value = encode_change_record(record)
            self._producer.produce(topic_name(self.world.cluster, suffix), value, key, 0)
        self._published = state
        assert self._producer.flush(60) == 0

    def row(self, key: str, number: int, timestamp: int, **changes: object) -> CdcRow:
        """Return the row of one write to ``shop.orders``; each call is a new mutation."""
        partition_key = (key.encode(),)
        generation = generation_at(self.world.state.generations, timestamp)
        assert generation is not None
        made = CdcRow(
            stream_id=stream_of(generation, token_of(compose(partition_key))),
            generation=generation.timestamp,
            time=timeuuid(timestamp, b"%d" % self._offset),
            batch_seq_no=0,
            operation=2,
            ttl=None,
            end_of_batch=True,
            keyspace="shop",
            table="orders",
            mutation_id=None,
            source_topic=topic_name(self.world.cluster, "mutations"),
            source_partition=0,
            source_offset=self._offset,
            timestamp=timestamp,
            partition_key=partition_key,
            clustering_key=(number.to_bytes(8, "big", signed=True),),
            cells=(Cell("amount", b"\0\0\0\7"),),
            deleted=("note",),
            epoch=self.world.replica.state.epoch,
        )
        self._offset += 1
        return replace(made, **changes)  # type: ignore[arg-type]

    def write(self, rows: Iterable[CdcRow]) -> None:
        """Append rows to their partitions and wait for the acknowledgements."""
        for row in rows:
            self._producer.produce(
                topic_name(self.world.cluster, "cdc"),
                encode_cdc_row(row),
                row.stream_id,
                cdc_partition(row.stream_id, CDC_PARTITIONS),
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def close(self, low_watermark: int) -> None:
        """Record a low-watermark: all rows below it are durable. Seal the generations that end there."""
        ends = [0] * CDC_PARTITIONS
        for found in self.world.read("cdc"):
            ends[found.partition] = max(ends[found.partition], found.offset + 1)
        positions: Sequence[Position] = [Position(number, end) for number, end in enumerate(ends)]
        self.world.apply(AdvanceCdcWriter(WRITER, self._incarnation, low_watermark, low_watermark, tuple(positions)))
        generations = self.world.state.generations
        for found, following in itertools.pairwise(generations):
            if found.status == "published" and following.timestamp <= low_watermark:
                self.world.apply(CloseCdcGeneration(found.id))


class Story:
    """Three generations of writes; the second begins before the last rows of the first are written."""

    def __init__(self, log: CdcLog) -> None:
        self.log = log
        self.starts = [now_us() - minutes * MINUTE_US for minutes in (60, 40, 20)]
        self.numbers = 0
        self.written: list[CdcRow] = []

    def rows(self, generation: int, count: int) -> list[CdcRow]:
        """Return new writes of a generation that are not appended yet."""
        made = []
        for _ in range(count):
            number, self.numbers = self.numbers, self.numbers + 1
            timestamp = self.starts[generation] + 1_000 * number + 1
            made.append(self.log.row(f"customer-{number % KEYS}", number, timestamp))
        return made

    def write(self, rows: list[CdcRow], copies: int = 1) -> None:
        for _ in range(copies):
            self.log.write(rows)
        self.written += rows

    def join(self, index: int) -> None:
        self.log.world.join(f"n{index}", TOKENS[index], self.starts[index])
        if index == 0:
            self.log.world.schema()

    def play(self) -> None:
        """Play both switches: late rows of a generation follow early ones of the next, and copies follow both."""
        self.join(0)
        self.write(self.rows(0, 60), copies=2)
        late = self.rows(0, 20)
        self.join(1)
        self.write(self.rows(1, 60))
        self.write(late)
        self.log.close(self.starts[1])
        self.log.write(late)
        self.join(2)
        self.write(self.rows(2, 40))
        self.write(self.rows(1, 30), copies=2)
        self.log.close(self.starts[2])
        self.log.publish()


def drop_all(log: CdcLog) -> None:
    """Delete all records of the CDC topic, like retention."""
    topic, admin = topic_name(log.world.cluster, "cdc"), admin_client(log.world.bootstrap)
    for future in admin.delete_records(
        [TopicPartition(topic, number, -1) for number in range(CDC_PARTITIONS)]
    ).values():
        future.result(timeout=30)
