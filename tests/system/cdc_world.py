"""A cluster for tests of the CDC job: real topics, metadata by a direct author, mutations by a producer.

Nodes join immediately, because the author submits all acknowledgements. A test sets the commit and the start of a
generation, so tests do not wait for clocks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TypeVar

from confluent_kafka import Consumer, Producer, TopicPartition
from tests import waiting

from ringlog.client.creation.creation import create_cluster
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cdc.generations import CommitCdcGeneration, PublishCdcGeneration, parts_of
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.generations.describe import generate_for, ranges_digest, to_prepare
from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, WRITE_BOTH_READ_OLD, is_ended
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, StreamReport, Value, Witness, replace
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import topic_name
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.kafka.config import QUIET
from ringlog.wire.records import (
    CdcRow,
    Cell,
    DeadLetter,
    Mutation,
    decode_cdc_row,
    decode_dead_letter,
    encode_mutation,
    mutation_key,
    mutation_partition,
)

T = TypeVar("T")
PARTITIONS = 4
SEED = bytes(range(16))
HOUR_US = 3_600_000_000
TOKENS = (-5_000_000_000_000_000_000, 0, 7_000_000_000_000_000_000)
MORE_TOKENS = (-2_000_000_000_000_000_000, 3_000_000_000_000_000_000)


def now_us() -> int:
    """Return the wall-clock time."""
    return time.time_ns() // 1000


def write(key: str | None, number: int, timestamp: int | None = None, **changes: object) -> Mutation:
    """Return a write to ``shop.orders`` (partition key ``customer`` text, clustering key ``number`` bigint)."""
    made = Mutation(
        mutation_id=str(uuid.uuid4()),
        cluster_id=None,
        keyspace="shop",
        table="orders",
        timestamp=now_us() if timestamp is None else timestamp,
        ttl=None,
        operation="INSERT",
        partition_key=(None if key is None else key.encode(),),
        clustering_key=(number.to_bytes(8, "big", signed=True),),
        cells=(Cell("amount", b"\0\0\0\7"), Cell("note", None)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def until(condition: Callable[[], T | None], what: str, check: Callable[[], None] | None = None) -> T:
    """Return the first true result of ``condition``; ``check`` may raise the reason of a failure."""

    def found() -> T | None:
        answer = condition()
        if not answer and check is not None:
            check()
        return answer

    return waiting.until(found, what, look_s=0.1)


class Found(Value):
    """A record of a topic; ``appended`` in microseconds."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    appended: int


