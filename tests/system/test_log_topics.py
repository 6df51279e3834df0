"""Topics with settings that can lose entries are refused, with the command that fixes them."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType
from tests.system.agents_world import until
from tests.system.topic_settings import alter

from ringlog.client.creation.creation import create_cluster
from ringlog.kernel.values import replace
from ringlog.log.errors import CopiesUndecided, LogUnavailable, TopicMisconfigured, TopicMissing
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.producer import producer_config
from ringlog.log.kafka.topics import (
    ACKS,
    METADATA,
    MUTATIONS,
    TOPICS,
    admin_client,
    create_topics,
    describe,
    topic_name,
    verify_topics,
)
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.rows.store import RowsMark
from ringlog.node.streams import mutation_tail as tail
from ringlog.stack import StackInfo

pytestmark = pytest.mark.system
DEADLINE_S = 30.0


@pytest.fixture
def admin(stack: StackInfo) -> AdminClient:
    return admin_client(stack.bootstrap_servers)


def test_all_topics_are_created_once_as_specified(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    made = create_topics(admin, cluster_name)
    assert set(made) == {topic_name(cluster_name, spec.suffix) for spec in TOPICS}
    assert create_topics(admin, cluster_name) == ()
    ids = verify_topics(admin, cluster_name, stack.bootstrap_servers)
    assert len(set(ids.values())) == len(TOPICS)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("unclean.leader.election.enable", "true"),
        ("message.timestamp.type", "LogAppendTime"),
        ("max.message.bytes", "1000000"),
        ("min.insync.replicas", "2"),
    ],
)
def test_a_wrong_setting(stack: StackInfo, admin: AdminClient, cluster_name: str, setting: str, wrong: str) -> None:
    create_topics(admin, cluster_name, specs=[METADATA])
    topic = topic_name(cluster_name, "metadata")
    alter(admin, topic, setting, wrong)
    log = KafkaLog(stack.bootstrap_servers, cluster_name)
    with pytest.raises(TopicMisconfigured) as caught:
        LogReplica(log).start()
    log.close()
    error = caught.value
    assert (error.topic, error.setting, error.found) == (topic, setting, wrong)
    assert f"--entity-name {topic} --add-config {setting}={error.wanted}" in error.mend
    alter(admin, topic, setting, error.wanted)
    verify_topics(admin, cluster_name, stack.bootstrap_servers, [METADATA])


def test_any_author_time_is_accepted(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    """By default Kafka rejects timestamps an hour ahead; Ringlog creates its topics without that limit."""
    create_topics(admin, cluster_name)
    producer = Producer(producer_config(stack.bootstrap_servers, "ahead", DEADLINE_S))
    now_ms = int(time.time() * 1_000)
    told: dict[tuple[str, int], str] = {}
    for spec in TOPICS:
        for hours in (-100_000, 2, 100_000):

            def delivered(error: KafkaError | None, _: Message, key: tuple[str, int] = (spec.suffix, hours)) -> None:
                told[key] = "taken" if error is None else error.str()

            name = topic_name(cluster_name, spec.suffix)
            at = now_ms + hours * 3_600_000
            producer.produce(name, b"", key=b"k", partition=0, timestamp=at, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    assert set(told.values()) == {"taken"}, told
    assert len(told) == 3 * len(TOPICS)


def test_a_lower_limit_on_times_is_raised_by_operators_and_reported_by_others(
    stack: StackInfo, admin: AdminClient, cluster_name: str
) -> None:
    create_topics(admin, cluster_name, specs=[ACKS, MUTATIONS])
    name, setting = topic_name(cluster_name, "acks"), "message.timestamp.after.max.ms"
    alter(admin, name, setting, "3600000")
    with pytest.raises(TopicMisconfigured, match=rf"--entity-name {name} --add-config {setting}=") as caught:
        verify_topics(admin, cluster_name, stack.bootstrap_servers, [ACKS, MUTATIONS])
    assert caught.value.code == "topic_misconfigured"
    verify_topics(admin, cluster_name, stack.bootstrap_servers, [ACKS, MUTATIONS], tend=True)
    until(lambda: _is_sound(admin, cluster_name, stack), "the broker to show the raised setting")


def test_topics_read_whole_are_compacted_soon(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    create_topics(admin, cluster_name, specs=[ACKS, MUTATIONS])
    name = topic_name(cluster_name, "acks")
    for setting, most in ACKS.at_most.items():
        assert settings_of(admin, name)[setting] == most
    alter(admin, name, "segment.ms", str(7 * 86_400_000))
    alter(admin, name, "max.compaction.lag.ms", "60000")
    until(lambda: settings_of(admin, name)["segment.ms"] != "600000", "the broker to show the setting")
    verify_topics(admin, cluster_name, stack.bootstrap_servers, [ACKS, MUTATIONS])
    assert settings_of(admin, name)["segment.ms"] == "604800000", "only an operator's command changes it"
    verify_topics(admin, cluster_name, stack.bootstrap_servers, [ACKS, MUTATIONS], tend=True)
    until(lambda: settings_of(admin, name)["segment.ms"] == "600000", "the broker to show the lowered setting")
    assert settings_of(admin, name)["max.compaction.lag.ms"] == "60000", "a smaller value remains"


def settings_of(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return {key: entry.value for key, entry in found.items()}


def _is_sound(admin: AdminClient, cluster: str, stack: StackInfo) -> bool:
    try:
        verify_topics(admin, cluster, stack.bootstrap_servers, [ACKS, MUTATIONS])
    except TopicMisconfigured:
        return False
    return True


def test_more_copies_than_brokers_are_refused(stack: StackInfo, cluster_name: str) -> None:
    with pytest.raises(CopiesUndecided, match="--kafka-replication 3 needs 3 brokers, but one broker is up"):
        create_cluster(stack.bootstrap_servers, cluster_name, replication=3)
    with pytest.raises(CopiesUndecided, match="one broker is up, and 1 more is known of"):
        create_cluster(f"{stack.bootstrap_servers},127.0.0.1:1", cluster_name)
    founding = create_cluster(f"{stack.bootstrap_servers},127.0.0.1:1", cluster_name, replication=1)
    assert (founding.here, founding.copies) == (True, 1)
    again = create_cluster(f"{stack.bootstrap_servers},127.0.0.1:1", cluster_name)
    assert (again.here, again.copies) == (False, 1), "the number is that of the cluster"


def test_more_than_one_partition_is_refused(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    topic = topic_name(cluster_name, "metadata")
    create_topics(admin, cluster_name, specs=[METADATA])
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(DEADLINE_S)
    until(lambda: describe(admin, [topic])[topic].partitions == 2, "the broker to list the second partition")
    with pytest.raises(TopicMisconfigured, match=r"partitions is 2, required: 1 .*under another name"):
        verify_topics(admin, cluster_name, stack.bootstrap_servers, [METADATA])


def _is_assigned(reading: tail.MutationsTail) -> bool:
    try:
        reading.assign(RowsMark())
    except LogUnavailable:
        return False
    return True


def test_a_running_node_reads_new_partitions_of_the_mutations(
    stack: StackInfo, admin: AdminClient, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers use new partitions immediately, and later nodes read them, too. Agents accept the topic as it is."""
    monkeypatch.setattr(tail, "COUNT_S", 0.0)
    topic = topic_name(cluster_name, "mutations")
    create_topics(admin, cluster_name, specs=[MUTATIONS])
    reading = tail.MutationsTail(stack.bootstrap_servers, cluster_name)
    found: list[tuple[int, bytes]] = []

    def taken(value: bytes) -> bool:
        found.extend((one.partition, one.value) for one in reading.take() if one.value is not None)
        return value in [each for _, each in found]

    try:
        until(lambda: _is_assigned(reading), "leaders of the new partitions")
        until(lambda: not taken(b"none") and len(reading.ends) == 4, "the initial partitions")
        for future in admin.create_partitions([NewPartitions(topic, 6)]).values():
            future.result(DEADLINE_S)
        until(lambda: describe(admin, [topic])[topic].partitions == 6, "the broker to list the partitions")
        producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
        for partition in range(6):
            producer.produce(topic, b"write %d" % partition, partition=partition)
        assert producer.flush(DEADLINE_S) == 0
        for partition in range(6):
            until(lambda partition=partition: taken(b"write %d" % partition), f"a write of partition {partition}")
        assert sorted(found) == [(partition, b"write %d" % partition) for partition in range(6)]
        verify_topics(admin, cluster_name, stack.bootstrap_servers, [MUTATIONS])
    finally:
        reading.close()


def test_too_few_partitions_can_be_fixed(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    topic = topic_name(cluster_name, "mutations")
    create_topics(admin, cluster_name, specs=[replace(MUTATIONS, partitions=1)])
    with pytest.raises(TopicMisconfigured, match=f"--topic {topic} --partitions 4"):
        verify_topics(admin, cluster_name, stack.bootstrap_servers, [MUTATIONS])


def test_a_missing_topic_is_named(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    with pytest.raises(TopicMissing, match=f"{cluster_name}.metadata"):
        verify_topics(admin, cluster_name, stack.bootstrap_servers, [METADATA])
    log = KafkaLog(stack.bootstrap_servers, cluster_name)
    with pytest.raises(TopicMissing):
        log.identity()
    log.close()
