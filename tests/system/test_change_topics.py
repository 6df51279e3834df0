"""The change topics on a real broker: each epoch once, in one transaction; the last values are the state."""

from __future__ import annotations

import copy
import itertools
import json
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.agents.operation_runner import known
from tests.ending import stopping
from tests.wire.test_next_version import next_version

from ringlog import __version__
from ringlog.agents.exits import CRASHED, HALTED, SUPERSEDED
from ringlog.agents.roles import publisher
from ringlog.agents.status import HeartbeatReader, read_status, read_statuses
from ringlog.client.creation.schemas import publish_schemas
from ringlog.client.errors import SchemasIncompatible
from ringlog.kernel.changes import CHANGE_TOPICS, CHANGES_OF, EPOCHS, HEAD, Change, EpochChange, diff, project
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.sections import NODES, PLACEMENTS, SCHEMA
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, asdict, replace
from ringlog.log.kafka.adapter import KafkaLog, reader_config
from ringlog.log.kafka.compacted import read_compacted
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import AGENTS, RECORD_BYTES_MAX, SCHEMAS, admin_client, create_topics, topic_name
from ringlog.protocol.coordinator.core import propose
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.settings import ProcessSettings
from ringlog.stack import StackInfo
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import header
from ringlog.wire.changes import decode_change, encode_change, encode_change_record
from ringlog.wire.records import AgentStatus
from ringlog_schemas import CatalogueSchema, current, fingerprint_of

from .agents_world import DEADLINE_S, AgentsWorld, until
from .topic_settings import alter

pytestmark = [pytest.mark.system, pytest.mark.slow]

NODE, NODE_CHANGE = "11111111-1111-4111-8111-111111111111", "ringlog.changes.NodeChange"


