"""Topics with settings under which entries could be lost are refused, with the command that mends them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.system.agents_world import until
from tests.system.topic_settings import alter

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
    until(lambda: describe(admin, [topic])[topic].partitions == 2, "the broker to hear of the second partition")
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
