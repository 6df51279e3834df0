"""One reference node as a process: register, join, tail the mutations, stream, acknowledge.

Main loop (one thread): take records of the mutations topic, take a read barrier of the metadata log, adopt the
state it gives, judge the records that it settles; the others wait, and the node asks for a later settled time
(``ringlog.node.settling``). The barrier makes the knowledge complete: whatever the log held when the records were read
is folded before rows are kept by its placements. Between records the loop adopts new epochs as they come and publishes
an acknowledgement.

A restarted node reads the mutations topic from its beginning, under the placements of today, so what it holds is again
complete; it acknowledges nothing and answers no reads before it has passed the topic's end as it was at the start. If
the topic does not go back to its beginning any more, the node ends: it would serve less than it acknowledged.

A broker that does not answer is waited for; a log or a topic that is not what it was ends the node.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import structlog

from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.results import RejectedResult
from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.log.errors import LogError, TopicMissing
from ringlog.log.kafka import KafkaLog
from ringlog.log.topics import ACKS
from ringlog.log.watch import Lost, TopicWatch
from ringlog.node.acks import Acks
from ringlog.node.data_side import DataSide
from ringlog.node.errors import NodeFailed
from ringlog.node.holder import HELD, Fetch, Holder
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.membership import Membership
from ringlog.node.patience import Patience, reached
from ringlog.node.pull import pulled
from ringlog.node.rivals import Rivals
from ringlog.node.server import HttpServer, make_api
from ringlog.node.settling import WAITING_MAX, Waiting, next_settled
from ringlog.node.steps import stream
from ringlog.node.tail import Tail, Tailed
from ringlog.runtime.clock import Clock

__all__ = ["NodeFailed", "NodeOptions", "NodeProcess"]

log = structlog.get_logger("ringlog.node")

BARRIER_S = 10.0
RETRY_S = 0.2
ASKED_S = 10.0
REFUSED_S = 1.0
"""How long after a refusal a node asks for no other settled time."""

T = TypeVar("T")


class NodeProcess:
    """Runs until ``stopping`` is set; ``client`` has not begun yet: first the disk says what the log must have.

    Raises NodeFailed if the folder or the port belongs to another process.
    """

    def __init__(
        self,
        options: NodeOptions,
        client: Client,
        bootstrap: str,
        cluster: str,
        cluster_id: str,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        self._options = options
        self._client = client
        self._clock = clock
        self._bootstrap = bootstrap
        self._folder = NodeFolder(options, cluster_id)
        self._address = f"{options.host}:{self._folder.port}"
        self._stopping = stopping
        self._verdicts: Counter[str] = Counter()
        self._holder = Holder(self._folder.node)
        self._tail = Tail(bootstrap, cluster, options.name)
        self._watch: TopicWatch | None = None
        self._data = DataSide(self._folder, options, self._holder, clock)
        self._acks = Acks(bootstrap, cluster, self._folder, clock)
        self._rivals = Rivals(KafkaLog(bootstrap, cluster, ACKS), self._folder.node, self._folder.incarnation)
        self._membership = Membership(client, options, self._folder.node, self._address, self._stopping)
        self._patience = Patience("the metadata log and the mutations topic", self._stopping)
        self._waiting: Waiting[Tailed] = Waiting()
        self._asked = threading.Event()
        self._active_until = 0
        self._threads: list[threading.Thread] = []
        self._failure: NodeFailed | LogError | None = None

    @property
    def node(self) -> str:
        """This node's id."""
        return self._holder.node

    # --------------------------------------------------------------------------------------- main loop

    def run(self, release: str, join_tokens: int | None) -> None:
        """Register, join with that many tokens if asked, and serve until stopped.

        Raises NodeFailed when the node is refused or loses the log, the topic or its own server.
        """
        api = make_api(self._holder, self._options.name, self._clock, self._data, self._options.host)
        server = HttpServer(api, self._folder.socket)
        server.start()
        try:
            self._client.replica.expect((*self._folder.seen(), *self._data.seen()))
            if reached(self._client.follow, self._stopping) is None:
                return
            state = self._client.state
            self._folder.check(state)
            self._look_for_rivals(state.cluster_id)
            self._membership.register(release)
            self._data.start(self._client.replica)
            self._patience.until_answered(self._tail.assign)
            self._watch = TopicWatch(self._bootstrap, self._tail.ids, self._topic_lost)
            self._watch.start()
            self._holder.positions.update(self._tail.begin)
            if join_tokens is not None:
                self._in_background("join", self._membership.join, join_tokens)
            while not self._stopping.is_set():
                self._turn()
                if not server.alive():
                    raise NodeFailed(f"the server on {self._address} ended: {server.failure}")
                self._data.check()
                failure = self._failure or self._rivals.failure
                if failure is not None:
                    raise failure
        finally:
            self._stopping.set()
            if self._watch is not None:
                self._watch.stop()
            for thread in self._threads:
                thread.join(timeout=5)
            server.stop()
            self._data.stop()
            self._tail.close()
            self._acks.close()
            self._rivals.stop()
            self._folder.close()
            log.info("stopped", node=self._options.name, **self._verdicts)

    def _in_background(self, name: str, work: Callable[[T], None], argument: T) -> None:
        """Run ``work`` beside the main loop; what it raises ends the node."""

        def guarded() -> None:
            try:
                work(argument)
            except (NodeFailed, LogError) as error:
                self._failure = error
            except Exception as error:
                log.exception("broken", work=name)
                self._failure = NodeFailed(f"{name}: {type(error).__name__}: {error}")

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _turn(self) -> None:
        taken = self._tail.take() if len(self._waiting) < WAITING_MAX else []
        if len(self._waiting) >= WAITING_MAX:
            self._stopping.wait(RETRY_S)
        state = self._barrier() if taken else self._client.replica.state
        if state is None:
            return
        for fetch in self._holder.adopt(state):
            self._in_background(f"stream-{fetch.source[:8]}", self._fetch, fetch)
        self._waiting.add((item.partition, item) for item in taken)
        self._settle(state, self._waiting.work_off(self._apply), any(item.record is not None for item in taken))
        if self._holder.caught_up or self._catches_up():
            self._acks.publish(self._holder, self._data)

    def _look_for_rivals(self, cluster_id: str) -> None:
        """Is this folder the node's newest one? Raises NodeFailed; acks that are missing have nothing against it."""
        try:
            reached(lambda _: self._rivals.look(cluster_id, self._folder.acknowledged), self._stopping)
        except TopicMissing as missing:
            log.warning("no acknowledgements to compare with", why=missing.message)
        self._rivals.start()

    def _topic_lost(self, lost: Lost) -> None:
        """Nothing would come from it any more, or from its beginning what is not its beginning."""
        self._failure = NodeFailed(f"the mutations topic is not what it was: {lost}: replace the node by a new one")

    def _barrier(self) -> ClusterState | None:
        """Everything that is in the log, however long the broker takes; None once the node is to stop."""
        return self._patience.until_answered(lambda: self._client.catch_up(BARRIER_S))

    def _catches_up(self) -> bool:
        """True once the node holds what it held before, and knows what it knew."""
        holder = self._holder
        if any(holder.positions[p] < end for p, end in self._tail.ends.items()):
            return False
        if holder.state.epoch < max(self._folder.acknowledged, 1):
            return False
        if self._folder.acknowledged and any(self._tail.begin.values()) and holder.serves():
            raise NodeFailed(
                f"the mutations topic begins at {self._tail.begin}: rows that this node held are not in it any more; "
                "replace the node by a new one"
            )
        holder.caught_up = True
        log.info("caught up", node=self._options.name, epoch=holder.state.epoch, rows=len(holder.store))
        return True

    def _apply(self, partition: int, item: Tailed) -> bool:
        """Judge a record, if that can be done."""
        if item.record is None:
            self._holder.passed(partition, item.offset)
            return True
        if self._holder.state.settled.until == 0:
            return False
        verdict = self._holder.judge(item.record.value() or b"", append_time_us(item.record.timestamp()[1]))
        if verdict == HELD:
            return False
        self._verdicts[verdict] += 1
        self._holder.passed(partition, item.offset + 1)
        return True

    def _settle(self, state: ClusterState, held: list[Tailed], has_come: bool) -> None:
        """Ask for a later settled time where one is needed, or soon will be."""
        now = self._clock.now_us()
        if has_come:
            self._active_until = now + setting(state, "verdicts_lead_us")
        records = [item.record for item in held if item.record is not None]
        needs = [self._holder.needed(one.value() or b"", append_time_us(one.timestamp()[1])) for one in records]
        wanted = next_settled(state, now, max(needs, default=None), now < self._active_until)
        if wanted is not None and not self._asked.is_set():
            self._asked.set()
            self._in_background("settle", self._ask, wanted)

    def _ask(self, wanted: SettleVerdicts) -> None:
        """One answer is enough: whoever still needs a later time asks again."""
        try:
            answer = self._client.submit(wanted, timeout_s=ASKED_S)
            if isinstance(answer, RejectedResult) and answer.code != "already_settled":
                log.warning("writes are held", code=answer.code, detail=answer.detail)
                self._stopping.wait(REFUSED_S)
        except SubmissionTimedOut as open_:
            log.warning("writes are held", detail=str(open_))
        finally:
            self._asked.clear()

    # --------------------------------------------------------------------------------------- streaming

    def _fetch(self, fetch: Fetch) -> None:
        holder, stopping = self._holder, self._stopping
        about = {"source": holder.state.nodes[fetch.source].name, "operation": fetch.operation}
        pull, tries = self._data.row_pull(fetch, holder.state), self._data.tries
        steps = stream(fetch, tries, lambda: not stopping.is_set() and holder.wants(fetch), lambda: holder.state)

        def once() -> None:
            snapshot = pull.once()
            kept = holder.receive(fetch, snapshot)
            log.info("streamed", rows=len(snapshot.versions), kept=kept, **about)

        pulled(steps, once, lambda: pull.rows, stopping, self._clock, **about)
