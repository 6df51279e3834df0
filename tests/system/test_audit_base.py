"""The audit with nodes that serve HTTP names lost, invented and changed rows."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest
from tests.node.world import TABLE, name_of, write
from tests.system.audit_world import World
from tests.system.test_audit import _cell, failed

from ringlog.kernel.changes import ChangeRecord, project
from ringlog.kernel.sections import NODES
from ringlog.kernel.values import replace
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.http_server import HttpServer, make_api
from ringlog.runtime.clock import SystemClock
from ringlog.stack import StackInfo
from ringlog.wire.data import RowVersion
from ringlog.wire.records import encode_mutation
from ringlog_audit import base
from ringlog_audit.report import AuditReport
from ringlog_audit.sources.topics import records

pytestmark = pytest.mark.system


class Served:
    """The nodes of an audited world, each with its own decisions about the mutations."""

    def __init__(self, stack: StackInfo) -> None:
        self.world = World(stack, f"based-{uuid.uuid4().hex[:8]}", also=(NODES,))
        self.holders: dict[str, RowReplica] = {}
        self.servers: list[HttpServer] = []
        state = self.world.state
        for name in sorted(state.nodes):
            listening = socket.create_server(("127.0.0.1", 0))
            node = replace(state.nodes[name], address=f"127.0.0.1:{listening.getsockname()[1]}")
            state = replace(state, nodes=state.nodes.set(name, node))
            self.holders[name] = RowReplica(name)
            api = make_api(self.holders[name], node.name, SystemClock())
            self.servers.append(HttpServer(api, listening))
            self.servers[-1].start()
        self.world.changes += [ChangeRecord(*key, value) for key, value in project(state).items() if key[0] == NODES]
        self.read()
        self.world.publish()

    def read(self) -> None:
        """Let each node validate the current mutations."""
        written = list(records(self.world.bootstrap, f"{self.world.cluster}.mutations"))
        for row_replica in self.holders.values():
            row_replica.adopt(self.world.state)
            row_replica.caught_up = True
            for message in written:
                partition, offset = message.partition() or 0, message.offset() or 0
                if offset >= row_replica.positions.get(partition, 0):
                    row_replica.validate_record(message.value() or b"", message.timestamp()[1] * 1_000, message.key())
                    row_replica.advance_position(partition, offset + 1)

    def audited(self, count: int = 0) -> AuditReport:
        return self.world.audited(base=count)

    def end(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture(scope="module")
def served(stack: StackInfo) -> Iterator[Served]:
    made = Served(stack)
    yield made
    made.end()


def found(report: AuditReport) -> list[str]:
    (check,) = [check for check in report.checks if check.name == "base"]
    return check.examples


def test_nodes_that_match_the_log(served: Served) -> None:
    report = served.audited()
    assert report.ok, report.as_json()
    replicas = 2
    assert report.counts["base_answers"] == replicas * report.counts["base_partitions"]
    assert report.counts["base_partitions"] == 9
    assert served.audited(4).counts["base_partitions"] == 4


def test_a_lost_invented_or_changed_row_is_named(served: Served) -> None:
    row_replica = served.holders[name_of(2)]
    version = next(version for version in row_replica.store.versions([(0, 0)]) if version.table == TABLE)
    row_replica.store.drop(TABLE, [(version.token - 1, version.token)])
    report, node = served.audited(), served.world.state.nodes[name_of(2)].name
    assert failed(report) == {"base"}
    start = f"table {TABLE}, key {version.partition_key.hex()}, {node}: row ["
    assert all(example.startswith(start) for example in found(report))
    assert "exists only in the log" in found(report)[0]
    for name in (name_of(1), name_of(3)):
        for held in served.holders[name].store.versions([(version.token - 1, version.token)]):
            row_replica.store.add(held)
    assert served.audited().ok
    changed = write(version.partition_key.decode(), 8_000)
    made_up = RowVersion(
        TABLE, version.token, version.partition_key, changed.clustering_key, 1, encode_mutation(changed)
    )
    row_replica.store.add(made_up)
    assert found(served.audited()) == [f"{start}{changed.clustering_key[0].hex()}], exists only on the node"]  # type: ignore[union-attr]
    row_replica.store.drop(TABLE, [(version.token - 1, version.token)])
    for held in served.holders[name_of(1)].store.versions([(version.token - 1, version.token)]):
        row_replica.store.add(held)


def test_a_different_row_of_the_log_is_named(served: Served) -> None:
    world = served.world.afresh()
    _cell(world)
    world.publish()
    assert any("column note: " in example and " in the log" in example for example in found(served.audited()))
    served.world.afresh().publish()


def test_a_lagging_or_silent_node_is_named(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "SILENCE_S", 0.0)
    row_replica = served.holders[name_of(3)]
    before = dict(row_replica.positions)
    row_replica.positions[0] -= 1
    assert "remains at" in found(served.audited())[0]
    row_replica.positions.update(before)
    served.servers[2].stop()
    assert any("does not answer" in example for example in found(served.audited()))
