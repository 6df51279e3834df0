"""A conformance kit for stores that take part in a cluster through ``ringlog.client.participant.participant``.

    def test_my_store(tmp_path):
        check_store(start, tmp_path)

``check_store`` runs a story on a log in memory: two nodes join, a third one joins, a tablet moves, a node leaves.
Between the steps rows are written. At the end each row is at its owner, and nowhere else. The story is then repeated,
each time with a ``kill -9`` of one node before or after another call of the contract, also in the middle of a fetch.

Invariant: the order of calls is that of ``ringlog.client.participant.duties``, which production runs as well.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final, Protocol

from ringlog.client.creation.creation import found
from ringlog.client.direct import DirectAuthor
from ringlog.client.participant.duties import Duties
from ringlog.client.participant.folder import IdentityFolder
from ringlog.client.participant.store import AsyncStore, Gain, Loss, Store
from ringlog.client.participant.store_calls import StoreCalls
from ringlog.client.routing import replicas
from ringlog.client.tokens import allocate
from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join, Leave
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, Command, Epoch, Replication, TabletOptions
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.protocol.submission.results import AppliedResult
from ringlog.wire.records import NodeAck

RING, TABLE = "ring", "moved.rows"
TOKENS: Final = 4
ROUNDS_MAX: Final = 300
NOW: Final = 1_800_000_000_000_000
SEED: Final = bytes(16)


class RunningStore(Protocol):
    """A running store under test."""

    @property
    def address(self) -> str:
        """Its ``host:port``, equal at each start from the same folder."""

    @property
    def store(self) -> Store | AsyncStore:
        """The store. The methods of an ``AsyncStore`` run on an event loop in another thread."""

    def put(self, place: str, key: bytes) -> None:
        """Write a row durably, without any check. ``client.routing.replicas`` has its token."""

    def has(self, place: str, key: bytes) -> bool:
        """Return whether the row is here, without any check."""

    def kill(self) -> None:
        """End like after ``kill -9``: lose everything that is not durable."""


Start = Callable[[str, Path], RunningStore]
"""Starts the store of a node from its folder."""


class Killed(BaseException):
    """The node dies at this call."""


def check_store(start: Start, folder: Path, kills: int = 24) -> int:
    """Run the story without a crash, and with a crash at up to ``kills`` calls. Return the number of runs.

    Raises AssertionError with the row, the node and the call.
    """
    calls = run_story(start, folder / "0", None)
    chosen = spread([call.split()[1] for call in calls], kills)
    for number in chosen:
        try:
            run_story(start, folder / str(number + 1), number)
        except Exception as error:
            error.add_note(f"after a crash at call {number}: {calls[number]}")
            raise
    return 1 + len(chosen)


def spread(kinds: Sequence[str], most: int) -> list[int]:
    """Return up to ``most`` indexes: about equally many of each kind, spread over its calls."""
    by_kind: dict[str, list[int]] = {}
    for index, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(index)
    each = most // max(len(by_kind), 1)
    return sorted(index for found in by_kind.values() for index in found[:: max(1, len(found) // max(each, 1))][:each])


class _Recorder:
    """A store that counts calls, and dies at one of them."""

    def __init__(self, story: StoreStory, name: str, store: Store) -> None:
        self._story, self._name, self._store = story, name, store

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        self._step(f"adopt {after.epoch}")
        self._store.adopt(before, after)
        self._step(f"adopted {after.epoch}")

    def drain(self, below: Epoch) -> None:
        self._store.drain(below)
        self._step(f"drained {below}")

    def fetch(self, gain: Gain) -> Iterator[bytes]:
        self._step(f"fetch for {gain.work}")
        for row in self._store.fetch(gain):
            self._step(f"row for {gain.work}")
            yield row
        self._step(f"fetched for {gain.work}")

    def forget(self, loss: Loss) -> None:
        self._step("forget")
        self._store.forget(loss)
        self._step("forgot")

    def _step(self, call: str) -> None:
        self._story.calls.append(f"{self._name}: {call}")
        if len(self._story.calls) - 1 == self._story.crash:
            raise Killed


class _Node:
    """One node: its running store and its duties. ``kill`` and ``start`` replace both."""

    def __init__(self, story: StoreStory, name: str) -> None:
        self._story, self.name, self._path = story, name, story.folder / name
        self._path.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        self.running = self._story.start(self.name, self._path)
        self.folder = IdentityFolder(self._path / "identity")
        calls = StoreCalls(self.running.store)
        calls.loop = self._story.loop
        recorder = _Recorder(self._story, self.name, calls)
        self.duties = Duties(self.folder.node, self.folder.incarnation, recorder, self.folder, lambda _: None)
        self._next = len(self._story.states) - 1

    def close(self) -> None:
        self.running.kill()
        self.folder.close()

    def turn(self) -> None:
        """Adopt all new states and acknowledge."""
        states = self._story.states
        while self._next < len(states):
            self.duties.turn(states[self._next])
            self._next += 1
        self.acknowledge()

    def fetch(self) -> None:
        """Run the open fetches, and acknowledge complete ones."""
        for fetch in itertools.chain.from_iterable(self.duties.fetches.values()):
            if fetch.total is None:
                fetch.run()
                self._story.failure = fetch.failure or self._story.failure
        self.acknowledge()

    def acknowledge(self) -> None:
        draft = self.duties.draft(time.monotonic_ns() // 1000, NOW)
        if draft is not None:
            self.folder.keep(draft.ack.cluster_id, draft.ack.applied, draft.ack.state_id)
            self._story.acks[draft.ack.node] = draft.ack
            self.duties.sent(draft, time.monotonic_ns() // 1000)


@contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield loop
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


class StoreStory:
    """A cluster in memory with nodes of the store. ``crash``: the number of the call that kills its node."""

    def __init__(self, start: Start, folder: Path, crash: int | None, ending: ExitStack) -> None:
        self.start, self.folder, self.crash, self._ending = start, folder, crash, ending
        self.calls: list[str] = []
        self.acks: dict[str, NodeAck] = {}
        self.nodes: dict[str, _Node] = {}
        self.rows: list[tuple[str, bytes]] = []
        self.failure: Exception | None = None
        self.loop = ending.enter_context(_running_loop())
        log = MemoryLog()
        self._replica = ending.enter_context(LogReplica(log))
        found(log, self._replica, "participants")
        self._author = DirectAuthor(log, self._replica, "participants")
        self.states = [self._replica.state]
        self._replica.subscribe(lambda before, after, *_: self.states.append(after) if after is not before else None)

    @property
    def state(self) -> ClusterState:
        return self.states[-1]

    def submit(self, command: Command) -> None:
        answer = self._author.submit(command)
        assert isinstance(answer, AppliedResult), answer
        self._replica.read_barrier()

    def add(self, name: str) -> None:
        """Register a node and start to join it."""
        node = self.nodes[name] = _Node(self, name)
        self._ending.callback(lambda: self.nodes[name].close())
        uid = node.folder.node
        self.submit(RegisterNode(name, uid, node.running.address, "dc1", "r1", 1, 0, "none", ("tablets",), 1))
        self.submit(Join(uid, allocate(self.state, uid, TOKENS, SEED), SEED))

    def settle(self) -> None:
        """Run the nodes and the coordinator until no operation is in flight and no tablet moves."""
        for _ in range(ROUNDS_MAX):
            for node in list(self.nodes.values()):
                self._alive(node, node.turn)
            self._write()
            for node in list(self.nodes.values()):
                self._alive(node, node.fetch)
            known = CoordinatorView(self.state, self.acks, self.state.epoch, NOW)
            proposals = propose(known)
            for proposal in proposals[:1]:
                self.submit(proposal.command)
            behind = any(node.duties.state.epoch < self.state.epoch for node in self.nodes.values())
            if not proposals and not behind and self._is_settled():
                return
        operations = {one.id: one.stage for one in self.state.operations.values()}
        raise AssertionError(f"the cluster does not settle: {operations}; last failure of a fetch: {self.failure!r}")

    def _is_settled(self) -> bool:
        moving = any(tablets.transitions for tablets in self.state.tablets.values())
        stages = {operation.stage for operation in self.state.operations.values()}
        return not moving and stages <= {"finished", "cancelled"}

    def _alive(self, node: _Node, act: Callable[[], None]) -> None:
        """Let a node act. If it dies, start it again."""
        try:
            act()
        except Killed:
            node.close()
            node.start()

    def _write(self) -> None:
        """Write one row to each place that all nodes know, at all of its write replicas."""
        if any(node.duties.state.epoch < self.state.epoch for node in self.nodes.values()):
            return
        for place in (RING, TABLE):
            if place in self.state.keyspaces or place in self.state.tables:
                key = b"row-%d" % len(self.rows)
                for node in replicas(self.state, place, key).write:
                    self.nodes[node.name].running.put(place, key)
                self.rows.append((place, key))

    def verify(self) -> None:
        """Raise unless each row is at its replicas, and at no other node."""
        for place, key in self.rows:
            owners = {node.name for node in replicas(self.state, place, key).read}
            for name, node in self.nodes.items():
                has = node.running.has(place, key)
                assert has or name not in owners, f"{name} lost {place} {key!r}"
                assert not has or name in owners, f"{name} did not forget {place} {key!r}"

    def move(self, target: str, indexes: Iterable[int]) -> None:
        """Move tablets to a node, and wait until they are there."""
        uid = self.nodes[target].folder.node
        for index in indexes:
            (old,) = self.state.tablets[TABLE].tablet(index).replicas
            if old.node != uid:
                moved = TabletMigration(TABLE, index, "migration", Shard(old.node, old.shard), Shard(uid, 0))
                self.submit(MigrateTablets((moved,)))
                self.settle()


def create(story: StoreStory) -> None:
    """Start two nodes, and create a keyspace on the ring and a table in tablets."""
    for name in ("a", "b"):
        story.add(name)
        story.settle()
    story.submit(CreateKeyspace(RING, Replication("simple", 1)))
    story.submit(CreateKeyspace("moved", Replication("tablets", 1)))
    columns, table_id = (Column("key", "text"),), str(uuid.UUID(int=1, version=4))
    options = TabletOptions(2)
    story.submit(CreateTable("moved", "rows", table_id, columns, ("key",), (), CdcOptions(), tablets=options))


def run_story(start: Start, folder: Path, crash: int | None) -> list[str]:
    """Run the story. Return the calls of the contract, in order."""
    with ExitStack() as ending:
        story = StoreStory(start, folder, crash, ending)
        create(story)
        for _ in range(12):
            story.settle()
        story.add("c")
        story.settle()
        story.move("c", (0, 1))
        story.move("b", (0, 1))
        story.submit(Leave(story.nodes["a"].folder.node))
        story.settle()
        story.verify()
        return story.calls
