"""A new cluster never replaces one that lost its log, and the other topics of a cluster can be repaired."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient
from tests.system.agents_world import until
from tests.system.topic_settings import alter
from tests.system.user import User

from ringlog.client.creation.creation import create_cluster, create_cluster_topics, repaired
from ringlog.client.errors import LeftoversFound
from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import (
    ACKS,
    AGENTS,
    LOAD,
    METADATA,
    TopicSpec,
    admin_client,
    delete_topic,
    existing_topics,
    topic_name,
)
from ringlog.stack import StackInfo

pytestmark = pytest.mark.system


@pytest.fixture
def admin(stack: StackInfo) -> AdminClient:
    return admin_client(stack.bootstrap_servers)


def lose(admin: AdminClient, cluster: str, suffix: str) -> None:
    name = topic_name(cluster, suffix)
    delete_topic(admin, name)
    until(lambda: all(topic_name(cluster, one.suffix) != name for one in existing_topics(admin, cluster)), f"no {name}")


def put(place: tuple[str, str], spec: TopicSpec) -> None:
    topic = KafkaLog(*place, spec)
    topic.put("key", b"a record")
    topic.close()


def test_a_cluster_without_its_log_is_not_replaced(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    place = stack.bootstrap_servers, cluster_name
    first = create_cluster(*place)
    put(place, ACKS)
    assert create_cluster(*place).cluster_id == first.cluster_id, "the cluster with its log is unchanged"
    lose(admin, cluster_name, METADATA.suffix)
    for _ in range(2):
        with pytest.raises(LeftoversFound, match=rf"{cluster_name}.acks.*ringlog recover"):
            create_cluster(*place)
    assert METADATA not in existing_topics(admin, cluster_name), "no topic was created"
    with pytest.raises(TopicMissing, match="ringlog recover"):
        repaired(*place)
    again = create_cluster(*place, ignore_remains=True)
    assert again.here
    assert again.cluster_id != first.cluster_id


def test_a_deletion_is_repeated_and_never_deletes_another_cluster_of_the_name(
    stack: StackInfo, admin: AdminClient, cluster_name: str, user: User
) -> None:
    words = ["cluster", "delete", cluster_name, "--yes-delete"]
    for is_other in (False, True):
        user.run("cluster", "create", cluster_name, "--bootstrap", stack.bootstrap_servers)
        cluster_id = json.loads(user.run("cluster", "current", "--json"))["cluster_id"]
        put((stack.bootstrap_servers, cluster_name), LOAD)
        lose(admin, cluster_name, METADATA.suffix if is_other else ACKS.suffix)
        if is_other:
            create_cluster(stack.bootstrap_servers, cluster_name, ignore_remains=True)
        user.run(*words, cluster_name, status=1)
        user.run(*words, cluster_id, status=int(is_other))
        assert (METADATA in existing_topics(admin, cluster_name)) is is_other
        assert (cluster_id in user.run("cluster", "list", "--json")) is is_other
    assert ["not_confirmed" in user.told, "another_cluster" in user.told] == [True, True]


def test_an_interrupted_creation_continues_with_agents(stack: StackInfo, cluster_name: str) -> None:
    """Agents serve their status as soon as the topics exist."""
    place = stack.bootstrap_servers, cluster_name
    create_cluster_topics(*place, replication=None)
    put(place, AGENTS)
    assert create_cluster(*place).here


def test_a_known_cluster_is_not_replaced_either(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    place = stack.bootstrap_servers, cluster_name
    first = create_cluster(*place, stored_id="of one that is no more", ignore_remains=True)
    assert create_cluster(*place, stored_id=first.cluster_id).cluster_id == first.cluster_id
    lose(admin, cluster_name, METADATA.suffix)
    with pytest.raises(LeftoversFound, match=f"knows it by the id {first.cluster_id}"):
        create_cluster(*place, stored_id=first.cluster_id)
    assert create_cluster(*place).here, "topics without records belong to an interrupted creation"


def test_missing_topics_and_settings_are_repaired(stack: StackInfo, admin: AdminClient, cluster_name: str) -> None:
    place = stack.bootstrap_servers, cluster_name
    founding = create_cluster(*place, settings={"history_entries": 500})
    assert repaired(*place) == {}
    lose(admin, cluster_name, ACKS.suffix)
    log = topic_name(cluster_name, METADATA.suffix)
    alter(admin, log, "retention.ms", "604800000")
    assert repaired(*place) == {topic_name(cluster_name, ACKS.suffix): "made", log: "set retention.ms"}
    assert repaired(*place) == {}
    again = create_cluster(*place, settings={"history_entries": 500})
    assert (again.here, again.cluster_id, again.ignored) == (False, founding.cluster_id, ())
    other = create_cluster(*place, settings={"history_entries": 600, "no_such_setting": 1})
    assert other.ignored == ("history_entries", "no_such_setting")
