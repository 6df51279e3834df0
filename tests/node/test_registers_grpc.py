"""Registers over real gRPC in one process: levels, movements, restarts, broken streams, refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Level
from ringlog.client.errors import RequestImpossible, RequestTimedOut, TooLarge
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Leave, Move, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import CancelOperation, RetryOperation
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.stages import FINISHED, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.values import CdcOptions, Column, Command, DatacenterReplication, Replication
from ringlog.node.registers.cells import CellSnapshot
from ringlog.node.registers.journal import recover
from ringlog.node.registers.registers import RegisterFetch
from ringlog.node.rows.replica import KEPT
from ringlog.wire.data import (
    BAD_STREAM,
    FOREIGN_CLUSTER,
    KEY_BYTES_MAX,
    NOT_MEMBER,
    SERVICE,
    VALUE_BYTES_MAX,
    WRONG_NODE,
    Key,
    ReadReply,
    ReadRequest,
    RegisterCell,
    StatusReply,
    StatusRequest,
    StreamPage,
    StreamRequest,
    WriteReply,
    WriteRequest,
    key_of,
    pack,
    unpack,
)
from ringlog.wire.records import Cell, Mutation, encode_mutation
from tests.kernel.entries import uuid
from tests.node.data_world import DataWorld, until
from tests.record_keys import record_key

STEP = 2**64 // 8
ROWS, TRIES = 50, 5
"""Half of the rows move, one per page. TRIES allows calls that return no page because the machine is slow."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DataWorld]:
    """Return three nodes, each with a replica of every range."""
    with closing(DataWorld(tmp_path, factor=3)) as made:
        for number in (1, 2, 3):
            made.join(number, -(2**62) + number * STEP)
        yield made


def write(world: DataWorld, name: bytes, timestamp: int, level: Level = Level.QUORUM, timeout_s: float = 20.0) -> None:
    told = world.coordinator.write(
        "ks", name, b"v%d" % timestamp, timestamp=timestamp, level=level, timeout_s=timeout_s
    )
    assert told.cell == RegisterCell(timestamp, b"v%d" % timestamp)


def held(world: DataWorld, number: int, name: bytes) -> int | None:
    cell = world.nodes[number].host.value.durable.cells.get(key_of("ks", name))
    return None if cell is None else cell.timestamp


def call(world: DataWorld, number: int, method: str, data: bytes) -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{world.nodes[number].server.port}") as channel:
        answer: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=60)
    return answer


def test_each_level_writes_reads_and_reports_its_replicas(world: DataWorld) -> None:
    for timestamp, level in enumerate(Level, start=1):
        told = world.coordinator.write("ks", b"k", b"x", timestamp=timestamp, level=level)
        assert len(told.answers) >= max(need.count for need in told.plan.needs)
        assert {answer.node for answer in told.answers} <= set(told.plan.asked)
        assert told.epoch == told.plan.epoch == world.state.epoch
        until(
            lambda now=timestamp: all(held(world, n, b"k") == now for n in (1, 2, 3)), "all replicas to have the value"
        )
        read = world.coordinator.read("ks", b"k", level=level)
        assert read.cell == RegisterCell(timestamp, b"x")
        assert read.repair is None


def test_a_delete_wins_over_a_value_of_the_same_timestamp(world: DataWorld) -> None:
    assert world.coordinator.read("ks", b"k").cell is None
    write(world, b"k", 5)
    world.coordinator.write("ks", b"k", None, timestamp=5)
    world.coordinator.write("ks", b"k", b"late", timestamp=4)
    assert world.coordinator.read("ks", b"k", level=Level.ALL).cell == RegisterCell(5, b"", True)


