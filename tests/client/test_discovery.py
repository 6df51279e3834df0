"""Discovery: processes find each other over gRPC with a stored view, and one of them creates the cluster."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from ringlog.client.creation import discovery as discovering
from ringlog.client.creation.creation import ClusterCreation, found
from ringlog.client.creation.discovery import DISCOVER, FILE, Discovery, waits_for
from ringlog.client.errors import DiscoveryImpossible
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.discovery import initial_view, must_create
from ringlog.runtime.draw import SeededDraw
from ringlog.runtime.trust import PLAIN_TRUST, Trust
from ringlog.wire.data import DiscoveryView, pack, unpack
from tests.certificates import needs_openssl, trusts

LONG_S = 60.0


class Group:
    """Processes of one machine that listen on sockets in files, next to a log in memory."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.log = MemoryLog()
        self.foundings: list[ClusterCreation] = []
        self.reported: list[str] = []
        self.stopping = threading.Event()
        self.threads = stack.enter_context(ThreadPoolExecutor(8))
        stack.callback(self.stopping.set)

    def address(self, name: str) -> str:
        return f"unix:{self.folder / name}.sock"

    def open(self, name: str, seeds: str = "", cluster: str = "c", trust: Trust = PLAIN_TRUST) -> Discovery:
        """Start a process that answers. The lowest letter has the lowest id."""
        draw = SeededDraw(b"") if name != "a" else Zeros()
        place = self.address(name), map(self.address, seeds)
        made = Discovery(self.folder / name, cluster, *place, draw, trust=lambda: trust)
        return self.stack.enter_context(made)

    def settling(self, one: Discovery, found: Callable[[str], object] | None = None) -> Future[tuple[str, str]]:
        return self.threads.submit(one.settle, self.existing, found or self.found, self.stopping, self.reported.append)

    def existing(self, name: str) -> str:
        assert name == "c"
        with LogReplica(self.log) as replica:
            return replica.read_barrier(LONG_S).cluster_id

    def found(self, name: str) -> None:
        with LogReplica(self.log) as replica:
            self.foundings.append(found(self.log, replica, name))


class Zeros:
    def take(self, count: int) -> bytes:
        return bytes(count)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(discovering, "ROUND_S", 0.05)
    with ExitStack() as stack:
        yield Group(tmp_path, stack)


def settled(*waits: Future[tuple[str, str]]) -> str:
    ((name, cluster_id),) = {one.result(LONG_S) for one in waits}
    assert name == "c"
    return cluster_id


def test_the_lowest_id_of_transitively_known_processes_creates_the_cluster(group: Group) -> None:
    waits = [group.settling(group.open(name, seeds, cluster)) for name, seeds, cluster in MEMBERS]
    cluster_id = settled(*waits)
    (founding,) = group.foundings
    assert (founding.here, founding.cluster_id) == (True, cluster_id)
    late = group.open("e", "d", "")
    assert settled(group.settling(late)) == cluster_id
    assert len(group.foundings) == 1
    assert late.view.cluster_id == cluster_id


MEMBERS = (("c", "b", ""), ("b", "a", ""), ("d", "c", "c"), ("a", "b", ""))
"""Name, seeds, and the process that shows it the cluster. a creates the cluster and learns its name
from d.
"""


def test_only_the_chosen_process_creates_the_cluster_after_its_crash(group: Group) -> None:
    one, other = group.open("a", "b"), group.open("b", "a")
    crashed = group.settling(one, lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        crashed.result(LONG_S)
    waiting = group.settling(other)
    with grpc.insecure_channel(group.address("b")) as channel:
        said = unpack(DiscoveryView, channel.unary_unary(DISCOVER)(pack(one.view), timeout=LONG_S))
    assert (said.founder, must_create(said)) == (one.view.id, False)
    one.__exit__()
    assert not waiting.done()
    again = group.open("a", "")
    assert again.view == one.view, "it continues from its stored view, even with other seeds"
    assert settled(group.settling(again), waiting)
    assert len(group.foundings) == 1


def test_a_cluster_of_the_log_ends_all_waiting(group: Group) -> None:
    waiting = group.settling(group.open("b", "a"))
    group.found("c")
    assert settled(waiting) == group.existing("c")


def test_a_cluster_shown_only_by_a_peer_is_not_accepted(group: Group) -> None:
    liar = group.open("a", "b")
    liar._save(DiscoveryView("c", group.address("a"), "0", liar.view.known, cluster_id="of another broker"))
    one = group.open("b", "a")
    waiting = group.settling(one)
    while not one.view.cluster_id:
        one._wakeup.wait(0.01)
    assert not waiting.done()
    assert "this broker does not have its log" in waits_for(one.view)
    group.stopping.set()
    assert waiting.result(LONG_S) == ("", "")
    assert group.foundings == []


def test_a_process_of_another_cluster_is_refused(group: Group) -> None:
    group.open("a", "b")
    with grpc.insecure_channel(group.address("a")) as channel:
        meet = channel.unary_unary(DISCOVER)
        for data, code in (
            (pack(initial_view("other", "x", "1", [group.address("a")])), grpc.StatusCode.FAILED_PRECONDITION),
            (b"no view", grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                meet(data, timeout=LONG_S)
            assert refused.value.code() is code


def test_discovery_reports_its_missing_peers(group: Group) -> None:
    unnamed = initial_view("", "a", "1", ["b"])
    assert "--cluster" in waits_for(unnamed)
    many = initial_view("c", "a", "1", map(str, range(12)))
    assert "and 2 more" in waits_for(many)
    waiting = group.settling(group.open("b", "a"))
    while not group.reported:
        assert not waiting.done()
    assert group.address("a") in group.reported[0]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda _: b""])
def test_a_damaged_file_is_refused(group: Group, damage: Callable[[bytes], bytes]) -> None:
    group.open("b", "a").__exit__()
    path = group.folder / "b" / FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DiscoveryImpossible, match="discovery"):
        group.open("b")


def test_a_file_of_another_process_and_a_port_in_use_are_refused(group: Group) -> None:
    group.open("b", "a").__exit__()
    with pytest.raises(DiscoveryImpossible, match="which searches for c"):
        Discovery(group.folder / "b", "c", group.address("x"))
    with pytest.raises(DiscoveryImpossible, match="which searches for c"):
        Discovery(group.folder / "b", "other", group.address("b"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DiscoveryImpossible, match=address):
            Discovery(group.folder / "y", "c", address)


@needs_openssl
def test_only_nodes_of_one_authority_find_each_other(group: Group) -> None:
    ours = trusts(group.folder / "ours", {"a": "", "b": ""}, "ops")
    stranger = trusts(group.folder / "theirs", {"x": ""})["x"]
    one, other = (group.open(name, seeds, trust=ours[name]) for name, seeds in (("a", "b"), ("b", "a")))
    for name, trust in (("o", ours["ops"]), ("x", stranger), ("y", PLAIN_TRUST)):
        asking = group.open(name, "a", trust=trust)
        asking._ask(channels := {})
        for channel in channels.values():
            channel.close()
        assert not asking.view.met, name
    settled(group.settling(one), group.settling(other))
    assert one.view.known == tuple(map(group.address, "ab"))
