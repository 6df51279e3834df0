"""The node's HTTP side: its status, the rows of a partition, its figures and its health."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError

from ringlog.client.merge import LiveCell, LivePartition, LiveRow, merged
from ringlog.node.data_side import DataSide
from ringlog.node.doorkeeper import ADMITTED, Doorkeeper
from ringlog.node.holder import Holder, NotReady, NotServed
from ringlog.runtime.clock import Clock
from ringlog.runtime.health import WatchedProcess
from ringlog.runtime.scrape import HEALTH, METRICS, answer
from ringlog.runtime.trust import Trust, current, serving
from ringlog.wire.records import decode_mutation


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
    holder: Holder,
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
    api.add_middleware(Doorkeeper, hosts=hosts, tokens=lambda: trust().tokens)

    @api.exception_handler(RequestValidationError)
    def malformed(_request: Request, broken: RequestValidationError) -> Response:
        # Without the input itself: what JSON cannot hold again (NaN, half a surrogate pair) would fail the answer.
        detail = [{"loc": list(one["loc"]), "msg": one["msg"]} for one in broken.errors()]
        return Response(json.dumps({"detail": detail}), 422, media_type="application/json")

    @api.get("/v1/status")
    def status() -> dict[str, Any]:
        about_data = {} if data is None else _about(data)
        with holder.lock:
            return about_data | {
                "node": holder.node,
                "cluster_id": holder.state.cluster_id,
                "name": name,
                "epoch": holder.state.epoch,
                "ready": holder.caught_up,
                "rows": len(holder.store),
                "positions": {str(p): o for p, o in sorted(holder.positions.items())},
            }

    @api.get("/v1/tables/{table}/rows/{partition_key_hex}")
    def rows(table: str, partition_key_hex: str) -> dict[str, Any]:
        try:
            key = bytes.fromhex(partition_key_hex)
        except ValueError:
            raise HTTPException(422, "the partition key must be hex") from None
        with _refusals(), holder.lock:
            epoch, versions = holder.read(table, key)
            shape = holder.shape(table)
        live = merged((decode_mutation(version.value) for version in versions), shape, clock.now_us())
        return {"epoch": epoch, "versions": len(versions)} | shown(live)

    if watched is not None:

        def seen(request: Request) -> Response:
            found = answer(request.url.path, watched, is_admitted=request.scope[ADMITTED])
            return Response(found.body, found.status, media_type=found.media_type)

        for path in (METRICS, HEALTH):
            api.add_api_route(path, seen, response_model=None)
    return api


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
        "known_epoch": data.asking.known,
        "cells": found.cells,
        "start": found.start,
    }


class HttpServer:
    """uvicorn in a thread of its own, on a socket that listens already; the process keeps its signal handlers."""

    def __init__(self, api: FastAPI, listening: socket.socket, trust: Callable[[], Trust] = current) -> None:
        config = uvicorn.Config(api, log_config=None, access_log=False, lifespan="off")
        # asyncio does so only for sockets that name their protocol; an answer would wait for an acknowledgement else.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config.load()
        config.ssl = serving(trust)
        self._listening = listening
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listening])
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
