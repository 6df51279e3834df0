"""A simulated reference node. It performs the steps of ``ringlog.node.protocol`` on virtual time.

The end of a node with a failed disk is re-implemented. In production, a thread gets time for a last report. Here, that
time passes, and an operator deletes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.topology.movements import Join, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, RegisterNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.node.log.member_copy import CopyGatedRegisters
from ringlog.node.protocol.acks import (
    DiskFailed,
    Keep,
    News,
    PublishAcknowledgement,
    RegisterSide,
    TopicEnds,
    acknowledge,
)
from ringlog.node.protocol.followers import RowGroupReplicas
from ringlog.node.protocol.lifecycle import (
    PEERS,
    AwaitLoads,
    CompareDisk,
    FollowLog,
    MeasureTablets,
    OpenedMutations,
    OpenMutations,
    PublishLoad,
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
from ringlog.node.protocol.stream import EndPages, KeepPage, NextPage, RowStreamProgress, StreamInterrupted, stream
from ringlog.node.rows.partial_decode import Head
from ringlog.node.rows.replica import NotReady, NotServed, RowFetch, RowReplica
from ringlog.node.rows.store import RowStore, reads_from
from ringlog.protocol.balancer.load_reports import Amounts
from ringlog.protocol.effects import Steps
from ringlog.protocol.nodes.errors import NodeFailed, RowsDamaged
from ringlog.protocol.nodes.joining import AwaitEpochAfter, ReportAnswer
from ringlog.protocol.submission.results import RejectedResult
from ringlog.protocol.submission.submission import NoAnswer, SubmitCommand, submit_until_answered
from ringlog.wire.acks import incarnation
from ringlog.wire.data import Rows, RowVersion
from ringlog.wire.records import Mutation, encode_node_ack, encode_node_load
from ringlog_sim.actors.nodes.kept_log import SimLogCopy
from ringlog_sim.actors.nodes.kept_rows import ROWS, FailingRows, rows_of
from ringlog_sim.actors.nodes.peers import SimPeers
from ringlog_sim.actors.nodes.registers import SimRegisters, StreamCalls, streaming
from ringlog_sim.client import SimClient
from ringlog_sim.devices.broker import ACKS, LOAD, MUTATIONS, SimRecord, SimTail
from ringlog_sim.devices.memo import cached_mutation
from ringlog_sim.devices.world import MS, SECOND, Chance, Signal, SimHost, Unanswered
from ringlog_sim.replica import Performers, SimReplica, Step, perform
from ringlog_sim.shape import tablet_bytes

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

RETRY_US: Micros = 300 * MS
SUBMIT_US: Micros = 6 * SECOND
POLL_US: Micros = 2 * SECOND
LATER = Sleep(POLL_US)
FAILURE_REPORT_US: Micros = SECOND
LOADS_US: Micros = 2 * SECOND
COUNT_US: Micros = 500 * MS
"""Interval between a node's searches for added partitions of the mutations topic."""
WHOLE = 2**31
PAGES = (1, 400, WHOLE)
"""Minimum bytes of a page of rows, except for the last page."""
LAGS_US: tuple[Micros, ...] = (0, 0, 30 * MS, 300 * MS, 1_500 * MS)
COMPACTED_AFTER, NEVER = 2, 2**31
"""Number of writes after which a partition is compacted, in runs with rows on disk and in others."""


def _rest(rest: Sleep) -> Step:
    yield rest.time


def _sizes(effect: MeasureTablets) -> Amounts:
    """Return the sizes of tablets. A tablet has the same size on every node."""
    return {table: {one: tablet_bytes(one) for one in numbers} for table, numbers in effect.own.items()}


