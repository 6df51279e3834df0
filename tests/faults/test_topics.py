"""A topic is deleted while everything runs. What cannot be mended stops, and says why; nobody makes the topic again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ringlog.client.founding import found_cluster
from ringlog.log.topics import admin_client, topic_name

from .broker import Broker
from .figures import Figures
from .waiting import until
from .world import RECOVERY_S, World

pytestmark = [pytest.mark.slow]


@pytest.fixture
def own_world(broker: Broker, tmp_path: Path, figures: Figures, request: pytest.FixtureRequest) -> Iterator[World]:
    """A cluster that nobody needs afterwards; the parameter says whether Spark runs, too."""
    world = World(tmp_path, broker, figures)
    try:
        yield world.start(spark=request.param)
    finally:
        world.close()


def delete(admin: AdminClient, name: str) -> None:
    """Delete a topic and wait until the broker does not list it any more."""
    admin.delete_topics([name], request_timeout=30)[name].result(30)
    until("the test", f"{name} to be gone", lambda: not exists(admin, name))


def exists(admin: AdminClient, name: str) -> bool:
    return name in admin.list_topics(timeout=10).topics


@pytest.mark.spark
@pytest.mark.parametrize("own_world", [True], indirect=True)
def test_the_metadata_topic_is_deleted(own_world: World) -> None:
    world = own_world
    admin, name = admin_client(world.broker.bootstrap), topic_name(world.cluster, "metadata")
    world.commands.run()
    world.mutations.run()
    world.await_answers()
    assert world.spark is not None
    parts = {**world.supervisors, **world.nodes, "spark": world.spark}
    delete(admin, name)

    def running() -> list[str]:
        return [what for what, process in parts.items() if process.runs()]

    until(
        "the test",
        "everybody to end",
        lambda: not running(),
        RECOVERY_S,
        lambda: "\n".join([f"{running()} run", *(parts[what].tail(20) for what in running())]),
    )
    assert {what: process.exit_code() for what, process in parts.items() if what in world.supervisors} == {
        "a": 4,
        "b": 4,
    }
    assert all(process.exit_code() == 1 for what, process in parts.items() if what not in world.supervisors)
    until("the client", "its replica to halt", lambda: world.client.replica.halted)
    halt = world.client.replica.halted
    assert halt is not None
    assert halt.code == "topic_missing"
    assert not exists(admin, name)


@pytest.mark.parametrize("own_world", [False], indirect=True)
def test_the_results_topic_is_deleted_and_made_again(own_world: World) -> None:
    """Rejections have nowhere to go, so the validator does not act; founding again makes the topic, and it goes on."""
    world = own_world
    admin, name = admin_client(world.broker.bootstrap), topic_name(world.cluster, "results")
    with world.under_load("results topic deleted, made again"):
        delete(admin, name)
        until("the supervisors", "the validator to give up", lambda: world.said("validator crashed"), RECOVERY_S)
        assert not exists(admin, name)
        found_cluster(world.broker.bootstrap, world.cluster)
