"""A reference node on the simulated world: ``ringlog.node.holder`` decides, this moves records, rows and answers.

The recipe is that of ``ringlog.node.process``: take records of the mutations, take a read barrier of the log, adopt the
state it gives, judge the records under it; acknowledge what is adopted once the node knows again what it knew before
a restart, the epoch on disk first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringlog.client.results import AppliedResult, RejectedResult
from ringlog.kernel.commands.movements import Join, Replace
from ringlog.kernel.commands.nodes import DeclareDown, RegisterNode
from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.history import state_id_at
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.node import membership
from ringlog.node.due import Due
from ringlog.node.holder import HELD, NOT_MINE, UNREADABLE, Fetch, Holder, NotReady, NotServed, Snapshot
from ringlog.node.settling import Waiting, next_settled
from ringlog.node.steps import Attempt, Broken, stream
from ringlog.node.tries import Tries
from ringlog.protocol.submission import NoAnswer
from ringlog.protocol.tablet_steps import tablet_reports
from ringlog.sim.actors.registers import SimRegisters, streaming
from ringlog.sim.broker import ACKS, MUTATIONS, Record, Tail
from ringlog.sim.chance import Chance
from ringlog.sim.client import SimClient
from ringlog.sim.memo import cached_mutation
from ringlog.sim.replica import SimReplica, Step, perform
from ringlog.sim.world import MS, SECOND, Host, Signal, Unanswered
from ringlog.wire.errors import WireError
from ringlog.wire.incarnations import incarnation
from ringlog.wire.records import NodeAck, encode_node_ack

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

RETRY_US: Micros = 300 * MS
SUBMIT_US: Micros = 6 * SECOND
LOOK_US: Micros = 2 * SECOND
LAGS_US: tuple[Micros, ...] = (0, 0, 30 * MS, 300 * MS, 1_500 * MS)
JOIN_RETRIED = (*membership.JOIN_RETRIED, "changes_paused")


class SimNode:
    """One node, over its lives. ``registration``: who it is; ``tokens``: what it wants to join with (none: stays out);
    ``replaces``: whose place it wants instead. One that ``is_lost`` has no disk any more and never comes back.

    Every turn of its loop, every stream and every partition that it reads takes a time that is typical for this node in
    this run. On its host's disk:
    ``acknowledged``, the newest epoch that it acknowledged.
    """

    def __init__(self, sim: Simulation, host: Host, registration: RegisterNode, tokens: tuple[int, ...]) -> None:
        self.sim = sim
        self.host = host
        self.registration = registration
        self.tokens = tokens
        self.name = registration.name
        self.holder = Holder(registration.id)
        self.registers = SimRegisters(sim, host, registration.id)
        self.lives = 0
        self._lag: Micros = 0
        self.replaces: SimNode | None = None
        self.is_lost = False
        self._chance = Chance(sim.world.seed, f"node/{host.name}")
        self._slowness: Micros = self._chance.pick([1, 5, 20, 100, 400]) * MS

    def start(self) -> None:
        """Begin a life on the host, which is up."""
        self.lives += 1
        self.holder = Holder(self.registration.id)
        self._replica = SimReplica(self.sim, self.host, f"{self.name}/{self.lives}", alone=self.lives == 2)
        self._client = SimClient(self.sim, self.host, f"{self.name}/{self.lives}", self._replica)
        self._inbox: list[tuple[int, Record]] = []
        self._waiting: Waiting[Record] = Waiting()
        self._is_asking = False
        self._active_until: Micros = 0
        self._ends: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._tails: list[Tail] = []
        self._due = Due(self.registration.id)
        self._ack_signal = Signal()
        self.tries = Tries()
        self.registers.start(self._replica, self._ack_signal, self.tries)
        for check in self.sim.on_began:
            check.began(self.registration.id)
        self.sim.world.spawn(self.host, f"{self.name}.main", self._main(), self._over)
        self.sim.world.spawn(self.host, f"{self.name}.acks", self._publish_acks())

    def read_slowly(self, lag: Micros) -> None:
        """From now on the node gets records of the mutations that much later."""
        self._lag = lag
        for tail in self._tails:
            tail.lag = lag

    def lose(self) -> None:
        """The disk is gone, and with it all that this node was."""
        self.lives, self.is_lost = 0, True
        self.holder = Holder(self.registration.id)

    def _over(self, why: str) -> None:
        self.sim.broken("node_ended", f"{self.name} ended: {why}")

    # ------------------------------------------------------------------------------------------- main loop

    def _main(self) -> Step:
        sim, holder, replica = self.sim, self.holder, self._replica
        yield from self._client.start()
        yield from replica.barrier()
        state = replica.state
        if state.epoch < self.host.disk.get("acknowledged", 0):
            sim.broken("node_disk", f"{self.name} acknowledged an epoch that the log does not have")
        partitions = sim.broker.topics[MUTATIONS]
        for partition in range(len(partitions)):
            while True:
                try:
                    self._ends[partition] = yield from sim.broker.end(self.host, MUTATIONS, partition)
                    break
                except Unanswered:
                    continue
            holder.positions[partition] = 0
            self._seen[partition] = 0
        for partition in range(len(partitions)):
            lag = self._lag or Chance(sim.world.seed, f"lag/{self.host.name}/{partition}").pick(LAGS_US)
            self._tails.append(sim.broker.tail(self.host, MUTATIONS, partition, 0, self._taker(partition), lag))
        sim.world.spawn(self.host, f"{self.name}.member", self._membership())
        while True:
            yield self._chance.below(self._slowness) + 1
            taken, self._inbox = self._inbox, []
            reached = [(tail.partition.number, tail.position) for tail in self._tails]
            if taken:
                yield from sim.moments.at("judging", self.host)
                yield from replica.barrier()
            self._adopt(replica.state)
            self._waiting.add(taken)
            held = self._waiting.work_off(self._apply)
            if not held:
                for partition, position in reached:
                    holder.passed(partition, position)
            self._settle(held, bool(taken))
            if holder.caught_up or self._catches_up():
                self._ack_signal.fire()
            if not self._inbox and replica.state is holder.state:
                yield replica.changed, LOOK_US

    def _taker(self, partition: int) -> Callable[[list[Record]], None]:
        def take(records: list[Record]) -> None:
            self._inbox.extend((partition, record) for record in records)
            self._replica.changed.fire()

        return take

    def _adopt(self, state: ClusterState) -> None:
        if state.epoch <= self.holder.state.epoch:
            return
        fetches = self.holder.adopt(state)
        for check in self.sim.on_adopted:
            check.adopted(self.registration.id, state)
        for fetch in fetches:
            self.sim.world.spawn(self.host, f"{self.name}.stream", self._fetch(fetch))

    def _apply(self, partition: int, record: Record) -> bool:
        """Judge a record, if that can be done."""
        if self.holder.state.settled.until == 0:
            return False
        verdict = self._judge(record)
        if verdict == HELD:
            return False
        self.sim.did["write", verdict] += 1
        self.holder.passed(partition, record.offset + 1)
        return True

    def _judge(self, record: Record) -> str:
        value = record.value
        if self.holder.passes_over(value):
            return NOT_MINE
        try:
            mutation = cached_mutation(value)
        except WireError:
            return UNREADABLE
        return self.holder.admit(mutation, append_time_us(record.time // 1000), value)

    def _settle(self, held: list[Record], has_come: bool) -> None:
        """Ask for a later settled time where one is needed, or soon will be."""
        state, now = self._replica.state, self.sim.world.clock(self.host)
        if has_come:
            self._active_until = now + setting(state, "verdicts_lead_us")
        needs = [self.holder.needed(one.value, append_time_us(one.time // 1000)) for one in held]
        wanted = next_settled(state, now, max(needs, default=None), now < self._active_until)
        if wanted is not None and not self._is_asking:
            self._is_asking = True
            self.sim.world.spawn(self.host, f"{self.name}.settle", self._ask(wanted))

    def _ask(self, wanted: SettleVerdicts) -> Step:
        """One answer is enough: whoever still needs a later time asks again."""
        try:
            answer = yield from self._client.submit(wanted, SUBMIT_US)
            self.sim.did["settle", answer.code if isinstance(answer, RejectedResult) else "settled"] += 1
            if isinstance(answer, RejectedResult) and answer.code != "already_settled":
                yield SECOND
        except NoAnswer:
            self.sim.did["settle", "timed out"] += 1
        finally:
            self._is_asking = False
        self._replica.changed.fire()

    def _catches_up(self) -> bool:
        holder = self.holder
        if any(holder.positions[partition] < end for partition, end in self._ends.items()):
            return False
        if holder.state.epoch < max(self.host.disk.get("acknowledged", 0), 1):
            return False
        holder.caught_up = True
        self.sim.world.tell(self.name, f"has caught up at epoch {holder.state.epoch}")
        return True

    # ------------------------------------------------------------------------------------------------ acks

    def _publish_acks(self) -> Step:
        """The newest acknowledgement, on disk first, until the broker has it."""
        sim, holder = self.sim, self.holder
        while True:
            yield self._ack_signal
            while holder.caught_up:
                epoch = min(holder.state.epoch, self.registers.acknowledgeable())
                reports = tuple(
                    holder.reports[name] for name in sorted(holder.reports) if self.registers.received(name)
                )
                reports += tablet_reports(holder.state, self.registration.id)
                tries = self.tries.told()
                most = setting(holder.state, "stream_tries_max")
                last = tuple(one for one in tries if one.count >= most)
                words = (tuple(report.operation for report in reports), last)
                now = sim.world.now
                if not self._due.is_due(holder.state, epoch, words, now):
                    break
                sim.world.store(self.host, "acknowledged", max(epoch, self.host.disk.get("acknowledged", 0)))
                ack = NodeAck(
                    holder.state.cluster_id,
                    self.registration.id,
                    incarnation(self.lives, self.name),
                    epoch,
                    epoch,
                    reports,
                    len(holder.store),
                    sim.world.clock(self.host),
                    tries,
                    state_id_at(holder.state, epoch),
                )
                for check in sim.on_acked:
                    check.acked(ack)
                yield from sim.moments.at("acknowledging", self.host)
                try:
                    yield from sim.broker.append(self.host, ACKS, [(self.registration.id, encode_node_ack(ack))])
                    self._due.sent(epoch, words, now)
                except Unanswered:
                    continue

    # ---------------------------------------------------------------------------------------- membership

    def _membership(self) -> Step:
        """Register, then join or replace; other movements are waited out, each request goes its way once."""
        me = self.registration.id
        while me not in self._replica.state.nodes:
            if (yield from self._insist(self.registration)) is None:
                return
        while self.tokens:
            state = yield from self._replica.barrier()
            if state.nodes[me].state != "none":
                return
            answer = yield from self._insist((yield from self._wish(state)))
            if isinstance(answer, AppliedResult) or answer is None:
                return
            yield LOOK_US

    def _wish(self, state: ClusterState) -> Step:
        """To join; or to replace, after the cluster was told that a lost node is down."""
        me, other = self.registration.id, self.replaces
        found = state.nodes.get(other.registration.id) if other is not None else None
        if other is None or found is None or found.state != "normal":
            return Join(me, self.tokens, self._client.draw.take(16))
        if other.is_lost and not found.down:
            yield from self._insist(DeclareDown(found.id, "its disk is gone"))
        return Replace(me, found.id)

    def _insist(self, command: Command) -> Step:
        """The answer to one request, asked for as long as it takes; None if the rejection is final."""
        request, since = self._client.new_request_id(), self._replica.state.epoch
        while True:
            try:
                answer = yield from self._client.submit(command, SUBMIT_US, request, since)
            except NoAnswer:
                continue
            if isinstance(answer, RejectedResult) and answer.code not in JOIN_RETRIED:
                return None
            return answer

    # ----------------------------------------------------------------------------------------- streaming

    def _fetch(self, fetch: Fetch) -> Step:
        sim, holder = self.sim, self.holder
        source: SimNode = sim.shared["nodes"][fetch.source]

        def ask(answer: Callable[[Any], None]) -> None:
            answer(source.serve(fetch))

        def attempt(_: Attempt) -> Step:
            try:
                snapshot: Snapshot = yield from sim.world.call(self.host, source.host, ask, 2 * SECOND)
            except (NotReady, NotServed, Unanswered) as waiting:
                sim.did["stream", type(waiting).__name__] += 1
                return Broken(type(waiting).__name__)
            yield from sim.moments.at("streamed", self.host)
            kept = holder.receive(fetch, snapshot)
            for check in sim.on_received:
                check.received(self.registration.id, fetch, snapshot, kept)
            sim.did["stream", "kept" if kept else "refused"] += 1
            sim.world.tell(self.name, f"streamed {len(snapshot.versions)} rows for {fetch.operation}")
            self._ack_signal.fire()
            return None

        steps = stream(fetch, self.tries, lambda: holder.wants(fetch), lambda: holder.state)
        return perform(
            steps, *streaming(self.host, sim.world, self._chance, self._slowness, self._ack_signal, attempt, RETRY_US)
        )

    def serve(self, fetch: Fetch) -> Snapshot | NotReady | NotServed:
        """This node as a source."""
        try:
            return self.holder.snapshot(fetch.operation, fetch.replication, fetch.ranges, dict(fetch.positions))
        except (NotReady, NotServed) as refused:
            return refused

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
