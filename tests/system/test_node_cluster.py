"""Nodes as real processes: a fourth one joins under load, a source is killed while it streams, nodes restart.

Writes are of every kind: several statements and timestamps, collections, static columns, deletes of rows, ranges and
partitions. At the end a brute-force model applies the writes. Each node answers like the model, for exactly the
partitions that the placement assigns to it.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from confluent_kafka import Producer
from tests.kernel.rows.histories import SECOND, TYPES, Statement, draw, model, mutation_of, viewed
from tests.system.agents_world import DEADLINE_S, AgentsWorld, until
from tests.system.nodes_world import NodeProcess, NodesWorld, opened

from ringlog.client.participant.folder import exclusive_folder
from ringlog.kernel.commands.cluster.service import AddServiceMember
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import Operation
from ringlog.kernel.operations.stages import FINISHED, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.rows.reading import SeenRow
from ringlog.kernel.service import read_group
from ringlog.kernel.values import CdcOptions, Column, Replication, replace
from ringlog.log.archive.copies import end_of
from ringlog.log.errors import CopyInUse
from ringlog.log.kafka.topics import MUTATIONS
from ringlog.node.log.log_copy import COPY, copy_of_member
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.data import SERVICE, EntriesReply, EntriesRequest, pack, unpack
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import Mutation, encode_mutation, mutation_key, mutation_partition

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROWS = 2_000
KEYS = 150


class World(NodesWorld):
    """Agents, nodes and a table; ``written``: the mutations of the producer."""

    def __init__(self, agents: AgentsWorld, folder: Path) -> None:
        super().__init__(agents, folder)
        self.written: list[Mutation] = []
        self.statements: dict[bytes, list[Statement]] = {}
        self._dice = Random(6)
        self._producer = Producer(
            {**QUIET, "bootstrap.servers": agents.stack.bootstrap_servers, "enable.idempotence": True}
        )

    def join(self) -> Operation | None:
        return next((op for op in self.agents.state.operations.values() if op.stage != FINISHED), None)

    def create(self) -> None:
        columns = tuple(Column(name, kind, name == "s") for name, kind in TYPES.items())
        table = CreateTable("ks", "t", str(uuid.uuid4()), columns, ("p",), ("c", "d"), CdcOptions())
        for command in (CreateKeyspace("ks", Replication("simple", 2)), table):
            self.submit(command)

    def write(self, count: int) -> None:
        topic = f"{self.agents.cluster}.{MUTATIONS.suffix}"
        for _ in range(count):
            number = len(self.written)
            key = f"k{number % KEYS}".encode()
            statements = [draw(self._dice) for _ in range(self._dice.choice((1, 1, 1, 4)))]
            self.statements.setdefault(key, []).extend(statements)
            made = replace(mutation_of(statements), partition_key=(key,), mutation_id=str(uuid.uuid4()))
            self.written.append(made)
            place = mutation_key("ks", "t", key)
            partition = mutation_partition(place, MUTATIONS.partitions)
            self._producer.produce(topic, encode_mutation(made), key=place, partition=partition)
            if number % 10 == 0:
                # No node stores a write under another record key.
                other = encode_mutation(replace(made, mutation_id=str(uuid.uuid4())))
                self._producer.produce(topic, other, key=b"other", partition=partition)
        self._producer.flush()

    def replicas(self, key: bytes) -> tuple[str, ...]:
        (placement,) = self.agents.state.placements.values()
        return nodes_of(group_at(placement, token_of(key)).read)

    def rows_per_node(self) -> dict[str, int]:
        """Return node id to the number of rows in its placement."""
        return dict(Counter(node for m in self.written for node in self.replicas(m.partition_key[0] or b"")))

    def await_rows(self) -> None:
        """Wait until each node has as many rows as the model."""
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

        until(settled, f"the rows {wanted}: {[self.status(name) for name in self.nodes]}", 240)

    def check_answers(self) -> None:
        """Check that replicas answer like the model after all expirations, and that other nodes answer nothing."""
        now = 60 * SECOND
        for key, statements in self.statements.items():
            for name in self.nodes:
                member = self.member(name)
                assert member is not None
                answer = self.http.get(f"http://{member.address}/v1/tables/ks.t/rows/{key.hex()}")
                if member.id not in self.replicas(key):
                    assert answer.status_code == 421
                    continue
                assert viewed(known_epochs_in(answer.json())) == model(statements, now), (key, name)


def known_epochs_in(answer: dict[str, Any]) -> tuple[SeenRow, ...]:
    """Return the rows of a node's answer."""

    def values(cells: dict[str, Any]) -> dict[str, bytes]:
        return {name: bytes.fromhex(cell["value"]) for name, cell in cells.items()}

    static = values(answer["static"])
    rows = [(tuple(map(bytes.fromhex, row["clustering_key"])), values(row["cells"])) for row in answer["rows"]]
    found = tuple(SeenRow(key, cells, static) for key, cells in rows)
    return found or ((SeenRow(None, {}, static),) if static else ())


