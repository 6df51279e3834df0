"""Truncation on a real broker: its records are deleted, and later readers have the state of all of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.system.agents_world import DEADLINE_S, AgentProcess, AgentsWorld, until
from tests.system.nodes_world import NodesWorld
from tests.system.test_snapshots import taken
from typer.testing import CliRunner

from ringlog.agents.exits import HALTED
from ringlog.agents.status import StatusReader
from ringlog.cache.redis_cache import RedisCache
from ringlog.cli.main import app
from ringlog.client.client import Client
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import ARCHIVED, allowed_begin, confirmed_snapshots
from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import LogTruncated, ReplicaHalted
from ringlog.log.kafka.adapter import KafkaLog, KafkaTail
from ringlog.log.opening import delete_entries, open_snapshots, start_point_finder
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo
from ringlog.wire.records import StoredSnapshot

pytestmark = [pytest.mark.system, pytest.mark.slow]
ROLES = ("coordinator", "keeper", "publisher", "validator")
SESSION_TIMEOUT_S = 6
"""Long enough that a busy machine does not replace an agent, whose term is an entry, while states are compared."""


class Asleep(KafkaLog):
    """A log whose readers read nothing before ``woken``."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        super().__init__(bootstrap_servers, cluster)
        self.awake = threading.Event()

    def tail(self, from_offset: int) -> KafkaTail:
        assert self.awake.wait(DEADLINE_S)
        return super().tail(from_offset)


