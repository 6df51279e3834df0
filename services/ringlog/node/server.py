"""The node's HTTP side: its status, the rows of a partition, and the stream for a node that takes over ranges."""

from __future__ import annotations

import threading
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, ConfigDict

from ringlog.node.holder import Holder, NotReady
from ringlog.node.transfer import MEDIA_TYPE, pack


class StreamRequest(BaseModel):
    """What a gaining node asks for; see ``ringlog.node.holder.Fetch``."""

    model_config = ConfigDict(extra="forbid")

    operation: str
    replication: str
    ranges: list[tuple[int, int]]
    positions: dict[int, int]


def make_api(holder: Holder, name: str) -> FastAPI:
    """The routes of one node."""
    api = FastAPI(title=f"ringlog node {name}", docs_url=None, redoc_url=None)

    @api.get("/v1/status")
    def status() -> dict[str, Any]:
        with holder.lock:
            return {
                "node": holder.node,
                "name": name,
                "epoch": holder.state.epoch,
                "rows": len(holder.store),
                "positions": {str(p): o for p, o in sorted(holder.positions.items())},
            }

    @api.get("/v1/tables/{table}/rows/{partition_key_hex}")
    def rows(table: str, partition_key_hex: str) -> dict[str, Any]:
        try:
            key = bytes.fromhex(partition_key_hex)
        except ValueError:
            raise HTTPException(422, "the partition key must be hex") from None
        with holder.lock:
            found = holder.store.partition(table, key)
            return {
                "epoch": holder.state.epoch,
                "rows": [{"timestamp": v.timestamp, "value": v.value.hex()} for v in found],
            }

    @api.post("/v1/stream")
    def stream(request: StreamRequest) -> Response:
        try:
            snapshot = holder.snapshot(request.operation, request.replication, request.ranges, request.positions)
        except NotReady as waiting:
            raise HTTPException(503, str(waiting)) from None
        body, headers = pack(snapshot)
        return Response(body, media_type=MEDIA_TYPE, headers=headers)

    return api


class HttpServer:
    """uvicorn in a thread of its own; the process keeps its signal handlers."""

    def __init__(self, api: FastAPI, host: str, port: int) -> None:
        config = uvicorn.Config(api, host=host, port=port, log_config=None, access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            self._server.run()
        except BaseException as failure:  # a taken port ends uvicorn with SystemExit
            self.failure = failure

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def alive(self) -> bool:
        """False once the server has ended, e.g. because its port is taken."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop listening and wait for requests in hand."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
