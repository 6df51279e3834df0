"""Nodes as real processes: a fourth one joins under load, a source is killed while it streams, nodes are restarted.

At the end every node answers exactly the rows that a plain look at the placement gives it.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import NodeProcess, NodesWorld

from ringlog.client.results import AppliedResult
from ringlog.kernel.commands.model import CdcOptions, Column, CreateKeyspace, CreateTable, Replication
from ringlog.kernel.operations.stages import FINISHED, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.state import Operation
from ringlog.log.topics import MUTATIONS
from ringlog.stack import StackInfo
from ringlog.wire.partitions import mutation_key, mutation_partition
from ringlog.wire.records import Cell, Mutation, encode_mutation

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROWS = 2_000
KEYS = 150


class World(NodesWorld):
    """Agents, nodes and a table; ``written`` is what the producer sent."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path) -> None:
        super().__init__(AgentsWorld(stack, cluster, folder), folder)
        self.written: list[Mutation] = []
        self._producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "enable.idempotence": True})

    def join(self) -> Operation | None:
        return next((op for op in self.agents.state.operations.values() if op.stage != FINISHED), None)

    def create(self) -> None:
        columns = tuple(Column(name, kind) for name, kind in (("k", "text"), ("c", "bigint"), ("v", "blob")))
        table = CreateTable("shop", "orders", str(uuid.uuid4()), columns, ("k",), ("c",), CdcOptions())
        for command in (CreateKeyspace("shop", Replication("simple", 2)), table):
            assert isinstance(self.agents.client.submit(command), AppliedResult)

    def write(self, count: int) -> None:
        topic = f"{self.agents.cluster}.{MUTATIONS.suffix}"
        for _ in range(count):
            number = len(self.written)
            key = f"k{number % KEYS}".encode()
            cells = (Cell("v", number.to_bytes(4, "big") * 20),)
            clustering = ((number // KEYS).to_bytes(8, "big"),)
            made = Mutation(None, None, "shop", "orders", 1 + number, None, "INSERT", (key,), clustering, cells)
            self.written.append(made)
            place = mutation_key("shop", "orders", key)
            # Every tenth record travels under a key that is not its own: what it says of itself counts.
            kafka_key = place if number % 10 else mutation_key("shop", "orders", b"k0")
            self._producer.produce(
                topic, encode_mutation(made), key=kafka_key, partition=mutation_partition(place, MUTATIONS.partitions)
            )
        self._producer.flush()

    def replicas(self, key: bytes) -> tuple[str, ...]:
        (placement,) = self.agents.state.placements.values()
        return nodes_of(group_at(placement, token_of(key)).read)

    def rows_per_node(self) -> dict[str, int]:
        """Node id to the number of rows that the placement gives it."""
        return dict(Counter(node for m in self.written for node in self.replicas(m.partition_key[0] or b"")))

    def await_rows(self) -> None:
        """Every node holds as many rows as the plain model gives it."""
        epoch = self.agents.client.read_barrier().epoch
        wanted = self.rows_per_node()

        def settled() -> bool:
            for name in self.nodes:
                member, found = self.member(name), self.status(name)
                assert member is not None
                if found is None or not found["ready"] or int(str(found["epoch"])) < epoch:
                    return False
                if found["rows"] != wanted.get(member.id, 0):
                    return False
            return True

        until(settled, f"the rows {wanted}: {[self.status(name) for name in self.nodes]}", 90)

    def check_answers(self) -> None:
        """Read replicas answer every row with its value; others answer nothing."""
        expected: dict[bytes, dict[str, str]] = {}
        for mutation in self.written:
            own = expected.setdefault(mutation.partition_key[0] or b"", {})
            own[(mutation.clustering_key[0] or b"").hex()] = (mutation.cells[0].value or b"").hex()
        with httpx.Client(timeout=10) as http:
            for key, rows in expected.items():
                for name in self.nodes:
                    member = self.member(name)
                    assert member is not None
                    answer = http.get(f"http://{member.address}/v1/tables/shop.orders/rows/{key.hex()}")
                    if member.id not in self.replicas(key):
                        assert answer.status_code == 421
                        continue
                    found = {row["clustering_key"][0]: row["cells"]["v"]["value"] for row in answer.json()["rows"]}
                    assert found == rows


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[World]:
    made = World(stack, cluster_name, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_join_under_load_with_a_killed_source_and_restarts(world: World) -> None:
    names = ("n1", "n2", "n3")
    for name in names:
        world.begin(name)
    world.await_normal(*names)
    world.create()
    world.write(ROWS // 2)
    world.await_rows()

    # Without a publisher the join stands still just before streaming, so that its source can be killed then.
    world.agents.running("publisher").stop()
    joiner = world.begin("n4")
    operation = until(world.join, "the join", 60).id
    source = world.agents.state.nodes[world.agents.state.operations[operation].plan.sources[0].source].name
    until(lambda: world.agents.state.operations[operation].stage == PUBLISH_CDC_GENERATION, "the generation", 60)
    world.nodes[source].kill()
    world.write(ROWS // 4)
    world.agents.start("publisher")
    until(lambda: "stream waits" in (world.folder / "n4.log").read_text(), "the joiner to miss its source", 60)
    assert world.agents.state.operations[operation].stage == WRITE_BOTH_READ_OLD
    world.nodes[source].restart()
    world.write(ROWS // 4)
    world.await_normal("n4")
    assert joiner.process.poll() is None
    world.await_rows()
    world.check_answers()
    report = world.agents.state.operations[operation].reports
    assert [each.rows > 0 for each in report] == [True]

    # Restarted nodes, one of them killed, hold the same rows, and acknowledge nothing below what they did.
    acknowledged = {
        name: json.loads(next(world.folder.glob(f"**/{name}/acknowledged.json")).read_text())["epoch"]
        for name in world.nodes
    }
    world.nodes["n4"].kill()
    assert world.nodes["n1"].terminate() == 0
    world.nodes["n4"].restart()
    world.nodes["n1"].restart()
    world.await_rows()
    world.check_answers()
    for name in ("n1", "n4"):
        found = world.status(name)
        assert found is not None
        assert int(str(found["epoch"])) >= acknowledged[name]


def test_one_folder_one_process(world: World) -> None:
    first = world.begin("n1")
    world.await_normal("n1")
    second = NodeProcess(world.agents, world.folder, "n1")
    assert second.process.wait(60) == 1
    assert "another process runs the node" in (world.folder / "n1.log").read_text()
    assert first.terminate() == 0
