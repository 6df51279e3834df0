"""Stolen credentials of a client, a node and a CDC writer send exactly the commands that their roles allow.

The broker has separate ACLs for each kind of process. Agents and one node are processes. The thief has the broker
logins and keys of an application, of the node and of the CDC job.
"""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.system.agents_world import until
from tests.system.guarded_kafka import PREFIX, Guarded
from tests.system.user import User

from ringlog import ClusterState, Gain, Loss, NodeInfo, Participant
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
from ringlog.protocol.nodes.errors import NodeFailed
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
    _begin(guarded, user, cluster, agents)
    _create_principals(user, cluster, agents)

    # The node registers and joins with its key, and the coordinator performs the join with its own.
    _private(node, "request.key=n1.key\n")
    at = by(guarded, cluster, BrokerUser.node)
    user.join_node("--data", str(tmp_path / "n1"), *at, "--trust-config", str(node))
    (n1,) = json.loads(user.run("node", "list", "--json"))
    assert {"root", "n1", "coordinator"} <= {line["submitter"].partition("-")[0] for line in _log(user)}

    # So does a store that takes part from a program.
    monkeypatch.setenv(VARIABLE, str(guarded.logins[BrokerUser.node]))
    _take_part(guarded.users, cluster, _key(tmp_path / "n2.key"), tmp_path / "n2")

    before = json.loads(user.run("status", "--json"))["roles"]["validator"]
    keys = {name: _key(tmp_path / f"{name}.key") for name in ("shop", "n1", "cdc")}
    kinds = (BrokerUser.client, BrokerUser.node, BrokerUser.cdc_writer)
    for key, kind in zip(keys.values(), kinds, strict=True):
        monkeypatch.setenv(VARIABLE, str(guarded.logins[kind]))
        with Client(guarded.users, cluster, "cli", keys=lambda: ()) as thief:
            _steal(thief, key, n1["id"])
    assert json.loads(user.run("status", "--json"))["roles"]["validator"] == before
    names = [one["name"] for one in json.loads(user.run("principal", "list", "--json"))]
    assert names == ["cdc", "n1", "n2", "ops", "root", "shop"]

    # A rotated and a revoked key end with their epoch.
    monkeypatch.setenv(VARIABLE, str(guarded.logins[BrokerUser.client]))
    with Client(guarded.users, cluster, "cli", keys=lambda: ()) as thief:
        user.run("principal", "key", "shop", "--rotate")
        user.run("principal", "revoke", "cdc")
        assert _refusal(thief, Noop(), keys["shop"]) == "not_authenticated"
        assert _refusal(thief, Noop(), keys["cdc"]) == "not_authenticated"
    user.run("cluster", "use", cluster, "--request-key", str(tmp_path / "ops.key"))
    user.run("pause", "schema")
    assert [line["entry"]["command"] for line in _log(user, "--by", "ops")] == ["PauseChanges"]
    assert MASTER not in user.logs() + user.told + user.command_lines()


class NoRows:
    """A store without rows."""

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None: ...

    def drain(self, below: int) -> None: ...

    def fetch(self, gain: Gain) -> tuple[bytes, ...]:
        return ()

    def forget(self, loss: Loss) -> None: ...


def _take_part(brokers: str, cluster: str, key: PrincipalKey, folder: Path) -> None:
    """Register and join as the node of this key, which signs each request. Only an operator's key lets it leave."""
    with Client(brokers, cluster, key.name, keys=lambda: (key,)) as client:
        node = Participant(client, NodeInfo(key.name, "n2:7101", rack="r2"), NoRows(), folder=folder, join=4)
        stop = threading.Event()
        running = threading.Thread(target=node.run, args=(stop,), daemon=True)
        running.start()
        until(lambda: _state_of(client, node.id) == "normal", f"{key.name} to join")
        with pytest.raises(NodeFailed, match="Leave: n2 needs the role operator"):
            node.leave(120)
        stop.set()
        running.join(60)
        assert not running.is_alive()


def _state_of(client: Client, node: str) -> str:
    found = client.state.nodes.get(node)
    return "" if found is None else found.state


