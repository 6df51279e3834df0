"""A topic is deleted while all parts run. A part that cannot continue stops with a reason, and no part creates the
topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ringlog.client.creation.creation import create_cluster
from ringlog.kernel.changes import EPOCHS
from ringlog.kernel.sections import SCHEMA
from ringlog.log.kafka.topics import ACKS, CDC, MUTATIONS, REQUESTS, RESULTS, admin_client, topic_name

from .broker import Broker
from .cost_tables import Figures
from .waiting import until
from .world import RECOVERY_S, ROLES, World

pytestmark = [pytest.mark.slow]


@pytest.fixture
def own_world(broker: Broker, tmp_path: Path, figures: Figures) -> Iterator[World]:
    """Return a cluster with all parts that no other test uses."""
    with closing(World(tmp_path, broker, figures)) as world:
        yield world.start(spark=True)


def delete(admin: AdminClient, name: str) -> None:
    """Delete a topic and wait until the broker no longer lists it."""
    admin.delete_topics([name], request_timeout=30)[name].result(30)
    until("the test", f"{name} to be gone", lambda: not exists(admin, name))


def exists(admin: AdminClient, name: str) -> bool:
    return name in admin.list_topics(timeout=10).topics


@pytest.mark.spark
def test_the_metadata_topic_is_deleted(own_world: World) -> None:
    """Each process that follows the log halts with a reason, and so does each standby."""
    world = own_world
    admin, name = admin_client(world.broker.bootstrap), topic_name(world.cluster, "metadata")
    world.commands.run()
    world.mutations.run()
    world.await_answers()
    assert world.spark is not None
    followers = {**world.nodes, "spark": world.spark}
    delete(admin, name)

    def still_at_work() -> list[str]:
        parties = {**world.supervisors, **followers}
        return [what for what, process in parties.items() if process.runs()]

    def why() -> str:
        ends = [process.tail(20) for process in (*world.supervisors.values(), *followers.values())]
        return "\n".join([f"not so {still_at_work()}", *ends])

    until("the test", "all readers of the log to end", lambda: not still_at_work(), RECOVERY_S, why)
    assert {what: process.exit_code() for what, process in followers.items()} == dict.fromkeys(followers, 1)
    for supervisor in world.supervisors.values():
        assert supervisor.exit_code() == 4
        for role in ROLES:
            assert supervisor.text().count(f"agents: {role} halted and is not restarted") == 1
    until("the client", "its replica to halt", lambda: world.client.replica.halted, RECOVERY_S)
    halt = world.client.replica.halted
    assert halt is not None
    assert halt.code == "topic_missing"
    world.commands.pause()
    until("the client", "an error for every request", lambda: not world.commands.under_way, RECOVERY_S)
    assert all("topic_missing" in each for each in world.commands.broken), world.commands.broken[:3]
    # at least from the standbys
    assert world.said(f"topic_missing: topic {name} was deleted") >= len(world.supervisors)
    acted = [
        (supervisor, role)
        for supervisor in world.supervisors.values()
        for role in ROLES
        if re.search(rf"\] active .*role={role} ", supervisor.text())
    ]
    assert {role for _, role in acted} == set(ROLES)
    for supervisor in world.supervisors.values():
        supervisor.start()

    def not_again() -> list[str]:
        """A process that has read this log halts at each start; others never saw the log and wait."""
        return [f"{role} of {each.name}" for each, role in acted if each.text().count(f"agents: {role} halted and") < 2]

    until("the test", "all active agents to halt again", lambda: not not_again(), RECOVERY_S, lambda: str(not_again()))
    assert not exists(admin, name)


@pytest.mark.spark
def test_the_cdc_log_is_deleted_and_created_then_the_mutations(own_world: World) -> None:
    """Without its topic the driver ends; after a second creation a driver continues at the previous position.

    Rows of the deleted topic are lost. Without the topic of mutations, nodes and driver end, because no topic contains
    their data.
    """
    world = own_world
    admin, cdc = admin_client(world.broker.bootstrap), topic_name(world.cluster, CDC.suffix)
    spark = world.spark
    assert spark is not None
    world.mutations.run()
    until("the driver", "the first rows", lambda: sum(world.checker.ends(CDC.suffix).values()), RECOVERY_S, spark.tail)
    delete(admin, cdc)
    until(
        "the driver", "the driver to end after its topic is deleted", lambda: not spark.runs(), RECOVERY_S, spark.tail
    )
    assert spark.exit_code() == 1
    spark.start()
    until("the driver", "the driver to end again", lambda: not spark.runs(), RECOVERY_S, spark.tail)
    assert spark.exit_code() == 1
    assert f"topic_missing: topic {cdc} does not exist" in spark.tail()
    create_cluster(world.broker.bootstrap, world.cluster)
    world.keep_spark()
    until("the driver", "new rows", lambda: sum(world.checker.ends(CDC.suffix).values()), RECOVERY_S, spark.tail)

    mutations = topic_name(world.cluster, MUTATIONS.suffix)
    world.mutations.pause()
    followers = {**world.nodes, "spark": spark}
    delete(admin, mutations)
    left = lambda: [name for name, process in followers.items() if process.runs()]  # noqa: E731
    # Spark requests the positions of a batch until its own timeout: a minute for each partition of a task.
    until("the test", "nodes and driver to end", lambda: not left(), 3 * RECOVERY_S, lambda: str(left()))
    assert "Traceback" not in spark.tail()
    assert {name: process.exit_code() for name, process in followers.items()} == dict.fromkeys(followers, 1)
    for name in world.nodes:
        assert "the mutations topic has changed" in followers[name].text()
    assert not exists(admin, mutations)


@pytest.fixture(scope="module")
def whole(broker: Broker, tmp_path_factory: pytest.TempPathFactory, figures: Figures) -> Iterator[World]:
    """Return a cluster without Spark that recovers after each topic."""
    with closing(World(tmp_path_factory.mktemp("topics"), broker, figures)) as world:
        yield world.start(spark=False)


@pytest.mark.parametrize(
    ("suffix", "roles"),
    [
        (REQUESTS.suffix, ("validator", "coordinator", "balancer", "rebalancer")),
        (RESULTS.suffix, ("validator", "coordinator", "balancer", "rebalancer")),
        (ACKS.suffix, ("coordinator", "rebalancer")),
        (SCHEMA, ("publisher",)),
        (EPOCHS, ("coordinator", "publisher")),
    ],
)
def test_a_topic_of_the_agents_is_deleted_and_created(whole: World, suffix: str, roles: tuple[str, ...]) -> None:
    """Active agents and standbys end with status 1 and wait; creation restores the topic, and they continue."""
    world = whole
    admin, name = admin_client(world.broker.bootstrap), topic_name(world.cluster, suffix)
    with world.under_load(f"topic {suffix} deleted, made again"):
        crashed = {role: world.said(f"agents: {role} crashed") for role in ROLES}
        waiting = world.said(f"topic {name} does not exist")
        delete(admin, name)
        why = lambda: "\n".join(each.tail(20) for each in world.supervisors.values())  # noqa: E731
        for role in roles:
            until(
                "the test",
                f"every {role} to end",
                lambda role=role: world.said(f"agents: {role} crashed") >= crashed[role] + len(world.supervisors),
                RECOVERY_S,
                why,
            )
        until(
            "an agent", "the agent to wait for the topic", lambda: world.said(f"topic {name} does not exist") > waiting
        )
        assert not exists(admin, name)
        create_cluster(world.broker.bootstrap, world.cluster)
        world.checker.made_again(suffix)
        world.await_agents("the founding")
        for role in set(ROLES) - set(roles):
            assert world.said(f"agents: {role} crashed") == crashed[role], why()
