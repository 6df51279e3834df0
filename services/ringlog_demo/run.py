"""``ringlog demo``: one run of the whole system, from an empty machine to an audited CDC log.

Order: stack, new cluster, agents, three nodes, keyspaces and tables, commit latency, Spark, load. After 40 % of the
load, a fourth node joins and the balancer moves tablets to it. The audit runs when all rows have left Spark. Each step
waits for a condition, and its error names that condition.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from rich.console import Console

from ringlog.agents.status import AgentView, StatusReader
from ringlog.client.client import Client
from ringlog.client.creation.creation import create_cluster
from ringlog.client.node_reports import AcksReader
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, is_ended
from ringlog.kernel.values import Replication, Value, replace
from ringlog.protocol.roles import ROLES
from ringlog.protocol.submission.results import AppliedResult, describe
from ringlog.runtime.context import ClusterContext, store_cluster
from ringlog.runtime.draw import SystemDraw, draw_uuid
from ringlog.runtime.kafka.config import use
from ringlog.stack.commands import Stack
from ringlog.stack.layout import StackInfo
from ringlog_demo.bench import Latency, OtherCommits, noop_commits
from ringlog_demo.flights import FLEET, FLIGHTS_TOTAL, KEYSPACE, TABLE, TABLETS, FlightCounts, count, create_table
from ringlog_demo.observe import CdcProgress, LoadProgress, is_spread, rests, tablets_by_node
from ringlog_demo.processes import Processes, ProcessFailed, Running
from ringlog_demo.screen import DemoFigures, Screen, ScreenView, stage_lines

CLUSTER = "demo"
SUBMITTER = "demo"
FACTOR = 2
NODES = ("n1", "n2", "n3")
JOINER = "n4"
STEP_S = 300.0
LOAD_S = 1_800.0
POLL_S = 0.1
BATCHES_PER_LOAD = 28
"""With this number, a fifth of the load is more than five batches. At least a fifth is on each side of the switch."""
BATCHES_EACH_MIN = 5


class DemoFailed(Exception):
    """A step did not finish. The text names the step and the logs to read."""


class DemoOptions(Value):
    """``flights``: number of flights, None for all. ``data``: the demo's own folder, emptied at the start."""

    flights: int | None
    data: Path

    @property
    def total(self) -> int:
        """Return the number of flights to send."""
        return FLIGHTS_TOTAL if self.flights is None else min(self.flights, FLIGHTS_TOTAL)