class World:
    """One cluster. Metadata commands are applied directly, because the validator's answers do not matter here."""

    def __init__(self, bootstrap: str, cluster: str, replica: LogReplica, author: DirectAuthor) -> None:
        self.bootstrap = bootstrap
        self.cluster = cluster
        self.replica = replica
        self.author = author

    @cached_property
    def _producer(self) -> Producer:
        return Producer({**QUIET, "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5})

    @property
    def state(self) -> ClusterState:
        """Return the state of the whole log."""
        return self.replica.read_barrier()

    # ------------------------------------------------------------------------------------------ metadata

    def apply(self, command: Command) -> int:
        """Apply a command; return its epoch."""
        answer = self.author.submit(command)
        assert isinstance(answer, AppliedResult), answer
        return answer.epoch

    def schema(self) -> None:
        """Create the keyspace ``shop`` with the tables ``orders`` (CDC) and ``quiet`` (no CDC)."""
        self.apply(CreateKeyspace("shop", Replication("simple", 1)))
        self.table("orders")
        self.table("quiet", cdc=False)

    def table(self, name: str, cdc: bool = True) -> None:
        """Create a table of keyspace ``shop`` with the columns of ``orders``."""
        columns = tuple(
            Column(name, kind)
            for name, kind in (("customer", "text"), ("number", "bigint"), ("amount", "int"), ("note", "text"))
        )
        options = CdcOptions(enabled=cdc)
        self.apply(CreateTable("shop", name, str(uuid.uuid4()), columns, ("customer",), ("number",), options))

    def join(self, name: str, tokens: Iterable[int], start: int) -> Generation:
        """Complete the join of a node; its generation is active from ``start``."""
        operation = self.begin_join(name, tokens)
        self.prepare_generation()
        generation = self.commit_generation(start)
        self.finish(operation)
        return generation

    def begin_join(self, name: str, tokens: Iterable[int]) -> str:
        """Move the join of a node to the stage that waits for its generation; return the operation's id."""
        node = str(uuid.uuid4())
        port = 20_000 + len(self.state.nodes)
        self.apply(RegisterNode(name, node, f"127.0.0.1:{port}", "dc1", "r1", 3, 12, "1", (), 1))
        epoch = self.apply(Join(node, tuple(tokens), SEED))
        operation = f"join-{epoch}"
        while self.state.operations[operation].stage != COMMIT_CDC_GENERATION:
            self.advance(operation)
        return operation

    def prepare_generation(self) -> str:
        """Publish the data of the wanted generation without its commit; return its id."""
        wanted = to_prepare(self.state)
        assert wanted is not None
        name, seed = wanted
        for part in parts_of(name, generate_for(self.state, seed)):
            self.apply(part)
        return name

    def alter(self, command: AlterTable) -> None:
        """Change a table and wait until new writes use the change."""
        self.apply(command)
        since = self.state.settled.until
        until(lambda: now_us() > since, "the validation watermark to pass the write")

    def commit_generation(self, start: int) -> Generation:
        """Commit and publish the prepared generation, active from ``start`` but not below the validation watermark."""
        wanted = to_prepare(self.state)
        assert wanted is not None
        name, seed = wanted
        start = max(start, self.state.settled.until + 1)
        self.apply(CommitCdcGeneration(name, start, ranges_digest(generate_for(self.state, seed))))
        self.apply(PublishCdcGeneration(name))
        return self.state.generations[-1]

    def finish(self, operation: str) -> None:
        """Complete an operation."""
        while not is_ended(self.state.operations[operation]):
            self.advance(operation)

    def advance(self, operation: str) -> None:
        state = self.state
        found = state.operations[operation]
        to = next_stage(found)
        assert to is not None
        witnesses = tuple(Witness(node, state.epoch, state.epoch) for node in sorted(state.nodes))
        reports = (StreamReport(found.node, operation, 0, "00"),) if found.stage == WRITE_BOTH_READ_OLD else ()
        self.apply(AdvanceOperation(operation, to, witnesses, reports))

    # --------------------------------------------------------------------------------------------- input

    def send(self, mutations: Iterable[Mutation], record_key: bytes | None = None) -> int:
        """Produce mutations in order, keyed like a producer; wait for the acknowledgements and return their number.

        ``record_key``: another key for the records.
        """
        count = 0
        for mutation in mutations:
            key = mutation_key(mutation.keyspace, mutation.table, compose([k or b"" for k in mutation.partition_key]))
            self._producer.produce(
                topic_name(self.cluster, "mutations"),
                encode_mutation(mutation),
                record_key or key,
                mutation_partition(key, PARTITIONS),
            )
            self._producer.poll(0)
            count += 1
        assert self._producer.flush(60) == 0
        return count

    def send_raw(self, value: bytes | None, partition: int = 0) -> None:
        """Produce any bytes."""
        self._producer.produce(topic_name(self.cluster, "mutations"), value, b"raw", partition)
        assert self._producer.flush(60) == 0

    # -------------------------------------------------------------------------------------------- output

    def read(self, suffix: str) -> list[Found]:
        """Return all records of a topic, by partition and offset."""
        topic = topic_name(self.cluster, suffix)
        with closing(
            Consumer({**QUIET, "bootstrap.servers": self.bootstrap, "group.id": "test", "enable.auto.commit": False})
        ) as consumer:
            partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
            ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions}
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            found = []
            deadline = time.monotonic() + 120
            while len(found) < sum(ends.values()):
                assert time.monotonic() < deadline, f"{topic}: {len(found)} of {sum(ends.values())} records"
                for message in consumer.consume(10_000, 0.02):
                    assert message.error() is None
                    place = (message.partition(), message.offset(), message.key(), message.value())
                    found.append(Found(*place, message.timestamp()[1] * 1_000))
        return sorted(found, key=lambda item: (item.partition, item.offset))

    def rows(self) -> list[CdcRow]:
        """Return the decoded CDC topic."""
        return [decode_cdc_row(item.value) for item in self.read("cdc")]

    def letters(self) -> list[DeadLetter]:
        """Return the decoded dead-letter topic."""
        return [decode_dead_letter(item.value) for item in self.read("dead-letters")]


@contextmanager
def founded(bootstrap: str, cluster: str, settings: dict[str, int] | None = None) -> Iterator[World]:
    """Return a new cluster without nodes and schema."""
    create_cluster(bootstrap, cluster, settings)
    with closing(KafkaLog(bootstrap, cluster)) as metadata, LogReplica(metadata) as replica:
        yield World(bootstrap, cluster, replica, DirectAuthor(metadata, replica, "test"))


@contextmanager
def founded_shop(bootstrap: str, cluster: str, settings: dict[str, int] | None = None) -> Iterator[World]:
    """Return a new cluster with the tables of the shop, and one node with a generation from an hour ago."""
    with founded(bootstrap, cluster, settings) as world:
        world.join("n1", TOKENS, now_us() - HOUR_US)
        world.schema()
        yield world
