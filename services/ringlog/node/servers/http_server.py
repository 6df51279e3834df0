"""The node's HTTP side: its status, the rows of a partition, its figures and its health.

``AuthMiddleware`` rejects requests that are addressed to other host names (``ringlog.runtime.monitoring.scrape``) or
show no token (``ringlog.runtime.monitoring.scrape``).
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

from ringlog.client.data.row_merge import LiveCell, LivePartition, LiveRow, merged
from ringlog.kernel.values import Micros
from ringlog.node.rows.replica import NotReady, NotServed, RowReplica
from ringlog.node.servers.data_side import DataSide
from ringlog.runtime.clock import Clock
from ringlog.runtime.monitoring.health import WatchedProcess
from ringlog.runtime.monitoring.open_connections import BoundedListener, OpenConnections
from ringlog.runtime.monitoring.scrape import CHALLENGE, HEALTH, METRICS, NO_TOKEN, REFUSAL, answer, is_admitted, is_own
from ringlog.runtime.trust import Trust, current, serving
from ringlog.wire.records import decode_mutation

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
ADMITTED = "ringlog.admitted"
"""In the scope of a request: whether it shows a token."""


class AuthMiddleware:
    """Passes on to ``app`` what is addressed to one of ``hosts`` or a name of the loopback, and shows one of the
    ``tokens`` of that moment; 403 and 401 for the rest, but for ``/health``, which is passed on without a token, too.
    """

    def __init__(self, app: Asgi, hosts: Sequence[str], tokens: Callable[[], Sequence[str]] = tuple) -> None:
        self._app = app
        self._hosts = hosts
        self._tokens = tokens

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope[ADMITTED] = is_admitted(_header_value(scope, b"authorization"), self._tokens())
        if not is_own(_header_value(scope, b"host"), *self._hosts):
            await _refuse(scope, send, 403, REFUSAL)
        elif not scope[ADMITTED] and scope["path"] != HEALTH:
            await _refuse(scope, send, 401, NO_TOKEN, (b"www-authenticate", CHALLENGE.encode()))
        else:
            await self._app(scope, receive, send)


def _header_value(scope: Message, header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header]


async def _refuse(scope: Message, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """503: later; 421: ask another node."""
    try:
        yield
    except NotReady as waiting:
        raise HTTPException(503, _sayable(waiting)) from None
    except NotServed as elsewhere:
        raise HTTPException(421, _sayable(elsewhere)) from None


def _sayable(why: Exception) -> str:
    """The text of an error; it may quote what was asked, and JSON can ask in text that UTF-8 cannot hold."""
    return str(why).encode("utf-8", "backslashreplace").decode()


def make_api(
    row_replica: RowReplica,
    name: str,
    clock: Clock,
    data: DataSide | None = None,
    hosts: Sequence[str] = ("127.0.0.1",),
    watched: WatchedProcess | None = None,
    trust: Callable[[], Trust] = current,
) -> FastAPI:
    """The routes of one node. ``clock`` says which cells' time to live is over; ``data``: its registers; ``hosts``: the
    names that it answers under; ``watched``: shows its figures, and whether it is ready; ``trust``: has the tokens.
    """
    api = FastAPI(title=f"ringlog node {name}", docs_url=None, redoc_url=None)
    api.add_middleware(AuthMiddleware, hosts=hosts, tokens=lambda: trust().tokens)

    @api.exception_handler(RequestValidationError)
    def malformed(_request: Request, broken: RequestValidationError) -> Response:
        # Without the input itself: what JSON cannot hold again (NaN, half a surrogate pair) would fail the answer.
        detail = [{"loc": list(one["loc"]), "msg": one["msg"]} for one in broken.errors()]
        return Response(json.dumps({"detail": detail}), 422, media_type="application/json")

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

    @api.get("/v1/tables/{table}/rows/{partition_key_hex}")
    def rows(table: str, partition_key_hex: str) -> dict[str, Any]:
        try:
            key = bytes.fromhex(partition_key_hex)
        except ValueError:
            raise HTTPException(422, "the partition key must be hex") from None
        return _partition(row_replica, table, key, clock.now_us())

    # A key may be empty, or longer than a URL may be: then it comes as the body.
    def rows_by_body(table: str, key: Annotated[bytes, Body(media_type="application/octet-stream")] = b"") -> Any:
        return _partition(row_replica, table, key, clock.now_us())

    api.add_api_route("/v1/tables/{table}/rows", rows_by_body, methods=["POST"])

    if watched is not None:

        def seen(request: Request) -> Response:
            found = answer(request.url.path, watched, is_admitted=request.scope[ADMITTED])
            return Response(found.body, found.status, media_type=found.media_type)

        for path in (METRICS, HEALTH):
            api.add_api_route(path, seen, response_model=None)
    return api


def _partition(row_replica: RowReplica, table: str, key: bytes, now: Micros) -> dict[str, Any]:
    """The rows of a partition at ``now``, with the epoch of the answer and the number of writes behind it."""
    with _refusals():
        epoch, versions = row_replica.read(table, key)
        shape = row_replica.shape(table)
    live = merged((decode_mutation(version.value) for version in versions), shape, now)
    return {"epoch": epoch, "versions": len(versions)} | shown(live)


def shown(live: LivePartition) -> dict[str, Any]:
    """The rows of a partition, as an answer has them."""
    return {"static": _shown_cells(live.static), "rows": [_shown(row) for row in live.rows]}


def _shown(row: LiveRow) -> dict[str, Any]:
    return {
        "clustering_key": [None if part is None else part.hex() for part in row.clustering_key],
        "inserted": row.inserted,
        "cells": _shown_cells(row.cells),
    }


def _shown_cells(cells: tuple[LiveCell, ...]) -> dict[str, Any]:
    return {cell.column: {"value": cell.value.hex(), "timestamp": cell.timestamp} for cell in cells}


def _about(data: DataSide) -> dict[str, Any]:
    found = data.status()
    return {
        "data_port": data.port,
        "data_epoch": found.epoch,
        "known_epoch": data.asking.newest_epoch,
        "cells": found.cells,
        "start": found.start,
    }


BACKLOG: Final = 64
"""Connections accepted in one turn of the event loop, and log lines of one turn without free descriptors."""


BODY_BYTES_MAX: Final = 1024 * 1024
"""A body is a partition key, which is part of a record of the mutations topic."""


def _counted(api: Asgi, connections: OpenConnections) -> Asgi:
    """Return the application, wrapped to report the begin and end of each request to ``connections``, and to reject
    large bodies. A request begins when its body is here, so a peer that sends one slowly is treated as idle.
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


class HttpServer:
    """uvicorn in its own thread, on a listening socket; the process keeps its signal handlers.

    ``connections`` bounds what peers keep open, from before the TLS handshake on.
    """

    def __init__(
        self,
        api: FastAPI,
        listening: socket.socket,
        trust: Callable[[], Trust] = current,
        connections: OpenConnections | None = None,
    ) -> None:
        self._open = OpenConnections() if connections is None else connections
        config = uvicorn.Config(
            _counted(api, self._open),
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # a peer must not choose the address that its connection counts for
            loop="asyncio",  # accepts by the socket's own method
            backlog=BACKLOG,
            callback_notify=self._close_overdue,
            timeout_notify=1,
        )
        # asyncio does so only for sockets that name their protocol; an answer would wait for an acknowledgement else.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config.load()
        config.ssl = serving(trust)
        self._listening = listening
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self.failure: BaseException | None = None

    async def _close_overdue(self) -> None:
        self._open.close_overdue()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[BoundedListener.of(self._listening, self._open)])
        except BaseException as failure:  # uvicorn ends with SystemExit where it cannot start
            self.failure = failure

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def alive(self) -> bool:
        """False once the server has ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop listening and wait for requests in hand."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
