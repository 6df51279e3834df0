"""Two of three real nodes are lost, and the highly available zone that places a keyspace goes on with the third one."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.system.agents_world import AgentsWorld
from tests.system.registers_cluster import DEADLINE_S, RegistersCluster

from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Level
from ringlog.kernel.commands.placement.zones import CreateZone
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY
from ringlog.kernel.values import CdcOptions, Column
from ringlog.kernel.zones.change import partitions_of
from ringlog.operator.intents.replication import in_zone
from ringlog.protocol.rebalancer.core import ROLE
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]
ZONE, TABLE, PARTITIONS, REGISTERS = "stock", "store.parts", 4, 60
NAMES = ("n1", "n2", "n3")


@pytest.fixture
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistersCluster]:
    folder = tmp_path_factory.mktemp("nodes")
    with closing(RegistersCluster(AgentsWorld(stack, f"o{uuid.uuid4().hex[:10]}", folder), folder)) as made:
        yield made


def test_an_available_zone_serves_from_survivors_and_takes_the_others_back(world: RegistersCluster) -> None:
    for name in NAMES:
        world.begin(name)
    world.await_normal(*NAMES)
    world.agents.start(ROLE)
    ids = {name: world.id_of(name) for name in NAMES}
    world.submit(CreateZone(ZONE, tuple(ids.values()), PARTITIONS, 3, mode=HIGH_AVAILABILITY))
    keyspace, _, table = TABLE.partition(".")
    world.submit(CreateKeyspace(keyspace, in_zone(ZONE)))
    columns = (Column("part", "text"),)
    world.submit(CreateTable(keyspace, table, str(uuid.uuid4()), columns, ("part",), (), CdcOptions()))
    world.space = TABLE
    world.fill(REGISTERS, Level.ALL)

    for name in ("n2", "n3"):
        world.nodes[name].kill()
    world.submit(DeclareDown(ids["n2"], "burnt"))
    assert {row["state"] for row in shown(world)} == {"degraded"}
    world.submit(DeclareDown(ids["n3"], "burnt"))
    rests_on(world, {ids["n1"]})
    serves(world)

    world.nodes["n2"].restart()
    world.submit(DeclareUp(ids["n2"], "mended"))
    rests_on(world, {ids["n1"], ids["n2"]})
    serves(world)
    assert {(*row["stable"], row["waits"]) for row in shown(world)} == {("n1", "n2", None)}


def rests_on(world: RegistersCluster, nodes: set[str]) -> None:
    """All partitions, and their tablets, are on these nodes, and nothing moves."""

    def is_so(state: ClusterState) -> bool | None:
        partitions = partitions_of(state, state.zones[ZONE])
        if any(one.pending or one.stable is None or set(one.stable.nodes) != nodes for one in partitions):
            return None
        tablets = state.tablets[TABLE]
        there = [{one.node for one in tablet.replicas} for tablet in tablets]
        return (not tablets.transitions and there == [nodes] * PARTITIONS) or None

    world.agents.client.replica.wait_for(is_so, DEADLINE_S, f"all to be on {sorted(nodes)}")


def serves(world: RegistersCluster) -> None:
    """Each register is read at a quorum, and has what was written."""
    with Coordinator(world.agents.client.replica, "dc1") as coordinator:
        for number in range(REGISTERS):
            cell = coordinator.read(TABLE, b"filling-%d" % number, timeout_s=60).cell
            assert cell is not None, number


def shown(world: RegistersCluster) -> list[dict[str, object]]:
    """The partitions of the zone, as the command line has them."""
    where = ["--bootstrap", world.agents.stack.bootstrap_servers, "--cluster", world.agents.cluster]
    command = [sys.executable, "-m", "ringlog.cli", "zone", "show", ZONE, "--json", *where]
    ended = subprocess.run(
        command, env=world.agents.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    rows: list[dict[str, object]] = json.loads(ended.stdout)["partitions"]
    return rows
