"""A reference node as a process: performs ``ringlog.node.protocol`` on Kafka, gRPC and disk.

The main thread runs the mutation loop. Separate threads acknowledge epochs, adopt epochs for the registers, report
loads, ask peers and copy the log. Joining the cluster, each request for a later validation watermark and each stream
also have a thread. An error in any thread ends the node.

The node waits for an unavailable broker. It ends if the log or the mutations topic has been replaced. It also ends if
the mutations topic no longer reaches back to the end of the node's rows, because it would serve less than it
acknowledged.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.participant.duplicate_identity import DuplicateCheck
from ringlog.client.participant.retry import BrokerRetry, Stopped, retry_until_answered
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.log.errors import LogError, TopicMissing, WaitTimedOut
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import ACKS
from ringlog.log.opening import open_snapshots, start_point_finder
from ringlog.log.replicas.driver import LogDriver
from ringlog.log.replicas.state_agreement import EVIDENCE, DigestComparison
from ringlog.log.replicas.topic_watch import LostTopic, TopicWatch
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.log.log_copy import COPY
from ringlog.node.log.member_copy import CopyGatedRegisters, MemberCopy
from ringlog.node.protocol.acks import DiskFailed, acknowledge
from ringlog.node.protocol.followers import RowGroupReplicas
from ringlog.node.protocol.lifecycle import (
    CompareDisk,
    FollowLog,
    OpenedMutations,
    OpenMutations,
    ServeRegisters,
    run_lifecycle,
)
from ringlog.node.protocol.mutation_loop import (
    BeginStream,
    CaughtUp,
    CountVerdicts,
    MayAcknowledge,
    ReadAcknowledgedEpoch,
    ReadMutations,
    Sleep,
    Spawn,
    TailItem,
    WatermarkRequestFailed,
)
from ringlog.node.reports.acks import Acks
from ringlog.node.reports.loads import Loads
from ringlog.node.reports.monitor import NodeWatch, has_left
from ringlog.node.rows.disk_rows import ROWS, DiskRows
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_service import DataService
from ringlog.node.servers.http_server import HttpServer, make_api
from ringlog.node.streams.mutation_tail import MutationsTail
from ringlog.operator.intents.intents import join_with
from ringlog.protocol.effects import CatchUp, Steps, run_steps
from ringlog.protocol.nodes.errors import NodeFailed, RowsDamaged
from ringlog.protocol.nodes.joining import AwaitEpochAfter, ReportAnswer
from ringlog.protocol.submission.results import AppliedResult, Submitted, describe
from ringlog.protocol.submission.submission import SubmitCommand
from ringlog.runtime.clock import Clock
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.logs import get_logger
from ringlog.runtime.trust import current

__all__ = ["NodeFailed", "NodeOptions", "NodeProcess"]

log = get_logger("ringlog.node")

BARRIER_S = 10.0
POLL_INTERVAL_S = 1.0
ANSWER_S = 3.0
"""The wait for an answer, in seconds, between checks whether the node is to stop."""
LAST_ACK_S = 5.0
"""How long, in seconds, a node with a failed disk tries to report that."""
IGNORE_MSB = 12

Handlers = dict[type, Callable[[Any], Any]]


class NodeProcess:
    """A node that runs until ``stopping`` is set. Raises NodeFailed if another process has its folder or port.

    Args:
        client: A client that does not follow the log yet. The node first reads from disk which epochs the log must
            have.
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
        self._cluster = cluster
        self._folder = NodeFolder(options, cluster_id)
        self._stopping = stopping
        self._verdicts: Counter[str] = Counter()
        self._rows = DiskRows(options.folder / ROWS, self._folder.node, cluster_id)
        self._row_replica = RowReplica(self._folder.node, self._rows)
        self._replicas = RowGroupReplicas(self._row_replica)
        self._tail = MutationsTail(bootstrap, cluster)
        self._watch: TopicWatch | None = None
        self._data = DataService(
            self._folder, options, self._row_replica, clock, client.replica, lambda: self._copy.entries, stopping
        )
        self._acks = Acks(bootstrap, cluster, self._folder.keep, self._tail.ends_now, stopping)
        self._copy = self._member_copy()
        self._agreement = DigestComparison(
            client.replica, lambda _: options.folder / EVIDENCE, partial(open_snapshots, bootstrap, cluster)
        )
        self._loads = Loads(bootstrap, cluster, self._row_replica, lambda: self._data.cells, stopping, options.folder)
        folder, acks = self._folder, KafkaLog(bootstrap, cluster, ACKS)
        self._duplicate_check = DuplicateCheck(
            acks, folder.node, folder.incarnation, lambda: current().ack_keys, folder.ack_keys
        )
        self._duplicate_check.keep = folder.store_ack_keys
        self._draw = SystemDraw()
        self._server: HttpServer | None = None
        self._unanswered = ""
        self._threads: list[threading.Thread] = []
        self._failure: NodeFailed | LogError | None = None
        self._watched = NodeWatch(
            options,
            self._folder,
            self._row_replica,
            self._data,
            client.replica,
            self._tail,
            self._verdicts,
            clock,
            lambda: self._failure or self._duplicate_check.failure,
            stopping.is_set,
        )

    @property
    def node(self) -> str:
        """The id of this node."""
        return self._row_replica.node

    # --------------------------------------------------------------------------------------- main loop

    def run(self, release: str, features: Sequence[str], join_tokens: int | None) -> None:
        """Register, join if requested, and serve until stopped.

        Args:
            join_tokens: The number of tokens to join with, or None to only register.

        Raises:
            NodeFailed: The node was rejected, or it has lost the log, the topic or its server.
        """
        api = make_api(
            self._row_replica, self._options.name, self._clock, self._data, self._options.hosts, self._watched
        )
        server = self._server = HttpServer(api, self._folder.socket)
        server.start()
        try:
            self._watched.copy = self._copy
            side = CopyGatedRegisters(self._data, self._copy, lambda: self._row_replica.state)
            acks = partial(
                acknowledge, self._row_replica, side, self._data.tries, self._folder.incarnation, self._replicas
            )
            wish = None if join_tokens is None else partial(self._join_command, join_tokens)
            me = self._registration(release, features)
            peers = partial(self._data.asking.steps, self._draw)
            self._run_steps(
                run_lifecycle(me, self._row_replica, self._draw, acks, peers, wish), self._lifecycle_handlers()
            )
        except RowsDamaged as damaged:
            self._wait_for_last_ack(damaged)
            raise
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
            self._loads.close()
            self._rows.close()
            self._duplicate_check.stop()
            self._folder.close()
            log.info("stopped", node=self._options.name, **self._verdicts)

    def _member_copy(self) -> MemberCopy:
        return MemberCopy(
            self._options.folder / COPY,
            self.node,
            self._client.replica,
            start_point_finder(self._bootstrap, self._cluster),
            self._folder.acknowledged,
            self._acks.wakeup,
            self._stopping,
        )

    def _registration(self, release: str, features: Sequence[str]) -> RegisterNode:
        options = self._options
        return RegisterNode(
            name=options.name,
            id=self.node,
            address=options.address(self._folder.port),
            datacenter=options.datacenter,
            rack=options.rack,
            shards=options.shards,
            ignore_msb=IGNORE_MSB,
            release=release,
            features=tuple(sorted(features)),
            capacity=1,
        )

    async def _join_command(self, tokens: int, state: ClusterState) -> Command:
        return join_with(state, self.node, tokens, self._draw)

    # ------------------------------------------------------------------------------------------- effects

    def _run_steps(self, steps: Steps[None], handlers: Handlers | None = None) -> None:
        """Perform steps in the calling thread, until they end or the node is to stop."""
        broker_retry = BrokerRetry("the metadata log", self._stopping)
        every: Handlers = {
            **LogDriver(self._client.replica.log, self._client.replica, self._clock).handlers,
            CatchUp: lambda _: self._caught_up(broker_retry),
            SubmitCommand: self._submit_command,
            Sleep: lambda effect: self._stopping.wait(effect.time / 1e6),
            AwaitEpochAfter: self._await_epoch,
            ReportAnswer: self._report_answer,
            WatermarkRequestFailed: self._report_held_writes,
            DiskFailed: self._disk_failed,
            **self._acks.handlers,
            **self._loads.handlers,
            **self._data.asking.handlers,
            **(handlers or {}),
        }
        with contextlib.suppress(Stopped):
            run_steps(steps, lambda effect: every[type(effect)](effect))

    def _lifecycle_handlers(self) -> Handlers:
        return {
            FollowLog: lambda _: self._follow(),
            CompareDisk: lambda effect: self._compare_disk(effect.state),
            ServeRegisters: lambda _: self._data.start(self._acks.wakeup),
            OpenMutations: lambda _: self._open_mutations(),
            ReadMutations: lambda _: self._read_mutations(),
            BeginStream: lambda effect: self._begin("stream", partial(self._data.pull_rows, effect.fetch)),
            Spawn: lambda effect: self._begin(effect.name, lambda: self._run_steps(effect.start())),
            CountVerdicts: lambda effect: self._verdicts.update(effect.verdicts),
            ReadAcknowledgedEpoch: lambda _: self._folder.acknowledged,
            CaughtUp: lambda _: self._report_caught_up(),
            MayAcknowledge: lambda _: self._acks.wakeup.set(),
        }

    def _follow(self) -> ClusterState:
        # Everything on disk was adopted or acknowledged under these epochs, so a log without them has lost entries.
        self._client.replica.expect_epochs((*self._folder.seen(), *self._rows.seen(), *self._data.seen()))
        if retry_until_answered(self._client.follow, self._stopping) is None:
            raise Stopped
        replica = self._client.replica
        replica.subscribe(self._agreement.folded, replica.halt_on_defect)
        begin = replica.subscribe(self._watched.folded, replica.halt_on_defect).state
        if has_left(begin, self.node):
            self._watched.report_departure(begin)
        return self._client.state

    def _compare_disk(self, state: ClusterState) -> None:
        """Raise NodeFailed if the disk does not match the log, or if the folder is an older copy."""
        self._folder.check(state)
        self._rows.check(state.cluster_id, self._folder.acknowledged)
        try:
            retry_until_answered(
                lambda _: self._duplicate_check.check(state.cluster_id, self._folder.acknowledged), self._stopping
            )
        except TopicMissing as missing:  # Without acknowledgements there is no evidence against the folder.
            log.warning("no acknowledgements to compare with", why=missing.message)
        self._duplicate_check.start()

    def _open_mutations(self) -> OpenedMutations:
        BrokerRetry("the mutations topic", self._stopping).until_answered(partial(self._tail.assign, self._rows.mark))
        if self._stopping.is_set():
            raise Stopped
        self._row_replica.topic_id = self._tail.topic_id
        self._watch = TopicWatch(self._bootstrap, self._tail.ids, self._topic_lost)
        self._watch.start()
        self._begin("log copy", self._copy.run)
        return OpenedMutations(self._tail.begin, self._tail.ends)

    def _read_mutations(self) -> list[TailItem]:
        if self._stopping.is_set():
            raise Stopped
        if self._server is not None and not self._server.alive():
            raise NodeFailed(f"the server ended: {self._server.failure}")
        self._data.check()
        failure = self._failure or self._duplicate_check.failure
        if failure is not None:
            raise failure
        taken = self._tail.take()
        self._watched.broker_clock.took(taken, self._row_replica.caught_up, self._clock.now_us())
        return taken

    def _caught_up(self, broker_retry: BrokerRetry) -> ClusterState:
        """Return a state that contains everything in the log. Waits for an unavailable broker."""
        found = broker_retry.until_answered(lambda: self._client.catch_up(BARRIER_S))
        if found is None:
            raise Stopped
        return found

    def _submit_command(self, effect: SubmitCommand) -> Submitted | None:
        if self._stopping.is_set():
            raise Stopped
        try:
            return self._client.submit(
                effect.command, timeout_s=ANSWER_S, request_id=effect.request_id, since_epoch=effect.since_epoch
            )
        except SubmissionTimedOut as open_:
            if self._unanswered != effect.request_id:
                self._unanswered = effect.request_id
                log.warning("no answer yet", command=type(effect.command).__name__, detail=str(open_))
            return None

    def _wait_for_last_ack(self, damaged: RowsDamaged) -> None:
        """Wait for the last acknowledgement, which lets operators cancel steps that wait for this node."""
        self._replicas.fail(damaged.code)
        self._acks.wakeup.set()
        for thread in self._threads:
            if thread.name == "acks":
                thread.join(timeout=LAST_ACK_S)

    def _await_epoch(self, effect: AwaitEpochAfter) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(WaitTimedOut):
                self._client.replica.wait_for(
                    lambda state: state.epoch > effect.epoch or None, POLL_INTERVAL_S, "a new epoch"
                )
                return
        raise Stopped

    def _report_answer(self, effect: ReportAnswer) -> None:
        command, answer = effect.command, effect.answer
        if isinstance(command, RegisterNode | UpdateNode):
            log.info("registration", node=self._options.name, id=self.node, answer=describe(answer))
        elif isinstance(answer, AppliedResult):
            log.info("join admitted", node=self._options.name, epoch=answer.epoch)
        else:
            log.info("join waits", node=self._options.name, answer=describe(answer))

    def _report_held_writes(self, effect: WatermarkRequestFailed) -> None:
        log.warning("writes are held", why=describe(effect.answer) if effect.answer else "no answer")

    def _report_caught_up(self) -> None:
        row_replica = self._row_replica
        log.info("caught up", node=self._options.name, epoch=row_replica.state.epoch, rows=len(row_replica.store))

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        """Run ``work`` in a new thread. An error in it ends the node."""

        def guarded() -> None:
            try:
                work()
            except (NodeFailed, LogError) as error:
                self._failure = error
            except Exception as error:
                log.exception("broken", work=name)
                self._failure = NodeFailed(f"{name}: {type(error).__name__}: {error}")

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _disk_failed(self, effect: DiskFailed) -> None:
        self._failure = effect.why

    def _topic_lost(self, lost: LostTopic) -> None:
        """End the node: a replaced topic would deliver nothing, or records that do not continue the node's rows."""
        self._failure = NodeFailed(f"the mutations topic has changed: {lost}: replace the node by a new one")
