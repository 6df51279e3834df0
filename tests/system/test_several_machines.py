"""Nodes and agents on separate machines, over TLS: nodes find each other, stream, and answer a remote operator.

A machine without a connection to the broker continues with its peers. A third machine reads and writes rows of a table
throughout, and each row is in the CDC log.

The machines are network namespaces: each has its own 127.0.0.1, and an unplugged cable loses packets silently. The
broker is on none of them; each machine reaches it over a proxy on its 127.0.0.1.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests import fork_server
from tests.certificates import needs_openssl
from tests.ending import stopping
from tests.faults.proxy import Proxy, Shape
from tests.system.agents_world import DEADLINE_S, AgentsWorld, until
from tests.system.machines import Machines, why_none
from tests.system.nodes_world import NodeProcess, NodesWorld
from tests.system.test_cdc_job import start

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.values import CdcOptions, Column, Replication
from ringlog.operator.certificates import make_certificates
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.trust import TRUST_VARIABLE, name_of_node, read_trust
from ringlog.stack import StackInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow, needs_openssl]

OPERATOR = 3


class World(NodesWorld):
    """Two nodes and an operator on three machines; the validator is with one node, other agents with the other."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path, machines: Machines) -> None:
        beside = {"validator": 1}
        super().__init__(
            AgentsWorld(stack, cluster, folder, network=lambda role: machines.network(beside.get(role, 2))), folder
        )
        self.doors: dict[int, Proxy] = {}
        self._machines = machines
        self._trust = folder / "trust"
        self.ids = {
            made.name: made.node for made in make_certificates(self._trust, [("n1", ""), ("n2", "")], ["ops"], 2)
        }

    def join_from(self, number: int, *listening: str) -> None:
        """Start a node on its machine, and wait until it is normal."""
        options = (*listening, "--trust-config", str(self._trust / f"n{number}.properties"))
        self.nodes[f"n{number}"] = NodeProcess(
            self.agents, self.folder, f"n{number}", network=self._machines.network(number), options=options
        )
        self.await_normal(f"n{number}")

    def submit_keyspace(self, name: str, factor: int) -> None:
        command = CreateKeyspace(name, Replication("simple", factor))
        assert isinstance(self.agents.client.submit(command, timeout_s=DEADLINE_S), AppliedResult)

    def status(self, name: str) -> dict[str, Any]:
        """Return the node's status for the operator, over TLS and with a token."""
        member = self.member(name)
        assert member is not None
        _, trust = read_trust(self._trust / "ops.properties")
        meant = {"sni_hostname": name_of_node(member.id)}
        with (
            self._machines.inside(OPERATOR),
            httpx.Client(headers=trust.headers(), verify=trust.client or False, trust_env=False, timeout=30) as http,
        ):
            found: dict[str, Any] = http.get(f"{trust.url(member.address)}/v1/status", extensions=meant).json()
        return found

    def data(self, *words: str) -> tuple[int, str]:
        """Return (exit status, output) of the operator's ``ringlog data``."""
        return self.ringlog(OPERATOR, "data", *words)

    def submit_table(self, name: str) -> None:
        """Create a table of ``ks`` with a CDC log: key ``k`` and ``n``, value ``v``."""
        columns = (Column("k", "text"), Column("n", "int"), Column("v", "int"))
        command = CreateTable("ks", name, str(uuid.uuid4()), columns, ("k",), ("n",), CdcOptions(enabled=True))
        assert isinstance(self.agents.client.submit(command), AppliedResult)

    def put(self, number: int) -> str:
        """Write a row of ``ks.t`` from the operator's machine; return its position."""
        status, said = self.data("put", "ks.t", "k", str(number), "--set", f"v={number}", "--json")
        assert status == 0, said
        return str(json.loads(said)["position"])

    def rows(self, *words: str) -> list[int]:
        """Return the rows of a partition, read by the operator; none if too few nodes answer."""
        status, said = self.data("rows", "ks.t", "k", "--json", *words)
        return [] if status else [row["v"] for row in json.loads(said)["rows"]]

    def ringlog(self, number: int, *words: str) -> tuple[int, str]:
        """Like ``data``, for any command on a machine."""
        environment = self.agents.environment | {TRUST_VARIABLE: str(self._trust / "ops.properties")}
        there = self._machines.network(number)
        ended = fork_server.run(["-m", "ringlog.cli", *words], environment, network=there)
        # A successful command writes notices to standard error, separate from its answer.
        said = ended.stdout if ended.returncode == 0 else ended.stdout or ended.stderr
        return ended.returncode, said.strip()


