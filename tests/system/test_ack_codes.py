"""A stolen broker credential and key of a node acknowledge for that node only.

The broker has separate ACLs for each kind of process. Agents and one node are processes. Two more nodes have no
process, so the test writes all of their acknowledgements.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.system.agents_world import until
from tests.system.guarded_kafka import PREFIX, Guarded
from tests.system.user import User

from ringlog.log.kafka.acls import BrokerUser
from ringlog.runtime.kafka.config import connection
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.wire.acks import key_of, with_mac
from ringlog.wire.records import NodeAck, encode_node_ack

pytestmark = [pytest.mark.system, pytest.mark.slow]

MASTER = "a-master-that-agents-know"


class Thief:
    """An attacker with the broker credential of a node."""

    def __init__(self, guarded: Guarded, user: User, cluster: str) -> None:
        security = read_kafka_config(guarded.logins[BrokerUser.node]).security
        self._producer = Producer(connection(guarded.users, security) | {"linger.ms": 200, "log_level": 2})
        self._user, self._topic = user, f"{cluster}.acks"
        self._cluster_id = json.loads(user.run("cluster", "current", "--json"))["cluster_id"]

    def acknowledge(self, node: str, epoch: int, *keys: str) -> None:
        """Acknowledge for the given node, once with each key; an empty key means without a code."""
        state = json.loads(self._user.run("log", "at", str(epoch), "--json"))["state_id"]
        ack = encode_node_ack(NodeAck(self._cluster_id, node, "9@thief", epoch, epoch, (), 0, 0, (), state))
        for key in keys:
            self._producer.produce(self._topic, with_mac(ack, key) if key else ack, key=node)
        assert self._producer.flush(60) == 0


def test_a_stolen_credential_acknowledges_for_no_other_node(guarded: Guarded, user: User, tmp_path: Path) -> None:
    cluster = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    agents, node = (_private(tmp_path / f"{name}.properties", "") for name in ("agents", "node"))
    _begin(guarded, user, cluster, agents, node)
    (n1,) = json.loads(user.run("node", "list", "--json"))
    thief = Thief(guarded, user, cluster)

    # Without keys only the broker's ACLs protect, and the record passes the barrier of a node without a process.
    second, joining = _join(user, "n2")
    thief.acknowledge(second, joining["stage_epoch"], "")
    until(lambda: _operation(user, joining["id"])["stage"] != "prepared" or None, "the gate to pass")
    user.run("operation", "cancel", joining["id"], "--reason", "nobody runs it")
    until(lambda: _operation(user, joining["id"])["stage"] == "cancelled" or None, "the join to be cancelled")

    # Node and agents load their keys while they run.
    _private(tmp_path / "key", key_of(MASTER, n1["id"]))
    _private(node, "ack.key=key\n")
    _private(tmp_path / "master", MASTER)
    _private(agents, "ack.master=master\n")
    third, joining = _join(user, "n3")
    forged = "", key_of(MASTER, n1["id"]), key_of("a-master-of-somebody-else", third), MASTER

    def passed_over() -> bool:
        thief.acknowledge(third, joining["stage_epoch"], *forged)
        return "ack_not_believed" in user.logs()

    until(passed_over, "the coordinator to reject the acknowledgement without a MAC")
    thief.acknowledge(third, joining["stage_epoch"], *forged)
    for _ in range(2):
        _await_look(user)
    assert _operation(user, joining["id"])["stage"] == "prepared"
    assert "ack_not_believed" in user.logs()
    assert "n3" in _rejected_acks(user), "each is named, the log names one a minute"
    waits = _operation(user, joining["id"])
    assert "n3" in waits["waits_for_nodes"], "an operator without a master key sees it, too"
    assert any(
        way.startswith("n3 sends acknowledgements that are rejected: give the node its ack.key")
        for way in waits["ways_out"]
    )
    assert MASTER not in user.logs() + user.told + user.command_lines()

    # The owner of a node's key acts as that node. Its barrier also needs n1, whose codes are valid.
    thief.acknowledge(third, joining["stage_epoch"], key_of(MASTER, third))
    until(lambda: _operation(user, joining["id"])["stage"] != "prepared" or None, "the gate to pass")
    until(lambda: _rejected_acks(user) == {"n2"}, "later acknowledgements with a MAC to count")


def _begin(guarded: Guarded, user: User, cluster: str, agents: Path, node: Path) -> None:
    """Start a cluster, users with the ACLs of their kinds, three agents, and n1 as a process."""
    user.run("cluster", "create", cluster, "--bootstrap", guarded.users, "--kafka-config", str(guarded.login))
    for kind in (BrokerUser.validator, BrokerUser.agent, BrokerUser.node, BrokerUser.operator):
        whose = ["--for", kind.value, "--user", kind.value, "--apply", "--cluster", cluster]
        user.run("cluster", "acls", *whose, "--bootstrap", guarded.tls, "--kafka-config", str(guarded.admin))

    def by(kind: BrokerUser) -> list[str]:
        return ["--bootstrap", guarded.users, "--cluster", cluster, "--kafka-config", str(guarded.logins[kind])]

    user.run("cluster", "use", cluster, "--bootstrap", guarded.users, *by(BrokerUser.operator)[4:])
    user.begin("agent", "validator", *by(BrokerUser.validator))
    for role in ("coordinator", "publisher"):
        user.begin("agent", role, *by(BrokerUser.agent), "--trust-config", str(agents))
    user.join_node("--data", str(node.with_name("n1")), *by(BrokerUser.node), "--trust-config", str(node))


def _join(user: User, name: str) -> tuple[str, Any]:
    """Register a node without a process; return its id and its join, which waits at the first barrier."""
    node = str(uuid.uuid4())
    user.run("submit", json.dumps({"command": "RegisterNode", "name": name, "id": node}))
    user.run("node", "join", name, "--num-tokens", "1", "--no-wait")

    def waits() -> Any:
        found = [one for one in json.loads(user.run("operation", "list", "--json")) if one["node"] == name]
        return found[0] if found and found[0]["stage"] == "prepared" else None

    return node, until(waits, "the join to be prepared")


def _operation(user: User, name: str) -> Any:
    return json.loads(user.run("operation", "show", name, "--json"))


def _rejected_acks(user: User) -> set[str]:
    """Return the nodes in the coordinator's report."""
    seen = json.loads(user.run("status", "--json"))["agents"]
    refused = [one for agent in seen if agent["role"] == "coordinator" for one in agent.get("refused", ())]
    return {one["subject"] for one in refused if one["code"] == "ack_not_believed"}


def _await_look(user: User) -> None:
    """Submit a new epoch and wait until the coordinator has checked it."""
    epoch = json.loads(user.run("submit", json.dumps({"command": "Noop"})))["epoch"]

    def looked() -> bool:
        seen = json.loads(user.run("agents", "status", "--json"))
        return any(one["role"] == "coordinator" and one["epoch"] >= epoch for one in seen)

    until(looked, f"the coordinator to process epoch {epoch}")


def _private(path: Path, text: str) -> Path:
    """Write a file with owner-only permissions, atomically."""
    new = path.with_name("new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o600)
    return new.replace(path)
