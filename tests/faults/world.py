"""One cluster with all parts, redundant if possible, and a load, observers and checks.

The parts are a broker, Redis, two supervisors with one agent of each role each, three nodes and the Spark driver. A
test causes a fault inside ``under_load`` and repairs it. The load continues after the block. The world waits until
requests after the repair are answered and all parts are idle. Then it checks the observations of clients, nodes,
cache and consumers. Each wait has a deadline and names the waiting part.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ringlog.agents.status import SILENT_S, AgentView, StatusReader
from ringlog.client.client import Client
from ringlog.client.creation.creation import create_cluster
from ringlog.kernel.changes import EPOCHS
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.state import ClusterState, Node, Operation
from ringlog.kernel.operations.stages import is_ended
from ringlog.kernel.values import CdcOptions, Column, Command, Replication
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.protocol import roles
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack.artifacts import spark_jars
from tests.stopping import stop

from .broker import Broker
from .checks import Checker
from .cost_tables import Figures
from .load import KEYSPACE, TABLE, Commands, Mutations
from .observers import Observers
from .processes import Process, children, last_argument, signal_to
from .waiting import until

ROLES = tuple(sorted(roles.ROLES))
NODES = ("n1", "n2", "n3")
SUPERVISORS = ("a", "b")
RECOVERY_S = 180.0
"""The maximum time from the repair of a fault until all parts are idle."""
SILENCE_S = 5.0
"""The length of a cut after its first effect: twice the session timeout."""
AFTERWARDS = 5
"""The number of requests after the repair that must be answered before a test continues."""
KEPT_MS = "600000"
"""The minimum time before compaction: at most the topic's maximum, and longer than a fault."""
SETTINGS = {"cdc_generation_lead_us": 300_000, "cdc_horizon_lead_us": 2_000_000}
"""Generations advance quickly, so that joins do not outlast the faults."""


