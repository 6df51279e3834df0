"""The status server of a process without an HTTP server: its answers, its clients, and its independence of slow
clients.
"""

from __future__ import annotations

import errno
import http.client
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringlog.runtime.monitoring import server as watch_server
from ringlog.runtime.monitoring.health import Health
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.monitoring.server import AT_ONCE_MAX, WatchServer
from tests.certificates import needs_openssl, trusts
from tests.ending import stopping
from tests.node.data_world import until

HOST = "127.0.0.1"


class Process:
    """A process that is healthy until it breaks."""

    labels: Mapping[str, str] = {"role": "keeper"}
    is_broken = False

    def health(self) -> tuple[Health, int]:
        assert not self.is_broken
        return Health("stands_by", True), 0

    def samples(self) -> Iterator[Sample]:
        yield Sample("ringlog_agent_ready", 1)


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def port(process: Process, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the port of the server; the port is in use at first."""
    taken = iter((True, True, False))

    class Server(watch_server.MetricsServer):
        def __init__(self, *place: Any) -> None:
            if next(taken):
                raise OSError(errno.EADDRINUSE, "in use")
            super().__init__(*place)

    monkeypatch.setattr(watch_server, "MetricsServer", Server)
    with stopping(WatchServer(process, HOST, 0, again_s=0.01)) as server:
        server.start()
        until(lambda: server.port != 0, "the server to have its port")
        yield server.port


def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_metrics_and_health_are_served(port: int) -> None:
    status, kind, text = get(port, "/metrics?name=x")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'ringlog_agent_ready{role="keeper"} 1.0' in text.splitlines()
    assert get(port, "/health")[:2] == (200, "application/json")
    assert get(port, "/")[0] == 404


def test_a_foreign_host_name_gets_nothing(port: int) -> None:
    assert get(port, "/metrics", Host="evil.example")[0] == 403
    assert get(port, "/metrics", Host="localhost")[0] == 200


def test_a_defect_gives_an_answer_and_does_not_stop_the_server(port: int, process: Process) -> None:
    process.is_broken = True
    assert get(port, "/health")[0] == 500
    process.is_broken = False
    assert get(port, "/health")[0] == 200


def test_silent_clients_do_not_block_others(port: int) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HOST, port))) for _ in range(3 * AT_ONCE_MAX)]
        for one in silent[::2]:
            one.send(b"G")
        assert get(port, "/health")[0] == 200
        until(lambda: silent[0].recv(1) == b"", "the oldest connection to be closed")


@needs_openssl
def test_a_scrape_is_encrypted_and_needs_a_token(process: Process, tmp_path: Path) -> None:
    trust = trusts(tmp_path / "made", {}, "agents")["agents"]
    with stopping(WatchServer(process, HOST, 0, trust=lambda: trust)) as server:
        server.start()
        until(lambda: server.port != 0, "the server to have its port")
        with socket.create_connection((HOST, server.port)), httpx.Client(verify=False, trust_env=False) as http:
            metrics, health = (f"https://{HOST}:{server.port}{path}" for path in ("/metrics", "/health"))
            assert (http.get(metrics).status_code, http.get(metrics).headers["www-authenticate"]) == (401, "Bearer")
            assert http.get(health).json() == {"state": "stands_by", "ready": True}
            assert http.get(metrics, headers=trust.headers()).status_code == 200
            with pytest.raises(httpx.HTTPError):
                http.get(metrics.replace("https", "http"))


def test_a_server_that_never_gets_its_port_stops(process: Process) -> None:
    with socket.create_server((HOST, 0)) as held:
        server = WatchServer(process, HOST, held.getsockname()[1])
        server.start()
        server.stop()
        assert server.port == held.getsockname()[1]