@pytest.fixture
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsWorld]:
    world = AgentsWorld(stack, f"changes-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("changes"))
    yield world
    world.close()


def read(world: AgentsWorld, suffix: str) -> list[tuple[str, bytes | None]]:
    """Return (key, value) of all committed records of a topic, in order."""
    return [(key, value) for _, key, value in placed(world, suffix)]


def placed(world: AgentsWorld, suffix: str) -> list[tuple[int, str, bytes | None]]:
    """Like ``read``, with offsets."""
    consumer = Consumer(reader_config(world.stack.bootstrap_servers, "read_committed"))
    found: list[tuple[int, str, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(topic_name(world.cluster, suffix), 0, 0)])
        while True:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{suffix} was not read to its end"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            assert error is None, error
            found.append((message.offset() or 0, message.key().decode(), message.value()))
    finally:
        consumer.close()


def compacted(world: AgentsWorld) -> dict[tuple[str, str], Change]:
    """Return the records of all change topics after compaction."""
    left: dict[tuple[str, str], Change] = {}
    for topic in CHANGE_TOPICS:
        for key, value in read(world, topic):
            if value is None:
                del left[topic, key]
            else:
                left[topic, key] = decode_change(value)
    return left


def published(world: AgentsWorld) -> list[EpochChange]:
    found = []
    for key, value in read(world, EPOCHS):
        assert key == HEAD
        assert value is not None
        change = decode_change(value)
        assert isinstance(change, EpochChange)
        found.append(change)
    return found


def without_epoch(changes: dict[tuple[str, str], Change]) -> dict[tuple[str, str], Any]:
    """Return the values without the epoch of their record, which a later state does not contain."""
    return {key: replace(value, epoch=0) for key, value in changes.items()}


def apply(world: AgentsWorld, command: Command) -> None:
    assert isinstance(world.client.direct.submit(command), AppliedResult)


def begin(world: AgentsWorld) -> None:
    """Complete the join of a node and create a keyspace."""
    apply(world, RegisterNode("n1", NODE, "127.0.0.1:1", "dc", "r", 2, 12, "1", (), 1))
    apply(world, Join(NODE, (-(2**62), 5, 2**62), bytes(16)))
    while proposals := propose(known(world.state)):
        apply(world, proposals[0].command)
    apply(world, CreateKeyspace("ks", Replication("simple", 1)))


def create_history(world: AgentsWorld) -> None:
    """Create a varied history: the first entries, tables that are created and dropped, and many epochs without a
    change.
    """
    begin(world)
    for number in range(4):
        columns = (Column("k", "text"),)
        table_id = str(uuid.uuid4())
        apply(world, CreateTable("ks", f"t{number}", table_id, columns, ("k",), (), CdcOptions(enabled=True)))
        for _ in range(60):
            apply(world, Noop())
    apply(world, DropTable("ks", "t0"))


def reached(world: AgentsWorld, epoch: int) -> bool:
    """Return True if the change topics have this epoch."""
    return [change.epoch for change in published(world)[-1:]] == [epoch]


def check_transactions(world: AgentsWorld) -> None:
    """Check that each topic has exactly the records of the log's epochs and no marker inside an epoch."""
    expected: dict[str, list[tuple[int, str, bytes | None]]] = {topic: [] for topic in CHANGE_TOPICS}
    state = EMPTY_STATE
    for entry in world.applied():
        before, state = state, fold(state, entry).state
        for record in diff(before, state):
            suffix, key, value = encode_change_record(record)
            expected[suffix].append((state.epoch, key.decode(), value))
    for topic, records in expected.items():
        found = placed(world, topic)
        assert [(key, value) for _, key, value in found] == [(key, value) for _, key, value in records]
        epochs, offsets = [epoch for epoch, _, _ in records], [offset for offset, _, _ in found]
        for (epoch, offset), (next_epoch, next_offset) in itertools.pairwise(zip(epochs, offsets, strict=True)):
            assert next_offset == offset + 1 or (next_epoch > epoch and next_offset > offset)


def check(world: AgentsWorld) -> None:
    """Check that the topics have the log's epochs, each once, and the state of the last one."""
    state = world.client.read_barrier()
    until(lambda: reached(world, state.epoch), "the last epoch")
    epochs = published(world)
    assert [change.epoch for change in epochs] == list(range(1, state.epoch + 1))
    assert [change.state_id for change in epochs] == [entry.state_id for entry in world.applied()]
    wanted = project(state)
    # A transaction ends in one topic after the other, so the topic of epochs may be briefly ahead of others.
    until(lambda: without_epoch(compacted(world)) == without_epoch(wanted), "the last epoch in every topic")
    assert compacted(world)[EPOCHS, HEAD] == wanted[EPOCHS, HEAD]


def test_a_killed_publisher_leaves_no_gap_and_no_duplicates(world: AgentsWorld) -> None:
    first = world.start("publisher")
    writer = threading.Thread(target=create_history, args=(world,))
    writer.start()
    until(lambda: len(published(world)) > 5, "the first epochs")
    first.kill()
    writer.join()
    apply(world, Noop())
    assert len(published(world)) < world.state.epoch
    world.start("publisher")
    check(world)
    apply(world, DropTable("ks", "t1"))
    check(world)
    check_transactions(world)


@pytest.mark.soak("the one that is killed; the simulator's zombies")
def test_a_replaced_publisher_publishes_nothing(world: AgentsWorld) -> None:
    first = world.start("publisher")
    until(lambda: reached(world, world.state.epoch), "the first epochs")
    first.send(signal.SIGSTOP)
    apply(world, RegisterNode("n1", NODE, "127.0.0.1:1", "dc", "r", 2, 12, "1", (), 1))
    world.start("publisher")
    check(world)
    first.send(signal.SIGCONT)
    apply(world, Noop())
    assert first.exit_code() == SUPERSEDED
    last = world.client.read_barrier().epoch
    until(lambda: len(published(world)) >= last, "the epochs after the restart")
    found = [change.state_id for change in published(world)]
    assert found == [entry.state_id for entry in world.applied()][: len(found)]


def recreate(world: AgentsWorld, topics: list[str]) -> None:
    """Delete topics and create them again."""
    admin = admin_client(world.stack.bootstrap_servers)
    for name, future in admin.delete_topics(topics).items():
        assert future.result(DEADLINE_S) is None, name
    made: set[str] = set()

    def recreated() -> bool:
        """Create the topic; a broker may still know the deleted one."""
        made.update(create_topics(admin, world.cluster))
        return made >= set(topics)

    until(recreated, "the topics to be created again")


@pytest.mark.soak("what change topics lack is written in several transactions")
def test_a_recreated_change_topic_is_completed(world: AgentsWorld) -> None:
    """A publisher that wrote to the new topic before its restart left it incomplete, so the restart completes it."""
    first = world.start("publisher")
    begin(world)
    check(world)
    topics = [topic_name(world.cluster, suffix) for suffix in (NODES, SCHEMA)]
    recreate(world, topics)
    apply(world, CreateKeyspace("other", Replication("simple", 1)))
    assert first.exit_code() == CRASHED
    world.start("publisher")
    check(world)


def test_every_schema_that_a_record_names_is_in_the_schemas_topic(world: AgentsWorld) -> None:
    world.start("publisher")
    until(lambda: len(published(world)) > 0, "the first epoch")
    keys = {key for key, _ in read(world, SCHEMAS.suffix)}
    for topic in CHANGE_TOPICS:
        for _, value in read(world, topic):
            assert value is None or f"{int.from_bytes(value[2:10], 'little'):016x}" in keys


def test_a_publisher_halts_when_the_topics_are_ahead_of_the_log(world: AgentsWorld) -> None:
    state = world.state
    ahead = EpochChange(state.epoch + 1_000, state.cluster_id, state.state_id, state.time)
    producer = AckedProducer(world.stack.bootstrap_servers)
    topic = topic_name(world.cluster, EPOCHS)
    producer.send(topic, encode_change(ahead), key=HEAD.encode(), partition=0).result(DEADLINE_S)
    producer.close()
    publisher = world.spawn("publisher")
    assert publisher.exit_code() == HALTED
    assert len(published(world)) == 1


def test_a_publisher_halts_with_a_reason_at_a_record_above_the_limit(world: AgentsWorld) -> None:
    """The publisher is not restarted, because each restart adds a term; it continues when the topic accepts."""
    admin = admin_client(world.stack.bootstrap_servers)
    topic = topic_name(world.cluster, SCHEMA)
    begin(world)
    first = world.start("publisher")
    until(lambda: reached(world, world.state.epoch), "the first epochs")
    alter(admin, topic, "max.message.bytes", "2000")
    columns = tuple(Column(f"c{number:03}", "text") for number in range(200))
    apply(world, CreateTable("ks", "large", str(uuid.uuid4()), columns, ("c000",), (), CdcOptions()))
    assert first.exit_code() == HALTED
    (found,) = (one for one in read_status(world.stack.bootstrap_servers, world.cluster) if one.role == "publisher")
    assert (found.state, found.release) == ("halted", __version__)
    assert f"record_too_large: topic {topic} rejects the record 'table/ks.large'" in found.why
    assert f"--entity-name {topic} --add-config max.message.bytes=" in found.why
    alter(admin, topic, "max.message.bytes", str(RECORD_BYTES_MAX))
    world.start("publisher")
    check(world)


def test_the_status_of_an_agent_of_a_later_release_is_read(world: AgentsWorld) -> None:
    """The earlier command line must not report upgraded agents as stopped."""
    name = "ringlog.agents.AgentStatus"
    later = copy.deepcopy(dict(current()[name].json))
    later["fields"].append({"name": "later", "type": "string", "default": "", "doc": "A field of a later release."})
    status = asdict(AgentStatus("keeper", "i", 1, 7, "active", 1, release="9.0")) | {"later": "x"}
    fingerprint, place = fingerprint_of(later), (world.stack.bootstrap_servers, world.cluster)
    with closing(KafkaLog(*place, AGENTS)) as agents, closing(HeartbeatReader(*place)) as reader:
        agents.put("keeper", header(fingerprint) + RecordCodec(later).encode(status))
        assert "keeper" not in reader.refresh(), "nobody has published the schema"
        publish_schemas(*place, own={}, texts=[(f"{fingerprint:016x}", json.dumps(later))])
        assert read_statuses(*place)["keeper"].release == "9.0"


def test_several_transactions_fill_topics(world: AgentsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "RESTORED_RECORDS_MAX", 2)
    first = world.start("publisher")
    begin(world)
    check(world)
    first.stop()
    recreate(world, [topic_name(world.cluster, PLACEMENTS)])
    settings = ProcessSettings(
        bootstrap_servers=world.stack.bootstrap_servers, cluster=world.cluster, data_dir=tmp_path, redis_url="none"
    )
    with stopping(publisher.PublisherThread(settings, lambda _: None, lambda _: None)) as again:
        again.start()
        world.await_term("publisher", 2)
        check(world)
    offsets = [offset for offset, _, _ in placed(world, PLACEMENTS)]
    assert len(offsets) == 3
    assert [later - sooner for sooner, later in itertools.pairwise(offsets)] == [1, 2], "a marker after every two"


def test_the_next_publisher_reverts_foreign_records(world: AgentsWorld) -> None:
    """Another process writes a new key, a tombstone, and another value."""
    publisher = world.start("publisher")
    begin(world)
    check(world)
    wanted = compacted(world)
    publisher.stop()
    features, nodes, schema = (topic_name(world.cluster, suffix) for suffix in ("features", NODES, SCHEMA))
    key, value = next(iter(read(world, NODES)))
    assert value is not None
    other: Any = decode_change(value)
    producer = AckedProducer(world.stack.bootstrap_servers)
    for topic, name, written in (
        (features, "ghost", encode_change(CHANGES_OF["features"](1, "ghost", 1, 1))),
        (schema, read(world, SCHEMA)[0][0], None),
        (nodes, key, encode_change(replace(other, address="elsewhere:1"))),
    ):
        producer.send(topic, written, key=name.encode(), partition=0).result(DEADLINE_S)
    assert compacted(world) != wanted
    world.start("publisher")
    world.await_term("publisher", 2)
    check(world)


def test_a_later_schema_is_published_once_and_only_if_compatible(world: AgentsWorld) -> None:
    servers, topic = world.stack.bootstrap_servers, topic_name(world.cluster, SCHEMAS.suffix)
    there = read_compacted(servers, topic, bytes)
    fits = next_version(NODE_CHANGE)
    fields = [{name: said for name, said in field.items() if name != "default"} for field in fits.json["fields"][-1:]]
    json_of = dict(fits.json) | {"fields": [*fits.json["fields"][:-1], *fields]}
    other = CatalogueSchema(NODE_CHANGE, json_of, fingerprint_of(json_of))

    def publish(schema: CatalogueSchema) -> int:
        texts = ((schema.hex, json.dumps(schema.json)),)
        return publish_schemas(servers, world.cluster, own={NODE_CHANGE: schema}, texts=texts)

    with pytest.raises(SchemasIncompatible, match=r"schemas_incompatible: .*NodeChange\.why"):
        publish(other)
    assert read_compacted(servers, topic, bytes) == there
    assert [publish(fits) for _ in range(2)] == [1, 0]
    assert read_compacted(servers, topic, bytes).keys() == {*there, fits.hex}