class Demo:
    """One run of the demo. The run fills ``figures``."""

    def __init__(self, options: DemoOptions, console: Console, processes: Processes) -> None:
        self.options = options
        self.screen = Screen(console)
        self.figures = DemoFigures(data=str(options.data))
        self._processes = processes
        self.commits = OtherCommits(SUBMITTER)
        self.counts = FlightCounts(0, 0, 0)
        self._begun = time.monotonic()

    def run(self) -> ClusterContext:
        """Run all steps up to the audit, which the caller runs. Raise DemoFailed if a step fails."""
        stack = self._stack()
        use(Path(stack.kafka_config))
        context = ClusterContext(stack.bootstrap_servers, CLUSTER, stack.redis_url, stack.kafka_config)
        store_cluster(replace(context, cluster_id=self._found(context)))
        self._agents(context)
        with Client(context.bootstrap, context.cluster, SUBMITTER) as client:
            client.replica.subscribe(self.commits)
            self._nodes(context, client)
            self._schema(client)
            self.figures.noops = self._latency(client)
            self._load(context, client)
        return context

    def stop_clock(self) -> None:
        """Record the duration of the whole run, including the audit."""
        self.figures.seconds = time.monotonic() - self._begun

    # -------------------------------------------------------------------------------------------- the steps

    def _stack(self) -> StackInfo:
        self.screen.step("1. Start a Kafka broker and Redis")
        info = Stack(self.options.data / "stack").up()
        self.screen.say(f"broker {info.bootstrap_servers}, Redis at its socket, data in {info.data_dir}")
        return info

    def _found(self, context: ClusterContext) -> str:
        self.screen.step("2. Create the cluster")
        creation = create_cluster(context.bootstrap, context.cluster)
        self.screen.say(
            f"cluster {creation.name}, id {creation.cluster_id}; its topics exist and have the required settings"
        )
        return creation.cluster_id

    def _agents(self, context: ClusterContext) -> None:
        self.screen.step("3. Start an agent of each role, one process each")
        self._command(context, "agents", ["agents"])
        seen: set[str] = set()

        with StatusReader(context.bootstrap, context.cluster) as status:

            def caught_up() -> bool:
                for agent in status.read():
                    if agent.caught_up and agent.role not in seen:
                        seen.add(agent.role)
                        self.screen.say(_agent_line(agent))
                return len(seen) == len(ROLES)

            self._until("the agents to catch up", STEP_S, caught_up)

    def _nodes(self, context: ClusterContext, client: Client) -> None:
        self.screen.step("4. Register and join three nodes, one after the other")
        for name in NODES:
            self._node(context, name)
        normal: list[str] = []

        def all_normal() -> bool:
            state = client.replica.state
            for node in sorted(state.nodes.values(), key=lambda n: n.name):
                if node.state == "normal" and node.name not in normal:
                    normal.append(node.name)
                    self.screen.say(f"{node.name} is normal at epoch {state.epoch} with {len(node.tokens)} tokens")
            return len(normal) == len(NODES)

        self._until("three nodes to be normal", STEP_S, all_normal)

    def _schema(self, client: Client) -> None:
        self.screen.step("5. Create two tables with CDC, one on the token ring, one in tablets")
        for keyspace, strategy, how in ((KEYSPACE, "simple", "the ring"), (FLEET, "tablets", f"{TABLETS} tablets")):
            table = create_table(keyspace, draw_uuid(SystemDraw()))
            for command in (CreateKeyspace(keyspace, Replication(strategy, FACTOR)), table):
                answer = client.submit(command)
                if not isinstance(answer, AppliedResult):
                    raise DemoFailed(f"{type(command).__name__}: {describe(answer)}")
            self.screen.say(f"{keyspace}.{TABLE}, {how}, replication factor {FACTOR}, epoch {client.state.epoch}")

    def _latency(self, client: Client) -> Latency:
        self.screen.step("6. Commit latency: 500 Noops, one after the other")
        latency = noop_commits(client)
        self.screen.say(f"p50 {latency.p50_ms} ms, p99 {latency.p99_ms} ms until the client has applied the entry")
        return latency

    def _load(self, context: ClusterContext, client: Client) -> None:
        self.screen.step("7. Send flights through Kafka and Spark, and join a fourth node in the middle")
        self.counts = count(self.options.flights)
        checkpoint = self.options.data / "checkpoint"
        batch = max(200, self.options.total // BATCHES_PER_LOAD)
        self._command(
            context,
            "spark",
            [
                *("cdc", "run", "--writer", "demo", "--checkpoint", str(checkpoint)),
                *("--trigger-seconds", "1", "--max-offsets-per-trigger", str(batch)),
                "--java-options=-XX:TieredStopAtLevel=1",  # a run takes minutes: more compilation does not pay off
            ],
        )
        cdc = CdcProgress(checkpoint / "progress.jsonl")
        self._until("Spark to register as a CDC writer", STEP_S, lambda: "demo" in client.replica.state.writers)
        self.screen.say("Spark runs and is registered as CDC writer demo")
        arguments = ["-m", "ringlog_demo.producer", "--bootstrap", context.bootstrap, "--cluster", context.cluster]
        if self.options.flights is not None:
            arguments += ["--flights", str(self.options.flights)]
        load = LoadProgress(self._processes.start("producer", arguments).log)
        acks = AcksReader(context.bootstrap, context.cluster)
        try:
            Watching(self, client, load, cdc, acks).until_done(lambda: self._node(context, JOINER))
        finally:
            acks.close()
        self._check_batches()
        self._check_nodes(client)
        self.figures.tablets_on_nodes = tablets_by_node(client.state)
        tablets_text = ", ".join(f"{name} {held}" for name, held in sorted(self.figures.tablets_on_nodes.items()))
        self.screen.say(f"replicas of tablets on the nodes: {tablets_text}")

    def _check_batches(self) -> None:
        """Check that each of the two generations has rows in enough batches, so the switch is in the middle."""
        batches = self.figures.batches_by_generation
        tablets_text = ", ".join(f"{count} of {generation}" for generation, count in sorted(batches.items()))
        self.screen.say(f"batches with rows of a generation: {tablets_text}")
        if len(batches) != 2 or min(batches.values()) < BATCHES_EACH_MIN:
            raise DemoFailed(f"expected at least {BATCHES_EACH_MIN} batches on each side of the switch")

    def _check_nodes(self, client: Client) -> None:
        """Check that the number of rows on all nodes is the number of written rows times the replication factor."""
        with httpx.Client(timeout=10) as http:

            def at_end() -> bool:
                before = client.state
                found = [http.get(f"http://{node.address}/v1/status").json() for node in before.nodes.values()]
                self.figures.rows_on_nodes = {status["name"]: status["rows"] for status in found}
                is_quiet = rests(before) and client.read_barrier().tablets is before.tablets
                return is_quiet and all(sum(status["positions"].values()) == self.counts.mutations for status in found)

            self._until("the nodes to read all mutations", STEP_S, at_end)
        held, wanted = sum(self.figures.rows_on_nodes.values()), FACTOR * self.figures.rows
        tablets_text = ", ".join(f"{name} {rows:,}" for name, rows in sorted(self.figures.rows_on_nodes.items()))
        self.screen.say(f"rows on the nodes: {tablets_text}; together {held:,} = {FACTOR} x {self.figures.rows:,}")
        if held != wanted:
            raise DemoFailed(f"the nodes have {held:,} rows, expected {wanted:,}")

    # -------------------------------------------------------------------------------------------- helpers

    def _node(self, context: ClusterContext, name: str) -> Running:
        data = str(self.options.data / "nodes")
        return self._command(context, f"node-{name}", ["node", "run", name, "--data", data, "--join"])

    def _command(self, context: ClusterContext, name: str, arguments: list[str]) -> Running:
        environment = {
            "RINGLOG_BOOTSTRAP_SERVERS": context.bootstrap,
            "RINGLOG_CLUSTER": context.cluster,
            "RINGLOG_REDIS_URL": context.redis,
            "RINGLOG_DATA_DIR": str(self.options.data / "state"),
            "RINGLOG_LOG_FORMAT": "console",
        }
        return self._processes.start(name, ["-m", "ringlog.cli", *arguments], environment)

    def _until(self, awaited: str, seconds: float, done: Callable[[], bool]) -> None:
        """Poll until ``done`` returns True. Raise DemoFailed if a process has died or the deadline has passed."""
        deadline = time.monotonic() + seconds
        while not done():
            self.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited {seconds:.0f} s for {awaited}; the logs are in {self.options.data / 'logs'}")
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise DemoFailed if a process has died."""
        try:
            self._processes.check()
        except ProcessFailed as failed:
            raise DemoFailed(str(failed)) from None


class Watching:
    """Monitor of the load and the join. It polls ten times a second."""

    def __init__(self, demo: Demo, client: Client, load: LoadProgress, cdc: CdcProgress, acks: AcksReader) -> None:
        self._demo, self._client, self._load, self._cdc, self._acks = demo, client, load, cdc, acks
        self._view = ScreenView(total=demo.options.total, mutations=demo.counts.mutations)
        self._joined = self._spread = False
        self._stages = 0
        self._first_row: float | None = None

    def until_done(self, join: Callable[[], object]) -> None:
        """Poll until Spark has written every row, the join has ended, and the balancer has spread the tablets."""
        deadline = time.monotonic() + LOAD_S
        with self._demo.screen.live(self._view) as refresh:
            while not self._poll(join):
                refresh()
                self._demo.check()
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"the load took more than {LOAD_S:.0f} s; logs in {self._demo.options.data / 'logs'}"
                    )
                time.sleep(POLL_S)
        self._update_view()

    def _poll(self, join: Callable[[], object]) -> bool:
        view, state = self._view, self._client.replica.state
        self._load.refresh()
        self._cdc.refresh()
        view.state, view.sent, view.phase = state, self._load.acknowledged, self._load.phase
        view.written, view.rejected = self._cdc.written, self._cdc.rejected
        view.batches, view.held = self._cdc.batches, self._cdc.waiting
        acks = self._acks.refresh()
        view.nodes = {state.nodes[n].name: (ack.applied, ack.rows) for n, ack in acks.items() if n in state.nodes}
        if self._first_row is None and self._cdc.written:
            self._first_row = time.monotonic()
        if not self._joined and self._load.phase not in ("", "sending"):
            self._joined = True
            self._demo.screen.say(
                f"{self._load.acknowledged:,} flights sent: {JOINER} asks to join; the load continues at a lower rate"
            )
            join()
        self._stage_news(state)
        through = view.written + view.rejected >= view.mutations
        operation = state.operations.get(view.operation)
        joined = operation is not None and is_ended(operation)
        if joined and not self._spread and is_spread(state, len(NODES) + 1):
            self._spread = True
            self._demo.screen.say(f"the balancer has moved tablets to {JOINER}, at epoch {state.epoch}")
        return through and self._load.phase == "done" and joined and self._spread

    def _stage_news(self, state: ClusterState) -> None:
        joiner = state.node_names.get(JOINER)
        for operation in state.operations.values():
            if operation.node == joiner:
                self._view.operation = operation.id
                for line in stage_lines(operation, self._stages):
                    self._demo.screen.say(line)
                self._stages = len(operation.marks)

    def _update_view(self) -> None:
        figures, state = self._demo.figures, self._client.replica.state
        figures.rows = self._cdc.written
        figures.rejected = self._cdc.rejected
        figures.batches = self._cdc.batches
        figures.rows_per_second = self._cdc.rows_per_second
        figures.commits = self._demo.commits.latency()
        figures.held_s = self._cdc.held_s
        figures.batches_by_generation = dict(self._cdc.by_generation)
        operation = state.operations[self._view.operation]
        begun = next(mark.at for mark in operation.marks if mark.stage == COMMIT_CDC_GENERATION)
        figures.switch_s = (state.generations[-1].timestamp - begun) / 1e6
        figures.join_s = (operation.marks[-1].at - operation.marks[0].at) / 1e6


def _agent_line(agent: AgentView) -> str:
    return f"{agent.role}: term {agent.term}, epoch {agent.epoch}, caught up"


def write_figures(figures: DemoFigures, path: Path) -> None:
    """Write the measurements to a file next to the data."""
    path.write_text(json.dumps(figures.as_json(), indent=2) + "\n", encoding="utf-8")
