"""The duration of a join in a large cluster without data, on the real stack, by stage.

    python bench/join.py [NODES] [--json]

The cluster has 1,000 nodes (``NODES``) of 16 tokens under the ten settings of ``placement.py``. Broker, cache,
validator, coordinator, change publisher and cache writer are real processes. The nodes are not. One writer follows the
log and acknowledges for all of them by their schedule (``ringlog.protocol.nodes.ack_schedule``): at once for nodes that
a barrier asks, every three seconds for the others. The joining node has no rows to fetch, and reports so.

The cluster begins with a log of three entries, and a snapshot of the second one that contains the nodes. Two names
confirm the snapshot, so all readers accept it. A grown log would contain a CDC generation for each join, and every
agent would fold and publish them for minutes before the measurement. This join makes the whole first generation.

Stages are timed when the replica of the bench folds them. *Kernel* is the processor time to decode and fold the entries
of the join again, on a state without cached results. Processor seconds are those of whole processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from immutables import Map
from placement import cluster
from tests.plain_stack import plain_stack
from tests.system.agents_world import AgentsWorld, until

from ringlog.agents.roles.epochs import EPOCHS_TOPIC
from ringlog.cache.redis_cache import RedisCache
from ringlog.client.client import Client
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes, gate_nodes
from ringlog.kernel.operations.stages import FINISHED, in_flight
from ringlog.kernel.values import NodeId, StreamReport, Value, asdict, field, replace
from ringlog.log.folding import Start, follow
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import ACKS, METADATA, topic_name
from ringlog.log.opening import open_metadata, open_snapshots
from ringlog.log.port import LogRecord
from ringlog.operator.intents.intents import join_with
from ringlog.operator.rehearsal.rehearsal import NO_ROWS
from ringlog.protocol.nodes.ack_schedule import SELDOM_US
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.draw import SystemDraw, draw_uuid
from ringlog.runtime.process import reduce_gc
from ringlog.wire.acks import incarnation
from ringlog.wire.changes import decode_change
from ringlog.wire.records import NodeAck, SnapshotConfirmation, encode_node_ack

NODES, TOKENS, JOINING, CLUSTER = 1_000, 16, "x", "join"
GOAL_S, KERNEL_GOAL_S = 5.0, 1.0
ROLES = ("validator", "coordinator", "publisher", "keeper")
QUIET_S, QUIET = 2.0, 0.25
"""Agents are quiet that together take no more than this share of a core for so long."""
SESSION_TIMEOUT_S = 10
SELDOM_S = SELDOM_US / 1e6
WAIT_S = 300.0


class Nodes:
    """Acknowledges for all nodes, in a separate thread, and notes when each epoch was folded."""

    def __init__(self, client: Client, bootstrap: str) -> None:
        self.folded: dict[int, float] = {}
        self.sent = 0
        self._producer, self._topic = AckedProducer(bootstrap), topic_name(CLUSTER, ACKS.suffix)
        self._news = SimpleQueue[ClusterState]()
        self._stopping = threading.Event()
        self._incarnation = incarnation(1, draw_uuid(SystemDraw()))
        self._told: dict[NodeId, int] = {}
        self._stages: tuple[int, ...] = ()
        subscription = client.replica.subscribe(self._hear)
        self._state, self._unsubscribe = subscription.state, subscription.close
        names = list(self._state.nodes)
        self._next: dict[NodeId, float] = {}
        self._say(names)
        self._next |= {name: self._next[name] + at * SELDOM_S / len(names) for at, name in enumerate(names)}
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The nodes fall silent."""
        self._unsubscribe()
        self._stopping.set()
        self._thread.join()
        self._producer.close()

    def _hear(self, _: ClusterState, after: ClusterState, __: Entry | UnreadableEntry, ___: Outcome, ____: int) -> None:
        if after.epoch not in self.folded:
            self.folded[after.epoch] = time.perf_counter()
            self._news.put(after)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._state = self._news.get(timeout=0.05)
                while not self._news.empty():
                    self._state = self._news.get()
            except Empty:
                pass
            self._say([*self._asked(), *self._due()])

    def _asked(self) -> Iterator[NodeId]:
        """Those that a gate waits for, when its stage is new."""
        flying = in_flight(self._state)
        stages = tuple(one.stage_epoch for one in flying)
        if stages != self._stages:
            self._stages = stages
            for one in flying:
                yield from sorted(gate_nodes(self._state, one))

    def _due(self) -> Iterator[NodeId]:
        """Those that have said nothing for a while, and have something newer."""
        now = time.monotonic()
        for node, at in self._next.items():
            if at <= now and self._told[node] < self._state.epoch:
                yield node

    def _say(self, names: list[NodeId]) -> None:
        state, at = self._state, time.time_ns() // 1_000
        streaming = [one for one in in_flight(state) if one.stage in REPORTED_STAGES]
        told = state_id_at(state, state.epoch)
        for node in dict.fromkeys(names):
            reports = tuple(StreamReport(node, one.id, 0, NO_ROWS) for one in streaming if node in gaining_nodes(one))
            said = self._incarnation, state.epoch, state.epoch, reports, 0, at, (), told
            ack = NodeAck(state.cluster_id, node, *said)
            self._producer.send(self._topic, encode_node_ack(ack), key=node.encode())
            self._next[node], self._told[node] = time.monotonic() + SELDOM_S, state.epoch
            self.sent += 1


