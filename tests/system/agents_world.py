"""A cluster on the real stack, with agents as real processes that tests kill, stop and continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests import fork_server
from tests.waiting import DEADLINE_S, until
from typer.testing import CliRunner
from typer.testing import Result as CommandResult

from ringlog.agents.status import StatusReader
from ringlog.cli.main import app
from ringlog.client.client import Client
from ringlog.client.creation.creation import create_cluster
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, RESULTS, TopicSpec
from ringlog.runtime.kafka.config import QUIET
from ringlog.runtime.monitoring.metrics import ALL_METRICS
from ringlog.stack import StackInfo
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import Result, decode_result

SESSION_TIMEOUT_S = 2
AGENT = "-m", "ringlog.agents"
DYING = """
import importlib, os, signal, sys
from ringlog.agents.worker import run

_, module, owner, name, left, role = sys.argv
found = importlib.import_module(module)
found = getattr(found, owner) if owner else found
real, count = getattr(found, name), int(left)

def step(*arguments, **options):
    global count
    count -= 1
    if count < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

setattr(found, name, step)
run(role)
"""


def figures(exposition: str, labels: dict[str, str]) -> dict[str, float]:
    """Return the served metrics by name and own labels; each is documented and has the labels of its process."""
    known = {name for figure in ALL_METRICS.values() for name in figure.served}
    found = {}
    for sample in (one for family in text_string_to_metric_families(exposition) for one in family.samples):
        assert sample.name in known
        assert labels.items() <= sample.labels.items()
        own = [value for name, value in sample.labels.items() if name not in labels]
        found[" ".join([sample.name, *own])] = sample.value
    return found


class AgentProcess:
    """The process of one agent. ``network``: file of its network namespace; ``program``: arguments of Python before the
    role.
    """

    def __init__(
        self, role: str, environment: dict[str, str], network: str = "", program: Sequence[str] = AGENT
    ) -> None:
        self.role = role
        self.process = fork_server.start([*program, role], environment, network=network)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_S)

    def ask_to_stop(self) -> None:
        """Send SIGTERM and return immediately."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()

    def stop(self) -> None:
        """End the process, also a stopped one."""
        self.ask_to_stop()
        if self.process.poll() is None:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