@pytest.fixture(scope="module")
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Both tests share one world: its start takes longer than the second test."""
    with opened(World, stack, tmp_path_factory.mktemp("nodes")) as made:
        yield made


@pytest.mark.soak("test_registers.py has movements under load with kills")
def test_a_join_under_load_with_a_killed_source_and_restarts(world: World) -> None:
    world.begin_all("n1", "n2", "n3")
    world.create()
    world.write(ROWS // 2)
    world.await_rows()

    # Without a publisher the join stops just before streaming, so that its source can be killed then.
    world.agents.running("publisher").stop()
    joiner = world.begin("n4")
    operation = until(world.join, "the join").id
    source = world.agents.state.nodes[world.agents.state.operations[operation].plan.sources[0].source].name
    until(lambda: world.agents.state.operations[operation].stage == PUBLISH_CDC_GENERATION, "the generation")
    world.nodes[source].kill()
    world.write(ROWS // 4)
    world.agents.start("publisher")
    until(lambda: "stream waits" in (world.folder / "n4.log").read_text(), "the joining node to report the lost source")
    # The barrier is needed: the joining node may be ahead of this test's replica.
    assert world.agents.client.read_barrier().operations[operation].stage == WRITE_BOTH_READ_OLD
    world.nodes[source].restart()
    world.write(ROWS // 4)
    world.await_normal("n4")
    assert joiner.process.poll() is None
    world.await_rows()
    world.check_answers()
    report = world.agents.state.operations[operation].reports
    assert [each.rows > 0 for each in report] == [True]

    # Restarted nodes, one of them killed, have the same rows and never acknowledge less than before.
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


def test_a_member_has_the_log_in_its_folder(world: World) -> None:
    if "n1" not in world.nodes:
        world.begin("n1")
    world.await_normal("n1")
    client = world.agents.client
    node = world.agents.state.node_names["n1"]
    world.submit(AddServiceMember(node))
    client.replica.wait_for(lambda state: read_group(state) == (node,), DEADLINE_S, "the node to be a member")
    (path,) = world.folder.glob(f"**/n1/{COPY}")
    with pytest.raises(CopyInUse), exclusive_folder(path.parent):
        pass
    ended = end_of(copy_of_member(path.parent))
    service = world.agents.state.service[node]
    assert ended.at.state.epoch >= service.since - 1, "a joining member has the entry when it acknowledges"
    state = world.agents.state
    assert state_id_at(state, ended.at.state.epoch) == ended.at.state.state_id
    status = world.status("n1")
    assert status is not None
    asked = EntriesRequest(state.cluster_id, node, service.since - 1, state_id_at(state, service.since - 1))
    with grpc.insecure_channel(f"127.0.0.1:{status['data_port']}") as channel:
        reply = unpack(EntriesReply, channel.unary_unary(f"/{SERVICE}/Entries")(pack(asked), timeout=60))
    shown = decode_entry(reply.entries[0])
    assert isinstance(shown, Entry)
    assert shown.state_id == state_id_at(state, service.since), "it serves its records to a peer that lags"

    health, found = world.shown("n1")
    assert (health["state"], health["why"]) == ("ready", "")
    assert found["ringlog_node_ready"] == 1
    assert found["ringlog_node_acknowledged_epoch"] >= service.since - 1
    assert found["ringlog_node_copy_epoch"] >= service.since - 1
    assert found["ringlog_node_disk_bytes log_copy"] > 0
    assert found["ringlog_log_records_total applied"] > 0
    assert found["ringlog_log_silent_seconds"] >= 0


def test_one_folder_one_process(world: World) -> None:
    first = world.nodes.get("n1") or world.begin("n1")
    world.await_normal("n1")
    second = NodeProcess(world.agents, world.folder, "n1")
    assert second.process.wait(120) == 1
    assert "another process runs the node" in (world.folder / "n1.log").read_text()
    assert first.terminate() == 0