def made(world: AgentsWorld, nodes: int) -> tuple[ClusterState, int]:
    """Found the cluster with ``nodes`` nodes; the state of the snapshot, and its position."""
    assert isinstance(world.client.direct.submit(TakeSnapshot()), AppliedResult)
    founded, large = world.client.replica.state, cluster(nodes, TOKENS)
    version = founded.state_id
    parts = {
        "nodes": large.nodes,
        "node_names": Map({node.name: node.id for node in large.nodes.values()}),
        "token_owners": large.token_owners,
        "keyspaces": Map({name: replace(one, version=version) for name, one in large.keyspaces.items()}),
        "placements": large.placements,
    }
    changed = founded.changed.update(dict.fromkeys(parts, founded.epoch))
    state = replace(founded, changed=changed, **parts)
    bootstrap = world.stack.bootstrap_servers
    with (
        closing(open_metadata(bootstrap, CLUSTER, "bench")) as log,
        closing(open_snapshots(bootstrap, CLUSTER)) as kept,
    ):
        position, identity = log.end_offset(), log.identity()
        assert isinstance(world.client.direct.submit(Noop()), AppliedResult)
        # A publisher begins before what is published, so that has to be a later epoch than that of the snapshot.
        publisher = world.start("publisher")
        until(lambda: published(world) > state.epoch, "the publisher to have published")
        publisher.stop()
        head = kept.store(Start(state, position), identity, "bench", 0, draw_uuid(SystemDraw()))
        said = state.cluster_id, identity, state.epoch, state.state_id, position, head.digest
        kept.confirm(SnapshotConfirmation(*said, "bench too", 0))
    world.client.close()
    world.client = Client(bootstrap, CLUSTER, "bench").start()
    return state, position


def published(world: AgentsWorld) -> int:
    """The last epoch in the change topics."""
    found = [decode_change(data) for data in world.records(EPOCHS_TOPIC)[-1:]]
    return max((one.epoch for one in found if isinstance(one, EpochChange)), default=0)


