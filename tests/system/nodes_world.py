"""Reference nodes as real processes on a new cluster: tests start, kill, restart and observe them."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import httpx
from tests import fork_server
from tests.system.agents_world import AgentsWorld, figures, until

from ringlog.kernel.model.state import Node
from ringlog.kernel.values import Command
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo

World = TypeVar("World", bound="NodesWorld")


class NodeProcess:
    """One node, which restarts with the same folder. ``network``: file of its network namespace; ``options``:
    further options.
    """

    def __init__(
        self,
        world: AgentsWorld,
        folder: Path,
        name: str,
        *,
        join: bool = True,
        port: int = 0,
        datacenter: str = "dc1",
        network: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._network = network
        self.log = folder / f"{name}.log"
        self._command = ["node", "run", name]
        self._command += ["--join", "--tokens", "3"] if join else []
        self._command += ["--bootstrap", world.stack.bootstrap_servers, "--cluster", world.cluster]
        self._command += ["--data", str(folder), "--port", str(port), "--datacenter", datacenter, *options]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = self.again()

    def again(self, program: Sequence[str] = ()) -> fork_server.ForkedProcess:
        words = [*(program or ["-m", "ringlog.cli"]), *self._command]
        with self.log.open("ab") as log:
            return fork_server.start(words, self._environment, log=log.fileno(), network=self._network)

    def restart(self, program: Sequence[str] = ()) -> None:
        """Restart the node. ``program``: arguments of Python that replace the command line's module."""
        self.process = self.again(program)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(120)

    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(120)


DEADLINE_S = 240


def opened(kind: Callable[[AgentsWorld, Path], World], stack: StackInfo, path: Path, name: str = "") -> closing[World]:
    """Return a world of nodes on a new cluster; the end of the context closes it."""
    return closing(kind(AgentsWorld(stack, name or f"n{uuid.uuid4().hex[:10]}", path), path))


class NodesWorld:
    """Agents, and nodes by name."""

    def __init__(self, agents: AgentsWorld, folder: Path) -> None:
        self.agents = agents
        self.folder = folder
        self.nodes: dict[str, NodeProcess] = {}
        # A client reads the certificates of the world when it is created, at a hundred times the cost of a request.
        self.http = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
        needed = ("validator", "coordinator", "publisher")
        try:
            self.agents.start_all(*(role for role in needed if not agents.alive(role)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()
        self.http.close()
        self.agents.close()

    def begin(self, name: str, *, join: bool = True, port: int = 0, datacenter: str = "dc1") -> NodeProcess:
        self.nodes[name] = NodeProcess(self.agents, self.folder, name, join=join, port=port, datacenter=datacenter)
        return self.nodes[name]

    def begin_all(self, *names: str) -> None:
        """Start nodes, and wait until they are normal."""
        for name in names:
            self.begin(name)
        self.await_normal(*names)

    def submit(self, command: Command) -> int:
        """Submit a command that must be applied; return its epoch."""
        answer = self.agents.client.submit(command, timeout_s=DEADLINE_S)
        assert isinstance(answer, AppliedResult), answer
        return answer.epoch

    def id_of(self, name: str) -> str:
        member = self.member(name)
        assert member is not None
        return member.id

    def member(self, name: str) -> Node | None:
        found = self.agents.state.node_names.get(name)
        return None if found is None else self.agents.state.nodes[found]

    def await_normal(self, *names: str, deadline_s: float = 240) -> None:
        def normal() -> bool:
            for name in names:
                assert self.nodes[name].process.poll() is None, (self.folder / f"{name}.log").read_text()[-3_000:]
            return all((found := self.member(name)) is not None and found.state == "normal" for name in names)

        until(normal, f"{names} to join", deadline_s)

    def status(self, name: str) -> dict[str, object] | None:
        """Return the node's status page; None if the node does not serve it."""
        member = self.member(name)
        assert member is not None
        try:
            answer = self.http.get(f"http://{member.address}/v1/status", timeout=60)
        except httpx.HTTPError:
            return None
        found: dict[str, object] = answer.json()
        return found

    def shown(self, name: str) -> tuple[dict[str, object], dict[str, float]]:
        """Return the node's health, and its metrics by name and own labels."""
        member = self.member(name)
        assert member is not None
        health = self.http.get(f"http://{member.address}/health")
        assert (health.status_code == 200) is health.json()["ready"]
        return health.json(), figures(self.http.get(f"http://{member.address}/metrics").text, {"node": name})
