"""Lookup of a node's data side: a foreign or slow server at its address does no harm."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from ringlog.client.data import peers
from ringlog.client.data.peers import STATUS_BYTES_MAX, StatusPages, Unreachable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from tests.kernel.entries import applied, founded, node, uuid

ME = uuid(1, space=2)
STATE = applied(founded(), node(1))
GOOD = {"node": ME, "cluster_id": STATE.cluster_id, "data_port": 7402}

Serve = Callable[[socket.socket, threading.Event], None]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt server gets the time that a busy machine takes."""
    monkeypatch.setattr(peers, "LOOKUP_S", 60.0)


def answer(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def answer_about(**changes: object) -> bytes:
    return answer(json.dumps(GOOD | changes).encode())


@contextmanager
def listening(serve: Serve) -> Iterator[ClusterState]:
    """Return the state with node 1 registered at the address of ``serve``."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):  # The client has disconnected.
                taken, _ = server.accept()
                with taken:
                    taken.recv(65_536)
                    serve(taken, over)

        thread = threading.Thread(target=accept)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        try:
            yield replace(STATE, nodes=STATE.nodes.set(ME, replace(STATE.nodes[ME], address=address)))
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def looked_up(serve: Serve) -> str:
    with listening(serve) as state:
        return StatusPages(lambda: state)(ME)


def test_a_node_returns_the_address_of_its_data_side() -> None:
    assert looked_up(lambda taken, _: taken.sendall(answer_about())) == "127.0.0.1:7402"
    assert looked_up(lambda taken, _: taken.sendall(answer_about(cluster_id=""))) == "127.0.0.1:7402"
    with pytest.raises(Unreachable, match="does not contain node"):
        StatusPages(lambda: STATE)(uuid(9, space=2))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer_about(node=uuid(2, space=2)), "not " + ME),
        (answer_about(cluster_id=uuid(9)), "of cluster " + uuid(9)),
        (answer_about(data_port=0), "reports 0"),
        (answer_about(data_port=70_000), "reports 70000"),
        (answer_about(data_port="7402"), "reports '7402'"),
        (answer_about(data_port=True), "reports True"),
        (answer(b"[1]"), "does not report"),
        (answer(b"{}"), "does not report"),
        (answer(b"[" * 30_000), "does not report"),
        (answer(b"\xff"), "does not report"),
        (answer(b"no", b"HTTP/1.1 500 Oh"), "does not report"),
        (b"SSH-2.0-x\r\n", "does not report"),
        (answer(b" " * (STATUS_BYTES_MAX + 1)), "more than"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "does not report"),
    ],
)
def test_an_answer_of_another_node_is_discarded(said: bytes, why: str) -> None:
    with pytest.raises(Unreachable, match=why):
        looked_up(lambda taken, _: taken.sendall(said))


def dripped(head: bytes) -> Serve:
    def serve(taken: socket.socket, over: threading.Event) -> None:
        taken.sendall(head)
        while not over.wait(0.02):
            taken.sendall(b"x")

    return serve


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: ", b""])
def test_a_slowly_dripping_server_does_not_block_the_client(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LOOKUP_S", 0.3)
    with pytest.raises(Unreachable, match="did not report its status within"):
        looked_up(dripped(head))
