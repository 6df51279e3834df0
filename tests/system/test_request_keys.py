"""Stolen credentials of a client, a node and a CDC writer send exactly the commands that their roles allow.

The broker has separate ACLs for each kind of process. Agents and one node are processes. The thief has the broker
logins and keys of an application, of the node and of the CDC job.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.system.agents_world import until
from tests.system.guarded_kafka import PREFIX, Guarded
from tests.system.user import User

from ringlog.client.client import Client
from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.commands.cluster.truncation import RecordArchive, TruncateLog
from ringlog.kernel.commands.control.principals import CreatePrincipal
from ringlog.kernel.commands.control.recovery import EnterRecovery
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.values import Command, Witness
from ringlog.log.kafka.acls import BrokerUser
from ringlog.protocol.submission.results import RejectedResult
from ringlog.runtime.kafka.config import VARIABLE
from ringlog.wire.requests import PrincipalKey, key_of_principal, principal_key

pytestmark = [pytest.mark.system, pytest.mark.slow]

MASTER = "a-master-that-agents-know"


def test_a_stolen_key_sends_the_commands_of_its_role_only(
    guarded: Guarded, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    agents, node = (_private(tmp_path / f"{name}.properties", "") for name in ("agents", "node"))
    master = str(_private(tmp_path / "master", MASTER))

    def by(kind: BrokerUser) -> list[str]:
        return ["--bootstrap", guarded.users, "--cluster", cluster, "--kafka-config", str(guarded.logins[kind])]

    user.run("cluster", "create", cluster, "--bootstrap", guarded.users, "--kafka-config", str(guarded.login))
    for kind in (BrokerUser.validator, BrokerUser.agent, BrokerUser.node, BrokerUser.client, BrokerUser.cdc_writer):
        whose = ["--for", kind.value, "--user", kind.value, "--apply", "--cluster", cluster]
        user.run("cluster", "acls", *whose, "--bootstrap", guarded.tls, "--kafka-config", str(guarded.admin))
    user.run("cluster", "use", cluster, *by(BrokerUser.client)[:2], *by(BrokerUser.client)[4:])
    user.begin("agent", "validator", *by(BrokerUser.validator), "--trust-config", str(agents))
    for role in ("coordinator", "publisher"):
        user.begin("agent", role, *by(BrokerUser.agent), "--trust-config", str(agents))

    # Without principals every request counts, and the status says so. Nobody without the master creates an admin.
    first = json.dumps({"command": "CreatePrincipal", "name": "root", "role": "admin"})
    user.run("submit", first, status=1)
    assert "not_authenticated" in user.told
    assert "requests are not authenticated" in user.run("status")

    # Agents read the master while they run.
    _private(agents, "request.master=master\n")
    create = ("principal", "create", "root", "--role", "admin", "--request-master", master)
    until(lambda: _is_done(user, *create, "--to", str(tmp_path / "root.key")), "the validator to read the master")
    user.run("submit", '{"command": "Noop"}', status=1)
    user.run("cluster", "use", cluster, "--request-key", str(tmp_path / "root.key"))
    assert json.loads(user.run("whoami", "--json"))["valid"]
    for name, role in (("shop", "application"), ("n1", "node"), ("cdc", "node"), ("ops", "operator")):
        to = ("--to", str(tmp_path / f"{name}.key"))
        user.run("principal", "create", name, "--role", role, "--request-master", master, *to)
    assert "requests are not authenticated" not in user.run("status")

    # The node registers and joins with its key, and the coordinator carries out the join with its own.
    _private(node, "request.key=n1.key\n")
    user.join_node("--data", str(tmp_path / "n1"), *by(BrokerUser.node), "--trust-config", str(node))
    (n1,) = json.loads(user.run("node", "list", "--json"))
    authors = {line["submitter"].partition("-")[0] for line in _log(user)}
    assert {"root", "n1", "coordinator"} <= authors

    # The thief of review H1: a forged barrier, another address, a deleted history, a superseded validator.
    forged = (
        AdvanceOperation("join-1", "finished", (Witness(n1["id"], 5, 5),)),
        TakeOver("validator", "thief", 10),
        RecordArchive(0, 0, ""),
        TruncateLog(5),
        EnterRecovery("theft", "thief"),
        CreatePrincipal("thief", "admin"),
    )
    keys = {name: _key(tmp_path / f"{name}.key") for name in ("shop", "n1", "cdc")}
    writes = {"shop": BrokerUser.client, "n1": BrokerUser.node, "cdc": BrokerUser.cdc_writer}
    before = json.loads(user.run("status", "--json"))["roles"]["validator"]
    for name, kind in writes.items():
        monkeypatch.setenv(VARIABLE, str(guarded.logins[kind]))
        with Client(guarded.users, cluster, "cli", keys=lambda name=name: (keys[name],)) as thief:  # type: ignore[misc]
            for command in (*forged, RegisterCdcWriter("other", str(uuid.uuid4()))):
                assert _refusal(thief, command) == "not_authorized", (name, command)
            moved = UpdateNode(n1["id"], address="127.0.0.1:1")
            if name != "n1":
                assert _refusal(thief, moved) == "not_authorized"
            assert _refusal(thief, Noop()) == ""
            for key in (
                PrincipalKey("root", 1, keys[name].key),
                key_of_principal(MASTER, str(uuid.uuid4()), "root", 1),
                key_of_principal("a-master-of-somebody-else", thief.state.cluster_id, "root", 1),
                key_of_principal(MASTER, thief.state.cluster_id, "root", 2),
            ):
                thief.keys = lambda key=key: (key,)
                assert _refusal(thief, CreatePrincipal("thief", "admin")) == "not_authenticated"
            thief.keys = lambda: ()
            assert _refusal(thief, Noop()) == "not_authenticated"
    assert json.loads(user.run("status", "--json"))["roles"]["validator"] == before
    assert [one["name"] for one in json.loads(user.run("principal", "list", "--json"))] == [
        *("cdc", "n1", "ops", "root", "shop"),
    ]

    # A rotated and a revoked key end with their epoch.
    monkeypatch.setenv(VARIABLE, str(guarded.logins[BrokerUser.client]))
    with Client(guarded.users, cluster, "cli", keys=lambda: (keys["shop"],)) as thief:
        user.run("principal", "key", "shop", "--rotate")
        assert _refusal(thief, Noop()) == "not_authenticated"
        user.run("principal", "revoke", "cdc")
        thief.keys = lambda: (keys["cdc"],)
        assert _refusal(thief, Noop()) == "not_authenticated"
    user.run("cluster", "use", cluster, "--request-key", str(tmp_path / "ops.key"))
    user.run("pause", "schema")
    assert [line["entry"]["command"] for line in _log(user, "--by", "ops")] == ["PauseChanges"]
    assert MASTER not in user.logs() + user.told + user.command_lines()


def _refusal(client: Client, command: Command) -> str:
    """Return the code of the refusal of a command; empty if it was applied."""
    answer = client.submit(command, timeout_s=60)
    return answer.code if isinstance(answer, RejectedResult) else ""


def _is_done(user: User, *words: str) -> bool:
    try:
        user.run(*words)
    except AssertionError:
        return False
    return True


def _log(user: User, *words: str) -> list[Any]:
    return [json.loads(line) for line in user.run("log", *words, "--json").splitlines()]


def _key(path: Path) -> PrincipalKey:
    found = principal_key(path.read_text(encoding="utf-8").strip())
    assert found is not None
    return found


def _private(path: Path, text: str) -> Path:
    """Write a file with owner-only permissions, atomically."""
    new = path.with_name("new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o600)
    return new.replace(path)
