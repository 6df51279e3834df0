"""``Participant`` in a fake cluster: threads and event loops, joining, leaving, stopping, restarts and refusals."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ringlog import (
    AppliedResult,
    Client,
    ClusterState,
    Gain,
    Loss,
    NodeFailed,
    NodeInfo,
    Participant,
    WaitTimedOut,
    commands,
)
from ringlog.operator.certificates import make_certificates
from ringlog.runtime.trust import TRUST_VARIABLE, CertificateOfAnotherNode
from ringlog_testing.cluster.cluster import FakeCluster
from tests.certificates import needs_openssl
from tests.waiting import until


class Calls:
    """A store that records its calls.

    ``fails`` plants a failed ``drain`` or ``fetch``, a ``row`` that is not bytes, or an ``exit`` of the process. With
    ``hang``, a fetch of ``AsyncCalls`` never ends.
    """

    def __init__(self, *, fails: str = "") -> None:
        self.calls: list[str] = []
        self.sources: list[str] = []
        self.epochs: list[int] = []
        self.drained = 0
        self.fails, self.hangs = fails, fails == "hang"

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        assert (before is None) == (not self.epochs)
        self.epochs.append(after.epoch)
        self.calls.append("adopt")

    def drain(self, below: int) -> None:
        if self.fails == "drain":
            raise OSError("the disk is full")
        self.drained = below
        self.calls.append("drain")

    def fetch(self, gain: Gain) -> Iterator[bytes]:
        self.calls.append("fetch")
        self.sources.append(gain.source.address)
        fails, self.fails = self.fails, ""
        if fails == "fetch":
            raise ConnectionError(f"{gain.source.name} is silent, no file \udcff")
        if fails == "exit":
            raise SystemExit(3)
        yield None if fails == "row" else b"row"  # type: ignore[misc]

    def forget(self, loss: Loss) -> None:
        self.calls.append("forget")


class AsyncCalls:
    """The same store with coroutine functions. ``drain`` waits while ``is_blocked``."""

    def __init__(self, *, fails: str = "", is_blocked: bool = False) -> None:
        self.made = Calls(fails=fails)
        self.threads: set[int] = set()
        self.adopted, self.drains = asyncio.Event(), asyncio.Event()
        if not is_blocked:
            self.drains.set()

    async def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        self.threads.add(threading.get_ident())
        self.made.adopt(before, after)
        self.adopted.set()

    async def drain(self, below: int) -> None:
        await self.drains.wait()
        self.made.drain(below)

    async def fetch(self, gain: Gain) -> AsyncIterator[bytes]:
        self.threads.add(threading.get_ident())
        for row in self.made.fetch(gain):
            await (asyncio.Event().wait() if self.made.hangs else asyncio.to_thread(int))
            yield row

    async def forget(self, loss: Loss) -> None:
        self.made.forget(loss)


class World:
    """A fake cluster and threads with participants."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.cluster, self.folder, self._ending = FakeCluster(), folder, ending
        self.failures: dict[str, BaseException] = {}

    def client(self, name: str) -> Client:
        client = self.cluster.client(name)
        self._ending.callback(client.close)
        return client

    def participant(self, name: str, store: object, *, port: int = 7101, join: int | None = 4) -> Participant:
        folder = self.folder / name
        info = NodeInfo(name, f"127.0.0.1:{port}")
        return Participant(self.client(name), info, store, folder=folder, join=join, topics=self.cluster.topics())  # type: ignore[arg-type]

    def run(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def caught() -> None:
            try:
                work()
            except BaseException as error:
                self.failures[name] = error

        thread = threading.Thread(target=caught, name=name)
        thread.start()
        return thread

    def settle(self, condition: Callable[[ClusterState], bool], what: str) -> None:
        """Let the cluster act until the condition holds. A failed participant fails the test."""

        def holds() -> bool:
            assert self.failures == {}
            self.cluster.advance(1)
            return condition(self.cluster.state)

        until(holds, what)

    def await_end(self, thread: threading.Thread) -> None:
        def has_ended() -> bool:
            self.cluster.advance(1)
            return not thread.is_alive()

        until(has_ended, f"the end of {thread.name}")

    def node_state(self, name: str) -> str:
        state = self.cluster.state
        return state.nodes[state.node_names[name]].state if name in state.node_names else ""

    def submit(self, command: object) -> None:
        answer = self.client("admin").submit(command)  # type: ignore[arg-type]
        assert isinstance(answer, AppliedResult), answer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as ending:
        yield World(tmp_path, ending)


@contextmanager
def running(world: World, name: str, node: Participant) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = world.run(name, lambda: node.run(stop))
    try:
        yield thread
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_a_participant_joins_fetches_again_after_a_failure_and_leaves(world: World) -> None:
    world.cluster.add_nodes(2)
    world.submit(commands.create_keyspace("ks", 2))
    store = Calls(fails="fetch")
    node = world.participant("s1", store)
    with running(world, "s1", node) as thread:
        world.settle(lambda _: world.node_state("s1") == "normal", "the join")
        assert store.calls.count("fetch") > 1, "the failed fetch was tried again"
        assert store.epochs == sorted(set(store.epochs))
        assert node.epoch == store.drained
        leaving = world.run("leave", node.leave)
        world.settle(lambda _: world.node_state("s1") == "left", "the departure")
        world.await_end(leaving)
        world.await_end(thread)
    assert "forget" in store.calls
    assert world.failures == {}


def test_a_participant_on_an_event_loop_joins_and_ends_when_it_is_cancelled(world: World) -> None:
    world.cluster.add_nodes(2)
    world.submit(commands.create_keyspace("ks", 2))
    store, loops = AsyncCalls(fails="row"), set[int]()
    node = world.participant("s1", store)
    serving: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def main() -> None:
        loops.add(threading.get_ident())
        task = asyncio.ensure_future(node.serve())
        serving.append((asyncio.get_running_loop(), task))
        await store.adopted.wait()
        with pytest.raises(NodeFailed, match="to_thread"):
            node.leave()
        with pytest.raises(asyncio.CancelledError):
            await task

    thread = world.run("s1", lambda: asyncio.run(main()))
    world.settle(lambda _: world.node_state("s1") == "normal", "the join")
    assert store.made.calls.count("fetch") > 1, "a row that is not bytes does not end the fetch"
    loop, task = serving[0]
    loop.call_soon_threadsafe(task.cancel)
    world.await_end(thread)
    assert world.failures == {}
    assert store.threads == loops, "every call ran on the event loop"


def test_a_restart_keeps_the_node_and_raises_its_incarnation(world: World) -> None:
    world.cluster.add_nodes(1)
    first = world.participant("s1", Calls())
    with running(world, "s1", first):
        world.settle(lambda _: world.node_state("s1") == "normal", "the join")
    with pytest.raises(NodeFailed, match="runs once"):
        first.run()
    with pytest.raises(NodeFailed, match="ringlog node leave s1"):
        first.leave()
    again = world.participant("s1", Calls())
    assert again.id == first.id
    with running(world, "s1", again):
        world.settle(lambda state: again.epoch == state.epoch, "the newest epoch")
    assert len(world.cluster.state.nodes) == 2


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"epoch": 1, "places": 5}', '{"epoch": 99999, "places": []}'])
def test_a_damaged_folder_is_not_used(damage: str, world: World) -> None:
    world.cluster.add_nodes(1)
    node = world.participant("s1", Calls())
    with running(world, "s1", node):
        world.settle(lambda _: node.epoch > 0, "an epoch")
    (world.folder / "s1" / "adopted.json").write_text(damage)
    thread = world.run("s1", world.participant("s1", Calls()).run)
    world.await_end(thread)
    assert isinstance(world.failures["s1"], NodeFailed)


