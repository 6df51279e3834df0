"""A reference node on the simulated world: performs the steps of ``ringlog.node.protocol`` on virtual time.

Retold is the end of a node whose disk has failed: the process gives a thread a moment for its last word, here a moment
passes, and an operator deletes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringlog.client.results import RejectedResult
from ringlog.kernel.commands.movements import Join, Replace
from ringlog.kernel.commands.nodes import DeclareDown, RegisterNode
from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.node.errors import NodeFailed, RowsDamaged
from ringlog.node.holder import Holder, NotReady, NotServed, RowFetch
from ringlog.node.member_copy import CopiedSide
from ringlog.node.peek import Head
from ringlog.node.protocol.acks import (
    DiskFailed,
    Keep,
    News,
    PublishAcknowledgement,
    RegisterSide,
    TopicEnds,
    acknowledge,
)
from ringlog.node.protocol.followers import Followers
from ringlog.node.protocol.joining import After, Answered
from ringlog.node.protocol.life import (
    PEERS,
    CompareDisk,
    FollowLog,
    OpenedMutations,
    OpenMutations,
    ServeRegisters,
    live,
)
from ringlog.node.protocol.loads import AwaitLoads, MeasureTablets, PublishLoad
from ringlog.node.protocol.stream import AskAgain, EndPages, GainedRows, KeepPage, NextPage, stream
from ringlog.node.protocol.turn import (
    Acknowledged,
    BeginStream,
    Beside,
    CaughtUp,
    CountVerdicts,
    MayAcknowledge,
    Rest,
    SettlingRefused,
    Tailed,
    Take,
)
from ringlog.node.store import RowStore, RowVersion, reads_from
from ringlog.node.tries import Tries
from ringlog.protocol.effects import Steps
from ringlog.protocol.load_reports import Amounts
from ringlog.protocol.submission import AskFor, NoAnswer, insist
from ringlog.sim.actors.kept_log import SimLogCopy
from ringlog.sim.actors.kept_rows import ROWS, FailingRows, rows_of
from ringlog.sim.actors.peers import SimPeers
from ringlog.sim.actors.registers import SimRegisters, StreamCalls, streaming
from ringlog.sim.broker import ACKS, LOAD, MUTATIONS, SimRecord, SimTail
from ringlog.sim.chance import Chance
from ringlog.sim.client import SimClient
from ringlog.sim.memo import cached_mutation
from ringlog.sim.replica import Performers, SimReplica, Step, perform
from ringlog.sim.shape import tablet_bytes
from ringlog.sim.world import MS, SECOND, Signal, SimHost, Unanswered
from ringlog.wire.incarnations import incarnation
from ringlog.wire.records import Mutation, encode_node_ack, encode_node_load

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

RETRY_US: Micros = 300 * MS
SUBMIT_US: Micros = 6 * SECOND
LOOK_US: Micros = 2 * SECOND
LATER = Rest(LOOK_US)
LAST_WORD_US: Micros = SECOND
LOADS_US: Micros = 2 * SECOND
WHOLE = 2**31
PAGES = (1, 400, WHOLE)
"""Bytes that a page of rows has at least, but for the last."""
LAGS_US: tuple[Micros, ...] = (0, 0, 30 * MS, 300 * MS, 1_500 * MS)


def _rest(rest: Rest) -> Step:
    yield rest.time


def _sizes(effect: MeasureTablets) -> Amounts:
    """A tablet of a number holds the same wherever it is."""
    return {table: {one: tablet_bytes(one) for one in numbers} for table, numbers in effect.own.items()}


class SimHolder(Holder):
    """The rows of one node; checks hear what it adopts and receives. Nodes share the decoding of writes."""

    def __init__(self, sim: Simulation, node: str, store: RowStore | None = None) -> None:
        super().__init__(node, store)
        self._sim = sim
        self.turned = Signal()
        self._streamed: dict[RowFetch, list[RowVersion]] = {}

    def adopt(self, state: ClusterState) -> list[RowFetch]:
        """As it ships."""
        before = self.state
        fetches = super().adopt(state)
        if self.state is not before:
            for check in self._sim.on_adopted:
                check.adopted(self.node, state)
        return fetches

    def commit(self, sync: bool = False) -> None:
        """As it ships."""
        super().commit(sync)
        self.turned.fire()

    def take_in(self, fetch: RowFetch, versions: Sequence[RowVersion]) -> bool:
        """As it ships."""
        taken = super().take_in(fetch, versions)
        self._streamed.setdefault(fetch, []).extend(versions if taken else ())
        return taken

    def complete(self, fetch: RowFetch, rows: int, digest: str) -> bool:
        """As it ships."""
        kept, versions = super().complete(fetch, rows, digest), self._streamed.pop(fetch, [])
        if kept:
            for check in self._sim.on_received:
                check.received(self.node, fetch, versions)
        return kept

    def _seen(self, value: bytes, _: Head | None) -> Mutation:
        return cached_mutation(value)


class SimNode:
    """One node, over its lives. ``registration``: who it is; ``tokens``: what it wants to join with (none: stays out);
    ``replaces``: whose place it wants instead. One that ``is_lost`` has no disk any more and never comes back.

    Every turn of its loop, every stream and every partition that it reads takes a time that is typical for this node in
    this run. On its host's disk:
    ``acknowledged``, the newest epoch that it acknowledged.
    """

    def __init__(self, sim: Simulation, host: SimHost, registration: RegisterNode, tokens: tuple[int, ...]) -> None:
        self.sim = sim
        self.host = host
        self.registration = registration
        self.tokens = tokens
        self.name = registration.name
        self.holder = SimHolder(sim, registration.id)
        self.rows = FailingRows()
        self.registers = SimRegisters(sim, host, registration.id)
        self.side: RegisterSide = self.registers
        self.peers: SimPeers | None = None
        self.lie = ""
        self.lives = 0
        self._lag: Micros = 0
        self._tails: list[SimTail] = []
        self.replaces: SimNode | None = None
        self.is_lost = False
        self._chance = Chance(sim.world.seed, f"node/{host.name}")
        self._slowness: Micros = self._chance.pick([1, 5, 20, 100, 400]) * MS
        self._page_bytes = Chance(sim.world.seed, f"pages/{host.name}").pick(
            PAGES if sim.shared["keeps_rows"] else [WHOLE]
        )

    def start(self) -> None:
        """Begin a life on the host, which is up."""
        self.lives += 1
        self.rows = rows_of(self.sim, self.host, self.lives)
        self.holder = SimHolder(self.sim, self.registration.id, self.rows)
        self._replica = SimReplica(self.sim, self.host, f"{self.name}/{self.lives}", alone=self.lives == 2)
        self._client = SimClient(self.sim, self.host, f"{self.name}/{self.lives}", self._replica)
        self._inbox: list[Tailed] = []
        self._tails = []
        self._ack_signal = Signal()
        self.tries = Tries()
        for check in self.sim.on_began:
            check.began(self.registration.id)
        self._failure: RowsDamaged | None = None
        replicas = self._replicas = Followers(self.holder)
        side = self.side = self._side()
        acks = acknowledge(self.holder, side, self.tries, incarnation(self.lives, self.name), replicas)
        wish = self._wish if self.tokens else None
        peers = self.peers = SimPeers(self.sim, self.registration.id, self._replica, lambda: self.lie)
        life = live(self.registration, self.holder, self._client.draw, acks, peers.steps(self._client.draw), wish)
        self.sim.world.spawn(self.host, f"{self.name}.main", self._lives(life), self._over)

    def _side(self) -> RegisterSide:
        """What acknowledgements wait for: the registers, and a copy of the log in runs that have members."""
        if not self.sim.shared["keeps_log"]:
            return self.registers
        copy = SimLogCopy(self.sim, self.host, self.registration.id, self._replica, self._ack_signal)
        self.sim.world.spawn(self.host, f"{self.name}.copy", copy.run())
        return CopiedSide(self.registers, copy, lambda: self.holder.state)

    @property
    def own_epoch(self) -> Epoch:
        """The newest epoch that its replica of the log has shown it."""
        return self._replica.state.epoch

    @property
    def turned(self) -> Signal:
        """Fires when a request that is behind may have what it waits for."""
        return self.holder.turned

    def named(self, epoch: Epoch) -> None:
        """A request has waited in vain for an epoch."""
        if self.peers is not None:
            self.peers.named(epoch)

    def read_slowly(self, lag: Micros) -> None:
        """From now on the node gets records of the mutations that much later."""
        self._lag = lag
        for tail in self._tails:
            tail.lag = lag

    def fail_rows(self) -> None:
        """From now on the disk takes no rows any more."""
        self.rows.fails = self.host.up and self.holder.caught_up

    def lose(self) -> None:
        """The disk is gone, and with it all that this node was."""
        self.lives, self.is_lost = 0, True
        self.holder = SimHolder(self.sim, self.registration.id)

    def _over(self, why: str) -> None:
        self.sim.broken("node_ended", f"{self.name} ended: {why}")

    def _lives(self, life: Steps[None]) -> Step:
        """Perform the steps of a life. If the disk fails the node says so, and ends: its rows are deleted and it begins
        again, or it never comes back.
        """
        try:
            yield from self._perform(life)
        except RowsDamaged as damaged:
            self._replicas.fail(damaged.code)
            self._ack_signal.fire()
            yield LAST_WORD_US
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
        places = reads_from(begin, self.holder.positions)
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
        assert peers is not None, "a life has begun"
        at_once: dict[type, Callable[[Any], Any]] = {
            **replica.at_once,
            **peers.at_once,
            BeginStream: lambda effect: self._beside("stream", self._fetch(effect.fetch)),
            Beside: self._begin,
            CompareDisk: self._compare_disk,
            ServeRegisters: lambda _: self.registers.start(self._replica, self._ack_signal, self.tries),
            Keep: self._keep,
            DiskFailed: lambda effect: setattr(self, "_failure", effect.why),
            CountVerdicts: lambda effect: sim.did.update(
                {("write", code): count for code, count in effect.verdicts.items()}
            ),
            Acknowledged: lambda _: self._acknowledged(),
            CaughtUp: lambda _: sim.world.tell(self.name, f"has caught up at epoch {self.holder.state.epoch}"),
            MayAcknowledge: lambda _: self._ack_signal.fire(),
            SettlingRefused: lambda _: None,
            Answered: lambda _: None,
            MeasureTablets: _sizes,
        }
        in_time: Performers = {
            **replica.in_time,
            **peers.in_time,
            FollowLog: self._follow,
            OpenMutations: self._open_mutations,
            Take: self._take,
            News: self._await_news,
            PublishAcknowledgement: self._publish,
            TopicEnds: lambda _: sim.broker.ends(self.host, MUTATIONS),
            Rest: _rest,
            AskFor: self._ask,
            After: lambda _: _rest(LATER),
            AwaitLoads: self._await_loads,
            PublishLoad: self._publish_load,
        }
        return perform(steps, at_once, in_time)

    def _beside(self, name: str, step: Step) -> None:
        self.sim.world.spawn(self.host, f"{self.name}.{name}", step)

    def _taker(self, partition: int) -> Callable[[list[SimRecord]], None]:
        def take(records: list[SimRecord]) -> None:
            self._inbox += [Tailed(partition, one.offset, one.value, one.time // 1000) for one in records]
            self._replica.changed.fire()

        return take

    def _take(self, _: Take) -> Step:
        """What has come, and where each partition ends for now."""
        if not self._inbox and self._replica.state is self.holder.state:
            yield self._replica.changed, LOOK_US
        yield self._chance.below(self._slowness) + 1
        if self._failure is not None:
            raise self._failure
        taken, self._inbox = self._inbox, []
        if taken:
            taken += [Tailed(tail.partition.number, tail.position, None) for tail in self._tails]
        return taken

    def _acknowledged(self) -> int:
        found: int = self.host.disk.get("acknowledged", 0)
        return found

    def _begin(self, effect: Beside) -> None:
        if self.sim.shared[{"load": "balances", PEERS: "asks"}.get(effect.name, "nodes")]:
            self._beside(effect.name, self._to_its_end(effect.steps))

    def _to_its_end(self, steps: Steps[None]) -> Step:
        try:
            yield from self._perform(steps)
        except NodeFailed as failed:  # it is refused for good: an operator starts it again, not to join
            self.sim.world.tell(self.name, f"stays out: {failed}")
        self._replica.changed.fire()

    def _ask(self, effect: AskFor) -> Step:
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

    def _wish(self, state: ClusterState) -> Steps[Join | Replace]:
        """To join; or to replace, after the cluster has heard that a lost node is down."""
        me, other = self.registration.id, self.replaces
        found = state.nodes.get(other.registration.id) if other is not None else None
        if other is None or found is None or found.state != "normal":
            return Join(me, self.tokens, self._client.draw.take(16))
        if other.is_lost and not found.down:
            yield from insist(DeclareDown(found.id, "its disk is gone"), self._client.draw)
        return Replace(me, found.id)

    # ----------------------------------------------------------------------------------------- streaming

    def _fetch(self, fetch: RowFetch) -> Step:
        sim, holder, gained, is_whole = self.sim, self.holder, GainedRows(self.holder, fetch), False
        source: SimNode = sim.shared["nodes"][fetch.source]
        calls = StreamCalls(sim.world, self.host, source.host)

        def ask(answer: Callable[[Any], None]) -> None:
            answer(source.serve(fetch, gained.last))

        def next_page(effect: NextPage) -> Step:
            nonlocal is_whole
            if is_whole and not effect.is_first:
                return ()
            found = yield from calls.ask(effect, ask)
            if isinstance(found, AskAgain):
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

        steps = stream(fetch, self.tries, lambda: holder.wants(fetch), lambda: holder.state)
        at_once, in_time = streaming(self.host, sim.world, self._chance, self._slowness, self._ack_signal, RETRY_US)
        return perform(steps, {**at_once, EndPages: end}, {**in_time, NextPage: next_page, KeepPage: keep})

    def serve(self, fetch: RowFetch, after: RowVersion | None) -> tuple[Sequence[RowVersion], bool] | Exception:
        """This node as a source: a page, and whether that was all."""
        whose = fetch.operation, fetch.replication, fetch.ranges
        try:
            page = self.holder.page(*whose, dict(fetch.positions), after, self._page_bytes)
        except (NotReady, NotServed) as refused:
            return refused
        return page, sum(len(one.partition_key) + len(one.value) for one in page) < self._page_bytes

    def read(self, table: str, key: bytes) -> None:
        """Answer a read now, if this node may; what it answers goes to the checks."""
        try:
            epoch, versions = self.holder.read(table, key)
        except (NotReady, NotServed) as refused:
            self.sim.did["read", type(refused).__name__] += 1
            return
        self.sim.did["read", "answered"] += 1
        found = frozenset((v.timestamp, cached_mutation(v.value).mutation_id or "") for v in versions)
        for check in self.sim.on_read:
            check.read(self.registration.id, table, key, epoch, found)
