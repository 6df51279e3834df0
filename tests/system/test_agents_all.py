"""All agents under one supervisor: a node joins while the coordinator is killed, and SIGTERM leaves no
process behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agents.operation_runner import acks_of

from ringlog.agents.status import StatusReader
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.values import Command
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import ACKS, topic_name
from ringlog.protocol import roles
from ringlog.protocol.submission.results import AppliedResult
from ringlog.wire.records import encode_node_ack

from .agents_world import DEADLINE_S, AgentsWorld, until

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROLES = tuple(sorted(roles.ROLES))
SUPERVISE = """
import sys
from ringlog.agents.supervise import supervise
from ringlog.runtime.settings import ProcessSettings
sys.exit(supervise(ProcessSettings(), tuple(sys.argv[1:])))
"""


@contextmanager
def supervised(world: AgentsWorld, *roles: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a supervisor of these roles; stop it at the end if it still runs."""
    process = subprocess.Popen([sys.executable, "-c", SUPERVISE, *roles], env=world.environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture
def status(world: AgentsWorld) -> Iterator[StatusReader]:
    with StatusReader(world.stack.bootstrap_servers, world.cluster) as reader:
        yield reader


def all_caught_up(status: StatusReader) -> bool:
    return tuple(agent.role for agent in status.read() if agent.caught_up) == ROLES


def children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the process ids of the supervisor's children."""
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in tasks.split()]


def all_children(process: subprocess.Popen[bytes]) -> dict[str, int] | None:
    """Return role to process id, once each role has a process; an ended child restarts after a pause."""
    try:
        found = {last_argument(pid): pid for pid in children(process)}
    except OSError:
        return None  # a child ended between the two reads
    return found if found.keys() == set(ROLES) else None


def last_argument(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2].decode()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def apply(world: AgentsWorld, command: Command) -> None:
    assert isinstance(world.client.submit(command, timeout_s=DEADLINE_S), AppliedResult)


@pytest.mark.soak("the kills of test_registers.py")
def test_a_node_joins_although_the_coordinator_is_killed(world: AgentsWorld, status: StatusReader) -> None:
    with supervised(world, *ROLES) as supervisor:
        until(lambda: all_caught_up(status), "all agents to be caught up")
        node = str(uuid.uuid4())
        apply(world, RegisterNode("n1", node, "127.0.0.1:1", "dc", "r", 2, 12, "1", (), 1))
        apply(world, Join(node, (-(2**62), 5, 2**62), bytes(16)))
        until(lambda: any(op.stage == "prepared" for op in world.state.operations.values()), "the first stage")
        by_role = until(lambda: all_children(supervisor), "all agents to report")
        term = world.term("coordinator")
        os.kill(by_role["coordinator"], signal.SIGKILL)
        acknowledge_until_normal(world, node)
        assert world.term("coordinator") > term
        until(lambda: all_caught_up(status), "all agents to be caught up again")
        running = until(lambda: all_children(supervisor), "all agents to report again").values()
        supervisor.terminate()
        assert supervisor.wait(DEADLINE_S) == 0
        assert all(is_gone(pid) for pid in running)


def acknowledge_until_normal(world: AgentsWorld, node: str) -> None:
    """Acknowledge the whole log for all nodes until the joining node is normal."""
    producer = AckedProducer(world.stack.bootstrap_servers)
    topic = topic_name(world.cluster, ACKS.suffix)

    def joined() -> bool:
        for name, ack in acks_of(world.state).items():
            producer.send(topic, encode_node_ack(ack), key=name.encode(), partition=0).result(DEADLINE_S)
        return world.state.nodes[node].state == "normal"

    until(joined, "the node to be normal")
    producer.close()


def test_agents_end_when_their_supervisor_is_killed(world: AgentsWorld) -> None:
    with supervised(world, "validator") as supervisor:
        world.await_term("validator", 1)
        running = children(supervisor)
        assert len(running) == 1
        supervisor.kill()
        supervisor.wait(DEADLINE_S)
        until(lambda: all(is_gone(pid) for pid in running), "the agent to end")
