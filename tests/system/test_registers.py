"""Registers on real nodes under load, with kills, while a node joins, another leaves, one moves and the factor changes.

``tests/faults/test_registers_stages.py`` tests all movements, with kills in each stage.
"""

from __future__ import annotations

import json

import pytest
from tests.system.agents_world import until
from tests.system.registers_cluster import Harm, RegistersCluster
from tests.system.registers_load import KEYSPACE, Load

from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Level
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave, Move
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.values import Replication

pytestmark = [pytest.mark.system, pytest.mark.slow]

OPERATIONS = 100


@pytest.mark.soak(
    "registers of tables in tablets under the same load and kills; a day of an operator for movements; the simulator"
)
def test_movements_under_load_with_kills_lose_nothing(registers: RegistersCluster) -> None:
    registers.begin_all("n1", "n2", "n3")
    registers.submit(CreateKeyspace(KEYSPACE, Replication("simple", 3)))
    with Load(registers.agents.stack, registers.agents.cluster, registers.folder) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        harms = [Harm(WRITE_BOTH_READ_OLD, "n4"), Harm(WRITE_BOTH_READ_NEW, "n2")]
        assert registers.movement(load, lambda: registers.begin("n4"), *harms) == harms
        leaving, moving = registers.id_of("n2"), registers.id_of("n1")
        harms = [Harm(WRITE_BOTH_READ_OLD, "n2")]
        assert registers.movement(load, lambda: registers.submit(Leave(leaving)), *harms) == harms
        registers.movement(load, lambda: registers.submit(Move(moving, (-5, 2**61), bytes(16))))
        registers.movement(load, lambda: registers.submit(AlterKeyspace(KEYSPACE, Replication("simple", 2))))
        registers.go_on(load, OPERATIONS, "with three")
        load.stop()
        with Coordinator(registers.agents.client.replica) as coordinator:
            known = coordinator.read(KEYSPACE, b"load-t-0", level=Level.ALL)
        load.check()
        assert load.verified > OPERATIONS

    shown = json.loads(registers.agents.run("data", "read", KEYSPACE, "load-t-0", "--json"))
    assert known.cell is not None
    assert (shown["value"], shown["timestamp"]) == (known.cell.value.decode(), known.cell.timestamp)
    assert shown["plan"]["needs"][0]["count"] == 2
    registers.agents.run("data", "delete", KEYSPACE, "load-t-0")
    gone = registers.agents.ringlog("data", "read", KEYSPACE, "load-t-0")
    assert (gone.returncode, gone.stderr.split(":")[0]) == (1, "nothing_there")
