"""The node's routes, over the ASGI transport."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from ringlog.node.holder import Holder
from ringlog.node.server import make_api
from ringlog.runtime.clock import ManualClock
from ringlog.wire.records import Cell, encode_mutation
from tests.node.world import APPENDED, TABLE, cluster, name_of, replicas, write

STATE = cluster((-(2**62),), (0,), (2**62,))


def asked(holder: Holder, method: str, path: str, body: Any = None) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=make_api(holder, "n1", ManualClock(APPENDED)))
        async with httpx.AsyncClient(transport=transport, base_url="http://n1") as client:
            return await client.request(method, path, json=body)

    return asyncio.run(ask())


@pytest.fixture
def holder() -> Holder:
    made = Holder(name_of(1))
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


def test_status(holder: Holder) -> None:
    assert asked(holder, "GET", "/v1/status").json() == {
        "node": name_of(1),
        "name": "n1",
        "epoch": STATE.epoch,
        "ready": True,
        "rows": len(holder.store),
        "positions": {"0": 4},
    }


def test_rows_are_merged(holder: Holder) -> None:
    key = own_key(True)
    update = write(key, 1, APPENDED + 5, operation="UPDATE", cells=(Cell("note", b"later"),))
    assert holder.admit(update, APPENDED, encode_mutation(update)) == "kept"
    assert asked(holder, "GET", path_of(key)).json() == {
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
    holder.admit(delete, APPENDED, encode_mutation(delete))
    assert asked(holder, "GET", path_of(key)).json()["rows"] == []


def test_who_may_not_answer_says_so(holder: Holder) -> None:
    assert asked(holder, "GET", path_of(own_key(False))).status_code == 421
    assert asked(holder, "GET", "/v1/tables/no.table/rows/00").status_code == 421
    assert asked(holder, "GET", f"/v1/tables/{TABLE}/rows/xyz").status_code == 422
    holder.caught_up = False
    answer = asked(holder, "GET", path_of(own_key(True)))
    assert answer.status_code == 503
    assert "restarted" in answer.json()["detail"]