def test_a_read_repairs_a_restarted_replica(world: DataWorld) -> None:
    write(world, b"k", 1, Level.ALL)
    world.nodes[3].stop()
    write(world, b"k", 2)

    def has_reached_the_others() -> bool:
        with pytest.raises(RequestTimedOut, match="n3"):
            write(world, b"k", 3, Level.ALL, timeout_s=0.5)
        return held(world, 1, b"k") == held(world, 2, b"k") == 3

    until(has_reached_the_others, "both live nodes to store the unacknowledged write")
    world.nodes[3].begin()
    assert held(world, 3, b"k") == 1, "the replica has its own durable data"
    assert world.nodes[3].host.start == 2
    read = world.coordinator.read("ks", b"k", level=Level.ALL)
    assert read.cell == RegisterCell(3, b"v3"), "a timed-out write may still become visible"
    world.nodes[1].stop()
    assert world.coordinator.read("ks", b"k").cell == RegisterCell(3, b"v3")
    world.nodes[2].stop()
    with pytest.raises(RequestTimedOut):
        world.coordinator.read("ks", b"k", timeout_s=0.5)


def test_a_read_repairs_a_quorum_before_it_answers(world: DataWorld) -> None:
    key, cell = key_of("ks", b"k"), RegisterCell(9, b"new")
    host = world.nodes[2].host
    assert host.answered(WriteRequest("", host.node, world.state.epoch, "", key, cell)).epoch == world.state.epoch
    world.nodes[3].stop()
    read = world.coordinator.read("ks", b"k")
    assert read.cell == cell
    assert read.repair is not None
    assert held(world, 1, b"k") == 9


