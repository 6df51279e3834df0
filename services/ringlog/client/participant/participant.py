"""A participant makes any data store a node of a cluster.

    Participant(client, NodeInfo("s1", "10.0.0.1:7000"), store, folder="/var/lib/store").run(stop)

It registers the node, joins, follows the log, acknowledges epochs, reports rows, tablets, zone partitions and load, and
ends when the node has left. ``client.participant.duties`` has the order of the calls to the store.

One thread calls ``adopt``, ``drain`` and ``forget``; ``FETCHES_MAX`` threads call ``fetch``, and another one ``sizes``.
A participant keeps no copy of the log, so it should not be a member of the metadata service. If it becomes one, it logs
the remedy.

Invariant: the folder belongs to one process at a time, and an epoch is in it before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ringlog.client.aio import AsyncClient
from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.participant.duplicate_identity import DuplicateCheck
from ringlog.client.participant.duties import PLACED_BY, Duties, Fetch
from ringlog.client.participant.folder import IdentityFolder
from ringlog.client.participant.retry import BrokerRetry, Stopped
from ringlog.client.participant.store import AsyncStore, NodeInfo, Store
from ringlog.client.participant.store_calls import POLL_S, StoreCalls
from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.client.tokens import allocate
from ringlog.kernel.commands.rules import SEED_BYTES
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, NodeId, asdict
from ringlog.log.errors import LogError, ReplicaHalted, ReplicaStopped, TopicMissing, WaitTimedOut
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import ACKS, LOAD, topic_name
from ringlog.protocol.balancer.load_reports import LoadReportSchedule, load_of, sizes_of
from ringlog.protocol.effects import CatchUp, Effect, Newest, Steps, WallClock, run_steps
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.protocol.nodes.joining import AwaitEpochAfter, ReportAnswer, join, leave, register
from ringlog.protocol.submission.results import Submitted, describe
from ringlog.protocol.submission.submission import SubmitCommand
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.trust import current
from ringlog.wire.acks import load_with_mac, with_mac
from ringlog.wire.records import NodeAck, encode_node_ack, encode_node_load

FETCHES_MAX: Final = 4
ANSWER_S: Final = 3.0
SILENCE_S: Final = 5.0
LOADS_S: Final = 1.0
DELIVERY_S: Final = 20.0
TOKENS_MAX: Final = 1_024
STATES_MAX: Final = 4_096
"""States that may wait for the store. A store that is further behind begins again: a start examines all ranges."""
T = TypeVar("T")

log = get_logger("ringlog.participant")


class NodeTopics(Protocol):
    """The topics that a node writes. Each record has the node's id as its key."""

    def send(self, suffix: str, node: NodeId, value: bytes) -> None:
        """Write a record, and return when the broker has it. Raises LogError."""

    def duplicate_check(self, folder: IdentityFolder) -> DuplicateCheck | None:
        """Return a check of the acknowledgements in the name of this node, or None."""

    def close(self) -> None:
        """Close the connections."""