@needs_openssl
def test_the_id_of_a_node_is_that_of_its_certificate(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"s1": str(uuid.UUID(int=1, version=4)), "s2": str(uuid.UUID(int=2, version=4))}
    stopped = threading.Event()
    stopped.set()
    for made in make_certificates(tmp_path / "authority", names.items(), (), 2):
        monkeypatch.setenv(TRUST_VARIABLE, str(made.config))
        if made.name in names:
            node = world.participant(made.name, Calls())
            assert node.id == names[made.name]
            node.run(stopped)  # releases the folder
    with pytest.raises(CertificateOfAnotherNode):
        world.participant("s1", Calls())


def test_features_in_any_order_are_registered_once(world: World) -> None:
    world.cluster.add_nodes(1)
    info = NodeInfo("s1", "127.0.0.1:7101", features=["tablets", "other"])  # type: ignore[arg-type]
    node = Participant(world.client("s1"), info, Calls(), folder=world.folder, topics=world.cluster.topics())
    with running(world, "s1", node):
        world.settle(lambda _: node.epoch > 0, "an epoch")
    assert world.cluster.state.nodes[node.id].features == ("other", "tablets")


def test_a_store_that_is_far_behind_ends_run_before_the_memory_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringlog.client.participant.participant.STATES_MAX", 3)
    released = threading.Event()

    class Slow(Calls):
        def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
            super().adopt(before, after)
            released.wait(60)

    world.cluster.add_nodes(2)
    store = Slow()
    node = world.participant("s1", store, join=None)
    thread = world.run("s1", node.run)
    world.settle(lambda _: bool(store.calls), "the first state")
    for number in range(6):
        world.submit(commands.create_keyspace(f"ks{number}", 1))
    world.settle(lambda state: node._client.state.epoch == state.epoch, "the newest state")
    released.set()
    world.await_end(thread)
    assert "behind: run the node again" in str(world.failures.pop("s1"))