def test_a_join_streams_all_existing_registers(world: DataWorld) -> None:
    names = [b"key-%d" % number for number in range(120)]
    for name in names:
        write(world, name, 1)
    world.begin(4)
    operation = world.ask_join(4, -(2**62) + 3 * STEP // 2, -(2**62) + 5 * STEP // 2)
    world.drive(operation, WRITE_BOTH_READ_OLD)
    for name in names[:60]:
        write(world, name, 2)
    world.drive(operation, WRITE_BOTH_READ_NEW)
    for name in names[30:60]:
        write(world, name, 3)
    world.drive(operation, FINISHED)
    for number, name in enumerate(names):
        wanted = 3 if 30 <= number < 60 else 2 if number < 30 else 1
        for level in (Level.QUORUM, Level.ALL):
            read = world.coordinator.read("ks", name, level=level)
            assert read.cell is not None
            assert read.cell.timestamp == wanted
            assert len(read.plan.replicas) == 3
    assert len(world.nodes[4].host.value.durable.cells) > 0
    total = sum(len(each.host.value.durable.cells) for each in world.nodes.values())
    assert total == 3 * len(names), "nodes that lost a range have removed its cells"


def test_a_stream_continues_after_either_side_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(DataWorld(tmp_path, factor=1, page_bytes=40)) as world:
        world.join(1, 0)
        names = [b"key-%d" % number for number in range(100)]
        for name in names:
            write(world, name, 1)
        joiner = world.begin(2)
        operation = world.ask_join(2, 2**62)
        pages = threading.Semaphore(3)
        kept = joiner.host.receive_page

        def slow(fetch: RegisterFetch, cells: dict[Key, RegisterCell]) -> bool:
            return pages.acquire(timeout=0.05) and kept(fetch, cells)

        joiner.host.receive_page = slow  # type: ignore[method-assign]
        world.drive(operation, WRITE_BOTH_READ_OLD)
        until(lambda: len(joiner.host.value.durable.cells) > 0 and not pages._value, "three pages to be stored")
        some = len(joiner.host.value.durable.cells)
        assert joiner.host.value.fetching
        world.nodes[1].stop()
        joiner.stop()
        mark = recover(joiner.folder)[0].marks[operation, world.nodes[1].id, "simple:1"]
        asked: list[Key | None] = []
        listed = CellSnapshot.after

        def noted(cells: CellSnapshot, after: Key | None = None) -> Iterator[tuple[Key, RegisterCell]]:
            asked.append(after)
            return listed(cells, after)

        monkeypatch.setattr(CellSnapshot, "after", noted)
        world.nodes[1].begin()
        joiner.begin()
        assert len(joiner.host.value.durable.cells) >= some
        world.drive(operation, FINISHED)
        assert asked == [mark]
        assert {world.coordinator.read("ks", name).cell for name in names} == {RegisterCell(1, b"v1")}


def test_a_stream_longer_than_a_call_deadline_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog.node.streams.pull.CALL_S", 1.0)
    with closing(DataWorld(tmp_path, factor=1, page_bytes=1)) as world:
        world.join(1, 0)
        for number in range(ROWS):
            write(world, b"key-%d" % number, 1)
        world.submit(ChangeSettings((("stream_tries_max", TRIES),)))
        joiner = world.begin(2)
        operation = world.ask_join(2, 2**63 - 1)
        kept, asked, tick = joiner.host.receive_page, [0], threading.Event()
        streams = joiner.peers.stream

        def slow(fetch: RegisterFetch, cells: dict[Key, RegisterCell]) -> bool:
            tick.wait(0.25)
            return kept(fetch, cells)

        def noted(*call: Any) -> Iterator[bytes]:
            asked[0] += 1
            return streams(*call)

        joiner.host.receive_page = slow  # type: ignore[method-assign]
        joiner.peers.stream = noted  # type: ignore[method-assign]
        world.drive(operation, FINISHED)
        assert asked[0] > TRIES
        assert joiner.tries.failed_tries() == ()
        assert all(world.coordinator.read("ks", b"key-%d" % number).cell for number in range(ROWS))


def test_retries_of_an_unreachable_source_end_with_an_operator_decision(tmp_path: Path) -> None:
    with closing(DataWorld(tmp_path, factor=1)) as world:
        world.join(1, 0)
        write(world, b"k", 1)
        world.submit(ChangeSettings((("stream_tries_max", 2),)))
        joiner = world.begin(2)
        operation = world.ask_join(2, 2**62)
        world.drive(operation, PUBLISH_CDC_GENERATION)
        world.nodes[1].is_following = False  # The source returns no rows before it knows the stage.
        world.drive(operation, WRITE_BOTH_READ_OLD)

        def stopped() -> bool:
            world.step()
            return bool(stopped_by(world.state.operations[operation]))

        until(stopped, "the joining node to report a failed stream")
        (failure,) = stopped_by(world.state.operations[operation])
        assert (failure.node, failure.tries) == (joiner.id, 2)
        world.nodes[1].is_following = True
        for _ in range(3):
            world.step()
        assert joiner.tries.failed_tries()[0].count == 2, "the receiver stops asking"
        assert world.state.operations[operation].stage == WRITE_BOTH_READ_OLD
        world.submit(RetryOperation(operation, "the source knows it now"))
        world.drive(operation, FINISHED)
        assert world.coordinator.read("ks", b"k").cell == RegisterCell(1, b"v1")


def test_a_cancelled_join_leaves_no_registers_at_the_joiner(world: DataWorld) -> None:
    for number in range(40):
        write(world, b"key-%d" % number, 1)
    joiner = world.begin(4)
    operation = world.ask_join(4, 2**61 + 1)
    world.drive(operation, WRITE_BOTH_READ_OLD)
    until(lambda: operation in joiner.host.value.received, "the stream")
    assert len(joiner.host.value.durable.cells) > 0
    world.submit(CancelOperation(operation, "not now"))
    assert len(joiner.host.value.durable.cells) == 0
    joiner.stop()
    joiner.begin()
    assert len(joiner.host.value.durable.cells) == 0
    assert all(world.coordinator.read("ks", b"key-%d" % number, level=Level.ALL).cell for number in range(40))


def test_a_lagging_replica_is_retried_until_it_has_caught_up(world: DataWorld) -> None:
    for number in (2, 3):
        world.nodes[number].is_following = False
    before = world.nodes[2].host.value.state.epoch
    world.submit(DropKeyspace("ks"))
    world.submit(CreateKeyspace("ks", Replication("simple", 3)))
    with pytest.raises(RequestTimedOut, match="n2"):
        write(world, b"k", 1, Level.ALL, timeout_s=1.0)
    assert world.state.epoch > before == world.nodes[2].host.value.state.epoch
    asked = threading.Thread(target=write, args=(world, b"k", 2, Level.ALL))
    asked.start()
    until(lambda: held(world, 1, b"k") == 2, "the first replica to have the write")
    for number in (2, 3):
        world.nodes[number].is_following = True
        world.nodes[number].follow()
    asked.join()
    assert held(world, 2, b"k") == held(world, 3, b"k") == 2


def test_a_replica_lagging_in_unrelated_epochs_serves_at_once(world: DataWorld) -> None:
    for each in world.nodes.values():
        each.is_following = False
    before = world.nodes[2].host.value.state.epoch
    columns = (Column("k", "blob"), Column("v", "blob"))
    for command in (
        Noop(),
        SettleVerdicts(2_000_000),
        CreateKeyspace("other", Replication("simple", 3)),
        CreateTable("other", "t", uuid(8, space=9), columns, ("k",), (), CdcOptions(enabled=False)),
    ):
        world.submit(command)
    write(world, b"k", 1, Level.ALL)
    told = world.coordinator.read("ks", b"k", level=Level.ALL)
    assert told.cell == RegisterCell(1, b"v1")
    assert (told.epoch, {answer.epoch for answer in told.answers}) == (world.state.epoch, {before})
    assert told.attempts == 1
    assert [each.named for each in world.nodes.values()] == [[], [], []], "no node is asked to catch up"
    with pytest.raises(RequestTimedOut, match="n1"):
        world.coordinator.read("other", b"k", timeout_s=0.5)
    assert any(each.named for each in world.nodes.values())


def test_impossible_requests_are_rejected(world: DataWorld) -> None:
    with pytest.raises(RequestImpossible, match="no_local_replicas"):
        Coordinator(world.replica, "elsewhere", world.find).read("ks", b"k", level=Level.LOCAL_QUORUM)
    with pytest.raises(RequestImpossible, match="unknown_keyspace"):
        world.coordinator.read("none", b"k")
    with pytest.raises(TooLarge):
        world.coordinator.write("ks", b"k", b"x" * (VALUE_BYTES_MAX + 1), timestamp=1)


def test_rows_are_read_at_a_position_of_their_topic(world: DataWorld) -> None:
    columns = (Column("k", "blob"), Column("v", "blob"))
    world.submit(CreateTable("ks", "t", uuid(7, space=9), columns, ("k",), (), CdcOptions(enabled=False)))
    world.submit(SettleVerdicts(2_000_000))
    mutation = Mutation(None, None, "ks", "t", 1_000_000, None, "INSERT", (b"key",), (), (Cell("v", b"x"),))
    value = encode_mutation(mutation)
    for number in (1, 2):
        row_replica = world.nodes[number].row_replica
        row_replica.adopt(world.state)
        row_replica.caught_up = True
        assert row_replica.validate_record(value, 1_000_000, record_key(value)) == KEPT
        row_replica.advance_position(0, 1)
    found = world.coordinator.read_rows("ks.t", b"key", at={0: 1})
    assert (found.writes, found.positions) == ((value,), {0: 1})
    assert world.coordinator.read_rows("ks.t", b"key").writes == (value,), "two of three are a quorum"
    assert world.coordinator.read_rows("ks.t", b"none", at={0: 1}).writes == ()
    with pytest.raises(RequestTimedOut, match="n1, n2"):
        world.coordinator.read_rows("ks.t", b"key", at={0: 2}, timeout_s=0.5)
    with pytest.raises(RequestImpossible, match="unknown_table"):
        world.coordinator.read_rows("ks.nosuch", b"key")
    with pytest.raises(TooLarge):
        world.coordinator.read_rows("ks.t", b"k" * (KEY_BYTES_MAX + 1))


def test_refusals_carry_codes(tmp_path: Path) -> None:
    with closing(DataWorld(tmp_path, factor=1)) as world:
        refusals(world)


def refusals(world: DataWorld) -> None:
    world.join(1, 0)
    world.begin(2)
    cluster, one, two = world.state.cluster_id, world.nodes[1].id, world.nodes[2].id
    key, epoch, state_id = key_of("ks", b"k"), world.state.epoch, world.state.state_id

    def read(cluster_id: str, node: str, number: int) -> ReadReply:
        request = ReadRequest(cluster_id, node, epoch, state_id, key, False)
        return unpack(ReadReply, call(world, number, "Read", pack(request)))

    assert read(cluster, one, 1) == ReadReply(one, epoch, state_id=state_id)
    assert read(cluster, two, 2).refused == NOT_MEMBER
    assert read(cluster, one, 2) == ReadReply(two, epoch, WRONG_NODE)
    assert read("00000000-0000-7000-8000-000000000001", one, 1).refused == FOREIGN_CLUSTER
    request = WriteRequest(cluster, two, epoch, state_id, key, RegisterCell(1, b""))
    for method in ("Write", "Repair"):
        assert unpack(WriteReply, call(world, 2, method, pack(request))).refused == NOT_MEMBER
    stream = StreamRequest(cluster, one, epoch, state_id, two, "join-1", "simple:3", ((0, 1),), None)
    with grpc.insecure_channel(f"127.0.0.1:{world.nodes[1].server.port}") as channel:
        (page,) = channel.unary_stream(f"/{SERVICE}/Stream")(pack(stream), timeout=60)
    assert unpack(StreamPage, page).refused == BAD_STREAM
    status = unpack(StatusReply, call(world, 1, "Status", pack(StatusRequest(cluster, one))))
    assert (status.ready, status.epoch, status.acknowledgeable, status.start) == (True, epoch, epoch, 1)
    with pytest.raises(grpc.RpcError) as broken:
        call(world, 1, "Read", b"no message")
    assert broken.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_every_movement_keeps_all_writes(world: DataWorld) -> None:
    world.join(4, 2**62 + STEP)
    names = [b"key-%d" % number for number in range(60)]
    last: dict[bytes, int] = {}
    clock = count(1)

    def write_some() -> None:
        for name in names[::3]:
            last[name] = next(clock)
            write(world, name, last[name])

    def move(command: Command, kind: str) -> None:
        """Request a movement and complete it, with writes at each stage that changes replica groups."""
        write_some()
        world.submit(command)
        (operation,) = (one for one in world.in_flight() if one.kind == kind)
        for stage in (WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW, FINISHED):
            world.drive(operation.id, stage)
            write_some()
        for name, timestamp in last.items():
            for level in (Level.QUORUM, Level.ALL):
                found = world.coordinator.read("ks", name, level=level).cell
                assert found is not None
                assert found.timestamp == timestamp, f"{name!r} after {kind} at {level}"

    for name in names:
        last[name] = next(clock)
        write(world, name, last[name])
    one, two, four, six = (uuid(number, space=2) for number in (1, 2, 4, 6))
    move(Move(four, (-(2**61) + 7, 2**61 + 7), bytes(range(16))), "move")
    world.begin(6)
    world.nodes[2].stop()
    world.submit(DeclareDown(two, "its disk is gone"))
    move(Replace(six, two), "replace")
    move(Leave(one), "leave")
    assert {each.state for each in world.state.nodes.values()} == {"normal", "left"}
    assert not world.nodes[1].host.value.durable.cells, "the node that left has removed its data"
    total = sum(len(world.nodes[number].host.value.durable.cells) for number in (3, 4, 6))
    assert total == 3 * len(names)


def test_levels_of_several_datacenters(tmp_path: Path) -> None:
    with closing(DataWorld(tmp_path, factor=0)) as world:
        for number in (1, 2, 3, 4):
            world.join(number, number * STEP // 2, datacenter="dc1" if number < 3 else "dc2")
        world.submit(
            CreateKeyspace(
                "ks", Replication("network", 4, (DatacenterReplication("dc1", 2), DatacenterReplication("dc2", 2)))
            )
        )
        with Coordinator(world.replica, "dc2", world.find) as elsewhere:
            write(world, b"k", 1, Level.EACH_QUORUM)
            told = elsewhere.read("ks", b"k", level=Level.LOCAL_QUORUM)
            assert told.cell == RegisterCell(1, b"v1")
            assert {answer.node for answer in told.answers} == {world.nodes[3].id, world.nodes[4].id}
            for number in (3, 4):
                world.nodes[number].stop()
            write(world, b"k", 2, Level.LOCAL_QUORUM)
            assert world.coordinator.read("ks", b"k", level=Level.LOCAL_QUORUM).cell == RegisterCell(2, b"v2")
            for level in (Level.EACH_QUORUM, Level.QUORUM):
                with pytest.raises(RequestTimedOut, match="n3, n4"):
                    write(world, b"k", 3, level, timeout_s=0.4)
            with pytest.raises(RequestTimedOut):
                elsewhere.read("ks", b"k", level=Level.LOCAL_QUORUM, timeout_s=0.4)
