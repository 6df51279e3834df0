"""A CDC job in a cluster with principals: it signs its promises with its own key, and stops when it is revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system.agents_world import until
from tests.system.test_kafka_login import TABLE
from tests.system.test_request_keys import MASTER, _is_done, _private
from tests.system.user import User

from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]
STOP_S = 120.0
WRITER = "orders-cdc"


def test_a_signed_job_works_until_its_principal_is_revoked(
    stack: StackInfo, user: User, cluster_name: str, tmp_path: Path
) -> None:
    _begin(stack, user, cluster_name, tmp_path)
    words = ["cdc", "run", "--checkpoint", str(tmp_path / "checkpoint"), "--writer", WRITER, "--trigger-seconds", "0"]
    words += ["--java-options", "-XX:TieredStopAtLevel=1"]
    job = user.begin(*words, "--request-key", str(tmp_path / f"{WRITER}.key"))

    def rows() -> int:
        assert job.poll() is None, user.logs()[-3_000:]
        return user.run("cdc", "tail", "--json", "--until-end").count("\n")

    user.run("data", "put", "shop.orders", "c1", "1", "--set", "amount=7")
    until(lambda: rows() == 1, "the row of the first write")
    sent = {json.loads(line)["entry"]["command"] for line in user.run("log", "--by", WRITER, "--json").splitlines()}
    assert {"RegisterCdcWriter", "AdvanceCdcWriter"} <= sent

    user.run("principal", "revoke", WRITER)
    assert job.wait(STOP_S) == 1
    epoch = {one["name"]: one for one in json.loads(user.run("principal", "list", "--json"))}[WRITER]["revoked"]
    assert f"not_authorized: CDC writer '{WRITER}': its principal was revoked with epoch {epoch}" in user.logs()
    user.run("data", "put", "shop.orders", "c1", "2", "--set", "amount=8")
    assert user.run("cdc", "tail", "--json", "--until-end").count("\n") == 1


def _begin(stack: StackInfo, user: User, cluster: str, folder: Path) -> None:
    """Start a cluster with principals, three agents and a node, and create the table."""
    user.run("cluster", "create", cluster, "--bootstrap", stack.bootstrap_servers)
    master = ("--request-master", str(_private(folder / "master", MASTER)))
    agents, node = (_private(folder / f"{name}.properties", "") for name in ("agents", "node"))
    _private(agents, "request.master=master\n")
    for role in ("validator", "coordinator", "publisher"):
        user.begin("agent", role, "--trust-config", str(agents))
    create = ("principal", "create", "root", "--role", "admin", *master, "--to", str(folder / "root.key"))
    until(lambda: _is_done(user, *create), "the validator to start")
    user.run("cluster", "use", cluster, "--request-key", str(folder / "root.key"))
    for name in ("n1", WRITER):
        user.run("principal", "create", name, "--role", "node", *master, "--to", str(folder / f"{name}.key"))
    _private(node, "request.key=n1.key\n")
    user.join_node("--data", str(folder / "n1"), "--trust-config", str(node))
    user.run("keyspace", "create", "shop", "--factor", "1")
    user.run("submit", json.dumps(TABLE))
