"""A topic is deleted while everything runs. What cannot be mended stops, and says why; nobody makes the topic again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ringlog.client.founding import found_cluster
from ringlog.log.topics import admin_client, topic_name

from .broker import Broker
from .figures import Figures
from .waiting import until
from .world import RECOVERY_S, ROLES, World

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
    """Whoever followed the log halts and says why; so do the stand-bys, which follow nothing yet."""
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

    until("the test", "all that followed the log to end", lambda: not still_at_work(), RECOVERY_S, why)
    assert {what: process.exit_code() for what, process in followers.items()} == dict.fromkeys(followers, 1)
    for supervisor in world.supervisors.values():
        assert supervisor.exit_code() == 4
        for role in ROLES:
            assert supervisor.text().count(f"{role} halted and stays down") == 1
    until("the client", "its replica to halt", lambda: world.client.replica.halted, RECOVERY_S)
    halt = world.client.replica.halted
    assert halt is not None
    assert halt.code == "topic_missing"
    world.commands.pause()
    until("the client", "an error for every request", lambda: not world.commands.under_way, RECOVERY_S)
    assert all("topic_missing" in each for each in world.commands.broken), world.commands.broken[:3]
    assert world.said(f"topic_missing: topic {name} was deleted") >= len(world.supervisors)  # by the stand-bys at least
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
        """Who has read this log halts whenever it is started; others cannot know that there was one, and wait."""
        return [f"{role} of {each.name}" for each, role in acted if each.text().count(f"{role} halted and") < 2]

    until("the test", "all that acted to halt again", lambda: not not_again(), RECOVERY_S, lambda: str(not_again()))
    assert not exists(admin, name)


@pytest.mark.parametrize("own_world", [False], indirect=True)
def test_the_results_topic_is_deleted_and_made_again(own_world: World) -> None:
    """Rejections have nowhere to go, so the validator does not act; founding again makes the topic, and it goes on."""
    world = own_world
    admin, name = admin_client(world.broker.bootstrap), topic_name(world.cluster, "results")
    with world.under_load("results topic deleted, made again"):
        crashed = world.said("validator crashed")
        delete(admin, name)
        until("the test", "the validator to give up", lambda: world.said("validator crashed") > crashed, RECOVERY_S)
        assert not exists(admin, name)
        found_cluster(world.broker.bootstrap, world.cluster)