class AgentsWorld:
    """One cluster, its agents and a client. ``network``: file of the network namespace of a role's agents."""

    def __init__(
        self,
        stack: StackInfo,
        cluster: str,
        folder: Path,
        session_timeout_s: int = SESSION_TIMEOUT_S,
        network: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._network = network
        self.stack = stack
        self.cluster = cluster
        self._agents: list[AgentProcess] = []
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "RINGLOG_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "RINGLOG_REDIS_URL": stack.redis_url,
            "RINGLOG_CLUSTER": cluster,
            "RINGLOG_DATA_DIR": str(folder),
            "RINGLOG_SESSION_TIMEOUT_S": str(session_timeout_s),
        }
        create_cluster(stack.bootstrap_servers, cluster)
        self.client = Client(stack.bootstrap_servers, cluster, "tester").start()

    def close(self) -> None:
        for agent in self._agents:
            agent.ask_to_stop()
        for agent in self._agents:
            agent.stop()
        self.client.close()

    def spawn(self, role: str, program: Sequence[str] = AGENT) -> AgentProcess:
        """Start an agent; it is a standby while another one of its role is active."""
        agent = AgentProcess(role, self.environment, self._network(role), program)
        self._agents.append(agent)
        return agent

    def running(self, role: str) -> AgentProcess:
        """Return the oldest running agent of the role, or a new one."""
        alive = self.alive(role)
        return alive[0] if alive else self.start(role)

    def alive(self, role: str) -> list[AgentProcess]:
        """Return the running agents of the role, oldest first."""
        return [agent for agent in self._agents if agent.role == role and agent.process.poll() is None]

    def start(self, role: str) -> AgentProcess:
        """Start the only agent of a role and wait until its term has begun."""
        (agent,) = self.start_all(role)
        return agent

    def start_all(self, *roles: str) -> list[AgentProcess]:
        """Start the only agents of these roles together and wait until the term of each has begun."""
        before = {role: self.term(role) for role in roles}
        agents = [self.spawn(role) for role in roles]
        for agent in agents:
            self.await_term(agent.role, before[agent.role] + 1, agent)
        return agents

    def start_dying(self, role: str, module: str, owner: str, name: str, left: int = 0) -> AgentProcess:
        """Like ``start``, but the process kills itself at a call of the function, after ``left`` earlier calls."""
        before = self.term(role)
        agent = self.spawn(role, ("-c", DYING, module, owner, name, str(left)))
        self.await_term(role, before + 1)
        return agent

    def term(self, role: str) -> int:
        found = self.state.terms.get(role)
        return 0 if found is None else found.term

    def await_term(self, role: str, least: int, agent: AgentProcess | None = None) -> None:
        """Wait for a term of at least ``least``; fail if the agent has ended."""

        def is_started() -> bool:
            ended = None if agent is None else agent.process.poll()
            if ended is not None:
                self.client.read_barrier()
                assert self.term(role) >= least, f"{role} ended with {ended} before its term began"
            return self.term(role) >= least

        until(is_started, f"term {least} of {role}")

    def await_active(self, *roles: str) -> None:
        """Wait until each agent is active, because an agent misses snapshots between the entry of its term and that."""
        with StatusReader(self.stack.bootstrap_servers, self.cluster) as status:

            def are_active() -> bool:
                found = {one.role: (one.term, one.state) for one in status.read()}
                return all(found.get(role) == (self.term(role), "active") for role in roles)

            until(are_active, f"{roles} to be active")

    def ringlog(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command for this cluster in a process."""
        where = ["--bootstrap", self.stack.bootstrap_servers, "--cluster", self.cluster]
        return fork_server.run(["-m", "ringlog.cli", *words, *where], self.environment, timeout=2 * DEADLINE_S)

    def run(self, *words: str) -> str:
        """Return the output of a command in a process; it must succeed."""
        ended = self.ringlog(*words)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def typed(self, *words: str) -> CommandResult:
        """Run a command for this cluster in this process, which is faster."""
        where = ["--bootstrap", self.stack.bootstrap_servers, "--cluster", self.cluster]
        return CliRunner().invoke(app, [*words, *where])

    def done(self, *words: str) -> str:
        """Return the output of a command in this process; it must succeed."""
        ended = self.typed(*words)
        assert ended.exit_code == 0, (words, ended.output)
        return ended.stdout

    @property
    def state(self) -> ClusterState:
        return self.client.replica.state

    def records(self, spec: TopicSpec, committed: bool = True) -> list[bytes]:
        """Return all current records of a topic with one partition."""
        return [record for _, record in self.offsets(spec, committed)]

    def offsets(self, spec: TopicSpec, committed: bool = True) -> list[tuple[int, bytes]]:
        """Like ``records``, with offsets."""
        isolation = "read_committed" if committed else "read_uncommitted"
        with closing(KafkaLog(self.stack.bootstrap_servers, self.cluster, spec, isolation=isolation)) as log:
            end = log.end_offset()
            tail = log.tail(log.begin_offset())
            found: list[tuple[int, bytes]] = []
            try:
                while tail.position < end:
                    found += [(record.offset, record.data) for record in tail.poll(0.2)]
            finally:
                tail.close()
            return found

    def await_acknowledged(self, role: str, spec: TopicSpec) -> None:
        """Wait until faust has acknowledged all current records in the topic of a role."""
        group = Consumer(
            {**QUIET, "bootstrap.servers": self.stack.bootstrap_servers, "group.id": f"{self.cluster}.{role}"}
        )
        log = KafkaLog(self.stack.bootstrap_servers, self.cluster, spec)
        place = TopicPartition(log.name, 0)
        try:
            end = log.end_offset()
            until(lambda: group.committed([place], timeout=60)[0].offset == end, f"offset {end} of {place}")
        finally:
            group.close()
            log.close()

    def results(self) -> list[Result]:
        """Return all committed results, in order."""
        return [decode_result(data) for data in self.records(RESULTS)]

    def applied(self) -> list[Entry]:
        """Return the applied entries of the log in order: entry i created epoch i + 1."""
        state, found = EMPTY_STATE, []
        for data in self.records(METADATA, committed=False):
            entry = decode_entry(data)
            folded = fold(state, entry)
            state = folded.state
            if folded.outcome.kind is OutcomeKind.APPLIED:
                assert isinstance(entry, Entry)
                found.append(entry)
        return found
