"""Registers on real nodes under load while a node joins, another leaves, one moves and the factor changes; somebody is
killed on the way. All movements, with kills at every stage, are in ``tests/faults/test_registers_stages.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.system.agents_world import AgentsWorld, until
from tests.system.registers_cluster import Harm, RegistersCluster
from tests.system.registers_load import KEYSPACE, Load

from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Level
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave, Move
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.values import Replication
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]

OPERATIONS = 100


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[RegistersCluster]:
    with closing(RegistersCluster(AgentsWorld(stack, cluster_name, tmp_path), tmp_path)) as made:
        yield made


def cli(world: RegistersCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ["--bootstrap", world.agents.stack.bootstrap_servers, "--cluster", world.agents.cluster]
    command = [sys.executable, "-m", "ringlog.cli", "data", *arguments, *where]
    return subprocess.run(
        command, env=world.agents.environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.soak(
    "registers of tables in tablets under the same load and kills; a day of an operator for movements; the simulator"
)
def test_movements_under_load_with_kills_lose_nothing(world: RegistersCluster) -> None:
    names = ("n1", "n2", "n3")
    for name in names:
        world.begin(name)
    world.await_normal(*names)
    world.submit(CreateKeyspace(KEYSPACE, Replication("simple", 3)))
    with Load(world.agents.stack, world.agents.cluster, world.folder) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        harms = [Harm(WRITE_BOTH_READ_OLD, "n4"), Harm(WRITE_BOTH_READ_NEW, "n2")]
        assert world.movement(load, lambda: world.begin("n4"), *harms) == harms
        leaving, moving = world.id_of("n2"), world.id_of("n1")
        harms = [Harm(WRITE_BOTH_READ_OLD, "n2")]
        assert world.movement(load, lambda: world.submit(Leave(leaving)), *harms) == harms
        world.movement(load, lambda: world.submit(Move(moving, (-5, 2**61), bytes(16))))
        world.movement(load, lambda: world.submit(AlterKeyspace(KEYSPACE, Replication("simple", 2))))
        world.go_on(load, OPERATIONS, "with three")
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
