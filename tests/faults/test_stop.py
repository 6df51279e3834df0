"""SIGSTOP, until others have taken over or given up, then SIGCONT: the one that slept goes on, knowing nothing."""

from __future__ import annotations

import os
import signal

import pytest

from tests.stopping import stop

from .waiting import until
from .world import ROLES, World

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("role", ROLES)
def test_an_agent_sleeps_through_its_replacement(world: World, role: str) -> None:
    with world.under_load(f"{role} stopped", join=role == "coordinator"):
        term = world.term(role)
        supervisor, sleeper = world.stop_acting(role)
        superseded = supervisor.text().count(f"agents: {role} was superseded")
        world.await_take_over(role, term)
        world.await_answers()
        os.kill(sleeper, signal.SIGCONT)
        # Whoever was asleep ends: it finds the higher term, and its supervisor makes a stand-by of it.
        until(
            f"the supervisor of the {role} that slept",
            "that one to end as superseded",
            lambda: supervisor.text().count(f"agents: {role} was superseded") > superseded,
            why_not=supervisor.tail,
        )


def test_the_broker_sleeps(world: World) -> None:
    """Longer than every session: when it wakes up it takes itself for lost, and everybody for gone."""
    with world.under_load("broker stopped"):
        world.broker.stop("broker")
        world.await_silence("agents")
        world.broker.go_on("broker")


def test_redis_sleeps(world: World) -> None:
    with world.under_load("Redis stopped"):
        missed = world.said("cache_unavailable")
        world.broker.stop("redis")
        until("the keeper", "Redis to be missed", lambda: world.said("cache_unavailable") > missed)
        world.await_answers()
        world.broker.go_on("redis")


def test_a_node_sleeps(world: World) -> None:
    """A join waits for it: it is in the gates. Then the join goes on."""
    with world.under_load("node stopped in a join", join=True) as joining:
        source = world.source_of(joining)
        pid = world.nodes[source].pid
        stop(pid)
        world.await_answers(40)
        operation = world.join_of(joining)
        assert operation is not None
        assert operation.stage != "finished"
        os.kill(pid, signal.SIGCONT)


def test_the_driver_sleeps(world: World) -> None:
    with world.under_load("Spark driver stopped"):
        assert world.spark is not None
        pids = world.spark_processes()
        for pid in pids:
            stop(pid)
        world.await_answers(100)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
