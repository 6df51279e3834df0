"""A cluster of release 0.1.0 is upgraded while it runs, process by process, the validator last.

Its agents, nodes and a client are processes of the package of 0.1.0. As long as its validator decides, nothing is in
the log that one of them would halt on, whatever the processes of this release ask for; they wait and go on. With the
validator of this release the rest follows, and who was left behind stops, and says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.earlier import environment_of
from tests.system.agents_world import AgentProcess, AgentsWorld, until
from tests.system.nodes_world import NodeProcess

from ringlog import FEATURES
from ringlog.client.results import AppliedResult
from ringlog.client.row_writer import RowWriter
from ringlog.kernel.commands.cluster import Noop, TakeOver
from ringlog.kernel.commands.features import EnableFeature
from ringlog.kernel.encoding import digest
from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import Node
from ringlog.kernel.values import Command
from ringlog.log.topics import METADATA
from ringlog.stack import StackInfo
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import INSERT, Cell, Mutation
from ringlog_schemas import VERSION, frozen

pytestmark = [pytest.mark.system, pytest.mark.slow]

AGENTS = "validator", "coordinator", "publisher", "keeper"
NODES = "n1", "n2"
KEYSPACE = {"command": "CreateKeyspace", "name": "ks", "replication": {"strategy": "simple", "factor": 2}}
TABLE = {
    "command": "CreateTable",
    "keyspace": "ks",
    "name": "t",
    "columns": [{"name": "k", "type": "text"}, {"name": "v", "type": "text"}],
    "partition_key": ["k"],
    "clustering_key": [],
    "cdc": {"enabled": False},
}
CLIENT = """
import json, os, sys, time
from confluent_kafka import Producer
from ringlog.client.client import Client
from ringlog.kernel.encoding import digest
from ringlog.log.errors import LogError
from ringlog.wire.author_json import from_json
from ringlog.wire.draw import SystemDraw
from ringlog.wire.partitions import mutation_key
from ringlog.wire.records import INSERT, Cell, Mutation, encode_mutation

servers, cluster = os.environ["RINGLOG_BOOTSTRAP_SERVERS"], os.environ["RINGLOG_CLUSTER"]
with Client(servers, cluster, "left-behind") as client:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "row" in asked:
                key = asked["row"].encode()
                at, cells = time.time_ns() // 1000, (Cell("v", key),)
                row = Mutation(None, None, "ks", "t", at, None, INSERT, (key,), (), cells)
                producer = Producer({"bootstrap.servers": servers})
                producer.produce(f"{cluster}.mutations", encode_mutation(row), key=mutation_key("ks", "t", key))
                answer = {"unsent": producer.flush(30)}
            elif "state" in asked:
                state = client.read_barrier(60)
                answer = {"epoch": state.epoch, "digest": digest(state)}
            else:
                found = client.submit(from_json(client.read_barrier(60), asked, SystemDraw()), timeout_s=60)
                answer = {"answer": type(found).__name__, "code": getattr(found, "code", ""), "epoch": found.epoch}
        except LogError as error:
            halt = client.replica.halted
            answer = {"halted": halt.code, "detail": halt.detail, "epoch": client.state.epoch}
        print(json.dumps(answer), flush=True)
"""
"""A client of 0.1.0: a command, a row, or a look at the state for each line."""


class OldClient:
    """Asked line by line."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-c", CLIENT]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):  # not of its log
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"it ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.communicate()