class KafkaNodeTopics:
    """The topics of a cluster on Kafka."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._bootstrap, self._cluster = bootstrap_servers, cluster
        self._producer = AckedProducer(bootstrap_servers, "ringlog-participant", DELIVERY_S)

    def send(self, suffix: str, node: NodeId, value: bytes) -> None:
        """See ``NodeTopics``."""
        self._producer.send(topic_name(self._cluster, suffix), value, key=node.encode(), partition=0).result()

    def duplicate_check(self, folder: IdentityFolder) -> DuplicateCheck:
        """See ``NodeTopics``."""
        acks = KafkaLog(self._bootstrap, self._cluster, ACKS)
        found = DuplicateCheck(acks, folder.node, folder.incarnation, lambda: current().ack_keys, folder.ack_keys)
        found.keep = folder.store_ack_keys
        return found

    def close(self) -> None:
        """See ``NodeTopics``."""
        self._producer.close()


class Participant:
    """One node of a cluster, with the rows of a store, from one start to the next.

    Args:
        client: A started client. It stays open.
        info: The registration of the node.
        store: Receives the calls. ``AsyncStore`` needs ``serve``.
        folder: Keeps the identity of the node across restarts; it belongs to this node alone.
        join: Number of tokens to join the ring with. None: only register, for example to replace a node.
        topics: The topics of the node. Default: those of the client's cluster.

    Attributes:
        id: Id of the node.
        epoch: The store has adopted this epoch and drained the writes before it.

    Raises:
        ValueError: ``join`` is out of range.
        NodeFailed: Another process runs from the folder, or a file in it is damaged.
        CertificateOfAnotherNode: The certificate of this process names another node.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        info: NodeInfo,
        store: Store | AsyncStore,
        *,
        folder: Path | str,
        join: int | None = 8,
        topics: NodeTopics | None = None,
    ) -> None:
        if join is not None and not 1 <= join <= TOKENS_MAX:
            raise ValueError(f"join: must be from 1 to {TOKENS_MAX}, or None")
        self._client = client.client if isinstance(client, AsyncClient) else client
        self._info, self._tokens = info, join
        self._store = StoreCalls(store)
        self._folder = IdentityFolder(Path(folder), certified=current().node)
        self._topics = topics or KafkaNodeTopics(self._client.bootstrap_servers, self._client.cluster)
        self.id: NodeId = self._folder.node
        self.epoch: Epoch = 0
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._has_begun = False
        self._ended = threading.Event()
        self._warnings = RateLimitedWarnings(log)
        self._states: deque[ClusterState] = deque()
        self._failure: BaseException | None = None
        self._is_member = False
        self._running: dict[Fetch, Future[None]] = {}
        self._again: dict[Fetch, float] = {}

    # -------------------------------------------------------------------------------------------------- running

    def run(self, stop: threading.Event | None = None) -> None:
        """Take part until ``stop`` is set, or until the node has left. Call it once.

        A node that stopped has not left: continue with another participant of the same folder.

        Raises:
            NodeFailed: The node cannot continue: it was refused, its folder is an older copy, the client was closed, or
                the log was replaced.
            Exception: Any error of the store.
        """
        if self._has_begun:
            raise NodeFailed("a participant runs once: create another one for the same folder")
        self._has_begun, self._stop = True, stop or self._stop
        with contextlib.ExitStack() as ending:
            ending.callback(self._folder.close)
            ending.callback(self._topics.close)
            pool = ThreadPoolExecutor(FETCHES_MAX, "ringlog-fetch")
            ending.callback(pool.shutdown, cancel_futures=True)
            try:
                self._take_part(pool, ending)
            except Stopped:
                pass
            finally:
                self._ended.set()

    async def serve(self) -> None:
        """Take part like ``run``; the methods of an ``AsyncStore`` run on this event loop. Cancel it to stop."""
        self._store.loop = loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(1, "ringlog-participant")
        running = loop.run_in_executor(pool, copy_context().run, self.run)
        pool.shutdown(wait=False)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():  # the node must have stopped before the caller closes its store
            try:
                await asyncio.wait((running,))
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop.set()
        running.result()
        if cancelled is not None:
            raise cancelled

    def leave(self, timeout_s: float | None = None) -> None:
        """Give all ranges to other nodes, and return when the node has left; ``run`` then ends. Thread-safe.

        On the event loop of ``serve``: ``await asyncio.to_thread(participant.leave)``.

        Raises:
            NodeFailed: The departure was refused, or this participant has stopped.
            WaitTimedOut: The node has not left yet. A departure that began continues.
        """
        self._store.reject_loop("leave")
        started = time.monotonic()

        def check() -> None:
            self._check_ended()
            if timeout_s is not None and time.monotonic() - started >= timeout_s:
                raise WaitTimedOut("the node to leave", timeout_s, f"ringlog node leave {self._info.name}")

        try:
            self._perform_steps(leave(self.id, SystemDraw()), check)
            while not self._has_left():
                check()
                with contextlib.suppress(WaitTimedOut):
                    self._client.wait_for(lambda _: self._has_left(), 1.0, "the node to leave")
        except (Stopped, ReplicaStopped):
            if not self._has_left():
                name = self._info.name
                raise NodeFailed(f"{name} has stopped and not left: ringlog node leave {name}") from None

    def _has_left(self) -> bool:
        found = self._client.state.nodes.get(self.id)
        return found is not None and found.state == "left"

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _check_ended(self) -> None:
        if self._ended.is_set():
            raise Stopped

    def _take_part(self, pool: ThreadPoolExecutor, ending: contextlib.ExitStack) -> None:
        replica = self._client.replica
        state = self._caught_up(self._check_stopped)
        self._folder.check(state)
        if (duplicates := self._topics.duplicate_check(self._folder)) is not None:
            ending.callback(duplicates.stop)
            with contextlib.suppress(TopicMissing):
                check = partial(duplicates.check, state.cluster_id, self._folder.acknowledged)
                BrokerRetry("the acknowledgements", self._stop).until_answered(check)
            duplicates.start()
        me = RegisterNode(**{**asdict(self._info), "id": self.id})
        self._perform_steps(register(me, SystemDraw()), self._check_stopped)
        following = replica.subscribe(self._follow, replica.halt_on_defect)
        ending.callback(following.close)
        ending.callback(self._stop_fetches)
        self._states.appendleft(following.state)
        duties = Duties(self.id, self._folder.incarnation, self._store, self._folder, self._end_fetch)
        self._begin("ringlog-load", partial(self._report_loads, duties), ending)
        if self._tokens is not None:
            self._begin("ringlog-join", self._join, ending)
        while not self._stop.is_set():
            self._raise_failure(duplicates)
            duties.turn(self._next_state())
            self.epoch = duties.state.epoch
            self._acknowledge(duties)
            if duties.state.nodes[self.id].state == "left":
                return
            self._warn_member(duties.state)
            if not self._states:  # work of an older state may be closed already
                self._start_fetches(duties, pool)
                self._wake.wait(POLL_S)
                self._wake.clear()

    def _begin(self, name: str, work: Callable[[], None], ending: contextlib.ExitStack) -> None:
        """Run ``work`` in a thread, which ends soon after this node. An error in it ends the node."""

        def guarded() -> None:
            try:
                work()
            except Stopped:
                pass
            except Exception as error:
                self._failure = error
                self._wake.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        ending.callback(thread.join)

    def _warn_member(self, state: ClusterState) -> None:
        """Say once that this node became a member of the metadata service."""
        if self.id in state.service and not self._is_member:
            ends = f"exclude all such nodes in one command: ringlog service size --exclude {self._info.name} …"
            log.warning("metadata service member without a copy of the log", node=self._info.name, ends=ends)
        self._is_member = self.id in state.service

    def _follow(self, before: ClusterState, after: ClusterState, *_: object) -> None:
        """Keep each state that changes an owner, and the newest one. Runs in the replica's thread."""
        if after is before:
            return
        if any(getattr(before, part) is not getattr(after, part) for part in PLACED_BY):
            if len(self._states) >= STATES_MAX:
                self._states.clear()
                self._failure = NodeFailed(f"the store is {STATES_MAX} changes of owners behind: run the node again")
            self._states.append(after)
        self._wake.set()

    def _next_state(self) -> ClusterState:
        newest = self._client.state
        return self._states.popleft() if self._states else newest

    def _raise_failure(self, duplicates: DuplicateCheck | None) -> None:
        failure = self._failure or (None if duplicates is None else duplicates.failure)
        if failure is not None:
            raise failure
        try:
            self._client.replica.raise_if_ended()
        except (ReplicaHalted, ReplicaStopped) as ended:
            raise NodeFailed(f"the log cannot be followed: {ended}") from ended

    # -------------------------------------------------------------------------------------------------- fetches

    def _start_fetches(self, duties: Duties, pool: ThreadPoolExecutor) -> None:
        now = time.monotonic()
        for fetch in [one for fetches in duties.fetches.values() for one in fetches if one.total is None]:
            gain = fetch.gain
            if (running := self._running.get(fetch)) is not None:
                if not running.done():
                    continue
                del self._running[fetch]
                running.result()  # raises only what must end the process, as SystemExit
            if fetch.failure is not None:
                failure, fetch.failure = fetch.failure, None
                why, source = f"{type(failure).__name__}: {failure}", gain.source
                at = time.time_ns() // 1000
                pause = duties.tries.record_failure(fetch, gain.work, source.id, duties.state, why, at)
                log.warning("fetch failed", work=gain.work, source=source.name, why=why)
                self._again[fetch] = now + pause
            if now >= self._again.get(fetch, 0.0) and duties.tries.may_try(fetch, gain.work, duties.state):
                self._again.pop(fetch, None)
                self._running[fetch] = pool.submit(self._fetched, fetch, duties.tries)

    def _fetched(self, fetch: Fetch, tries: StreamAttempts) -> None:
        fetch.run()
        if fetch.total is not None:
            tries.forget(fetch)
        self._wake.set()

    def _end_fetch(self, fetch: Fetch) -> None:
        running = self._running.pop(fetch, None)
        self._again.pop(fetch, None)
        if running is not None and not running.cancel():
            wait((running,))

    def _stop_fetches(self) -> None:
        for fetch in tuple(self._running):
            fetch.stop()
        for fetch in tuple(self._running):
            self._end_fetch(fetch)

    # -------------------------------------------------------------------------------------------------- records

    def _acknowledge(self, duties: Duties) -> None:
        """Publish an acknowledgement if one is needed. After a failure the next turn makes a new one."""
        now = time.monotonic_ns() // 1000
        draft = duties.draft(now, time.time_ns() // 1000)
        if draft is None:
            return
        ack = draft.ack
        self._folder.keep(ack.cluster_id, ack.applied, ack.state_id)
        if self._sent(ACKS.suffix, _record(ack)):
            duties.sent(draft, now)

    def _report_loads(self, duties: Duties) -> None:
        """Report load until the node ends. A separate thread: measuring or sending may take long."""
        schedule = LoadReportSchedule(self.id)
        while not self._ended.wait(LOADS_S):
            self._report_load(duties.state, schedule)

    def _report_load(self, state: ClusterState, schedule: LoadReportSchedule) -> None:
        now = time.monotonic_ns() // 1000
        own = schedule.due(state, now)
        if own is None:
            return
        measure = getattr(self._store, "sizes", None)
        sizes = {table: sizes_of(state, table, measure(table)) for table in own} if measure is not None else {}
        value, keys = encode_node_load(load_of(state, self.id, own, sizes, time.time_ns() // 1000)), current().ack_keys
        if self._sent(LOAD.suffix, load_with_mac(value, keys[0]) if keys else value):
            schedule.sent(own, now)

    def _sent(self, suffix: str, value: bytes) -> bool:
        try:
            self._topics.send(suffix, self.id, value)
        except LogError as error:
            self._warnings.warn(f"{suffix}_not_sent", why=error.message)
            return False
        return True

    # ------------------------------------------------------------------------------------------------- requests

    def _join(self) -> None:
        """Join the ring, in a separate thread, because the node must acknowledge meanwhile."""
        draw = SystemDraw()

        async def wish(state: ClusterState) -> Command:
            seed = draw.take(SEED_BYTES)
            return Join(self.id, allocate(state, self.id, self._tokens or 0, seed), seed)

        self._perform_steps(join(self.id, wish, draw), self._check_ended)

    def _perform_steps(self, steps: Steps[T], check: Callable[[], None]) -> T:
        """Perform steps. ``check`` is called before each wait, and may raise to end them."""
        return run_steps(steps, partial(self._perform, check))

    def _perform(self, check: Callable[[], None], effect: Effect[Any]) -> Any:
        match effect:
            case Newest():
                return self._client.state
            case CatchUp():
                return self._caught_up(check)
            case WallClock():
                return time.time_ns() // 1000
            case SubmitCommand():
                check()
                return self._submit(effect)
            case AwaitEpochAfter(epoch):
                self._await_epoch(epoch, check)
            case ReportAnswer(command, answer):
                log.info("answered", command=type(command).__name__, node=self._info.name, answer=describe(answer))
        return None

    def _caught_up(self, check: Callable[[], None]) -> ClusterState:
        def step() -> ClusterState:
            check()
            return self._client.catch_up(SILENCE_S)

        found = BrokerRetry("the metadata log", self._ended).until_answered(step)
        if found is None:
            raise Stopped
        return found

    def _submit(self, effect: SubmitCommand) -> Submitted | None:
        with contextlib.suppress(SubmissionTimedOut):
            request = {"request_id": effect.request_id, "since_epoch": effect.since_epoch}
            return self._client.submit(effect.command, timeout_s=ANSWER_S, **request)  # type: ignore[arg-type]
        return None

    def _await_epoch(self, epoch: Epoch, check: Callable[[], None]) -> None:
        while self._client.state.epoch <= epoch:
            check()
            with contextlib.suppress(WaitTimedOut):
                self._client.wait_for(lambda state: state.epoch > epoch or None, 1.0, "a new epoch")


def _record(ack: NodeAck) -> bytes:
    keys = current().ack_keys
    return with_mac(encode_node_ack(ack), keys[0]) if keys else encode_node_ack(ack)