class World:
    """The cluster. ``figures``: one line for each fault, for the table at the end."""

    def __init__(self, folder: Path, broker: Broker, figures: Figures) -> None:
        self.folder, self.broker, self.figures = folder, broker, figures
        self.cluster = f"f{uuid.uuid4().hex[:8]}"
        self.supervisors: dict[str, Process] = {}
        self.nodes: dict[str, Process] = {}
        self.spark: Process | None = None
        self._opened = ExitStack()

    def start(self, *, spark: bool) -> World:
        """Create the cluster and wait until all parts run; call ``close`` also after a failure."""
        self.folder.mkdir(parents=True, exist_ok=True)
        create_cluster(self.broker.bootstrap, self.cluster, SETTINGS)
        self._keep_every_epoch()
        if spark:
            self.spark = self._opened_process(self._spark())
        for name in SUPERVISORS:
            self.supervisors[name] = self._opened_process(self._supervisor(name))
        for _ in NODES:
            self.begin_node()
        self.client = self._opened.enter_context(Client(self.broker.over("clients"), self.cluster, "load"))
        self.status = self._opened.enter_context(StatusReader(self.broker.bootstrap, self.cluster))
        self.await_normal(*NODES)
        self._create()
        self.await_agents("the founding")
        self.commands = Commands(self.client, seed=4)
        self._opened.callback(self.commands.close)
        self.mutations = Mutations(self.broker.over("clients"), self.cluster)
        self._opened.callback(self.mutations.close)
        self.observers = Observers(self.client.replica, self.broker.info.redis_url, self.cluster, self._addresses)
        self._opened.callback(self.observers.close)
        self.checker = Checker(self.broker, self.cluster)
        self._opened.callback(self.checker.close)
        if self.spark is not None:
            until("the world", "the CDC writer to register", lambda: "spark" in self.state.writers,
                  why_not=self.spark.tail)  # fmt: skip
        return self

    def close(self) -> None:
        """End all started processes, newest first."""
        self._opened.close()

    def _opened_process(self, process: Process) -> Process:
        self._opened.callback(process.end)
        return process

    # ------------------------------------------------------------------------------------------- parties

    def _environment(self, link: str, name: str) -> dict[str, str]:
        return environment(self.broker, self.cluster, link, self.folder / name)

    def _supervisor(self, name: str) -> Process:
        return Process(
            f"agents-{name}", ["-m", "ringlog.cli", "agents"], self._environment("agents", name), self.folder
        )

    def _node(self, name: str) -> Process:
        arguments = ["-m", "ringlog.cli", "node", "run", name, "--join", "--tokens", "3", "--data", str(self.folder)]
        return Process(name, arguments, self._environment("data", name), self.folder)

    def _spark(self) -> Process:
        arguments = ["-m", "ringlog_cdc", "run", "--checkpoint", str(self.folder / "checkpoint")]
        arguments += ["--jars", ",".join(str(jar) for jar in spark_jars()), "--trigger-seconds", "0.5"]
        arguments += ["--java-options", "-XX:TieredStopAtLevel=1"]
        return Process("spark", arguments, self._environment("data", "spark"), self.folder)

    def _keep_every_epoch(self) -> None:
        """Delay compaction, because the checks read the published epochs after each fault."""
        lag = ConfigEntry("min.compaction.lag.ms", KEPT_MS, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, topic_name(self.cluster, EPOCHS), incremental_configs=[lag])
        admin = admin_client(self.broker.bootstrap)
        admin.incremental_alter_configs([topic])[topic].result(timeout=RECOVERY_S)

    def begin_node(self) -> str:
        """Start one more node that requests a join; return its name."""
        name = f"n{len(self.nodes) + 1}"
        self.nodes[name] = self._opened_process(self._node(name))
        return name

    def keep_spark(self) -> None:
        """Restart an ended driver, as its supervisor would."""
        if self.spark is not None and not self.spark.runs():
            self.spark.start()

    # --------------------------------------------------------------------------------------------- state

    @property
    def state(self) -> ClusterState:
        """Return the newest state of the load's client."""
        return self.client.replica.state

    def member(self, name: str) -> Node | None:
        """Return a node of the directory by its name."""
        found = self.state.node_names.get(name)
        return None if found is None else self.state.nodes[found]

    def join_of(self, name: str) -> Operation | None:
        """Return the join of a node, once it is admitted."""
        member = self.member(name)
        operations = self.state.operations.values()
        return next((each for each in operations if member is not None and each.node == member.id), None)

    def _addresses(self) -> dict[str, tuple[int, str]]:
        found = {}
        for name, process in tuple(self.nodes.items()):
            member = self.member(name)
            if member is not None and process.runs():
                found[name] = (process.pid, member.address)
        return found

    def _create(self) -> None:
        columns = tuple(Column(name, kind) for name, kind in (("k", "text"), ("c", "bigint"), ("v", "blob")))
        table = CreateTable(KEYSPACE, TABLE, str(uuid.uuid4()), columns, ("k",), ("c",), CdcOptions(enabled=True))
        commands: tuple[Command, ...] = (CreateKeyspace(KEYSPACE, Replication("simple", 2)), table)
        for command in commands:
            answer = self.client.submit(command, timeout_s=RECOVERY_S)
            assert isinstance(answer, AppliedResult), answer

    # -------------------------------------------------------------------------------------------- agents

    def term(self, role: str) -> int:
        """Return the term of a role; 0 before its first instance."""
        found = self.state.terms.get(role)
        return 0 if found is None else found.term

    def acting(self, role: str) -> tuple[Process, int]:
        """Return the supervisor of a role's active instance and the instance's process id."""
        instance = self.state.terms[role].instance
        for supervisor in self.supervisors.values():
            if instance in supervisor.text():
                for pid in children(supervisor.pid):
                    if last_argument(pid) == role:
                        return supervisor, pid
        raise AssertionError(f"no agent has logged that it is instance {instance} of {role}")

    def await_take_over(self, role: str, above: int) -> None:
        """Wait until another instance is active in a role."""
        until(
            f"the stand-by of {role}",
            f"a term above {above}",
            lambda: self.term(role) > above,
            why_not=lambda: "\n".join(each.tail() for each in self.supervisors.values()),
        )

    def await_agents(self, after: str) -> None:
        """Wait until each role has an active instance that has handled the current log, which grows under load."""
        epoch = self.state.epoch

        def is_at_work(view: AgentView | None) -> bool:
            return view is not None and view.state == "active" and view.age_s < SILENT_S and view.epoch >= epoch

        def lagging() -> list[str]:
            views = {view.role: view for view in self.status.read()}
            return [role for role in ROLES if not is_at_work(views.get(role))]

        until(
            "the world",
            f"all agents to be caught up after {after}",
            lambda: not lagging(),
            RECOVERY_S,
            lambda: "\n".join([f"{lagging()} are not", *(each.tail() for each in self.supervisors.values())]),
        )

    def stop_acting(self, role: str) -> tuple[Process, int]:
        """Send SIGSTOP to the active instance of a role; return its supervisor and its process id."""
        supervisor, pid = self.acting(role)
        stop(pid)
        return supervisor, pid

    def kill_acting(self, role: str) -> None:
        """Send SIGKILL to the active instance of a role."""
        _, pid = self.acting(role)
        signal_to(pid, signal.SIGKILL)

    def agents(self) -> tuple[int, ...]:
        """Return the process ids of all agents."""
        return tuple(pid for each in self.supervisors.values() for pid in children(each.pid))

    def said(self, what: str) -> int:
        """Return how often a text appears in the agents' output."""
        return sum(each.text().count(what) for each in self.supervisors.values())

    def gave_up(self, role: str) -> int:
        """Return how often an instance of a role has ended because the broker did not answer."""
        ends = re.compile(rf"ended +code=1 .*role={role}")
        return sum(len(ends.findall(each.text())) for each in self.supervisors.values())

    # ------------------------------------------------------------------------------------- nodes, driver, cache

    def source_of(self, joining: str) -> str:
        """Return a node that streams rows to the joining node."""
        operation = self.join_of(joining)
        assert operation is not None
        return self.state.nodes[operation.plan.sources[0].source].name

    def spark_processes(self) -> tuple[int, ...]:
        """Return the process ids of the driver: Python and its JVM."""
        assert self.spark is not None
        return (self.spark.pid, *children(self.spark.pid))

    def kill_spark(self) -> None:
        """Send SIGKILL to both processes of the driver."""
        assert self.spark is not None
        _, *below = self.spark_processes()
        self.spark.kill()
        for pid in below:
            signal_to(pid, signal.SIGKILL)

    def empty_cache(self) -> None:
        """Send FLUSHALL."""
        with redis.Redis.from_url(self.broker.info.redis_url) as connection:
            connection.flushall()

    # --------------------------------------------------------------------------------------------- waits

    def await_normal(self, *names: str) -> None:
        """Wait until nodes have joined."""

        def normal() -> bool:
            self.keep_spark()
            return all((member := self.member(name)) is not None and member.state == "normal" for name in names)

        def why() -> str:
            waiting = [f"{each.id} is {each.stage}" for each in self.state.operations.values() if not is_ended(each)]
            return "\n".join([*waiting, *(self.nodes[name].tail() for name in names)])

        until("the world", f"{', '.join(names)} to join", normal, RECOVERY_S, why)

    def await_answers(self, count: int = AFTERWARDS) -> None:
        """Wait until ``count`` new requests are answered."""
        now = time.monotonic()

        def answered() -> bool:
            self.keep_spark()
            return self.commands.answered_since(now) >= count

        until(
            "the client",
            f"answers to {count} new requests",
            answered,
            RECOVERY_S,
            lambda: self._why_no_answers(),
        )

    def await_silence(self, link: str) -> None:
        """Wait until a cut takes effect for some seconds: no answers to the client, or nodes that lag."""
        began = time.monotonic()

        def felt() -> bool:
            if link == "data":
                return bool(self._behind(self.state.epoch - 1, {})) and time.monotonic() - began > SILENCE_S
            last = max((each.answered for each in self.commands.asked if each.answer is not None), default=began)
            return time.monotonic() - max(last, began) > SILENCE_S

        until("the test", f"the cut of {link} to be detected", felt)

    def _behind(self, epoch: int, ends: dict[int, int]) -> dict[str, object]:
        found = {name: self.observers.statuses.get(name) for name in self.nodes}
        return {name: said for name, said in found.items() if said is None or not said.is_through(epoch, ends)}

    def _why_no_answers(self) -> str:
        waiting = self.commands.unanswered()
        ends = "\n".join(each.tail() for each in self.supervisors.values())
        return f"{len(waiting)} unanswered, the first {waiting[:1]}, broken: {self.commands.broken}\n{ends}"

    # ---------------------------------------------------------------------------------------------- load

    @contextmanager
    def under_load(self, fault: str, *, join: bool = False) -> Iterator[str]:
        """Run the load, yield the name of a joining node (or ""), and check everything after the block."""
        self._mend_what_a_failed_test_left()
        self.await_agents("what came before")
        before = self._counts()
        began = time.monotonic()
        self.commands.run()
        self.mutations.run()
        acknowledged = len(self.mutations.acknowledged)
        until("the producer", "its first mutations", lambda: len(self.mutations.acknowledged) > acknowledged)
        self.await_answers()
        joining = self.begin_node() if join else ""
        if joining:
            until("the world", f"{joining} to be admitted", lambda: self.join_of(joining), RECOVERY_S,
                  lambda: self.nodes[joining].tail())  # fmt: skip
        yield joining
        mended = time.monotonic()
        self.await_answers()
        again = time.monotonic() - mended
        if joining:
            self.await_normal(joining)
        self.rest()
        silence = self.commands.longest_silence(began)
        self.checker.check(self.commands, self.mutations, self.observers, self.client, tuple(self.nodes))
        after = self._counts()
        self.figures.add(
            fault,
            {name: after[name] - before[name] for name in after},
            silence_s=silence,
            again_s=again,
            rest_s=time.monotonic() - mended,
            joined=joining,
        )

    def _mend_what_a_failed_test_left(self) -> None:
        """Repair leftover faults, so that one failure does not cause others."""
        for link in self.broker.links.values():
            link.heal()
        for server in ("broker", "redis"):
            self.broker.go_on(server)
        if not (self.broker.runs("broker") and self.broker.runs("redis")):
            self.broker.up()
        for process in (*self.supervisors.values(), *self.nodes.values()):
            for pid in (process.pid, *children(process.pid)):
                signal_to(pid, signal.SIGCONT)
            if not process.runs():
                process.start()
        self.keep_spark()

    def _counts(self) -> dict[str, int]:
        asked = [each for each in tuple(self.commands.asked) if each.answer is not None]
        return {
            "applied": sum(isinstance(each.answer, AppliedResult) for each in asked),
            "answers": len(asked),
            "retries": sum(each.tries - 1 for each in asked),
            "mutations": len(self.mutations.acknowledged),
            "driver_starts": self.spark.starts if self.spark is not None else 0,
            "ended_agents": sum(each.text().count("; restart in ") for each in self.supervisors.values()),
        }

    def rest(self) -> None:
        """Stop the load and wait until it has passed all parts."""
        self.commands.pause()
        self.mutations.pause()
        until("the client", "an answer to every request", lambda: not self.commands.unanswered(), RECOVERY_S,
              self._why_no_answers, lambda: len(self.commands.unanswered()))  # fmt: skip
        until("the producer", "the acknowledgement of every mutation", lambda: self.mutations.under_way == 0,
              RECOVERY_S, lambda: f"{self.mutations.under_way} are open, failed: {self.mutations.failed}",
              lambda: self.mutations.under_way)  # fmt: skip
        self.await_agents("the load")
        self._await_nodes()
        self._await_cache()
        if self.spark is not None:
            self._await_rows()

    def _await_nodes(self) -> None:
        epoch = self.client.read_barrier().epoch
        ends = self.checker.ends("mutations")
        for name, process in self.nodes.items():
            assert process.runs(), f"{name} has ended with {process.exit_code()}\n{process.tail(30)}"

        until("the world", f"all nodes to be at epoch {epoch}, positions {ends}", lambda: not self._behind(epoch, ends),
              RECOVERY_S, lambda: str(self._behind(epoch, ends)),
              lambda: sorted(self._behind(epoch, ends)))  # fmt: skip

    def _await_cache(self) -> None:
        epoch = self.client.read_barrier().epoch
        until("the world", f"the cache to be at epoch {epoch}", lambda: self.observers.cache_epoch >= epoch, RECOVERY_S,
              lambda: f"it is at {self.observers.cache_epoch}: {self.observers.cache_problem}",
              lambda: self.observers.cache_epoch)  # fmt: skip

    def _await_rows(self) -> None:
        assert self.spark is not None
        spark = self.spark

        def through() -> bool:
            self.keep_spark()
            return self.checker.missing_rows() == 0

        until("the world", "every mutation to be a CDC row or a dead letter", through, RECOVERY_S,
              lambda: f"{self.checker.missing_rows()} are missing\n{spark.tail()}",
              self.checker.missing_rows)  # fmt: skip


def environment(broker: Broker, cluster: str, link: str, folder: Path) -> dict[str, str]:
    """Return the variables of a process that uses a link and keeps its state in its own folder."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RINGLOG_BOOTSTRAP_SERVERS": broker.over(link),
        "RINGLOG_REDIS_URL": broker.redis_over_link(),
        "RINGLOG_CLUSTER": cluster,
        "RINGLOG_DATA_DIR": str(folder),
        "RINGLOG_SESSION_TIMEOUT_S": "2",
        "XDG_STATE_HOME": str(folder),
    }