class SimRowReplica(RowReplica):
    """The rows of one node. It reports adopted states and received rows to the checks. Nodes share decoded writes."""

    def __init__(self, sim: Simulation, node: str, store: RowStore | None = None) -> None:
        super().__init__(node, store, COMPACTED_AFTER if sim.shared["keeps_rows"] else NEVER)
        self._sim = sim
        self.turned = Signal()
        self._streamed: dict[RowFetch, list[RowVersion]] = {}

    def adopt(self, state: ClusterState) -> list[RowFetch]:
        """Adopt a state, as in production, and report it to the checks."""
        before = self.state
        fetches = super().adopt(state)
        if self.state is not before:
            for check in self._sim.on_adopted:
                check.adopted(self.node, state)
        return fetches

    def commit(self, sync: bool = False) -> None:
        """Commit, as in production, and fire the signal."""
        super().commit(sync)
        self.turned.fire()

    def remove(self, versions: Sequence[RowVersion]) -> None:
        """Remove versions, as in production, and count them."""
        super().remove(versions)
        self._sim.did["kept rows", "versions removed"] += len(versions)

    def take_in(self, fetch: RowFetch, page: Rows) -> bool:
        """Add a page, as in production, and remember its rows."""
        taken = super().take_in(fetch, page)
        self._streamed.setdefault(fetch, []).extend(page.rows if taken else ())
        return taken

    def complete(self, fetch: RowFetch, rows: int, digest: str) -> bool:
        """Complete a fetch, as in production, and report its rows to the checks."""
        kept, versions = super().complete(fetch, rows, digest), self._streamed.pop(fetch, [])
        if kept:
            for check in self._sim.on_received:
                check.received(self.node, fetch, versions)
        return kept

    def _seen(self, value: bytes, _: Head | None) -> Mutation:
        return cached_mutation(value)


