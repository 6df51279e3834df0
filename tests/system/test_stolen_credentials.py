"""Stolen credentials open exactly the doors that the table in docs/deploy/permissions.md lists.

The broker has an authorizer, the cluster has principals, and each process has the files that ``ringlog cluster
certificates`` made. A thief has all credentials of one process: its login at the broker, its certificate and token, its
request key, and the node's key for acknowledgements. The table in the page is the only declaration.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from tests.certificates import needs_openssl
from tests.system.agents_world import until
from tests.system.guarded_kafka import PREFIX, Guarded
from tests.system.test_ack_codes import _await_look, _join, _operation, _rejected_acks
from tests.system.test_acls import WAIT_S, _readable, _writable
from tests.system.test_kafka_login import TABLE
from tests.system.test_request_keys import _is_done, by
from tests.system.user import User
from tests.tidy.files import ROOT
from tests.wire.strategies import named_types, sample

from ringlog.client.client import Client
from ringlog.client.data.peers import channel_to
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command, Value
from ringlog.log.kafka.acls import ALL_SUFFIXES, BrokerUser
from ringlog.protocol.submission.results import RejectedResult
from ringlog.runtime.kafka.config import VARIABLE
from ringlog.runtime.trust import Trust, name_of_node, read_trust
from ringlog.wire.acks import with_mac
from ringlog.wire.commands import mapper
from ringlog.wire.data import (
    FOREIGN_CERTIFICATE,
    NOT_AUTHORIZED,
    SERVICE,
    EntriesReply,
    EntriesRequest,
    ReadReply,
    ReadRequest,
    ReadRowsReply,
    ReadRowsRequest,
    RegisterCell,
    StreamPage,
    StreamRequest,
    WriteReply,
    WriteRequest,
    key_of,
    pack,
    unpack,
)
from ringlog.wire.records import NodeAck, encode_node_ack
from ringlog.wire.requests import principal_key
from ringlog_schemas import current

pytestmark = [pytest.mark.system, pytest.mark.slow, needs_openssl]

PAGE = ROOT / "docs/deploy/permissions.md"
HEAD = "| door | application | node | CDC job |"
CDC = "orders-cdc"
SEED = bytes(range(16))
YES, NO = "yes", "no"


class Thief(Value, dict=True):
    """The holder of all credentials of one process."""

    name: str
    kind: BrokerUser
    trust: Trust
    login: dict[str, str]


@dataclass
class Target:
    """The cluster that is attacked: its node n1, which serves, and n2, which has no process."""

    guarded: Guarded
    user: User
    name: str
    cluster_id: str
    n1: dict[str, Any]
    n2: str
    join: dict[str, Any]

    def topics(self, thief: Thief) -> tuple[str, str]:
        """Return the topics that the thief reads, and those that it writes."""
        names = {f"{self.name}.{suffix}": suffix for suffix in ALL_SUFFIXES}
        read = {names[name] for name in _readable(thief.login, list(names))}
        return _listed(read), _listed(names[name] for name in _writable(thief.login, list(names)))

    def commands(self, thief: Thief) -> tuple[str, str]:
        """Return the kinds of commands that the thief may send, and whether some concern another node or writer."""
        own = _about(thief.name, self.n1["id"] if thief.name == "n1" else str(uuid.uuid4()))
        line = thief.trust.request_keys[0]
        key = principal_key(line)
        assert key is not None
        with Client(self.guarded.users, self.name, "cli", keys=lambda: (key,)) as client:

            def is_open(command: Command) -> bool:
                answer = client.submit(command, timeout_s=WAIT_S)
                return not isinstance(answer, RejectedResult) or answer.code not in (
                    NOT_AUTHORIZED,
                    "not_authenticated",
                )

            opened = {type(one).__name__ for one in (*_samples(), *own) if is_open(one)}
            others = [one for one in _about("n2", self.n2) if is_open(one)]
        return _listed(opened), YES if others else NO

    def rows(self, thief: Thief, keyspace: str) -> str:
        """Return whether the thief reads and writes rows and registers of a keyspace at the node."""
        key = key_of(keyspace, b"k")
        table = ReadRowsRequest(*self._head(), f"{keyspace}.orders", "", b"", (), False, False)
        write = WriteRequest(*self._head(), key, RegisterCell(1, b"v"))
        calls = (
            self._call(thief, "Write", write, WriteReply),
            self._call(thief, "Repair", write, WriteReply),
            self._call(thief, "Read", ReadRequest(*self._head(), key, False), ReadReply),
            self._call(thief, "ReadRows", table, ReadRowsReply),
        )
        return _one(NO if reply.refused == NOT_AUTHORIZED else YES for reply in calls)

    def entries(self, thief: Thief) -> str:
        """Return whether the node gives entries of the log to the thief."""
        found = self._call(thief, "Entries", EntriesRequest(self.cluster_id, self.n1["id"], 0, ""), EntriesReply)
        return NO if found.refused == FOREIGN_CERTIFICATE else YES

    def stream(self, thief: Thief, target: str) -> str:
        """Return whether the node considers a stream to the target."""
        request = StreamRequest(*self._head(), target, "join-9", "simple:1", ((0, 5),), None)
        found = self._call(thief, "Stream", request, StreamPage)
        return NO if found.refused == FOREIGN_CERTIFICATE else YES

    def http(self, thief: Thief, path: str) -> str:
        """Return whether the thief gets a page, with its certificate and its token."""
        meant = {"sni_hostname": name_of_node(self.n1["id"])}
        trust = thief.trust
        assert trust.client is not None
        with httpx.Client(headers=trust.headers(), verify=trust.client, trust_env=False, timeout=WAIT_S) as http:
            status = http.get(trust.url(f"{self.n1['address']}{path}"), extensions=meant).status_code
        return NO if status in (401, 403) else YES

    def acknowledgement(self, thief: Thief) -> str:
        """Return whether the thief passes the barrier that waits for n2."""
        epoch = self.join["stage_epoch"]
        state = json.loads(self.user.run("log", "at", str(epoch), "--json"))["state_id"]
        ack = encode_node_ack(NodeAck(self.cluster_id, self.n2, "9@thief", epoch, epoch, (), 0, 0, (), state))
        lost: list[object] = []
        producer = Producer(thief.login | {"log_level": 2})
        for record in (ack, *(with_mac(ack, key) for key in thief.trust.ack_keys)):
            producer.produce(f"{self.name}.acks", record, key=self.n2, on_delivery=lambda error, _: lost.append(error))
        assert producer.flush(WAIT_S) == 0
        if not any(lost):
            until(lambda: "n2" in _rejected_acks(self.user), "the coordinator to report the acknowledgement")
        _await_look(self.user)
        return NO if _operation(self.user, self.join["id"])["stage"] == "prepared" else YES

    def _head(self) -> tuple[str, str, int, str]:
        return self.cluster_id, self.n1["id"], 1, ""

    def _call(self, thief: Thief, method: str, request: Any, reply: type[Any]) -> Any:
        host = self.n1["address"].rpartition(":")[0]
        target = f"{host}:{self.n1['data_port']}"
        with channel_to(target, name_of_node(self.n1["id"]), thief.trust, ()) as channel:
            path, data = f"/{SERVICE}/{method}", pack(request)
            if reply is StreamPage:
                return unpack(reply, next(iter(channel.unary_stream(path)(data, timeout=WAIT_S))))
            return unpack(reply, channel.unary_unary(path)(data, timeout=WAIT_S))


def test_a_thief_opens_exactly_the_doors_of_the_table(
    guarded: Guarded, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _begin(guarded, user, tmp_path)
    found: dict[str, list[str]] = {}
    for name, kind in (("shop", BrokerUser.client), ("n1", BrokerUser.node), (CDC, BrokerUser.cdc_writer)):
        thief = Thief(name, kind, read_trust(tmp_path / "trust" / f"{name}.properties")[1], guarded.login_of(kind))
        monkeypatch.setenv(VARIABLE, str(guarded.logins[kind]))
        read, write = target.topics(thief)
        commands, others = target.commands(thief)
        doors = {
            "read topics": read,
            "write topics": write,
            "send commands": commands,
            "send commands about another node or writer": others,
            "acknowledge for another node": target.acknowledgement(thief),
            "rows of its keyspace, gRPC": target.rows(thief, "shop"),
            "rows of another keyspace, gRPC": target.rows(thief, "other"),
            "log entries, gRPC": target.entries(thief),
            "streams of its node, gRPC": target.stream(thief, target.n1["id"]),
            "streams of another node, gRPC": target.stream(thief, target.n2),
            "rows of its keyspace, HTTP": target.http(thief, "/v1/tables/shop.orders/rows/00"),
            "rows of another keyspace, HTTP": target.http(thief, "/v1/tables/other.orders/rows/00"),
            "status and metrics, HTTP": _one(target.http(thief, path) for path in ("/v1/status", "/metrics")),
        }
        for door, answer in doors.items():
            found.setdefault(door, []).append(answer)
    assert [f"| {door} | {' | '.join(answers)} |" for door, answers in found.items()] == _table()


def _table() -> list[str]:
    """Return the rows of the table in the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index(HEAD) + 2
    return lines[first : lines.index("", first)]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _one(answers: Iterable[str]) -> str:
    """Return the answer that several doors have in common."""
    (found,) = set(answers)
    return found