def processor_s(pid: int) -> float:
    """Seconds that a process has taken of the processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at_rest(world: AgentsWorld) -> bool:
    """Whether change topics and cache have the newest epoch, and the agents do nothing but wait, for a while."""
    cached = RedisCache(world.stack.redis_url, CLUSTER).confirmed()
    if cached is None or not cached[0].epoch == published(world) == world.state.epoch:
        return False
    alive = [one.process.pid for role in ROLES for one in world.alive(role)]
    before = sum(map(processor_s, alive))
    threading.Event().wait(QUIET_S)
    return sum(map(processor_s, alive)) - before < QUIET * QUIET_S


class Measured(Value):
    """Seconds. ``stages``: how long each stage took, and what came before it; ``processors``: by process."""

    whole_s: float
    kernel_s: float
    entries: int
    acks: int
    stages: Mapping[str, float] = field(default_factory=dict)
    processors: Mapping[str, float] = field(default_factory=dict)


def measure(nodes: Nodes, client: Client, pids: Mapping[str, int]) -> tuple[Measured, range]:
    """One join, without the time of the kernel. And the epochs that it made."""
    first, acks = client.replica.state.epoch + 1, nodes.sent
    before = {name: processor_s(pid) for name, pid in pids.items()}
    began = time.perf_counter()
    command = join_with(client.replica.state, JOINING, TOKENS, SystemDraw())
    chosen = time.perf_counter()
    answer = client.submit(command, timeout_s=WAIT_S)
    assert isinstance(answer, AppliedResult), answer
    found = client.replica.wait_for(
        lambda state: next((one for one in state.operations.values() if one.stage == FINISHED), None),
        WAIT_S,
        "the join to be finished",
    )
    took = {name: processor_s(pid) - before[name] for name, pid in pids.items()}
    until(lambda: found.marks[-1].epoch in nodes.folded, "the last epoch")
    marks = [(mark.stage, nodes.folded[mark.epoch]) for mark in found.marks]
    stages = {"tokens chosen": chosen - began, "request": marks[0][1] - chosen}
    stages |= {name: then[1] - at for (name, at), then in pairwise(marks)}
    epochs = range(first, found.marks[-1].epoch + 1)
    return Measured(marks[-1][1] - began, 0.0, len(epochs), nodes.sent - acks, stages, took), epochs


def kernel_s(world: AgentsWorld, made_of: ClusterState, position: int, epochs: range) -> float:
    """Seconds that decoding and folding these epochs' entries takes."""
    records = [LogRecord(offset, data) for offset, data in world.offsets(METADATA, committed=False)]
    taken, state = 0.0, made_of
    for record in records[position:]:
        begin = time.thread_time()
        (one,) = follow([record], state)
        taken += (time.thread_time() - begin) * (one.before.epoch + 1 in epochs)
        state = one.after
    assert state.epoch >= epochs[-1]
    assert state.operations == world.state.operations
    return taken


def of_cluster(count: int, folder: Path) -> Measured:
    """Start everything, and join a node to ``count`` others."""
    stack = plain_stack(folder / "stack")
    try:
        info = stack.up()
        with closing(AgentsWorld(info, CLUSTER, folder / "agents", SESSION_TIMEOUT_S)) as world:
            state, position = made(world, count)
            assert len(world.state.nodes) == count + 1, "the snapshot was not believed"
            with closing(Nodes(world.client, info.bootstrap_servers)) as nodes:
                agents = zip(ROLES, world.start_all(*ROLES), strict=True)
                pids = {role: one.process.pid for role, one in agents}
                pids |= {"broker": info.broker_pid, "cache": info.redis_pid, "this one": os.getpid()}
                until(lambda: at_rest(world), "the agents to be at rest", WAIT_S)
                found, epochs = measure(nodes, world.client, pids)
            return replace(found, kernel_s=kernel_s(world, state, position, epochs))
    finally:
        stack.down()


def show(count: int, found: Measured) -> None:
    """The table."""
    print(f"A join at {count:,} x {TOKENS} without data: {found.entries} entries, {found.acks:,} acknowledgements")
    for name, seconds in found.stages.items():
        print(f"    {name:26} {seconds:8.2f} s")
    print(f"{'from request to finished':30} {found.whole_s:8.2f} s, the goal is {GOAL_S} s")
    print(f"{'the kernel':30} {found.kernel_s:8.2f} s, the goal is {KERNEL_GOAL_S} s")
    print("processor, meanwhile: " + ", ".join(f"{name} {took:.1f} s" for name, took in found.processors.items()))


def main() -> None:
    """Measure and print."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    count = int(words[0]) if words else NODES
    reduce_gc()
    with tempfile.TemporaryDirectory(prefix="ringlog-bench-") as name:
        found = of_cluster(count, Path(name))
    show(count, found)
    if "--json" in sys.argv:
        print(json.dumps({"nodes": count} | asdict(found)))


if __name__ == "__main__":
    main()