class World:
    """All of 0.1.0 at first; ``agents`` has what is of this release."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path, earlier: dict[str, str], open_: ExitStack) -> None:
        self._open, self._earlier, self.servers = open_, earlier, stack.bootstrap_servers
        self._environment = os.environ | {
            "RINGLOG_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "RINGLOG_REDIS_URL": stack.redis_url,
            "RINGLOG_CLUSTER": cluster,
            "RINGLOG_DATA_DIR": str(folder),
            "RINGLOG_SESSION_TIMEOUT_S": str(stack.session_timeout_s),
            **earlier,
        }
        found = [sys.executable, "-m", "ringlog.cli", "cluster", "found", cluster]
        subprocess.run(found, env=self._environment, check=True, capture_output=True)
        self.old = {role: self.old_agent(role) for role in AGENTS}
        self.client = OldClient(self._environment)
        open_.callback(self.client.close)
        assert self.client.ask({"command": "Noop"})["answer"] == "AppliedResult"
        self.agents = AgentsWorld(stack, cluster, folder)  # founds again: makes the topics that have come since
        open_.callback(self.agents.close)
        for role in AGENTS:
            self.agents.await_term(role, 1)
        self.nodes = {name: self._old_node(folder, name) for name in NODES}
        for name in NODES:
            until(lambda name=name: (node := self.member(name)) and node.state == "normal", f"{name} to join")

    def old_agent(self, role: str) -> AgentProcess:
        agent = AgentProcess(role, self._environment)
        self._open.callback(agent.stop)
        return agent

    def _old_node(self, folder: Path, name: str) -> NodeProcess:
        node = NodeProcess(self.agents, folder, name, earlier=self._earlier)
        self._open.callback(node.kill)
        return node

    def member(self, name: str) -> Node | None:
        state = self.agents.state
        return state.nodes[state.node_names[name]] if name in state.node_names else None

    def status(self, name: str) -> dict[str, Any]:
        member = self.member(name)
        assert member is not None
        try:
            found: dict[str, Any] = httpx.get(f"http://{member.address}/v1/status", timeout=30).json()
        except httpx.HTTPError:
            return {}
        return found

    def entries(self) -> list[Entry]:
        """All that were ever appended, in order."""
        found = map(decode_entry, self.agents.records(METADATA, committed=False))
        return [entry for entry in found if isinstance(entry, Entry)]

    def agree(self) -> None:
        """The client of 0.1.0 has our state, byte for byte, once both have the same epoch."""

        def same() -> bool:
            theirs, ours = self.client.ask({"state": True}), self.agents.client.read_barrier()
            if theirs["epoch"] != ours.epoch:
                return False
            assert theirs["digest"] == digest(ours)
            return True

        until(same, "both releases to be at one epoch")

    def submit(self, command: Command) -> object:
        return self.agents.client.submit(command, timeout_s=60)


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[World]:
    package = tmp_path / "earlier"
    package.mkdir()
    with ExitStack() as open_:
        yield World(stack, cluster_name, tmp_path, environment_of(package), open_)


def is_known(entry: Entry) -> bool:
    """To 0.1.0."""
    known = {one.name: int(one.json[VERSION]) for one in frozen(1).values() if one.family == "commands"}
    return known.get(entry.kind) == entry.version


def test_a_running_cluster_is_upgraded_process_by_process(world: World) -> None:
    for asked in (KEYSPACE, TABLE):
        assert world.client.ask(asked)["answer"] == "AppliedResult"
    assert world.client.ask({"row": "early"}) == {"unsent": 0}
    until(lambda: all(world.status(name).get("rows") == 1 for name in NODES), "nodes of 0.1.0 to hold the row")

    for role in ("coordinator", "publisher", "keeper"):
        world.old[role].stop()
        world.agents.start(role)
    for name in NODES:
        world.nodes[name].upgrade()
        until(lambda name=name: world.status(name).get("start") == 1, f"{name} to run this release")
    world.old["validator"].kill()
    assert world.client.ask({"row": "meanwhile"}) == {"unsent": 0}
    last = world.old_agent("validator")  # it finds the topics with the settings of this release
    world.agents.await_term("validator", 2)
    assert world.client.ask({"command": "Noop"})["answer"] == "AppliedResult"
    world.agree()
    assert all(map(is_known, world.entries()))
    for node in world.nodes.values():
        until(lambda node=node: "unknown_command: kind UpdateNode" in node.log.read_text(), "a node to be refused")
    assert not any(node.is_dead() for node in world.nodes.values())

    last.stop()
    world.agents.start("validator")
    until(lambda: all(world.member(name).features == FEATURES for name in NODES), "the nodes to say what they are now")
    for feature in FEATURES:
        assert isinstance(world.submit(EnableFeature(feature)), AppliedResult)
    with RowWriter(world.agents.client.replica, world.servers, world.agents.cluster) as writer:
        at, cells = time.time_ns() // 1000, (Cell("v", b"late"),)
        row = Mutation(None, None, "ks", "t", at, None, INSERT, (b"late",), (), cells)
        assert writer.verdict(writer.write(row), 60).code == ""
    until(lambda: all(world.status(name).get("rows") == 3 for name in NODES), "nodes to hold what was ever written")

    applied = world.agents.applied()
    first = next(number for number, entry in enumerate(applied) if not is_known(entry))
    assert all(isinstance(entry.command, TakeOver | Noop) for entry in applied[first - 2 : first])
    left = world.client.ask({"command": "Noop"})
    assert (left["halted"], left["epoch"]) == ("unknown_command", first)
    assert "needs a later release" in left["detail"]