def by(guarded: Guarded, cluster: str, kind: BrokerUser) -> list[str]:
    return ["--bootstrap", guarded.users, "--cluster", cluster, "--kafka-config", str(guarded.logins[kind])]


def _begin(guarded: Guarded, user: User, cluster: str, agents: Path) -> None:
    """Start a cluster, users with the ACLs of their kinds, and three agents."""
    user.run("cluster", "create", cluster, "--bootstrap", guarded.users, "--kafka-config", str(guarded.login))
    thieves = BrokerUser.node, BrokerUser.client, BrokerUser.cdc_writer
    for kind in (BrokerUser.validator, BrokerUser.agent, BrokerUser.operator, *thieves):
        whose = ["--for", kind.value, "--user", kind.value, "--apply", "--cluster", cluster]
        user.run("cluster", "acls", *whose, "--bootstrap", guarded.tls, "--kafka-config", str(guarded.admin))
    login = by(guarded, cluster, BrokerUser.operator)
    user.run("cluster", "use", cluster, *login[:2], *login[4:])
    user.begin("agent", "validator", *by(guarded, cluster, BrokerUser.validator), "--trust-config", str(agents))
    for role in ("coordinator", "publisher"):
        user.begin("agent", role, *by(guarded, cluster, BrokerUser.agent), "--trust-config", str(agents))


def _create_principals(user: User, cluster: str, agents: Path) -> None:
    """Create an admin with the master, then the others. Before the admin, every other request counts."""
    folder = agents.parent
    master = ("--request-master", str(_private(folder / "master", MASTER)))
    user.run("submit", json.dumps({"command": "CreatePrincipal", "name": "root", "role": "admin"}), status=1)
    assert "not_authenticated" in user.told
    assert "requests are not authenticated" in user.run("status")
    _private(agents, "request.master=master\n")  # Agents read it while they run.
    create = ("principal", "create", "root", "--role", "admin", *master, "--to", str(folder / "root.key"))
    until(lambda: _is_done(user, *create), "the validator to read the master")
    user.run("submit", '{"command": "Noop"}', status=1)
    user.run("cluster", "use", cluster, "--request-key", str(folder / "root.key"))
    assert json.loads(user.run("whoami", "--json"))["valid"]
    for name, role in (("shop", "application"), ("n1", "node"), ("n2", "node"), ("cdc", "node"), ("ops", "operator")):
        user.run("principal", "create", name, "--role", role, *master, "--to", str(folder / f"{name}.key"))
    assert "requests are not authenticated" not in user.run("status")


def _steal(thief: Client, key: PrincipalKey, node: str) -> None:
    """Try what review H1 did: forge a barrier, redirect a node, delete the history, supersede the validator."""
    moved = UpdateNode(node, address="127.0.0.1:1")
    for command in (
        AdvanceOperation("join-1", "finished", (Witness(node, 5, 5),)),
        TakeOver("validator", "thief", 10),
        RecordArchive(0, 0, ""),
        TruncateLog(5),
        EnterRecovery("theft", "thief"),
        CreatePrincipal("thief", "admin"),
        RegisterCdcWriter("other", str(uuid.uuid4())),
        *([moved] if key.name != "n1" else []),
    ):
        assert _refusal(thief, command, key) == "not_authorized", (key.name, command)
    assert _refusal(thief, Noop(), key) == ""
    cluster = thief.state.cluster_id
    for forged in (
        PrincipalKey("root", 1, key.key),
        key_of_principal(MASTER, str(uuid.uuid4()), "root", 1),
        key_of_principal("a-master-of-somebody-else", cluster, "root", 1),
        key_of_principal(MASTER, cluster, "root", 2),
        None,
    ):
        assert _refusal(thief, CreatePrincipal("thief", "admin"), forged) == "not_authenticated"


def _refusal(client: Client, command: Command, key: PrincipalKey | None) -> str:
    """Return the code of the refusal of a command that is signed with this key; empty if it was applied."""
    client.keys = lambda: () if key is None else (key,)
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
