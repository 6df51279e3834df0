"""Registers on five real nodes under load: somebody is killed at every stage of every movement, and comes back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringlog.client.client import Client
from ringlog.client.coordinator import Coordinator
from ringlog.client.results import AppliedResult
from ringlog.kernel.commands.model import Command, CreateKeyspace, DeclareDown, Leave, Replace, Replication
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    PREPARED,
    REQUESTED,
    WRITE_BOTH_READ_NEW,
    WRITE_BOTH_READ_OLD,
    is_ended,
)
from ringlog.kernel.outcome import Entry, Outcome, Unreadable
from ringlog.kernel.state import ClusterState
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import NodesWorld
from tests.system.registers_load import KEYSPACE, Load

from .broker import Broker

pytestmark = [pytest.mark.slow]

OPERATIONS = 100
FILLING = 3_000
FILLERS = 8
VALUE = b"x" * 400
DEADLINE_S = 240


class Killer:
    """Kills ``victim`` when the next operation enters a stage, each time at once.

    ``operation``: that operation's id, once it is admitted; ``killed``: at which stages.
    """

    def __init__(self, world: NodesWorld, victim: str, stages: tuple[str, ...]) -> None:
        self._world = world
        self._victim = victim
        self._left = set(stages)
        self._known = set(world.agents.state.operations)
        self.operation = ""
        self.killed: list[str] = []
        self.close = world.agents.client.replica.subscribe(self._follow).close

    def _follow(self, before: ClusterState, after: ClusterState, _: Entry | Unreadable, __: Outcome, ___: int) -> None:
        fresh = sorted(set(after.operations) - self._known)
        if not fresh:
            return
        self.operation = fresh[0]
        now, had = after.operations[self.operation], before.operations.get(self.operation)
        node = self._world.nodes[self._victim]
        if now.stage in self._left and (had is None or had.stage != now.stage) and node.process.poll() is None:
            self._left.discard(now.stage)
            self.killed.append(now.stage)
            node.kill()


class Cluster(NodesWorld):
    """The nodes, and what the test does with them."""

    def submit(self, command: Command) -> None:
        answer = self.agents.client.submit(command)
        assert isinstance(answer, AppliedResult), answer

    def id_of(self, name: str) -> str:
        member = self.member(name)
        assert member is not None
        return member.id

    def fill(self) -> None:
        """Registers that nobody looks at, so that streams have many pages."""
        numbers = iter(range(FILLING))
        lock = threading.Lock()
        stack = self.agents.stack
        with (
            Client(stack.bootstrap_servers, self.agents.cluster, "filler") as client,
            Coordinator(client.replica) as coordinator,
        ):

            def fill() -> None:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    coordinator.write(KEYSPACE, b"filling-%d" % number, VALUE, timestamp=1, timeout_s=30)

            threads = [threading.Thread(target=fill) for _ in range(FILLERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def movement(self, load: Load, begin: Callable[[], object], victim: str, *stages: str) -> None:
        """A whole movement, in which ``victim`` is killed at these stages, and comes back when the load went on.

        Stages that need the victim's acknowledgement wait for it; others may pass while it is away.
        """
        killer = Killer(self, victim, stages)
        begin()

        def ended() -> bool:
            found = self.agents.state.operations.get(killer.operation)
            return found is not None and is_ended(found)

        def dead() -> bool:
            return self.nodes[victim].process.poll() is not None

        while True:
            until(lambda: ended() or dead(), f"{killer.operation} to end", DEADLINE_S)
            if not dead():
                break
            before = load.total()
            until(lambda before=before: load.total() > before + OPERATIONS, f"the load to go on without {victim}")
            self.nodes[victim].restart()
        killer.close()
        assert killer.killed == list(stages)
        print(f"{killer.operation}: {victim} killed at {', '.join(killer.killed)}; {dict(load.told)}", flush=True)


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(AgentsWorld(broker.info, f"r{uuid.uuid4().hex[:10]}", tmp_path), tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_registers_survive_kills_at_every_stage(cluster: Cluster) -> None:
    names = ("n1", "n2", "n3")
    for name in names:
        cluster.begin(name)
    cluster.await_normal(*names)
    cluster.submit(CreateKeyspace(KEYSPACE, Replication("simple", 3)))
    cluster.fill()
    with Load(cluster.agents.stack, cluster.agents.cluster, cluster.folder) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        cluster.movement(load, lambda: cluster.begin("n4"), "n4", PREPARED, WRITE_BOTH_READ_OLD)
        cluster.movement(load, lambda: cluster.begin("n5"), "n5", REQUESTED, COMMIT_CDC_GENERATION, WRITE_BOTH_READ_NEW)
        leaving, dead = cluster.id_of("n2"), cluster.id_of("n3")
        cluster.movement(load, lambda: cluster.submit(Leave(leaving)), "n2", WRITE_BOTH_READ_OLD)
        cluster.begin("n6", join=False)
        until(lambda: cluster.member("n6"), "n6 to be registered")
        cluster.nodes.pop("n3").kill()
        cluster.submit(DeclareDown(dead, "killed for good"))
        replace = Replace(cluster.id_of("n6"), dead)
        cluster.movement(load, lambda: cluster.submit(replace), "n1", WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
        before = load.total()
        until(lambda: load.total() > before + OPERATIONS, "the load to go on with the last four")
        load.stop()
        with Coordinator(cluster.agents.client.replica) as coordinator:
            load.check(coordinator)
            for number in range(0, FILLING, 50):
                cell = coordinator.read(KEYSPACE, b"filling-%d" % number).cell
                assert cell is not None
                assert cell.value == VALUE