@pytest.mark.parametrize("tokens", [0, 1025])
def test_a_number_of_tokens_out_of_range_is_refused(world: World, tokens: int) -> None:
    with pytest.raises(ValueError, match="join: must be from 1 to 1024"):
        world.participant("s1", Calls(), join=tokens)


def test_a_folder_belongs_to_one_process(world: World) -> None:
    world.participant("s1", Calls())
    with pytest.raises(NodeFailed, match="another process"):
        world.participant("s1", Calls())


def test_an_error_of_the_store_ends_run(world: World) -> None:
    world.cluster.add_nodes(1)
    thread = world.run("s1", world.participant("s1", Calls(fails="drain")).run)
    world.await_end(thread)
    assert isinstance(world.failures["s1"], OSError)
    state = world.cluster.state
    assert state.nodes[state.node_names["s1"]].state != "normal", "an epoch that was not drained is not acknowledged"


def test_a_coroutine_function_without_serve_ends_run(world: World) -> None:
    world.cluster.add_nodes(1)
    thread = world.run("s1", world.participant("s1", AsyncCalls()).run)
    world.await_end(thread)
    assert isinstance(world.failures["s1"], TypeError), "its calls would have no effect"


def test_an_exit_in_a_fetch_ends_run(world: World) -> None:
    world.cluster.add_nodes(2)
    world.submit(commands.create_keyspace("ks", 2))
    thread = world.run("s1", world.participant("s1", Calls(fails="exit")).run)
    world.await_end(thread)
    assert isinstance(world.failures["s1"], SystemExit)


def test_no_thread_of_a_failed_participant_remains(world: World) -> None:
    world.cluster.add_nodes(1)
    world.cluster.hold(kind="Join", commit=True)
    thread = world.run("s1", world.participant("s1", Calls(fails="drain")).run)
    thread.join(60)
    assert isinstance(world.failures["s1"], OSError)
    assert "ringlog-join" not in [one.name for one in threading.enumerate()]


def test_a_closed_client_ends_run(world: World) -> None:
    world.cluster.add_nodes(1)
    client = world.cluster.client("s1")
    node = Participant(
        client, NodeInfo("s1", "127.0.0.1:7101"), Calls(), folder=world.folder, topics=world.cluster.topics()
    )
    thread = world.run("s1", node.run)
    world.settle(lambda _: world.node_state("s1") == "normal", "the join")
    client.close()
    world.await_end(thread)
    assert isinstance(world.failures["s1"], NodeFailed)


def test_a_node_that_is_not_registered_cannot_leave(world: World) -> None:
    with pytest.raises(NodeFailed, match="not registered"):
        world.participant("s1", Calls()).leave()


