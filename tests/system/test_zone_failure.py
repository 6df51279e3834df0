"""The disk of a real node fails during a zone step that adds the node: the step is cancelled, and its cause
is shown.
"""

from __future__ import annotations

import json
import resource

import pytest
from tests.system.agents_world import DEADLINE_S, until
from tests.system.registers_cluster import RegistersCluster

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.placement.rebalances import CancelRebalance, FinishCancel, TriggerRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import ZonePartition, partition_key
from ringlog.node.rows.disk_rows import ROWS
from ringlog.operator.balancing import read_acks
from ringlog.protocol.rebalancer.core import ROLE
from ringlog.protocol.rebalancer.zone_groups import FAILED, HAS, session, session_reports

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's"),
]
ZONE = "stock"


def test_a_step_to_a_node_whose_disk_fails_is_cancelled_and_its_cause_is_shown(registers: RegistersCluster) -> None:
    """The rebalancer starts after the node's end, so the step is still pending. A file size limit fills the disk."""
    registers.begin_all("n1", "n2")
    first, comes = registers.id_of("n1"), registers.id_of("n2")
    registers.submit(CreateZone(ZONE, (first,), 1, 1, filter='$[?(@.name == "n1")]'))
    registers.submit(AlterZone(ZONE, filter='$[?(@.name == "n2")]', nodes=(comes,)))
    registers.submit(TriggerRebalance(ZONE, registers.agents.state.epoch))
    pending = of_zone(registers.agents.state)
    assert [step.nodes for step in pending.pending] == [(comes,)]
    until(lambda: world_says(registers, HAS) == {first, comes}, "the node to have the step")

    process = registers.process_of("n2")
    journal = next(registers.folder.rglob(f"n2/{ROWS}-wal"))
    most = journal.stat().st_size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
    until(lambda: gone_on(registers), "the node to end", DEADLINE_S)
    assert "rows_damaged" in (registers.folder / "n2.log").read_text()
    assert (world_says(registers, FAILED), world_says(registers, HAS)) == ({comes}, {first}), "its last report differs"

    registers.agents.start(ROLE)
    replica = registers.agents.client.replica
    replica.wait_for(lambda state: not of_zone(state).pending or None, DEADLINE_S, "the step to be undone")
    ended = of_zone(registers.agents.state)
    assert ended.stable is not None
    assert ended.stable.nodes == (first,)
    commands = [entry.command for entry in registers.agents.applied()]
    (cancel,) = [one for one in commands if isinstance(one, CancelRebalance)]
    (finish,) = [one for one in commands if isinstance(one, FinishCancel)]
    assert cancel.reason == "the replica on n2 cannot follow the partition: rows_damaged"
    assert finish.result == "rolled_back"
    (row,) = json.loads(registers.agents.run("zone", "show", ZONE, "--json"))["partitions"]
    assert (row["stable"], row["pending"]) == (["n1"], [])
    assert row["waits"].startswith("stuck: its zone places it on n2")
    assert row["cancelled"] == cancel.reason
    assert "rows_damaged" in " ".join(registers.agents.run("zone", "show", ZONE).split())


def of_zone(state: ClusterState) -> ZonePartition:
    return state.zone_partitions[partition_key(ZONE, 0)]


def world_says(registers: RegistersCluster, word: str) -> set[str]:
    """Return the nodes with this report on the pending step, from the newest acknowledgements."""
    acks = read_acks(registers.agents.stack.bootstrap_servers, registers.agents.cluster)
    state = registers.agents.client.read_barrier()
    return set(session_reports(state, acks).get(session(of_zone(state), word), {}))


def gone_on(registers: RegistersCluster) -> bool:
    """Append one more epoch; return True once the node has ended."""
    registers.submit(Noop())
    return registers.nodes["n2"].is_dead()