class SimNode:
    """One node, across its restarts.

    ``registration``: its identity. ``tokens``: the tokens with which it joins, none if it does not join. ``replaces``:
    the node that it replaces instead. A node that ``is_lost`` has lost its disk and never returns.

    Each step of its loop, each stream and each partition has a delay that is typical for this node in this run. On its
    host's disk, ``acknowledged`` is the newest epoch that it acknowledged.
    """

    def __init__(self, sim: Simulation, host: SimHost, registration: RegisterNode, tokens: tuple[int, ...]) -> None:
        self.sim = sim
        self.host = host
        self.registration = registration
        self.tokens = tokens
        self.name = registration.name
        self.row_replica = SimRowReplica(sim, registration.id)
        self.rows = FailingRows()
        self.registers = SimRegisters(sim, host, registration.id)
        self.side: RegisterSide = self.registers
        self.peers: SimPeers | None = None
        self.lie = ""
        self.starts = 0
        self._lag: Micros = 0
        self._tails: list[SimTail] = []
        self._counted_at: Micros = 0
        self.replaces: SimNode | None = None
        self.is_lost = False
        self._chance = Chance(sim.world.seed, f"node/{host.name}")
        self._slowness: Micros = self._chance.pick([1, 5, 20, 100, 400]) * MS
        self._page_bytes = Chance(sim.world.seed, f"pages/{host.name}").pick(
            PAGES if sim.shared["keeps_rows"] else [WHOLE]
        )

    def start(self) -> None:
        """Start the node on its host, which is up."""
        self.starts += 1
        self.rows = rows_of(self.sim, self.host, self.starts)
        self.row_replica = SimRowReplica(self.sim, self.registration.id, self.rows)
        self._replica = SimReplica(self.sim, self.host, f"{self.name}/{self.starts}", is_independent=self.starts == 2)
        self._client = SimClient(self.sim, self.host, f"{self.name}/{self.starts}", self._replica, self.name)
        self._inbox: list[TailItem] = []
        self._tails = []
        self._counted_at = self.sim.world.now
        self._ack_signal = Signal()
        self.tries = StreamAttempts()
        for check in self.sim.on_began:
            check.began(self.registration.id)
        self._failure: RowsDamaged | None = None
        replicas = self._replicas = RowGroupReplicas(self.row_replica)
        side = self.side = self._side()
        number = incarnation(self.starts, self.name)
        acks = partial(acknowledge, self.row_replica, side, self.tries, number, replicas)
        wish = self._wish if self.tokens else None
        peers = self.peers = SimPeers(self.sim, self.registration.id, self._replica, lambda: self.lie)
        draw = self._client.draw
        protocol = partial(
            run_lifecycle, self.registration, self.row_replica, draw, acks, partial(peers.steps, draw), wish
        )
        self.sim.world.spawn(self.host, f"{self.name}.main", self._run_steps(protocol), self._over)

    def _side(self) -> RegisterSide:
        """Return the conditions of acknowledgements: the registers, and a copy of the log in runs with members."""
        if not self.sim.shared["keeps_log"]:
            return self.registers
        copy = SimLogCopy(self.sim, self.host, self.registration.id, self._replica, self._ack_signal)
        self.sim.world.spawn(self.host, f"{self.name}.copy", copy.run())
        return CopyGatedRegisters(self.registers, copy, lambda: self.row_replica.state)

    @property
    def own_epoch(self) -> Epoch:
        """Return the newest epoch of its replica of the log."""
        return self._replica.state.epoch

    @property
    def turned(self) -> Signal:
        """Return the signal that fires when a waiting request may continue."""
        return self.row_replica.turned

    def named(self, epoch: Epoch) -> None:
        """Report the epoch of a request that has waited without success."""
        if self.peers is not None:
            self.peers.named(epoch)

    def read_slowly(self, lag: Micros) -> None:
        """Delay this node's records of the mutations by ``lag``, from now on."""
        self._lag = lag
        for tail in self._tails:
            tail.lag = lag

    def fail_rows(self) -> None:
        """Let the disk reject rows from now on, if the node is up and has caught up."""
        self.rows.fails = self.host.up and self.row_replica.caught_up

    def lose(self) -> None:
        """Lose the disk, and with it all data of this node."""
        self.starts, self.is_lost = 0, True
        self.row_replica = SimRowReplica(self.sim, self.registration.id)

    def _over(self, why: str) -> None:
        self.sim.broken("node_ended", f"{self.name} ended: {why}")

    def _run_steps(self, start: Callable[[], Steps[None]]) -> Step:
        """Perform the steps of a life. If the disk fails, report it and stop.

        Then the rows are deleted and the node starts again, or it never returns.
        """
        try:
            yield from self._perform(start())
        except RowsDamaged as damaged:
            self._replicas.fail(damaged.code)
            self._ack_signal.fire()
            yield FAILURE_REPORT_US
            self.host.disk.pop(ROWS, None)
            self.sim.did["rows", "failed"] += 1
            self.sim.world.on(None, 0, lambda _: self.sim.shared["rows_failed"](self.name))
            yield Signal()

    # ----------------------------------------------------------------------------------------------- start

    def _follow(self, _: FollowLog) -> Step:
        yield from self._client.start()
        return (yield from self._replica.barrier())

    def _compare_disk(self, effect: CompareDisk) -> None:
        if effect.state.epoch < self._acknowledged():
            self.sim.broken("node_disk", f"{self.name} acknowledged an epoch that the log does not have")

    def _open_mutations(self, _: OpenMutations) -> Step:
        sim, ends = self.sim, {}
        partitions = range(len(sim.broker.topics[MUTATIONS]))
        for partition in partitions:
            while partition not in ends:
                with suppress(Unanswered):
                    ends[partition] = yield from sim.broker.end(self.host, MUTATIONS, partition)
        begin = {partition: sim.shared["mutations_begin"].get(partition, 0) for partition in partitions}
        places = reads_from(begin, self.row_replica.positions)
        for partition in partitions:
            lag = self._lag or Chance(sim.world.seed, f"lag/{self.host.name}/{partition}").pick(LAGS_US)
            self._tails.append(
                sim.broker.tail(self.host, MUTATIONS, partition, places[partition], self._taker(partition), lag)
            )
        return OpenedMutations(begin, ends)

    # --------------------------------------------------------------------------------------------- effects

    def _perform(self, steps: Steps[None]) -> Step:
        """Perform steps of the node to their end."""
        sim, replica, peers = self.sim, self._replica, self.peers
        assert peers is not None, "the node is running"
        at_once: dict[type, Callable[[Any], Any]] = {
            **replica.at_once,
            **peers.at_once,
            BeginStream: lambda effect: self._spawn("stream", self._fetch(effect.fetch)),
            Spawn: self._begin,
            CompareDisk: self._compare_disk,
            ServeRegisters: lambda _: self.registers.start(self._replica, self._ack_signal, self.tries),
            Keep: self._keep,
            DiskFailed: lambda effect: setattr(self, "_failure", effect.why),
            CountVerdicts: lambda effect: sim.did.update(
                {("write", code): count for code, count in effect.verdicts.items()}
            ),
            ReadAcknowledgedEpoch: lambda _: self._acknowledged(),
            CaughtUp: lambda _: sim.world.tell(self.name, f"has caught up at epoch {self.row_replica.state.epoch}"),
            MayAcknowledge: lambda _: self._ack_signal.fire(),
            WatermarkRequestFailed: lambda _: None,
            ReportAnswer: lambda _: None,
            MeasureTablets: _sizes,
        }
        in_time: Performers = {
            **replica.in_time,
            **peers.in_time,
            FollowLog: self._follow,
            OpenMutations: self._open_mutations,
            ReadMutations: self._take,
            News: self._await_news,
            PublishAcknowledgement: self._publish,
            TopicEnds: lambda _: sim.broker.ends(self.host, MUTATIONS),
            Sleep: _rest,
            SubmitCommand: self._submit_command,
            AwaitEpochAfter: lambda _: _rest(LATER),
            AwaitLoads: self._await_loads,
            PublishLoad: self._publish_load,
        }
        return perform(steps, at_once, in_time)

    def _spawn(self, name: str, step: Step) -> None:
        self.sim.world.spawn(self.host, f"{self.name}.{name}", step)

    def _taker(self, partition: int) -> Callable[[list[SimRecord]], None]:
        def take(records: list[SimRecord]) -> None:
            self._inbox += [
                TailItem(partition, one.offset, one.value, one.time // 1000, one.key.encode()) for one in records
            ]
            self._replica.changed.fire()

        return take

    def _take(self, _: ReadMutations) -> Step:
        """Return the received records and the current end of each partition."""
        if not self._inbox and self._replica.state is self.row_replica.state:
            yield self._replica.changed, POLL_US
        yield self._chance.below(self._slowness) + 1
        if self._failure is not None:
            raise self._failure
        self._read_added()
        taken, self._inbox = self._inbox, []
        if taken:
            taken += [TailItem(tail.partition.number, tail.position, None) for tail in self._tails]
        return taken

    def _read_added(self) -> None:
        """Read partitions that were added since the last check, as ``ringlog.node.streams.mutation_tail`` does."""
        sim, known = self.sim, len(self._tails)
        if len(sim.broker.topics[MUTATIONS]) == known or sim.world.now < self._counted_at + COUNT_US:
            return
        self._counted_at = sim.world.now
        if sim.broker.answers(self.host):
            assert not sim.shared["mutations_begin"].get(known), "all nodes have read deleted records"
            self._tails.append(sim.broker.tail(self.host, MUTATIONS, known, 0, self._taker(known), self._lag))
            self._inbox.append(TailItem(known, 0, None))
            sim.did["partitions", "found by a node"] += 1

    def _acknowledged(self) -> int:
        found: int = self.host.disk.get("acknowledged", 0)
        return found

    def _begin(self, effect: Spawn) -> None:
        if self.sim.shared[{"load": "balances", PEERS: "asks"}.get(effect.name, "nodes")]:
            self._spawn(effect.name, self._to_its_end(effect.start))

    def _to_its_end(self, start: Callable[[], Steps[None]]) -> Step:
        try:
            yield from self._perform(start())
        except NodeFailed as failed:  # it is permanently rejected: an operator starts it again without a join
            self.sim.world.tell(self.name, f"stays out: {failed}")
        self._replica.changed.fire()

    def _submit_command(self, effect: SubmitCommand) -> Step:
        try:
            answer = yield from self._client.submit(effect.command, SUBMIT_US, effect.request_id, effect.since_epoch)
        except NoAnswer:
            answer = None
        if isinstance(effect.command, SettleVerdicts):
            code = answer.code if isinstance(answer, RejectedResult) else "settled" if answer else "timed out"
            self.sim.did["settle", code] += 1
        return answer

    # ------------------------------------------------------------------------------------------------ acks

    def _await_news(self, _: News) -> Step:
        yield self._ack_signal

    def _keep(self, keep: Keep) -> None:
        self.sim.world.store(self.host, "acknowledged", max(keep.epoch, self._acknowledged()))

    def _publish(self, publish: PublishAcknowledgement) -> Step:
        ack = publish.ack
        for check in self.sim.on_acked:
            check.acked(ack)
        try:
            yield from self.sim.broker.append(self.host, ACKS, [(ack.node, encode_node_ack(ack))])
        except Unanswered:
            return False
        return True

    def _await_loads(self, _: AwaitLoads) -> Step:
        yield self._replica.changed, LOADS_US

    def _publish_load(self, publish: PublishLoad) -> Step:
        return self.sim.broker.try_append(self.host, LOAD, [(publish.load.node, encode_node_load(publish.load))])

    async def _wish(self, state: ClusterState) -> Join | Replace:
        """Return a join, or a replace after the cluster has marked a lost node as down."""
        me, other = self.registration.id, self.replaces
        found = state.nodes.get(other.registration.id) if other is not None else None
        if other is None or found is None or found.state != "normal":
            return Join(me, self.tokens, self._client.draw.take(16))
        if other.is_lost and not found.down:
            await submit_until_answered(DeclareDown(found.id, "its disk is gone"), self._client.draw)
        return Replace(me, found.id)

    # ----------------------------------------------------------------------------------------- streaming

    def _fetch(self, fetch: RowFetch) -> Step:
        sim, row_replica, gained, is_whole = (
            self.sim,
            self.row_replica,
            RowStreamProgress(self.row_replica, fetch),
            False,
        )
        source: SimNode = sim.shared["nodes"][fetch.source]
        newest = row_replica.state.epoch
        calls = StreamCalls(sim.world, self.host, source.host)

        def ask(answer: Callable[[Any], None]) -> None:
            answer(source.serve(fetch, newest, gained.last))

        def next_page(effect: NextPage) -> Step:
            nonlocal is_whole
            if is_whole and not effect.is_first:
                return ()
            found = yield from calls.ask(effect, ask)
            if isinstance(found, StreamInterrupted):
                sim.did["stream", found.why] += 1
                return found
            page, is_whole = found
            return page

        def keep(effect: KeepPage) -> Step:
            yield from sim.moments.at("streamed", self.host)
            return gained.keep(effect.page)

        def end(_: EndPages) -> None:
            sim.did["stream", "kept" if gained.end() else "refused"] += 1
            sim.world.tell(self.name, f"streamed {gained.rows} rows for {fetch.operation}")
            self._ack_signal.fire()

        at_once, in_time = streaming(self.host, sim.world, self._chance, self._slowness, self._ack_signal, RETRY_US)
        performers: Performers = {**in_time, NextPage: next_page, KeepPage: keep}

        def work() -> Step:
            steps = stream(fetch, self.tries, lambda: row_replica.wants(fetch), lambda: row_replica.state)
            yield from perform(steps, {**at_once, EndPages: end}, performers)

        return work()

    def serve(self, fetch: RowFetch, newest: Epoch, after: RowVersion | None) -> tuple[Rows, bool] | Exception:
        """Serve a stream as its source. Return a page and whether it is the last one."""
        try:
            page = self.row_replica.page(fetch, newest, after, self._page_bytes)
        except (NotReady, NotServed) as refused:
            return refused
        return page, sum(len(one.partition_key) + len(one.value) for one in page.rows) < self._page_bytes

    def read(self, table: str, key: bytes) -> None:
        """Answer a read now, if this node may, and pass the answer to the checks."""
        try:
            epoch, versions = self.row_replica.read(table, key)
        except (NotReady, NotServed) as refused:
            self.sim.did["read", type(refused).__name__] += 1
            return
        self.sim.did["read", "answered"] += 1
        found = frozenset(version.value for version in versions)
        for check in self.sim.on_read:
            check.read(self.registration.id, table, key, epoch, found)
