"""The disk of a real node fails while a step of a zone brings it in: the step is cancelled, and its cause is shown."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.system.agents_world import DEADLINE_S, AgentsWorld, until
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
from ringlog.stack import StackInfo

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's"),
]
ZONE = "stock"


@pytest.fixture
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistersCluster]:
    folder = tmp_path_factory.mktemp("nodes")
    with closing(RegistersCluster(AgentsWorld(stack, f"f{uuid.uuid4().hex[:10]}", folder), folder)) as made:
        yield made


def test_a_step_to_a_node_whose_disk_fails_is_cancelled_and_its_cause_is_shown(world: RegistersCluster) -> None:
    """Nobody records the step before: the rebalancer comes when the node is gone. Its files may not grow any more, as
    on a disk that is full.
    """
    for name in ("n1", "n2"):
        world.begin(name)
    world.await_normal("n1", "n2")
    first, comes = world.id_of("n1"), world.id_of("n2")
    world.submit(CreateZone(ZONE, (first,), 1, 1, filter='$[?(@.name == "n1")]'))
    world.submit(AlterZone(ZONE, filter='$[?(@.name == "n2")]', nodes=(comes,)))
    world.submit(TriggerRebalance(ZONE, world.agents.state.epoch))
    pending = of_zone(world.agents.state)
    assert [step.nodes for step in pending.pending] == [(comes,)]
    until(lambda: world_says(world, HAS) == {first, comes}, "the node to have the step")

    process = world.process_of("n2")
    journal = next(world.folder.rglob(f"n2/{ROWS}-wal"))
    most = journal.stat().st_size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
    until(lambda: gone_on(world), "the node to end", DEADLINE_S)
    assert "rows_damaged" in (world.folder / "n2.log").read_text()
    assert (world_says(world, FAILED), world_says(world, HAS)) == ({comes}, {first}), "its last word is another one"

    world.agents.start(ROLE)
    replica = world.agents.client.replica
    replica.wait_for(lambda state: not of_zone(state).pending or None, DEADLINE_S, "the step to be undone")
    ended = of_zone(world.agents.state)
    assert ended.stable is not None
    assert ended.stable.nodes == (first,)
    commands = [entry.command for entry in world.agents.applied()]
    (cancel,) = [one for one in commands if isinstance(one, CancelRebalance)]
    (finish,) = [one for one in commands if isinstance(one, FinishCancel)]
    assert cancel.reason == "the replica on n2 can never follow it: rows_damaged"
    assert finish.result == "rolled_back"
    (row,) = json.loads(run(world, "zone", "show", ZONE, "--json"))["partitions"]
    assert (row["stable"], row["pending"]) == (["n1"], [])
    assert row["waits"].startswith("stuck: not where its zone puts it, on n2")
    assert row["cancelled"] == cancel.reason
    assert "rows_damaged" in " ".join(run(world, "zone", "show", ZONE).split())


def of_zone(state: ClusterState) -> ZonePartition:
    return state.zone_partitions[partition_key(ZONE, 0)]


def world_says(world: RegistersCluster, word: str) -> set[str]:
    """Who says a word of the step that is pending, as of the newest acknowledgements."""
    acks = read_acks(world.agents.stack.bootstrap_servers, world.agents.cluster)
    state = world.agents.client.read_barrier()
    return set(session_reports(state, acks).get(session(of_zone(state), word), {}))


def gone_on(world: RegistersCluster) -> bool:
    """One epoch more; True once the node has ended."""
    world.submit(Noop())
    return world.nodes["n2"].is_dead()


def run(world: RegistersCluster, *words: str) -> str:
    """What a command prints."""
    where = ["--bootstrap", world.agents.stack.bootstrap_servers, "--cluster", world.agents.cluster]
    command = [sys.executable, "-m", "ringlog.cli", *words, *where]
    ended = subprocess.run(
        command, env=world.agents.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
