"""Real nodes fail permanently or repeatedly; the operation names the operator's options, and they work.

With two replicas, each replica is needed: after the point of no return an operation would wait forever for a dead node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringlog.client.data.coordinator import Coordinator
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD, in_flight, is_ended
from ringlog.kernel.values import Replication
from tests.system.agents_world import until
from tests.system.nodes_world import opened
from tests.system.registers_cluster import RegistersCluster
from tests.system.registers_load import KEYSPACE

from .broker import Broker

pytestmark = [pytest.mark.slow]

FILLING = 200


class Cluster(RegistersCluster):
    """A cluster with the operator's command line."""

    def shown(self, operation: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.agents.done("operation", "show", operation, "--json"))
        return found

    def kill_at(self, stage: str, name: str) -> None:
        """Send SIGKILL to a node as soon as the log contains the stage of the next operation."""
        known = set(self.agents.state.operations)
        node = self.nodes[name]

        def follow(
            before: ClusterState, after: ClusterState, _: Entry | UnreadableEntry, __: Outcome, ___: int
        ) -> None:
            entered = {one.id for one in in_flight(after) if one.stage == stage}
            if entered - {one.id for one in in_flight(before) if one.stage == stage} - known:
                node.process.kill()
                known.update(after.operations)

        replica = self.agents.client.replica
        replica.subscribe(follow, replica.halt_on_defect)

    def only(self) -> str:
        (operation,) = until(lambda: in_flight(self.agents.state), "an operation in flight")
        return operation.id

    def ended(self, operation: str) -> bool:
        return is_ended(self.agents.state.operations[operation])


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path) -> Iterator[Cluster]:
    with opened(Cluster, broker.info, tmp_path) as made:
        yield made


def test_an_operator_decides(cluster: Cluster) -> None:
    cluster.begin_all("n1", "n2", "n3")
    cluster.submit(CreateKeyspace(KEYSPACE, Replication("simple", 2)))
    cluster.submit(ChangeSettings((("stream_tries_max", 4),)))
    cluster.fill(FILLING)

    # Its source is down: the gaining node sends four stream requests and no more.
    cluster.kill_at(WRITE_BOTH_READ_OLD, "n2")
    cluster.submit(Leave(cluster.id_of("n2")))
    operation = cluster.only()
    until(lambda: cluster.shown(operation)["awaits_decision"], "the operation to stop")
    shown = cluster.agents.done("operation", "show", operation)
    assert "waits for an operator's decision since epoch" in shown
    assert "after 4 tries" in shown
    assert f"ringlog operation retry {operation}" in shown
    assert "an operator's decision" in cluster.agents.done("operation", "list")
    cluster.nodes["n2"].kill()
    cluster.nodes["n2"].restart()
    until(lambda: cluster.status("n2"), "n2 to be declared up")
    assert cluster.shown(operation)["stage"] == WRITE_BOTH_READ_OLD
    cluster.agents.done("operation", "retry", operation, "--reason", "n2 is back")
    until(lambda: cluster.ended(operation), "n2 to have left")
    assert cluster.agents.state.operations[operation].stage == "finished"

    cluster.submit(ChangeSettings((("stream_tries_max", 200),)))

    # A remaining replica dies permanently after the last revert, and its vote is needed.
    cluster.begin("n4", join=True)
    cluster.await_normal("n4")
    cluster.kill_at(WRITE_BOTH_READ_NEW, "n3")
    cluster.submit(Leave(cluster.id_of("n1")))
    operation = cluster.only()
    until(lambda: cluster.shown(operation)["waits_for_nodes"] == ["n3"], "the operation to wait for the dead node")
    shown = cluster.agents.done("operation", "show", operation)
    assert f"ringlog node down n3 --reason …, then ringlog operation retry {operation} --ignore n3" in shown
    cluster.nodes.pop("n3").kill()
    cluster.agents.done("node", "down", "n3", "--reason", "its disk is gone")
    cluster.agents.done("operation", "retry", operation, "--ignore", "n3", "--reason", "its disk is gone")
    until(lambda: cluster.ended(operation), "n2 to have left")
    assert cluster.agents.state.operations[operation].stage == "finished"

    # The remaining node has all writes; a new node takes the place of the dead one.
    cluster.registered("n5")
    cluster.agents.done("node", "replace", "n5", "n3")
    with Coordinator(cluster.agents.client.replica, "dc1") as coordinator:
        for number in range(FILLING):
            cell = coordinator.read(KEYSPACE, b"filling-%d" % number, timeout_s=20).cell
            assert cell is not None
