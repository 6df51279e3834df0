"""Bounds on open connections: the order of closed connections, on socket pairs and a manual clock."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ringlog.runtime.monitoring import open_connections
from ringlog.runtime.monitoring.open_connections import FILES_RESERVED, BoundedListener, OpenConnections, grpc_open_max
from tests.node.data_world import until

HOST = "127.0.0.1"


class Peers:
    """Connections from (host, number), with the server's end of each."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.now = 0.0
        self.open = OpenConnections(4, 5.0, lambda: self.now)
        self._ends: dict[tuple[str, int], socket.socket] = {}

    def connect(self, host: str, number: int) -> tuple[str, int]:
        ours, theirs = (self._stack.enter_context(end) for end in socket.socketpair())
        theirs.setblocking(False)
        self._ends[host, number] = theirs
        self.open.opened(ours, (host, number))
        return host, number

    def closed(self) -> set[tuple[str, int]]:
        """Return the connections that the server has closed."""
        return {peer for peer, end in self._ends.items() if self._is_shut(end)}

    def _is_shut(self, end: socket.socket) -> bool:
        try:
            return end.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def peers() -> Iterator[Peers]:
    with ExitStack() as stack:
        yield Peers(stack)


def test_a_closed_connection_does_not_uncount_the_next_one_from_its_port() -> None:
    connections, peer = OpenConnections(4, 5.0, lambda: 0.0), (HOST, 1)
    ends = [*socket.socketpair(), *socket.socketpair()]
    first, second = ends[0], ends[2]
    connections.opened(first, peer)
    assert connections.evict()
    connections.opened(second, peer)
    connections.closed(first, peer)
    assert len(connections) == 1
    connections.closed(second, peer)
    assert len(connections) == 0
    for end in ends:
        end.close()


def test_an_idle_connection_is_closed_after_its_time_limit(peers: Peers) -> None:
    first = peers.connect("a", 1)
    peers.now = 4.0
    second, busy = peers.connect("a", 2), peers.connect("a", 3)
    peers.open.busy(busy, True)
    peers.now = 5.0
    peers.open.close_overdue()
    assert peers.closed() == {first}
    peers.now = 60.0
    peers.open.close_overdue()
    assert peers.closed() == {first, second}, "a request in progress may take any time"
    peers.open.busy(busy, False)
    peers.open.close_overdue()
    assert (peers.closed(), len(peers.open)) == ({first, second}, 1), "the next request has its own time limit"
    peers.now = 65.0
    peers.open.close_overdue()
    assert (peers.closed(), len(peers.open)) == ({first, second, busy}, 0)


def test_the_address_with_the_most_connections_is_evicted(peers: Peers) -> None:
    honest = peers.connect("a", 1)
    for number in range(50):
        peers.now += 0.01
        peers.connect("b", number)
    assert len(peers.open) == 4
    assert honest not in peers.closed()
    assert {number for _, number in peers.closed()} == set(range(47)), "the oldest first"


def test_a_request_in_progress_is_never_evicted(peers: Peers) -> None:
    for number in range(4):
        peers.open.busy(peers.connect("a", number), True)
    assert not peers.open.evict()
    late = peers.connect("b", 1)
    assert peers.closed() == {late}


@pytest.fixture
def listener() -> Iterator[BoundedListener]:
    with socket.create_server((HOST, 0)) as listening, BoundedListener.of(listening, OpenConnections()) as made:
        yield made


def test_an_accepted_connection_counts_until_it_is_closed(listener: BoundedListener) -> None:
    with socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        assert len(listener.connections) == 1
        accepted.close()
        assert len(listener.connections) == 0


def test_without_descriptors_idle_connections_close(listener: BoundedListener, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: socket.socket) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "too many open files")

    with socket.create_connection(listener.getsockname()) as idle:
        accepted, _ = listener.accept()
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert idle.recv(1) == b""
        accepted.close()
        with pytest.raises(OSError, match="too many open files"):
            listener.accept()


@pytest.mark.parametrize(("soft", "expected"), [(1024, 512), (64, 16), (resource.RLIM_INFINITY, 16_384)])
def test_grpc_reserves_descriptors_for_disk_and_broker(
    monkeypatch: pytest.MonkeyPatch, soft: int, expected: int
) -> None:
    monkeypatch.setattr(open_connections.resource, "getrlimit", lambda _: (soft, soft))
    assert grpc_open_max() == expected
    assert FILES_RESERVED >= 256


def test_a_grpc_port_closes_excess_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    import grpc

    from ringlog.client.data.peers import listening
    from ringlog.runtime.trust import PLAIN_TRUST

    monkeypatch.setattr(open_connections, "grpc_open_max", lambda: 16)
    server = grpc.server(None, options=(("grpc.so_reuseport", 0), *open_connections.grpc_options()))
    port = listening(server, f"{HOST}:0", lambda: PLAIN_TRUST)
    server.start()

    def refused(connection: socket.socket) -> bool:
        """Return whether the server has closed the connection; an open one receives settings at once."""
        try:
            return connection.recv(1, socket.MSG_PEEK) == b""
        except (ConnectionError, BlockingIOError) as error:
            return isinstance(error, ConnectionError)

    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(socket.create_connection((HOST, port))) for _ in range(40)]
            for each in opened:
                each.setblocking(False)
            until(lambda: sum(map(refused, opened)) == 24, "the port to close connections above its limit")
    finally:
        server.stop(0).wait()
