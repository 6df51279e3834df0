"""The proxy applies exactly the configured faults; otherwise a test would pass without its fault."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ringlog.stack.processes import HOST, choose

from .proxy import Proxy, Shape
from .waiting import until

pytestmark = pytest.mark.system
LATENCY_S = 0.15


class Echo:
    """A server that returns all bytes to the client."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server((HOST, port))
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(4096):
                    self.received += data
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def link() -> Iterator[tuple[Proxy, Echo]]:
    inner, outer = choose(2)
    with closing(Echo(inner)) as echo, closing(Proxy(outer, inner).start()) as proxy:
        yield proxy, echo


def connect(proxy: Proxy, timeout_s: float = 30.0) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=timeout_s)


def answer(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(4096)


def talk(connection: socket.socket) -> None:
    """Send and receive; the first call after a reset may still succeed."""
    for _ in range(2):
        answer(connection, b"c")


def test_a_link_to_a_socket_resets_and_refuses(tmp_path: Path) -> None:
    (outer,) = choose(1)
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening, closing(Proxy(outer, path).start()) as proxy:
        listening.bind(str(path))
        listening.listen()
        with connect(proxy) as client, listening.accept()[0] as server:
            client.sendall(b"there")
            assert server.recv(16) == b"there"
            server.sendall(b"and back")
            assert client.recv(16) == b"and back"
            assert proxy.reset() == 1
            assert server.recv(16) == b""


def test_a_clean_link_forwards_bytes_unchanged(link: tuple[Proxy, Echo]) -> None:
    proxy, _ = link
    sent = bytes(range(256)) * 1_000
    with connect(proxy) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        found = b""
        while len(found) < len(sent):
            found += connection.recv(65_536)
    assert found == sent
    # The proxy counts forwarded bytes.
    until("the proxy", "all bytes to be counted", lambda: proxy.passed == 2 * len(sent))


def test_latency_applies_both_ways_and_to_open_connections(link: tuple[Proxy, Echo]) -> None:
    proxy, _ = link
    with connect(proxy) as connection:
        assert answer(connection, b"quick") == b"quick"
        proxy.shape(Shape(latency_s=LATENCY_S))
        began = time.monotonic()
        assert answer(connection, b"slow") == b"slow"
        assert time.monotonic() - began >= 2 * LATENCY_S


@pytest.mark.parametrize("up", [True, False])
def test_a_cut_direction_is_silent_until_its_repair(link: tuple[Proxy, Echo], up: bool) -> None:
    proxy, echo = link
    with connect(proxy) as connection:
        assert answer(connection, b"1") == b"1"
        connection.settimeout(0.3)
        proxy.shape(Shape(cut_up=up, cut_down=not up))
        with pytest.raises(TimeoutError):
            answer(connection, b"2")
        if up:
            assert echo.received == b"1"
        else:
            until("the test", "the server to receive the bytes", lambda: echo.received == b"12")
        connection.settimeout(30)
        proxy.heal()
        assert connection.recv(16) == b"2"


def test_a_reset_ends_every_connection_with_an_error_and_new_ones_work(link: tuple[Proxy, Echo]) -> None:
    proxy, _ = link
    with connect(proxy) as first, connect(proxy) as second:
        assert answer(first, b"a") + answer(second, b"b") == b"ab"
        assert proxy.reset() == 2
        for connection in (first, second):
            with pytest.raises(ConnectionError):
                talk(connection)
    with connect(proxy) as third:
        assert answer(third, b"d") == b"d"


def test_refused_connections_and_a_stopped_server(link: tuple[Proxy, Echo]) -> None:
    proxy, echo = link

    def refused() -> bool:
        try:
            with connect(proxy) as connection:
                return answer(connection, b"x") == b""
        except ConnectionError:
            return True

    proxy.shape(Shape(refuses=True))
    until("the test", "the port to be closed", refused)
    proxy.heal()
    assert not refused()
    echo.close()
    until("the test", "the proxy to detect the lost server", refused)
