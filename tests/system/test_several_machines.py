"""Nodes and agents on machines of their own, over TLS: nodes find each other, stream, answer an operator elsewhere.

A machine that loses the broker alone goes on with its peers.

The machines are network namespaces: a node's 127.0.0.1 is its own, and a cable that is pulled out loses packets without
a word. The broker is on none of them; each reaches it by a door on its 127.0.0.1.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.certificates import needs_openssl
from tests.faults.proxy import Proxy, Shape
from tests.system.agents_world import AgentsWorld, until
from tests.system.machines import Machines, why_none
from tests.system.nodes_world import NodeProcess, NodesWorld

from ringlog.client.results import AppliedResult
from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.values import Replication
from ringlog.operator.certificates import make_certificates
from ringlog.runtime.trust import TRUST_VARIABLE, name_of_node, read_trust
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow, needs_openssl]

OPERATOR = 3


class World(NodesWorld):
    """Two nodes and an operator, on three machines; the validator is beside one node, other agents beside the other."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path, machines: Machines) -> None:
        beside = {"validator": 1}
        super().__init__(
            AgentsWorld(stack, cluster, folder, prefix=lambda role: machines.on(beside.get(role, 2))), folder
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
            self.agents, self.folder, f"n{number}", prefix=self._machines.on(number), options=options
        )
        self.await_normal(f"n{number}")

    def submit_keyspace(self, name: str, factor: int) -> None:
        assert isinstance(self.agents.client.submit(CreateKeyspace(name, Replication("simple", factor))), AppliedResult)

    def status(self, name: str) -> dict[str, Any]:
        """What a node tells the operator, over TLS and with a token."""
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
        """(exit status, what is said) of the operator's ``ringlog data``."""
        return self.ringlog(OPERATOR, "data", *words)

    def ringlog(self, number: int, *words: str) -> tuple[int, str]:
        """As ``data``, of any command on a machine."""
        ended = subprocess.run(
            [*self._machines.on(number), sys.executable, "-m", "ringlog.cli", *words],
            env=self.agents.environment | {TRUST_VARIABLE: str(self._trust / "ops.properties")},
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, (ended.stdout or ended.stderr).strip()


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


def test_nodes_on_two_machines_serve_a_third_one_and_a_cable_is_pulled_out(world: World, machines: Machines) -> None:
    world.join_from(1, "--listen", machines.address(1))
    world.submit_keyspace("before", 1)
    world.join_from(2, "--listen", "0.0.0.0", "--advertise", machines.address(2))  # streams from the other machine
    for name in ("n1", "n2"):
        member = world.member(name)
        assert member is not None
        assert (member.id, member.address.split(":")[0]) == (world.ids[name], machines.address(int(name[1])))
    world.submit_keyspace("ks", 2)
    assert world.data("write", "ks", "k", "together", "--level", "ALL")[0] == 0

    machines.cable(2, plugged=False)
    status, said = world.data("write", "ks", "k", "apart", "--level", "ALL", "--timeout", "3")
    assert (status, said.split(":")[0]) == (1, "request_timed_out")
    status, said = world.data("write", "ks", "k", "alone", "--level", "ONE")
    assert (status, said.rpartition(", ")[2]) == (0, "on n1")

    machines.cable(2, plugged=True)
    until(lambda: world.data("read", "ks", "k", "--level", "ALL") == (0, "alone"), "both to answer again")

    # The second machine loses the broker and nothing else: its node serves, and asks the other one what there is.
    world.doors[2].shape(Shape(cut_up=True, cut_down=True))
    epoch = world.status("n2")["epoch"]
    answer = world.agents.client.submit(Noop())
    assert isinstance(answer, AppliedResult)
    until(lambda: world.status("n2")["known_epoch"] >= answer.epoch, "the node to hear of it from its peer, over TLS")
    assert world.status("n2")["epoch"] == epoch < answer.epoch
    assert world.data("write", "ks", "k", "cut off", "--level", "ALL")[0] == 0
    status, said = world.ringlog(2, "submit", '{"command": "Noop"}')
    assert (status, said.split(":")[0]) == (1, "log_unavailable")

    world.doors[2].heal()
    until(lambda: world.status("n2")["epoch"] >= answer.epoch, "the node to have the log again")
    assert "peer_refuted" not in world.nodes["n2"].log.read_text()
    assert world.data("read", "ks", "k", "--level", "ALL") == (0, "cut off")