class World:
    """A cluster with all agents that a truncation concerns, an archive, and a registered node."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path) -> None:
        self.agents = AgentsWorld(stack, cluster, folder, SESSION_TIMEOUT_S)
        self.place = stack.bootstrap_servers, cluster
        self.archive = "--archive", str(folder / "archive")
        self.agents.environment["RINGLOG_ARCHIVE"] = self.archive[1]
        self.processes: tuple[AgentProcess, ...] = ()
        self.begin()
        self.nodes = NodesWorld(self.agents, folder)
        self.node = self.nodes.begin("n1", join=False)
        self.cache = RedisCache(stack.redis_url, cluster)

    def close(self) -> None:
        self.nodes.close()

    def begin(self) -> None:
        self.processes = tuple(self.agents.spawn(role) for role in ROLES)

    def await_work(self) -> None:
        def at_work() -> bool:
            return tuple(agent.role for agent in status.read() if agent.caught_up) == ROLES

        with StatusReader(*self.place) as status:
            until(at_work, "all agents to be active")

    def apply(self, client: Client) -> None:
        assert isinstance(client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)

    def snapshot(self) -> StoredSnapshot:
        """Return a new snapshot that the log records as confirmed and archived."""
        return known_snapshot(self.agents)

    def begin_offset(self) -> int:
        with closing(KafkaLog(*self.place)) as log:
            return log.begin_offset()

    def typed(self, *words: str, status: int = 0) -> list[Any]:
        """Return the output lines of JSON."""
        where = ("--bootstrap", self.place[0], "--cluster", self.place[1], "--json")
        ended = CliRunner().invoke(app, [*words, *where])
        assert ended.exit_code == status, (words, ended.output)
        return [json.loads(line) for line in ended.stdout.splitlines()]


def known_snapshot(agents: AgentsWorld) -> StoredSnapshot:
    """Return a new snapshot that the log records as confirmed and archived."""
    with closing(open_snapshots(agents.stack.bootstrap_servers, agents.cluster)) as topic:
        head = taken(agents, topic).head

    def is_known(state: ClusterState) -> bool:
        bound = state.log_bounds.get(ARCHIVED)
        marks = [one.epoch for one in confirmed_snapshots(state)]
        return head.epoch in marks and bound is not None and bound.epoch >= head.epoch

    agents.client.replica.wait_for(is_known, DEADLINE_S, "a snapshot that the log knows of")
    return head


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[World]:
    made = World(stack, cluster_name, tmp_path)
    yield made
    made.close()


@pytest.fixture
def asleep(world: World) -> Iterator[Callable[[], tuple[Asleep, LogReplica]]]:
    """Create replicas that are before the first entry until they are woken."""
    with ExitStack() as stack:

        def make() -> tuple[Asleep, LogReplica]:
            log = stack.enter_context(closing(Asleep(*world.place)))
            return log, stack.enter_context(LogReplica(log, start_finder=start_point_finder(*world.place)))

        yield make


def test_a_broker_deletes_and_states_agree(world: World, asleep: Callable[[], tuple[Asleep, LogReplica]]) -> None:
    (first, follows), (second, alone) = asleep(), asleep()
    follows.subscribe(lambda *_: None)
    until(lambda: world.agents.state.node_names.get("n1"), "a node in the directory")
    world.await_work()
    head = world.snapshot()
    world.node.kill()
    assert world.begin_offset() == 0
    world.typed("log", "truncate", "--below", str(head.epoch))
    until(lambda: world.begin_offset() == head.position - 1, "the broker to delete the records")
    for process in world.processes:
        process.kill()

    first.awake.set()
    second.awake.set()
    with pytest.raises(ReplicaHalted) as passed:
        follows.wait_for(lambda state: state.epoch or None, DEADLINE_S, "it to follow")
    assert passed.value.code == "log_passed"
    assert alone.read_barrier(DEADLINE_S).epoch > alone.started_from.epoch == head.epoch

    world.begin()
    world.node.restart()
    until(lambda: (world.nodes.status("n1") or {}).get("epoch", 0), "the node to serve again")
    world.await_work()
    with Client(*world.place, "late") as client, MetadataWatch(*world.place) as watch:
        world.apply(client)
        assert watch.replica.started_from.epoch == client.replica.started_from.epoch == head.epoch
        later = world.snapshot()
        everybody = at_one_epoch(world.agents.client, client, watch, alone)
        assert len({digest(state) for state in everybody}) == 1
    _past(world, head, later, everybody[0])
    _deleted_by_another(world, later)


def at_one_epoch(*readers: Client | MetadataWatch | LogReplica) -> list[ClusterState]:
    """Return their states at one epoch: no entry was written between the first barrier and the last one."""

    def states() -> list[ClusterState]:
        found = [one.read_barrier(DEADLINE_S) for one in readers]
        return found if len({state.epoch for state in found}) == 1 else []

    return until(states, "all readers to have the same epoch")


def _past(world: World, head: StoredSnapshot, later: StoredSnapshot, state: ClusterState) -> None:
    """Check that commands return the same history, with the archive from the first entry on."""
    (verified,), (here,) = world.typed("log", "verify", *world.archive), world.typed("log", "verify")
    assert (verified["from_epoch"], here["from_epoch"]) == (0, head.epoch)
    assert verified["digest"] == here["digest"] == digest(state)
    assert [one["digest"] for one in verified["snapshots"]] == [head.digest, later.digest]
    assert verified["archived"] == later.epoch
    assert world.typed("log", *world.archive)[0]["epoch"] == 1
    assert world.typed("log")[0]["epoch"] == head.epoch + 1
    for epoch, wanted in ((head.epoch, head.digest), (later.epoch, later.digest)):
        for where in ((), world.archive):
            assert world.typed("log", "at", str(epoch), *where)[0]["digest"] == wanted
    world.typed("log", "at", "2", status=1)
    assert world.typed("log", "at", "2", *world.archive)[0]["epoch"] == 2
    until(lambda: _cached(world.cache) == (state.epoch, digest(state)), "the cache to have the epoch")


def _cached(cache: RedisCache) -> tuple[int, str]:
    confirmed = cache.confirmed()
    return (0, "") if confirmed is None else (confirmed[0].epoch, confirmed[1].digest)


def _deleted_by_another(world: World, later: StoredSnapshot) -> None:
    """Records are deleted without an entry: running readers halt, and new readers fail."""
    allowed = allowed_begin(world.agents.state)
    with closing(KafkaLog(*world.place)) as log:

        def begun() -> LogReplica:
            return LogReplica(log, watch_s=0.2, start_finder=start_point_finder(*world.place))

        def halts(replica: LogReplica) -> None:
            with pytest.raises(ReplicaHalted, match="log_truncated"):
                replica.wait_for(lambda _: None, DEADLINE_S, "it to halt")

        with begun() as running:
            running.read_barrier(DEADLINE_S)
            assert allowed < later.position - 1
            delete_entries(*world.place, later.position - 1)
            halts(running)
        with begun() as another:
            assert another.started_from.epoch == later.epoch
            halts(another)
        assert {process.exit_code() for process in world.processes} == {HALTED}
        delete_entries(*world.place, later.position)
        with pytest.raises(LogTruncated):
            begun().start()
