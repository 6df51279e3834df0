"""Two of three real nodes are lost, and a highly available zone with a keyspace continues on the third one."""

from __future__ import annotations

import json

import pytest
from tests.system.registers_cluster import DEADLINE_S, RegistersCluster

from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Level
from ringlog.kernel.commands.placement.zones import CreateZone
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY
from ringlog.kernel.zones.change import partitions_of
from ringlog.protocol.rebalancer.core import ROLE

pytestmark = [pytest.mark.system, pytest.mark.slow]
ZONE, TABLE, PARTITIONS, REGISTERS = "stock", "store.parts", 4, 60
NAMES = ("n1", "n2", "n3")


def test_an_available_zone_serves_from_survivors_and_restores_others(registers: RegistersCluster) -> None:
    registers.begin_all(*NAMES)
    registers.agents.start(ROLE)
    ids = {name: registers.id_of(name) for name in NAMES}
    registers.submit(CreateZone(ZONE, tuple(ids.values()), PARTITIONS, 3, mode=HIGH_AVAILABILITY))
    registers.place_table(TABLE, ZONE)
    registers.fill(REGISTERS, Level.ALL)

    for name in ("n2", "n3"):
        registers.nodes[name].kill()
    registers.submit(DeclareDown(ids["n2"], "burnt"))
    assert {row["state"] for row in shown(registers)} == {"degraded"}
    registers.submit(DeclareDown(ids["n3"], "burnt"))
    rests_on(registers, {ids["n1"]})
    serves(registers)

    registers.nodes["n2"].restart()
    registers.submit(DeclareUp(ids["n2"], "mended"))
    rests_on(registers, {ids["n1"], ids["n2"]})
    serves(registers)
    assert {(*row["stable"], row["waits"]) for row in shown(registers)} == {("n1", "n2", None)}


def rests_on(registers: RegistersCluster, nodes: set[str]) -> None:
    """Wait until all partitions and their tablets are on these nodes and none moves."""

    def is_so(state: ClusterState) -> bool | None:
        partitions = partitions_of(state, state.zones[ZONE])
        if any(one.pending or one.stable is None or set(one.stable.nodes) != nodes for one in partitions):
            return None
        tablets = state.tablets[TABLE]
        there = [{one.node for one in tablet.replicas} for tablet in tablets]
        return (not tablets.transitions and there == [nodes] * PARTITIONS) or None

    registers.agents.client.replica.wait_for(is_so, DEADLINE_S, f"all to be on {sorted(nodes)}")


def serves(registers: RegistersCluster) -> None:
    """Check that a quorum read of each register returns its written value."""
    with Coordinator(registers.agents.client.replica, "dc1") as coordinator:
        registers.check_filling(coordinator, REGISTERS, 1)


def shown(registers: RegistersCluster) -> list[dict[str, object]]:
    """Return the partitions of the zone from the command line."""
    rows: list[dict[str, object]] = json.loads(registers.agents.run("zone", "show", ZONE, "--json"))["partitions"]
    return rows