def _samples() -> list[Command]:
    """Return a command of each kind."""
    found = []
    for kind in COMMANDS:
        schema = current()[f"ringlog.commands.{kind}"].json
        command: Command = mapper(kind).from_record(sample(schema, named_types(schema), 1))
        found.append(command)
    return found


def _about(name: str, node: str) -> list[Command]:
    """Return commands about the node or writer of this name."""
    return [
        RegisterNode(name, node, "127.0.0.1:1", "dc1", "r1", 1, 12, "1", (), 1),
        UpdateNode(node, capacity=2),
        Join(node, (1,), SEED),
        RegisterCdcWriter(name, node),
        AdvanceCdcWriter(name, node, 1, 1, ()),
    ]


def _begin(guarded: Guarded, user: User, folder: Path) -> Target:
    """Start a cluster with principals, three agents and n1, and the join of n2, whose barrier is closed."""
    cluster, trust = f"{PREFIX}{uuid.uuid4().hex[:8]}", folder / "trust"
    user.run("cluster", "create", cluster, "--bootstrap", guarded.users, "--kafka-config", str(guarded.login))
    cluster_id = json.loads(user.run("cluster", "current", "--json"))["cluster_id"]
    clients = ("--client", "ops", "--client", "shop", "--client", CDC)
    user.run(
        "cluster",
        "certificates",
        str(trust),
        "--node",
        "n1",
        "--agents",
        "agents",
        *clients,
        "--cluster-id",
        cluster_id,
    )
    thieves = BrokerUser.node, BrokerUser.client, BrokerUser.cdc_writer
    for kind in (BrokerUser.validator, BrokerUser.agent, BrokerUser.operator, *thieves):
        whose = ["--for", kind.value, "--user", kind.value, "--apply", "--cluster", cluster]
        user.run("cluster", "acls", *whose, "--bootstrap", guarded.tls, "--kafka-config", str(guarded.admin))
    login = by(guarded, cluster, BrokerUser.operator)
    user.run("cluster", "use", cluster, *login[:2], *login[4:], "--trust-config", str(trust / "ops.properties"))
    for role in ("validator", "coordinator", "publisher"):
        kind = BrokerUser.validator if role == "validator" else BrokerUser.agent
        user.begin("agent", role, *by(guarded, cluster, kind), "--trust-config", str(trust / "agents.properties"))
    master = ("--request-master", str(trust / "request.master"))
    until(lambda: _is_done(user, "principal", "create", "ops", "--role", "admin", *master), "the validator to start")
    user.run("principal", "create", "shop", "--role", "application", "--scope", "shop")
    for name in ("n1", CDC):
        user.run("principal", "create", name, "--role", "node")
    own = trust / "n1.properties"
    user.join_node("--data", str(folder / "n1"), *by(guarded, cluster, BrokerUser.node), "--trust-config", str(own))
    for keyspace in ("shop", "other"):
        user.run("keyspace", "create", keyspace, "--factor", "1")
        user.run("submit", json.dumps(TABLE | {"keyspace": keyspace}))
    (n1,) = json.loads(user.run("node", "list", "--json"))
    ops = read_trust(trust / "ops.properties")[1]
    with httpx.Client(headers=ops.headers(), verify=ops.client or False, trust_env=False) as http:
        page = http.get(ops.url(f"{n1['address']}/v1/status"), extensions={"sni_hostname": name_of_node(n1["id"])})
    n2, joining = _join(user, "n2")
    return Target(guarded, user, cluster, cluster_id, n1 | {"data_port": page.json()["data_port"]}, n2, joining)
