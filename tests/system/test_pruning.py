"""The coordinator's readings of a real broker before it prunes, and the proposals of one round."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.kernel.commands.test_service import joined
from tests.kernel.entries import NODES, applied
from tests.node.world import with_table

from ringlog.agents.maintenance.pruning import PruningThread, evidence, topic_beginning
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import Column, Command, Position
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import LOAD, MUTATIONS, admin_client, create_topics, topic_name
from ringlog.protocol.coordinator.pruning import SLACK_US, TopicBeginning
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.kafka.config import connection
from ringlog.stack import StackInfo
from ringlog.wire.records import NodeLoad, encode_node_load

pytestmark = pytest.mark.system

DAY = 24 * 3_600_000_000
DELETED = 3


@pytest.fixture
def mutations(stack: StackInfo, cluster_name: str) -> AdminClient:
    """Create five records in one partition; the first three are deleted."""
    admin = admin_client(stack.bootstrap_servers)
    create_topics(admin, cluster_name, specs=(MUTATIONS, LOAD))
    topic = topic_name(cluster_name, MUTATIONS.suffix)
    producer = Producer(connection(stack.bootstrap_servers))
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    for future in admin.delete_records([TopicPartition(topic, 0, DELETED)]).values():
        future.result(60)
    return admin


def report(stack: StackInfo, cluster: str, node: str, judged: dict[int, int]) -> None:
    producer = AckedProducer(stack.bootstrap_servers, "test")
    load = NodeLoad(node, 1, 1, (), tuple(Position(*one) for one in sorted(judged.items())))
    producer.send(topic_name(cluster, LOAD.suffix), encode_node_load(load), key=node.encode(), partition=0).result(60)
    producer.close()


def test_one_round_prunes_validated_versions(stack: StackInfo, cluster_name: str, mutations: AdminClient) -> None:
    found = topic_beginning(stack.bootstrap_servers, cluster_name)
    assert found.since is not None
    assert found == TopicBeginning(dict.fromkeys(range(MUTATIONS.partitions), 0) | {0: DELETED}, found.since)

    state = applied(with_table(joined(2), 1), SettleVerdicts(found.since - 3 * DAY))
    state = applied(state, AlterTable("shop", "orders", (Column("more", "text"),)), SettleVerdicts(found.since + DAY))
    asked: list[Command] = []
    pruning = PruningThread(stack.bootstrap_servers, cluster_name, lambda: state, asked.append)
    report(stack, cluster_name, NODES[0], {0: 5})
    report(stack, cluster_name, NODES[1], {0: DELETED - 1})
    pruning.prune()
    assert asked == [], "one member has not validated a deleted record"
    report(stack, cluster_name, NODES[1], {0: DELETED})
    assert evidence(stack.bootstrap_servers, cluster_name) == (found, {NODES[0]: {0: 5}, NODES[1]: {0: DELETED}})
    pruning.prune()
    assert asked == [SettleVerdicts(1, forget_below=found.since - SLACK_US)]


def test_the_time_of_an_empty_topic_is_that_of_the_newest_report(stack: StackInfo, cluster_name: str) -> None:
    create_topics(admin_client(stack.bootstrap_servers), cluster_name, specs=(MUTATIONS, LOAD))
    assert evidence(stack.bootstrap_servers, cluster_name)[0].since is None
    began = SystemClock().now_us()
    report(stack, cluster_name, NODES[0], {})
    since = evidence(stack.bootstrap_servers, cluster_name)[0].since
    assert since is not None
    assert abs(since - began) < SLACK_US, "the broker is on this machine"


def test_a_dead_broker_is_not_an_empty_topic() -> None:
    with pytest.raises(LogUnavailable):
        topic_beginning("127.0.0.1:1", "none")


def test_a_missing_topic_is_not_an_empty_topic(stack: StackInfo, cluster_name: str) -> None:
    """Otherwise each version would be pruned without evidence."""
    with pytest.raises(LogUnavailable, match="mutations"):
        topic_beginning(stack.bootstrap_servers, cluster_name)
