"""The HTTP routes of a node, over the ASGI transport."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.http_server import AuthMiddleware, HttpServer, make_api
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.monitoring.health import Health
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.monitoring.open_connections import OpenConnections
from ringlog.runtime.monitoring.scrape import is_own
from ringlog.runtime.monitoring.scrape import name_of as name_of_host
from ringlog.runtime.trust import PLAIN_TRUST, Trust
from ringlog.wire.records import Cell, encode_mutation
from tests.ending import stopping
from tests.node.data_world import until
from tests.node.world import APPENDED, TABLE, cluster, name_of, replicas, write

STATE = cluster((-(2**62),), (0,), (2**62,))


class CatchingUp:
    """A node that is not ready yet."""

    labels: Mapping[str, str] = {"node": "n1"}

    def health(self) -> tuple[Health, int]:
        return Health("catching_up", False, "reads", 3, 4), APPENDED

    def samples(self) -> Iterator[Sample]:
        yield Sample("ringlog_node_ready", 0)


def asked(
    row_replica: RowReplica,
    method: str,
    path: str,
    body: Any = None,
    host: str = "127.0.0.1:7301",
    trust: Trust = PLAIN_TRUST,
    token: str = "",
    content: bytes | None = None,
) -> httpx.Response:
    async def ask() -> httpx.Response:
        app = make_api(row_replica, "n1", ManualClock(APPENDED), watched=CatchingUp(), trust=lambda: trust)
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers) as client:
            if content is not None:
                client.headers["content-type"] = "application/octet-stream"
            return await client.request(method, path, json=body, content=content)

    return asyncio.run(ask())


@pytest.fixture
def row_replica() -> RowReplica:
    made = RowReplica(name_of(1))
    made.adopt(STATE)
    made.positions.update({0: 4})
    made.caught_up = True
    for number in range(40):
        mutation = write(f"c{number}", 1, cells=(Cell("note", b"n"),))
        made.admit(mutation, APPENDED, encode_mutation(mutation))
    return made


def path_of(key: str) -> str:
    return f"/v1/tables/{TABLE}/rows/{key.encode().hex()}"


def own_key(mine: bool) -> str:
    return next(f"c{n}" for n in range(40) if (name_of(1) in replicas(STATE, f"c{n}")) is mine)


def test_status(row_replica: RowReplica) -> None:
    assert asked(row_replica, "GET", "/v1/status").json() == {
        "node": name_of(1),
        "cluster_id": STATE.cluster_id,
        "name": "n1",
        "epoch": STATE.epoch,
        "ready": True,
        "rows": len(row_replica.store),
        "positions": {"0": 4},
    }


def test_a_monitor_reads_metrics_and_health(row_replica: RowReplica) -> None:
    health = asked(row_replica, "GET", "/health")
    assert (health.status_code, health.json()["state"]) == (503, "catching_up")
    metrics = asked(row_replica, "GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'ringlog_node_ready{node="n1"} 0.0' in metrics.text.splitlines()


def test_a_client_without_a_token_reads_only_readiness(row_replica: RowReplica) -> None:
    token, guarded = "a-token-of-many-letters", Trust(tokens=("the-one-before-it-was", "a-token-of-many-letters"))
    for path in ("/v1/status", "/metrics", path_of(own_key(mine=True)), "/openapi.json", "/nowhere"):
        answer = asked(row_replica, "GET", path, trust=guarded)
        assert (answer.status_code, list(answer.json()), answer.headers["www-authenticate"]) == (
            401, ["detail"], "Bearer",
        )  # fmt: skip
        assert asked(row_replica, "GET", path, trust=guarded, token=token).status_code != 401
    health = asked(row_replica, "GET", "/health", trust=guarded)
    assert (health.status_code, health.json()) == (503, {"state": "catching_up", "ready": False})
    assert asked(row_replica, "GET", "/health", trust=guarded, token=token).json()["why"] == "reads"
    assert asked(row_replica, "GET", "/health", host="evil.example", trust=guarded).status_code == 403


def test_a_token_for_metrics_reads_no_status_and_no_rows(row_replica: RowReplica) -> None:
    token = "a-token-of-a-monitor"
    guarded = Trust(tokens=("a-token-of-many-letters",), metrics_tokens=(token,))
    assert asked(row_replica, "GET", "/metrics", trust=guarded, token=token).status_code == 200
    assert asked(row_replica, "GET", "/health", trust=guarded, token=token).json()["why"] == "reads"
    for path in ("/v1/status", path_of(own_key(mine=True)), "/openapi.json", "/metrics/", "/health/x", "//metrics"):
        answer = asked(row_replica, "GET", path, trust=guarded, token=token)
        assert (answer.status_code, answer.json()) == (
            403, {"detail": "this token is valid for /metrics and /health only"},
        )  # fmt: skip
    assert asked(row_replica, "GET", "/metrics", trust=guarded, token="a-token-of-a-stranger").status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:7301", "LocalHost.:7301", "[::1]:7301", "[::1]"])
def test_a_node_answers_under_its_own_names(row_replica: RowReplica, host: str) -> None:
    assert asked(row_replica, "GET", "/v1/status", host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:7301", "localhost.evil.example", "[::2]", "n1"]
)
def test_a_request_with_a_foreign_host_name_reads_nothing(row_replica: RowReplica, host: str) -> None:
    for path in ("/v1/status", "/metrics", "/health", path_of(own_key(mine=True)), "/openapi.json", "/nowhere"):
        answer = asked(row_replica, "GET", path, host=host)
        assert (answer.status_code, list(answer.json())) == (403, ["detail"])


def test_host_names_are_separated_from_ports() -> None:
    assert [name_of_host(host) for host in ("a:1", "a", "[::1]:2", "[::1]", "::1", "A.:80", "a:b", "")] == [
        "a", "a", "[::1]", "[::1]", "::1", "a", "a:b", "",
    ]  # fmt: skip


def test_a_server_on_every_address_was_opened_by_its_operator() -> None:
    assert [is_own(["watch.example:9400"], host) for host in ("0.0.0.0", "::", "127.0.0.1", "watch.example")] == [
        True, True, False, True,
    ]  # fmt: skip


def test_a_request_without_a_name_or_with_two_is_refused(row_replica: RowReplica) -> None:
    served = AuthMiddleware(make_api(row_replica, "n1", ManualClock(APPENDED)), ("10.1.2.3",))

    async def status(*hosts: bytes) -> int:
        said: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        scope = {
            "type": "http", "method": "GET", "path": "/v1/status", "raw_path": b"/v1/status", "query_string": b"",
            "headers": [(b"host", host) for host in hosts], "http_version": "1.1", "scheme": "http", "root_path": "",
        }  # fmt: skip
        await served(scope, receive, send)
        return int(said[0]["status"])

    assert asyncio.run(status()) == 403
    assert asyncio.run(status(b"localhost", b"evil.example")) == 403
    assert asyncio.run(status(b"localhost")) == 200


def test_rows_are_merged(row_replica: RowReplica) -> None:
    key = own_key(True)
    update = write(key, 1, APPENDED + 5, operation="UPDATE", cells=(Cell("note", b"later"),))
    assert row_replica.admit(update, APPENDED, encode_mutation(update)) == "kept"
    assert asked(row_replica, "GET", path_of(key)).json() == {
        "epoch": STATE.epoch,
        "versions": 2,
        "static": {},
        "rows": [
            {
                "clustering_key": [(1).to_bytes(8, "big").hex()],
                "inserted": APPENDED,
                "cells": {"note": {"value": b"later".hex(), "timestamp": APPENDED + 5}},
            }
        ],
    }
    delete = write(key, 1, APPENDED + 6, operation="PARTITION_DELETE", clustering_key=(), cells=())
    row_replica.admit(delete, APPENDED, encode_mutation(delete))
    assert asked(row_replica, "GET", path_of(key)).json()["rows"] == []


def test_a_key_that_fits_no_url_is_posted(row_replica: RowReplica) -> None:
    long = next(key for n in range(40) if name_of(1) in replicas(STATE, key := "k" * 40_000 + str(n)))
    elsewhere = next(key for n in range(40) if name_of(1) not in replicas(STATE, key := f"c{n}"))
    for key in (long, ""):
        mutation = write(key, 1, cells=(Cell("note", b"n"),))
        row_replica.admit(mutation, APPENDED, encode_mutation(mutation))
    answers = {
        key: asked(row_replica, "POST", f"/v1/tables/{TABLE}/rows", content=key.encode()) for key in (long, elsewhere)
    }
    assert len(answers[long].json()["rows"]) == 1
    assert answers[elsewhere].status_code == 421
    empty = asked(row_replica, "POST", f"/v1/tables/{TABLE}/rows", content=b"")
    assert empty.status_code == (200 if name_of(1) in replicas(STATE, "") else 421)


def test_a_node_that_may_not_answer_returns_an_error(row_replica: RowReplica) -> None:
    assert asked(row_replica, "GET", path_of(own_key(False))).status_code == 421
    assert asked(row_replica, "GET", "/v1/tables/no.table/rows/00").status_code == 421
    assert asked(row_replica, "GET", f"/v1/tables/{TABLE}/rows/xyz").status_code == 422
    row_replica.caught_up = False
    answer = asked(row_replica, "GET", path_of(own_key(True)))
    assert answer.status_code == 503
    assert "its restart" in answer.json()["detail"]


def test_an_answer_waits_for_no_acknowledgement_of_its_headers(row_replica: RowReplica) -> None:
    """The server sends headers and body as two writes. With Nagle's algorithm the second write waits about 40 ms for
    the acknowledgement of the first one.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        HttpServer(make_api(row_replica, "n1", ManualClock(APPENDED)), listening)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@contextmanager
