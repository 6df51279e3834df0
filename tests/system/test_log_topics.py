"""Topics with settings under which entries could be lost are refused, with the command that mends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourceType,
)

from ringlog.log.errors import TopicMisconfigured, TopicMissing
from ringlog.log.kafka import KafkaLog
from ringlog.log.replica import Replica
from ringlog.log.topics import (
    METADATA,
    MUTATIONS,
    TOPICS,
    admin_client,
    create_topics,
    describe,
    topic_name,
    verify_topics,
)
from ringlog.stack import StackInfo

pytestmark = pytest.mark.system
DEADLINE_S = 30.0


@pytest.fixture
def admin(stack: StackInfo) -> AdminClient:
    return admin_client(stack.bootstrap_servers)


def until(heard: Callable[[], bool]) -> None:
    """Ask the broker until it has heard what the controller already answered."""
    deadline = time.monotonic() + DEADLINE_S
    while not heard():
        assert time.monotonic() < deadline


def alter(admin: AdminClient, topic: str, setting: str, value: str) -> None:
    entry = ConfigEntry(
        setting, value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)

    def shown() -> str:
        (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return str(found.result(DEADLINE_S)[setting].value)

    until(lambda: shown() == value)


def test_all_topics_are_made_once_and_as_wanted(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
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
def test_a_wrong_setting_is_refused_by_name(
    stack: StackInfo, admin: AdminClient, cluster_name: str, setting: str, wrong: str
) -> None:
    create_topics(admin, cluster_name, specs=[METADATA])
    topic = topic_name(cluster_name, "metadata")
    alter(admin, topic, setting, wrong)
    log = KafkaLog(stack.bootstrap_servers, cluster_name)
    with pytest.raises(TopicMisconfigured) as caught:
        Replica(log).start()
    log.close()
    error = caught.value
    assert (error.topic, error.setting, error.found) == (topic, setting, wrong)
    assert f"--entity-name {topic} --add-config {setting}={error.wanted}" in error.mend
    alter(admin, topic, setting, error.wanted)
    verify_topics(admin, cluster_name, stack.bootstrap_servers, [METADATA])


def test_more_than_one_partition_is_refused(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    topic = topic_name(cluster_name, "metadata")
    create_topics(admin, cluster_name, specs=[METADATA])
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(DEADLINE_S)
    until(lambda: describe(admin, [topic])[topic].partitions == 2)
    with pytest.raises(TopicMisconfigured, match=r"partitions is 2, wanted 1 .*under another name"):
        verify_topics(admin, cluster_name, stack.bootstrap_servers, [METADATA])


def test_too_few_partitions_can_be_mended(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
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
