"""Claims of a request about the log have no effect until the node's own log confirms them. Over real gRPC."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from ringlog.client.data import plans
from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import (
    Access,
    Answer,
    AwaitedAnswers,
    ClientRequest,
    Level,
    RequestPlan,
    Satisfied,
    is_of_this_log,
)
from ringlog.client.direct import DirectAuthor
from ringlog.client.errors import RequestTimedOut
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.fold import fold
from ringlog.kernel.history import contradicts, state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, replace
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.protocol import peer_log_claims as bounds
from ringlog.node.protocol.peer_log_claims import PeerLogClaims
from ringlog.node.protocol.requests import AHEAD_MAX
from ringlog.node.registers.journal import recover
from ringlog.node.servers.data_server import WAITING_MAX
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.wire.data import (
    BAD_CELL,
    BAD_EPOCH,
    BAD_STREAM,
    BAD_TOKEN,
    BEHIND,
    KEY_BYTES_MAX,
    OTHER_HISTORY,
    SERVICE,
    TOO_LARGE,
    VALUE_BYTES_MAX,
    Key,
    ReadReply,
    ReadRequest,
    ReadRowsReply,
    ReadRowsRequest,
    RegisterCell,
    RowsRequest,
    StreamPage,
    StreamRequest,
    WriteReply,
    WriteRequest,
    key_of,
    pack,
    unpack,
)
from ringlog.wire.entries import author_entry
from ringlog.wire.ids import new_request_id, new_state_id
from tests.kernel.commands.test_service import THREE, TWO
from tests.node.data_world import DataNode, DataWorld
from tests.node.test_peers import Driver, fold_on, noops

NAME = b"k"
KEY = key_of("ks", NAME)
NOW = 1_900_000_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DataWorld]:
    with closing(DataWorld(tmp_path, factor=1)) as made:
        made.join(1, 0)
        made.coordinator.write("ks", NAME, b"acknowledged", timestamp=1)
        yield made


def invented(state: ClusterState, *commands: Command) -> ClusterState:
    """Return a log position that no entry of the log has."""
    for command in commands:
        made = author_entry(
            cluster_id=state.cluster_id,
            state_id=new_state_id(state.state_id, NOW, os.urandom(8)),
            prev_state_id=state.state_id,
            request_id=new_request_id(NOW, os.urandom(8)),
            since_epoch=state.epoch,
            submitter="stranger",
            at=NOW,
            command=command,
        )
        folded = fold(state, made.entry)
        assert folded.state is not state, folded.outcome
        state = folded.state
    return state


def call(node: DataNode, method: str, request: object) -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        answer: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(pack(request), timeout=60)
    return answer


def page_of(node: DataNode, method: str, request: object) -> StreamPage:
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        return unpack(StreamPage, next(iter(channel.unary_stream(f"/{SERVICE}/{method}")(pack(request), timeout=60))))


def read_of(node: DataNode, state: ClusterState, key: Key = KEY) -> ReadReply:
    """Return the answer to a read planned on ``state``."""
    return unpack(
        ReadReply, call(node, "Read", ReadRequest(state.cluster_id, node.id, state.epoch, state.state_id, key, False))
    )


def write_of(node: DataNode, state: ClusterState, key: Key, cell: RegisterCell, epoch: int | None = None) -> str:
    """Return the refusal of a write planned on ``state``."""
    at = state.epoch if epoch is None else epoch
    request = WriteRequest(state.cluster_id, node.id, at, state.state_id, key, cell)
    replies = {unpack(WriteReply, call(node, method, request)).refused for method in ("Write", "Repair")}
    (refused,) = replies
    return refused


# ------------------------------------------------------------------------------------------------------ claimed history


def test_a_request_with_an_invented_epoch_changes_nothing(world: DataWorld) -> None:
    node = world.nodes[1]
    before = node.host.value
    lost = invented(world.state, DropKeyspace("ks"), *[Noop()] * 20)
    assert read_of(node, lost) == ReadReply(node.id, before.state.epoch, BEHIND)
    assert write_of(node, lost, KEY, RegisterCell(9, b"x")) == BEHIND
    assert node.host.value.durable == before.durable
    assert world.coordinator.read("ks", NAME).cell == RegisterCell(1, b"acknowledged")
    for _ in range(25):  # The log passes the invented epoch.
        world.submit(Noop())
    assert world.state.epoch > lost.epoch
    assert world.coordinator.read("ks", NAME).cell == RegisterCell(1, b"acknowledged")
    node.stop()
    assert dict(recover(node.folder)[0].cells) == {KEY: RegisterCell(1, b"acknowledged")}


def test_only_a_waiting_request_triggers_a_read_of_the_log(world: DataWorld) -> None:
    node = world.nodes[1]
    assert read_of(node, world.state).refused == ""
    assert write_of(node, world.state, KEY, RegisterCell(2, b"x")) == ""
    assert node.hurries == [0, 0]
    ahead = invented(world.state, Noop())
    assert read_of(node, ahead).refused == BEHIND
    assert write_of(node, ahead, KEY, RegisterCell(9, b"x")) == BEHIND
    rows = ReadRowsRequest(ahead.cluster_id, node.id, ahead.epoch, ahead.state_id, "ks.t", "t", b"k", (), False, False)
    assert unpack(ReadRowsReply, call(node, "ReadRows", rows)).refused
    assert node.hurries == [4, 0], "a read, a write and its retry, rows"


def test_no_request_waits_for_a_distant_epoch(world: DataWorld) -> None:
    """A request with a distant epoch occupies no worker and triggers neither a read of the log nor a call to peers."""
    node, state = world.nodes[1], world.state
    for epoch in (state.epoch + AHEAD_MAX + 1, 2**62):
        far = replace(state, epoch=epoch)
        assert read_of(node, far).refused == BEHIND
        assert write_of(node, far, KEY, RegisterCell(2, b"far"), epoch) == BEHIND
        rows = ReadRowsRequest(state.cluster_id, node.id, epoch, "", "ks.t", "t", b"k", (), False, False)
        assert unpack(ReadRowsReply, call(node, "ReadRows", rows)).refused
    assert (node.hurries[1], node.named) == (0, [])


def test_the_number_of_waiting_requests_is_bounded(world: DataWorld) -> None:
    node, near = world.nodes[1], replace(world.state, epoch=world.state.epoch + 1)
    for _ in range(WAITING_MAX):
        assert node.server._waiting.acquire(blocking=False)
    assert read_of(node, near).refused == BEHIND
    assert node.hurries == [0, 0], "it does not wait"
    assert read_of(node, world.state).refused == "", "other requests get answers"
    node.server._waiting.release()
    assert read_of(node, near).refused == BEHIND
    assert node.hurries == [1, 0]
    assert node.server._waiting.acquire(blocking=False), "it has released its slot"


def test_a_plan_of_another_history_is_refused_once_the_log_shows_it(world: DataWorld) -> None:
    node = world.nodes[1]
    other = invented(world.state, Noop())
    world.submit(Noop())
    assert other.epoch == world.state.epoch
    refused = ReadReply(node.id, world.state.epoch, OTHER_HISTORY, state_id=world.state.state_id)
    assert read_of(node, other) == refused
    assert write_of(node, other, KEY, RegisterCell(9, b"x")) == OTHER_HISTORY
    stream = (other.epoch, other.state_id, "n2", "join-1", "simple:1", ((0, 1),))
    assert page_of(node, "Stream", StreamRequest(other.cluster_id, node.id, *stream, None)).refused == OTHER_HISTORY
    assert page_of(node, "StreamRows", RowsRequest(other.cluster_id, node.id, *stream, (), None)).refused == (
        OTHER_HISTORY
    )
    assert read_of(node, world.state).cell == RegisterCell(1, b"acknowledged")


def test_a_client_of_another_log_is_rejected_with_a_reason(world: DataWorld) -> None:
    records, end = world.log.read(0, 0.0, 1_000)
    assert end == len(records)
    other = MemoryLog(world.log.name)
    other.append([record.data for record in records])
    world.submit(Noop())
    with LogReplica(other) as replica:
        replica.read_barrier()
        DirectAuthor(other, replica, "elsewhere").submit(Noop())
        assert replica.state.epoch == world.state.epoch
        with Coordinator(replica, "dc1", world.find) as coordinator:
            for ask in (
                lambda: coordinator.read("ks", NAME, timeout_s=0.5),
                lambda: coordinator.write("ks", NAME, b"lost", timestamp=9, timeout_s=0.5),
            ):
                with pytest.raises(RequestTimedOut, match="n1 other_history"):
                    ask()
    assert world.coordinator.read("ks", NAME).cell == RegisterCell(1, b"acknowledged")


def test_an_answer_of_another_history_is_discarded(world: DataWorld) -> None:
    node = world.nodes[1]
    other = invented(world.state, Noop())
    answer = Answer(node.id, other.epoch, state_id=other.state_id)
    made = plans.plan(world.state, ClientRequest("ks", KEY.token, Access.READ, Level.QUORUM, ""))
    assert isinstance(made, RequestPlan)
    assert made.state_id == world.state.state_id
    assert plans.count(made, [answer], world.state) == AwaitedAnswers((), other.epoch)
    assert is_of_this_log(answer, world.state), "the histories cannot be compared yet"
    world.submit(Noop())
    assert not is_of_this_log(answer, world.state)
    assert is_of_this_log(Answer(node.id, world.state.epoch, state_id=world.state.state_id), world.state)
    assert isinstance(plans.count(made, [Answer(node.id, made.epoch)], world.state), Satisfied)


def test_registers_are_never_served_under_another_log(tmp_path: Path, world: DataWorld) -> None:
    common = world.state
    kept, lost = invented(common, Noop(), Noop()), invented(common, DropKeyspace("ks"), Noop())
    node = next(iter(common.nodes))
    host = RegisterHost(node, tmp_path / "alone")
    host.adopt(common)
    host.answered(WriteRequest("", host.node, common.epoch, "", KEY, RegisterCell(1, b"v")))
    host.adopt(lost)
    assert not host.value.durable.cells
    with pytest.raises(NodeFailed, match="restore the log, or replace this node"):
        host.adopt(invented(kept, Noop()))
    assert host.value.durable.epoch == lost.epoch
    host.close()
    again = RegisterHost(node, tmp_path / "alone")
    with pytest.raises(NodeFailed, match=lost.state_id):
        again.adopt(kept)
    again.adopt(invented(lost, Noop()))
    assert again.value.durable.epoch == lost.epoch + 1
    again.close()


def test_the_history_answers_within_its_retention(world: DataWorld) -> None:
    state = world.state
    assert state_id_at(state, state.epoch) == state.state_id
    assert state_id_at(state, state.epoch + 1) == state_id_at(state, 0) == ""
    assert contradicts(state, state.epoch, invented(state, Noop()).state_id)
    assert not contradicts(state, state.epoch, state.state_id)
    assert not contradicts(state, state.epoch + 1, "unknown")
    assert not contradicts(state, state.epoch, "")


# --------------------------------------------------------------------------------------------------- request validation


def test_a_wrong_token_is_rejected_and_breaks_no_stream(world: DataWorld) -> None:
    one = world.nodes[1]
    bad = Key("ks", 12_345, b"whatever")
    assert write_of(one, world.state, bad, RegisterCell(1, b"v")) == BAD_TOKEN
    assert read_of(one, world.state, bad).refused == BAD_TOKEN
    two = world.begin(2)
    world.drive(world.ask_join(2, 2**62), "finished")
    assert two.tries.failed_tries() == ()
    assert world.coordinator.read("ks", NAME).cell == RegisterCell(1, b"acknowledged")


def test_a_request_with_invalid_sizes_or_signs_is_rejected(world: DataWorld) -> None:
    node, state = world.nodes[1], world.state
    long = key_of("ks", b"k" * (KEY_BYTES_MAX + 1))
    assert read_of(node, state, long).refused == TOO_LARGE
    assert write_of(node, state, long, RegisterCell(1, b"v")) == TOO_LARGE
    assert write_of(node, state, KEY, RegisterCell(1, b"v" * (VALUE_BYTES_MAX + 1))) == TOO_LARGE
    assert write_of(node, state, KEY, RegisterCell(1, b"v", deleted=True)) == BAD_CELL
    assert write_of(node, state, KEY, RegisterCell(1, b"v"), epoch=-1) == BAD_EPOCH
    assert read_of(node, state, key_of("none", b"k")).refused == "not_member"


@pytest.mark.parametrize("ranges", [(), ((5, 6), (1, 2)), ((1, 2), (1, 2))])
def test_ranges_of_a_stream_ascend(world: DataWorld, ranges: tuple[tuple[int, int], ...]) -> None:
    node, state = world.nodes[1], world.state
    head = (state.cluster_id, node.id, state.epoch, state.state_id, "n2", "join-1", "simple:1", ranges)
    assert page_of(node, "Stream", StreamRequest(*head, None)).refused == BAD_STREAM
    assert page_of(node, "StreamRows", RowsRequest(*head, (), None)).refused == BAD_STREAM


@pytest.mark.parametrize("positions", [((0, 5), (0, 6)), ((1, 5), (0, 6)), ((0, -1),)])
def test_positions_of_a_stream_ascend(world: DataWorld, positions: tuple[tuple[int, int], ...]) -> None:
    node, state = world.nodes[1], world.state
    head = (state.cluster_id, node.id, state.epoch, state.state_id, "n2", "join-1", "simple:1", ((1, 2),))
    assert page_of(node, "StreamRows", RowsRequest(*head, positions, None)).refused == BAD_STREAM
    bad_mark = StreamRequest(*head, Key("ks", 1, b"not of this token"))
    assert page_of(node, "Stream", bad_mark).refused == BAD_TOKEN


# Log pages of peers stay within a memory bound while the broker is away.


def test_unfolded_peer_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker is away, a page may exceed the bound once; then the node asks no peer."""
    monkeypatch.setattr(bounds, "SHOWN_MAX", 5)
    _, history = noops(60)
    own = history.states[-61]
    driver = Driver(own, [own.epoch + 99] * 20, [None] * 20)
    driver.sides = {node: history.side(node, page_bytes=1) for node in (TWO, THREE)}
    claims = PeerLogClaims(fold_on)
    done = driver.run(claims, history.at)
    assert claims.is_full
    assert claims.newest_epoch == own.epoch + 5
    assert sum(one in (TWO, THREE) for one in done) == 5