def serving(api: FastAPI, connections: OpenConnections | None = None) -> Iterator[tuple[tuple[str, int], ExitStack]]:
    """Start a server of ``api`` and yield its address and a stack for the connections of a test."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = HttpServer(api, listening, connections=connections or OpenConnections(8))
        stack.enter_context(stopping(server)).start()
        yield listening.getsockname(), stack


def test_idle_connections_do_not_block_other_clients(row_replica: RowReplica) -> None:
    connections = OpenConnections(8)
    with serving(make_api(row_replica, "n1", ManualClock(APPENDED)), connections) as (address, stack):
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        url = "http://{}:{}/v1/status".format(*address)
        assert httpx.get(url, trust_env=False).json()["name"] == "n1"
        until(lambda: silent[0].recv(1) == b"", "the oldest connection to be closed")
        assert len(connections) <= 8


def test_a_slow_body_does_not_block_other_clients(row_replica: RowReplica) -> None:
    connections = OpenConnections(8)
    head = f"POST /v1/tables/{TABLE}/rows HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with serving(make_api(row_replica, "n1", ManualClock(APPENDED)), connections) as (address, stack):
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(8)]
        for each in slow:
            each.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode())
            assert b"100 Continue" in each.recv(100), "the server waits for the body"
        url = "http://{}:{}/v1/status".format(*address)
        assert httpx.get(url, trust_env=False).json()["name"] == "n1"
        large = httpx.post(url.replace("status", f"tables/{TABLE}/rows"), content=bytes(2 * 1024 * 1024))
        assert large.status_code == 413


def test_a_header_does_not_change_the_client_of_a_connection() -> None:
    api, seen = FastAPI(), list[str]()

    @api.get("/")
    def client(request: Request) -> None:
        assert request.client is not None
        seen.append(request.client.host)

    with serving(api) as (address, _):
        httpx.get("http://{}:{}/".format(*address), headers={"X-Forwarded-For": "192.0.2.1"}, trust_env=False)
    assert seen == ["127.0.0.1"]
