"""SIGKILL of each part under load, and SIGSTOP until others have taken over, followed by SIGCONT."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.adapter import KafkaLog
from tests.stopping import stop

from .processes import is_alive
from .waiting import until
from .world import ROLES, World

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("role", ROLES)
def test_an_agent_is_stopped_until_its_replacement(world: World, role: str) -> None:
    with world.under_load(f"{role} stopped", join=role == "coordinator"):
        term = world.term(role)
        supervisor, sleeper = world.stop_acting(role)
        superseded = supervisor.text().count(f"agents: {role} was superseded")
        world.await_take_over(role, term)
        world.await_answers()
        os.kill(sleeper, signal.SIGCONT)
        # The stopped agent ends when it reads the higher term, and its supervisor starts it as a standby.
        until(
            f"the supervisor of the suspended {role}",
            "its agent to end as superseded",
            lambda: supervisor.text().count(f"agents: {role} was superseded") > superseded,
            why_not=supervisor.tail,
        )


def test_the_broker_is_stopped(world: World) -> None:
    """The stop outlasts all sessions: when the broker continues, it considers itself and all clients lost."""
    with world.under_load("broker stopped"):
        world.broker.stop("broker")
        world.await_silence("agents")
        world.broker.go_on("broker")


def test_redis_is_stopped(world: World) -> None:
    with world.under_load("Redis stopped"):
        missed = world.said("cache_unavailable")
        world.broker.stop("redis")
        until("the cache writer", "the outage of Redis to be logged", lambda: world.said("cache_unavailable") > missed)
        world.await_answers()
        world.broker.go_on("redis")


def test_a_node_is_stopped(world: World) -> None:
    """A join waits for the stopped node at its barriers and then continues."""
    with world.under_load("node stopped in a join", join=True) as joining:
        source = world.source_of(joining)
        pid = world.nodes[source].pid
        stop(pid)
        world.await_answers(40)
        operation = world.join_of(joining)
        assert operation is not None
        assert operation.stage != "finished"
        os.kill(pid, signal.SIGCONT)


def test_the_driver_is_stopped(world: World) -> None:
    with world.under_load("Spark driver stopped"):
        assert world.spark is not None
        pids = world.spark_processes()
        for pid in pids:
            stop(pid)
        world.await_answers(100)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_without_a_fault(world: World) -> None:
    """A run without a fault, for comparison."""
    with world.under_load("none", join=True):
        pass


def test_the_broker_is_killed(world: World) -> None:
    metadata = KafkaLog(world.broker.bootstrap, world.cluster)
    with closing(metadata), world.under_load("broker killed", join=True):
        assert metadata.end_offset() > 0
        world.broker.kill("broker")
        with pytest.raises(LogUnavailable):  # the missing topic would halt replicas
            metadata.end_offset(1.0)
        world.broker.up()


def test_redis_is_killed(world: World) -> None:
    with world.under_load("Redis killed"):
        world.broker.kill("redis")
        until("the observer", "the cache to be unavailable", lambda: world.observers.cache_problem)
        world.await_answers()
        world.broker.up()


def test_the_cache_is_emptied(world: World) -> None:
    with world.under_load("cache emptied"):
        world.observers.clear_cache(world.empty_cache)


@pytest.mark.parametrize("role", ROLES)
def test_an_agent_is_killed(world: World, role: str) -> None:
    with world.under_load(f"{role} killed", join=role == "coordinator"):
        term = world.term(role)
        world.kill_acting(role)
        world.await_take_over(role, term)


def test_both_supervisors_are_killed(world: World) -> None:
    """The agents end with their supervisors; no instance is active until the supervisors are restarted."""
    with world.under_load("all agents killed"):
        terms = {role: world.term(role) for role in ROLES}
        agents = world.agents()
        for supervisor in world.supervisors.values():
            supervisor.kill()
        until("the test", "agents and supervisors to end", lambda: not any(map(is_alive, agents)))
        for supervisor in world.supervisors.values():
            supervisor.start()
        for role, term in terms.items():
            world.await_take_over(role, term)


def test_a_source_and_the_gaining_node_are_killed(world: World) -> None:
    with world.under_load("two nodes killed in a join", join=True) as joining:
        source = world.source_of(joining)
        for name in (source, joining):
            world.nodes[name].kill()
        world.await_answers()
        for name in (source, joining):
            world.nodes[name].start()


def test_the_driver_is_killed(world: World) -> None:
    with world.under_load("Spark driver killed"):
        world.kill_spark()
        world.await_answers()
        world.keep_spark()


def test_everything_is_killed(world: World) -> None:
    """All parts end at once, in any order, while the kernel of the machine continues."""
    with world.under_load("everything killed"):
        parts = (*world.supervisors.values(), *world.nodes.values())
        world.kill_spark()
        for process in parts:
            process.send(signal.SIGKILL)
        for name in ("redis", "broker"):
            world.broker.kill(name)
        for process in parts:
            process.kill()
        world.broker.up()
        for process in parts:
            process.start()
        world.keep_spark()