@pytest.fixture
def machines() -> Iterator[Machines]:
    if why := why_none():
        pytest.skip(why)
    made = Machines(3)
    yield made
    made.close()


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path, machines: Machines) -> Iterator[World]:
    port = int(stack.bootstrap_servers.rpartition(":")[2])
    with ExitStack() as open_:
        doors = {number: Proxy(port, port, listening=machines.listen(number, port)) for number in (1, 2, OPERATOR)}
        for door in doors.values():
            open_.callback(door.start().close)
        made = World(stack, cluster_name, tmp_path, machines)
        made.doors = doors
        open_.callback(made.close)
        yield made


def test_nodes_on_two_machines_serve_a_third_and_survive_a_cut(
    world: World, machines: Machines, stack: StackInfo, spark: SparkSession, tmp_path: Path
) -> None:
    world.join_from(1, "--listen", machines.address(1))
    world.submit_keyspace("before", 1)
    world.join_from(2, "--listen", "0.0.0.0", "--advertise", machines.address(2))  # streams from the other machine
    for name in ("n1", "n2"):
        member = world.member(name)
        assert member is not None
        assert (member.id, member.address.split(":")[0]) == (world.ids[name], machines.address(int(name[1])))
    world.submit_keyspace("ks", 2)
    assert world.data("write", "ks", "k", "together", "--level", "ALL")[0] == 0
    world.submit_table("t")
    assert world.rows("--at", world.put(1), "--level", "ALL") == [1]

    machines.cable(2, plugged=False)
    status, said = world.data("write", "ks", "k", "apart", "--level", "ALL", "--timeout", "3")
    assert (status, said.split(":")[0]) == (1, "request_timed_out")
    status, said = world.data("write", "ks", "k", "alone", "--level", "ONE")
    assert (status, said.rpartition(", ")[2]) == (0, "on n1")
    apart = world.put(2)  # over the broker, which the other machine still reaches
    assert world.rows("--at", apart, "--level", "ALL", "--timeout", "3") == []
    assert world.rows("--at", apart) == [1, 2]

    machines.cable(2, plugged=True)
    until(lambda: world.data("read", "ks", "k", "--level", "ALL") == (0, "alone"), "both nodes to answer again")
    assert world.rows("--at", apart, "--level", "ALL") == [1, 2]

    # Only the second machine loses the broker: its node serves and requests new entries from the other node.
    world.doors[2].shape(Shape(cut_up=True, cut_down=True))
    epoch = world.status("n2")["epoch"]
    answer = world.agents.client.submit(Noop(), timeout_s=DEADLINE_S)
    assert isinstance(answer, AppliedResult)
    until(
        lambda: world.status("n2")["known_epoch"] >= answer.epoch, "the node to get the epoch from its peer, over TLS"
    )
    assert world.status("n2")["epoch"] == epoch < answer.epoch
    assert world.data("write", "ks", "k", "cut off", "--level", "ALL")[0] == 0
    alone = world.put(3)
    assert world.rows("--at", alone) == [1, 2, 3]
    status, said = world.ringlog(2, "submit", '{"command": "Noop"}')
    assert (status, said.split(":")[0]) == (1, "log_unavailable")

    world.doors[2].heal()
    until(lambda: world.status("n2")["epoch"] >= answer.epoch, "the node to read the log again")
    assert "peer_refuted" not in world.nodes["n2"].log.read_text()
    assert world.data("read", "ks", "k", "--level", "ALL") == (0, "cut off")
    assert world.rows("--at", alone, "--level", "ALL") == [1, 2, 3]

    def changes() -> list[object]:
        """Return the CDC changes that the operator's machine can read now."""
        status, said = world.ringlog(OPERATOR, "cdc", "tail", "--until-end", "--json")
        assert status == 0, said
        return [change["rows"][0]["values"] for change in map(json.loads, said.splitlines())]

    # The rows belong to the generation of the second node's join. Readers enter it after the first is sealed, which
    # needs a running job.
    place = ClusterContext(stack.bootstrap_servers, world.agents.cluster, "")
    with stopping(start(place, tmp_path / "checkpoint", spark)):
        until(lambda: changes() == [{"v": 1}, {"v": 2}, {"v": 3}], "all rows in the CDC log")
