"""The HTTP server of a node: status, rows of a partition, metrics and health.

``AuthMiddleware`` rejects requests for other host names, and requests without a valid token
(``ringlog.runtime.monitoring.scrape``). With TLS, rows need a client's certificate in place of a token, and its
principal needs the right to the keyspace. So a stolen token reads no rows.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Annotated, Any, Final

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ringlog.client.data.row_merge import LiveCell, LivePartition, LiveRow, merged
from ringlog.kernel.authorization import authorize_rows
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.node.rows.replica import NotReady, NotServed, RowReplica
from ringlog.node.servers.data_service import DataService
from ringlog.runtime.certificates import dns_names
from ringlog.runtime.clock import Clock
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.monitoring.health import WatchedProcess
from ringlog.runtime.monitoring.open_connections import BoundedListener, OpenConnections
from ringlog.runtime.monitoring.scrape import CHALLENGE, HEALTH, METRICS, NO_TOKEN, REFUSAL, answer, is_admitted, is_own
from ringlog.runtime.trust import (
    PLAIN_TRUST,
    CertificateOfAnotherNode,
    Trust,
    current,
    node_of_names,
    principal_of_names,
    server_context,
)
from ringlog.wire.data import FOREIGN_CERTIFICATE
from ringlog.wire.records import decode_mutation

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
WATCHED: Final = (METRICS, HEALTH)
METRICS_ONLY: Final = json.dumps({"detail": "this token is valid for /metrics and /health only"}).encode()
ROWS: Final = "/v1/tables/"
ADMITTED = "ringlog.admitted"
"""The key in a request's scope that says whether it has a valid token."""
CERTIFICATE = "ringlog.certificate"
"""The key of the client's certificate, as ``ssl`` describes it."""


class AuthMiddleware:
    """Forwards admitted requests to ``app``. A wrong host name gives status 403, a missing or invalid token 401.

    ``/health`` needs no token, and neither do rows with TLS: their handler checks the certificate. A token for metrics
    gives status 403 for other paths.

    Args:
        hosts: The names that the node answers to, besides those of the loopback interface.
        trust: Returns the tokens that are valid now.
    """

    def __init__(self, app: Asgi, hosts: Sequence[str], trust: Callable[[], Trust] = lambda: PLAIN_TRUST) -> None:
        self._app = app
        self._hosts = hosts
        self._trust = trust

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Reject or forward a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        trust, shown, is_watching = self._trust(), _header_value(scope, b"authorization"), scope["path"] in WATCHED
        scope[ADMITTED] = is_admitted(shown, trust.monitoring_tokens if is_watching else trust.tokens)
        if not is_own(_header_value(scope, b"host"), *self._hosts):
            await _refuse(scope, send, 403, REFUSAL)
        elif trust.encrypts and scope["path"].startswith(ROWS):
            await self._app(scope, receive, send)
        elif not scope[ADMITTED] and is_admitted(shown, trust.monitoring_tokens):
            await _refuse(scope, send, 403, METRICS_ONLY)
        elif not scope[ADMITTED] and scope["path"] != HEALTH:
            await _refuse(scope, send, 401, NO_TOKEN, (b"www-authenticate", CHALLENGE.encode()))
        else:
            await self._app(scope, receive, send)


_warnings: Final = RateLimitedWarnings(get_logger("ringlog.node"))


def _header_value(scope: Message, header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header]


