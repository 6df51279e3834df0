"""Registers on real nodes under load while a node joins; the joiner and a replica are killed on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import NodesWorld
from tests.system.registers_load import KEYSPACE, Load

from ringlog.client.coordinator import Coordinator
from ringlog.client.plans import Level
from ringlog.client.results import AppliedResult
from ringlog.kernel.commands.model import CreateKeyspace, Replication
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.outcome import Entry, Outcome, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]

OPERATIONS = 150


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[NodesWorld]:
    made = NodesWorld(AgentsWorld(stack, cluster_name, tmp_path), tmp_path)
    try:
        yield made
    finally:
        made.close()


def kill_on(world: NodesWorld, stage: str, name: str) -> None:
    """SIGKILL for a node as soon as the log says that an operation has entered the stage."""

    def follow(before: ClusterState, after: ClusterState, _: Entry | Unreadable, __: Outcome, ___: int) -> None:
        for operation in after.operations.values():
            had = before.operations.get(operation.id)
            if operation.stage == stage and (had is None or had.stage != stage):
                world.nodes[name].process.kill()

    world.agents.client.replica.subscribe(follow)


def cli(world: NodesWorld, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ["--bootstrap", world.agents.stack.bootstrap_servers, "--cluster", world.agents.cluster]
    command = [sys.executable, "-m", "ringlog.cli", "data", *arguments, *where]
    return subprocess.run(
        command, env=world.agents.environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_join_under_load_with_kills_loses_nothing(world: NodesWorld) -> None:
    names = ("n1", "n2", "n3")
    for name in names:
        world.begin(name)
    world.await_normal(*names)
    assert isinstance(world.agents.client.submit(CreateKeyspace(KEYSPACE, Replication("simple", 3))), AppliedResult)
    with Load(world.agents.stack, world.agents.cluster, world.folder) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        kill_on(world, WRITE_BOTH_READ_OLD, "n4")
        kill_on(world, WRITE_BOTH_READ_NEW, "n2")
        joiner = world.begin("n4")
        until(lambda: joiner.process.poll() is not None, "the joiner to be killed")
        before = load.total()
        until(lambda: load.total() > before + OPERATIONS, "the load to go on without the joiner")
        joiner.restart()
        until(lambda: world.nodes["n2"].process.poll() is not None, "a replica to be killed")
        before = load.total()
        until(lambda: load.total() > before + OPERATIONS, "the load to go on without a replica")
        world.nodes["n2"].restart()
        world.await_normal("n4")
        before = load.total()
        until(lambda: load.total() > before + OPERATIONS, "the load to go on with four")
        load.stop()
        with Coordinator(world.agents.client.replica) as coordinator:
            load.check(coordinator)
            known = coordinator.read(KEYSPACE, b"app0-0", level=Level.ALL)
        assert load.told["success", "verified"] > OPERATIONS
        print(dict(load.told))

    told = cli(world, "read", KEYSPACE, "app0-0", "--json")
    assert told.returncode == 0, told.stderr
    shown = json.loads(told.stdout)
    assert known.cell is not None
    assert (shown["value"], shown["timestamp"]) == (known.cell.value.decode(), known.cell.timestamp)
    assert shown["plan"]["needs"][0]["count"] == 2
    assert cli(world, "delete", KEYSPACE, "app0-0").returncode == 0
    gone = cli(world, "read", KEYSPACE, "app0-0")
    assert (gone.returncode, gone.stderr.split(":")[0]) == (1, "nothing_there")