def test_a_departure_has_a_deadline(world: World) -> None:
    world.cluster.add_nodes(2)
    node = world.participant("s1", Calls())
    with running(world, "s1", node):
        world.settle(lambda _: world.node_state("s1") == "normal", "the join")
        world.cluster.hold(kind="Leave", commit=True)
        with pytest.raises(WaitTimedOut, match="to leave"):
            node.leave(timeout_s=0.1)


def test_a_stop_ends_a_backlog_of_states(world: World) -> None:
    world.cluster.add_nodes(1)
    store = Calls()
    node = world.participant("s1", store)
    stop, may_adopt = threading.Event(), threading.Event()
    thread = world.run("s1", lambda: node.run(stop))
    world.settle(lambda state: world.node_state("s1") == "normal" and node.epoch == state.epoch, "the join")
    adopted, record = len(store.epochs), store.adopt

    def slow(before: ClusterState | None, after: ClusterState) -> None:
        record(before, after)
        may_adopt.wait(60)

    store.adopt = slow  # type: ignore[method-assign]
    for name in ("k1", "k2", "k3"):
        world.submit(commands.create_keyspace(name, 1))
    until(lambda: len(store.epochs) > adopted, "the first state")
    stop.set()
    may_adopt.set()
    world.await_end(thread)
    assert len(store.epochs) == adopted + 1
    assert world.failures == {}


def test_a_second_cancellation_waits_for_the_store_too(world: World) -> None:
    world.cluster.add_nodes(1)
    store = AsyncCalls(is_blocked=True)
    node = world.participant("s1", store)

    async def main() -> None:
        task = asyncio.ensure_future(node.serve())
        await store.adopted.wait()
        for _ in range(2):
            task.cancel()
            ended, _ = await asyncio.wait((task,), timeout=0)
            assert not ended, "drain still runs"
        store.drains.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        world.participant("s1", Calls())  # the folder is free

    asyncio.run(main())


def test_a_cancellation_ends_a_fetch_that_waits(world: World) -> None:
    world.cluster.add_nodes(2)
    world.submit(commands.create_keyspace("ks", 2))
    store = AsyncCalls(fails="hang")
    node = world.participant("s1", store)

    async def main() -> None:
        task = asyncio.ensure_future(node.serve())
        await asyncio.to_thread(until, lambda: world.cluster.advance(1) and store.made.sources, "a fetch")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)

    asyncio.run(main())


def test_a_fetch_follows_its_source_to_another_address(world: World) -> None:
    world.cluster.add_nodes(2)
    world.submit(commands.create_keyspace("ks", 2))
    store = Calls(fails="fetch")

    def move() -> bool:
        for number, name in enumerate(("n1", "n2")):
            world.submit(commands.UpdateNode(world.cluster.state.node_names[name], address=f"127.0.0.1:{number + 1}"))
        return True

    with running(world, "s1", world.participant("s1", store)):
        until(lambda: world.cluster.advance(1) and store.sources and move(), "the first fetch")
        world.settle(lambda _: world.node_state("s1") == "normal", "the join")
    assert {"127.0.0.1:1", "127.0.0.1:2"} & {*store.sources}


def test_a_refused_registration_ends_run(world: World) -> None:
    world.cluster.add_nodes(1)
    taken = world.cluster.state.nodes[world.cluster.state.node_names["n1"]].address
    thread = world.run("s1", world.participant("s1", Calls(), port=int(taken.split(":")[1])).run)
    world.await_end(thread)
    failure = world.failures["s1"]
    assert isinstance(failure, NodeFailed)
    assert "duplicate_address" in str(failure)


def test_zone_partitions_move_to_a_participant(world: World) -> None:
    world.cluster.add_nodes(2)
    nodes = tuple(sorted(world.cluster.state.nodes))
    world.submit(commands.CreateZone("z", nodes, partitions=12, replicas=2))
    with running(world, "s1", world.participant("s1", Calls())):
        world.settle(lambda _: world.node_state("s1") == "normal", "the join")

        def has_moved(state: ClusterState) -> bool:
            found = [one for one in state.zone_partitions.values() if one.zone == "z"]
            me = state.node_names["s1"]
            own = [one for one in found if one.stable is not None and me in one.stable.peers]
            return bool(own) and not any(one.pending for one in found)

        world.settle(has_moved, "partitions on the participant")