async def _refuse(scope: Message, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    _warnings.warn("call_refused", code=status, peer=scope.get("client"), path=ascii(scope["path"])[:200])
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Convert errors to status 503 (retry later) or 421 (ask another node)."""
    try:
        yield
    except NotReady as waiting:
        raise HTTPException(503, _sayable(waiting)) from None
    except NotServed as elsewhere:
        raise HTTPException(421, _sayable(elsewhere)) from None


def _sayable(why: Exception | str) -> str:
    """Return an error's message in valid UTF-8. It may quote the request, and JSON can contain unpaired surrogates."""
    return str(why).encode("utf-8", "backslashreplace").decode()


def _malformed(_request: Request, broken: RequestValidationError) -> Response:
    # Without the input: it may contain values that JSON cannot represent (NaN, unpaired surrogates).
    detail = [{"loc": list(one["loc"]), "msg": one["msg"]} for one in broken.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


def _key_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise HTTPException(422, "the partition key must be hex") from None


def make_api(
    row_replica: RowReplica,
    name: str,
    clock: Clock,
    data: DataService | None = None,
    hosts: Sequence[str] = ("127.0.0.1",),
    watched: WatchedProcess | None = None,
    trust: Callable[[], Trust] = current,
) -> FastAPI:
    """Return the HTTP API of one node.

    ``clock`` decides which cells have expired; ``watched`` provides metrics and health.
    """
    api = FastAPI(title=f"ringlog node {name}", docs_url=None, redoc_url=None)
    api.add_middleware(AuthMiddleware, hosts=hosts, trust=trust)
    api.exception_handler(RequestValidationError)(_malformed)

    @api.get("/v1/status")
    def status() -> dict[str, Any]:
        about_data = {} if data is None else _about(data)
        with row_replica.lock:
            return about_data | {
                "node": row_replica.node,
                "cluster_id": row_replica.state.cluster_id,
                "name": name,
                "epoch": row_replica.state.epoch,
                "ready": row_replica.caught_up,
                "rows": len(row_replica.store),
                "positions": {str(p): o for p, o in sorted(row_replica.positions.items())},
            }

    def check_right(request: Request, table: str) -> None:
        _check_right(row_replica.state, trust(), request.scope.get(CERTIFICATE), table)

    @api.get("/v1/tables/{table}/rows/{partition_key_hex}")
    def rows(request: Request, table: str, partition_key_hex: str) -> dict[str, Any]:
        check_right(request, table)
        return _partition(row_replica, table, _key_of(partition_key_hex), clock.now_us())

    def rows_by_body(  # a key that is empty, or longer than a URL allows
        request: Request, table: str, key: Annotated[bytes, Body(media_type="application/octet-stream")] = b""
    ) -> Any:
        check_right(request, table)
        return _partition(row_replica, table, key, clock.now_us())

    api.add_api_route("/v1/tables/{table}/rows", rows_by_body, methods=["POST"])

    if watched is not None:

        def seen(request: Request) -> Response:
            found = answer(request.url.path, watched, is_admitted=request.scope[ADMITTED])
            return Response(found.body, found.status, media_type=found.media_type)

        for path in WATCHED:
            api.add_api_route(path, seen, response_model=None)
    return api


def _check_right(state: ClusterState, trust: Trust, certificate: Any, table: str) -> None:
    """Refuse a client whose certificate gives no right to the rows of a table. Raises HTTPException."""
    if not trust.encrypts:
        return
    names = dns_names(certificate)
    if not certificate or trust.refuses(int(certificate["serialNumber"], 16), names):
        raise HTTPException(401, "rows need a valid client certificate")
    with contextlib.suppress(CertificateOfAnotherNode):
        sender = state.nodes.get(node_of_names(names))
        if sender is not None and sender.state == "left":
            raise HTTPException(403, f"{FOREIGN_CERTIFICATE}: node {sender.name} has left")
    if rejected := authorize_rows(state, principal_of_names(names), table.partition(".")[0]):
        raise HTTPException(403, _sayable(f"{rejected.code}: {rejected.detail}"))


def _partition(row_replica: RowReplica, table: str, key: bytes, now: Micros) -> dict[str, Any]:
    """Return a partition: its epoch, its number of versions and its live rows at ``now``."""
    with _refusals():
        epoch, versions = row_replica.read(table, key)
        shape = row_replica.shape(table)
    live = merged((decode_mutation(version.value) for version in versions), shape, now)
    return {"epoch": epoch, "versions": len(versions)} | shown(live)


def shown(live: LivePartition) -> dict[str, Any]:
    """Return the rows of a partition in the format of an answer."""
    return {"static": _shown_cells(live.static), "rows": [_shown(row) for row in live.rows]}


def _shown(row: LiveRow) -> dict[str, Any]:
    return {
        "clustering_key": [None if part is None else part.hex() for part in row.clustering_key],
        "inserted": row.inserted,
        "cells": _shown_cells(row.cells),
    }


def _shown_cells(cells: tuple[LiveCell, ...]) -> dict[str, Any]:
    return {cell.column: {"value": cell.value.hex(), "timestamp": cell.timestamp} for cell in cells}


def _about(data: DataService) -> dict[str, Any]:
    found = data.status()
    return {
        "data_port": data.port,
        "data_epoch": found.epoch,
        "known_epoch": data.asking.newest_epoch,
        "cells": found.cells,
        "start": found.start,
    }


BACKLOG: Final = 64
"""The limit of connections accepted in one turn of the event loop, and of log lines in a turn without descriptors."""


BODY_BYTES_MAX: Final = 1024 * 1024
"""The limit of a request body. It contains a partition key, which is part of a record of the mutations topic."""


def _counted(api: Asgi, connections: OpenConnections) -> Asgi:
    """Wrap an application to limit request bodies and to report running requests to ``connections``.

    A request counts as running when its body is complete, so a client that sends a body slowly counts as idle.
    """

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        peer = tuple(scope.get("client") or ())
        size = 0

        async def received() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES_MAX:
                raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes")
            if not message.get("more_body", False):
                connections.busy(peer, True)
            return message

        connections.busy(peer, not _has_body(scope))
        try:
            await api(scope, received, send)
        finally:
            connections.busy(peer, False)

    return app


def _has_body(scope: Message) -> bool:
    headers = dict(scope.get("headers", ()))
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


class _CertifiedProtocol(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """A connection that adds the client's certificate to the scope of its requests."""

    app: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate, app = transport.get_extra_info("peercert"), self.app

        async def certified(scope: Message, receive: Receive, send: Send) -> None:
            await app({**scope, CERTIFICATE: certificate}, receive, send)

        self.app = certified


class HttpServer:
    """uvicorn in a thread, on a listening socket. The process keeps its signal handlers.

    Args:
        connections: Limits open connections, including those in a TLS handshake.
        requests_certificate: Request a certificate of the client.
    """

    def __init__(
        self,
        api: Asgi,
        listening: socket.socket,
        trust: Callable[[], Trust] = current,
        connections: OpenConnections | None = None,
        *,
        requests_certificate: bool = True,
    ) -> None:
        self._open = OpenConnections() if connections is None else connections
        config = uvicorn.Config(
            _counted(api, self._open),
            http=_CertifiedProtocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # a client must not choose the address that its connection counts for
            loop="asyncio",  # accepts by the socket's own method
            backlog=BACKLOG,
            callback_notify=self._close_overdue,
            timeout_notify=1,
        )
        # asyncio sets this only for sockets that name their protocol. Otherwise an answer could wait for a delayed TCP
        # acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config.load()
        config.ssl = server_context(trust, requests_certificate)
        self._listening = listening
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self.failure: BaseException | None = None

    async def _close_overdue(self) -> None:
        self._open.close_overdue()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[BoundedListener.of(self._listening, self._open)])
        except BaseException as failure:  # uvicorn raises SystemExit if it cannot start
            self.failure = failure

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def alive(self) -> bool:
        """Return False once the server has ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop listening and wait for running requests."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
