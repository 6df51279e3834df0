"""Registers on the simulated world: ``ringlog.node.registers`` decides, this moves messages, time and the disk.

They live beside the rows of a node and follow the log at a pace of their own; the node acknowledges what both have. A
write takes a while to get to the disk, a read to be looked up. On the host's disk: ``registers``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId, OperationId
from ringlog.node import registers
from ringlog.node.cells import Excerpt
from ringlog.node.protocol.stream import Again, AskAgain, PullMissing, stream
from ringlog.node.registers import Behind, Durable, RegisterFetch, RegisterReplica, Reply
from ringlog.node.tries import Tries
from ringlog.protocol.effects import At, WallClock
from ringlog.sim.chance import Chance
from ringlog.sim.replica import Performers, SimReplica, Step, perform
from ringlog.sim.world import MS, SECOND, PowerCut, Signal, SimHost, SimWorld, Unanswered
from ringlog.wire.cells import Key, RegisterCell
from ringlog.wire.data import ReadReply, WriteReply

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

DISK = "registers"
RETRY_US: Micros = 250 * MS


class NotYet(Exception):
    """A source cannot give its cells, or not now."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request on its way. ``cell``: None for a read; ``planned``: the state that it was planned on, as its sender has
    it; ``answer`` is called with the reply on the host that asked, ``source``; ``is_digest``: a read's value may stay
    away.
    """

    number: int
    key: Key
    cell: RegisterCell | None
    planned: ClusterState
    source: SimHost
    answer: Callable[[Any], None]
    is_digest: bool = False


class SimRegisters:
    """The registers of one node, over its lives. ``news`` fires when there may be more to acknowledge.

    ``disk``: how long it takes at most until something is there.
    """

    def __init__(self, sim: Simulation, host: SimHost, node: NodeId) -> None:
        self.sim = sim
        self.host = host
        self.node = node
        self.value = RegisterReplica(node)
        self.news = Signal()
        self._tries = Tries()
        self._life = -1
        self._chance = Chance(sim.world.seed, f"registers/{host.name}")
        self._slowness: Micros = self._chance.pick([1, 5, 20, 100, 400]) * MS
        self.disk: Micros = self._chance.pick([1, 20, 300, 1_500]) * MS
        self._open: dict[int, Message] = {}
        self._waiting: list[Message] = []

    def start(self, replica: SimReplica, news: Signal, tries: Tries) -> None:
        """Begin a life with what is on the disk."""
        self._tries = tries
        self._life = self.host.life
        self.news = news
        self.value = registers.restarted(self.node, self.host.disk.get(DISK, Durable()))
        self._open.clear()
        self._waiting.clear()
        replica.followers.append(self._hear)
        self.sim.world.spawn(self.host, f"{self.host.name}.registers", self._follow(replica))

    def acknowledgeable(self) -> Epoch:
        """The newest epoch that the node may acknowledge as far as its registers go."""
        return registers.acknowledgeable(self.value)

    def received(self, operation: OperationId) -> bool:
        """True if everything that was to be streamed for the operation is here."""
        return operation in self.value.received

    # ----------------------------------------------------------------------------------------------- epochs

    def _hear(self, _: ClusterState, after: ClusterState, __: Entry | UnreadableEntry, ___: Outcome, ____: int) -> None:
        """After a restart every state of the log goes by, until the one comes that may be served."""
        if self._life == self.host.life and not registers.is_ready(self.value):
            try:
                self._adopt(after)
            except PowerCut:
                self.sim.world.power_cut(self.host)

    def _follow(self, replica: SimReplica) -> Step:
        seen: ClusterState | None = None
        while True:
            if replica.state is seen:
                yield replica.changed
            yield self._chance.below(self._slowness) + 1
            seen = replica.state
            self._adopt(seen)

    def _adopt(self, state: ClusterState) -> None:
        before = self.value
        after, replies = registers.adopt(before, state)
        if after is before:
            return
        self.sim.world.store(self.host, DISK, after.durable)
        self.value = after
        for check in self.sim.on_serves:
            check.serves(self.node, after.state)
        self._reply(replies)
        for fetch in after.fetching:
            if fetch not in before.fetching:
                self.sim.world.spawn(self.host, f"{self.host.name}.cells", self._fetch(fetch))
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.take(message)
        self.news.fire()

    # ------------------------------------------------------------------------------------- reads and writes

    def take(self, message: Message) -> None:
        """A message has arrived."""
        if self._life != self.host.life:
            return
        number, key, epoch, state_id = message.number, message.key, message.planned.epoch, message.planned.state_id
        if message.cell is None:
            self.value, verdict = registers.admit_read(self.value, number, key, epoch, state_id)
        else:
            self.value, verdict = registers.admit_write(self.value, number, key, message.cell, epoch, state_id)
        if isinstance(verdict, Behind):
            self.sim.did["register", "waits for the epoch"] += 1
            self._waiting.append(message)
            return
        self._open[number] = message
        if verdict is None:
            for check in self.sim.on_admitted:
                check.admitted(self.node, number, self.value.state.epoch, message.cell is not None, message.planned)
            delay = self._chance.below(self.disk)
            self.sim.world.on(self.host, delay, self._carry_out, message)
        else:
            self._reply((verdict,))

    def _carry_out(self, message: Message) -> None:
        before = self.value
        if message.cell is None:
            self.value, replies = registers.look_up(before, message.number)
        else:
            after, replies = registers.apply(before, message.number)
            if after.durable is not before.durable:
                try:
                    self.sim.world.store(self.host, DISK, after.durable)
                except PowerCut:
                    self.sim.world.power_cut(self.host)
                    return
            self.value = after
            self.news.fire()
        self._reply(replies)

    def _reply(self, replies: tuple[Reply, ...]) -> None:
        for reply in replies:
            message = self._open.pop(reply.number)
            what = "write" if message.cell is not None else "read"
            self.sim.did["register", f"{what} {reply.refused or 'answered'}"] += 1
            for check in self.sim.on_replied:
                check.replied(self.node, reply)
            if message.cell is None:
                self._send(message, registers.read_reply(self.value, reply, message.is_digest))
            else:
                self._send(message, registers.write_reply(self.value, reply))

    def _send(self, message: Message, reply: ReadReply | WriteReply) -> None:
        self.sim.world.send(self.host, message.source, message.answer, reply)

    # -------------------------------------------------------------------------------------------- streaming

    def _fetch(self, fetch: RegisterFetch) -> Step:
        sim = self.sim
        source: SimRegisters = sim.shared["nodes"][fetch.source].registers

        def ask(answer: Callable[[Any], None]) -> None:
            answer(source.serve(fetch))

        def attempt(_: PullMissing) -> Step:
            try:
                cells: dict[Key, RegisterCell] = yield from sim.world.call(self.host, source.host, ask, 2 * SECOND)
            except (NotYet, Unanswered) as waiting:
                return AskAgain(type(waiting).__name__)
            after = registers.receive(self.value, fetch, cells)
            sim.did["register", "stream kept" if after is not None else "stream refused"] += 1
            if after is not None:
                sim.world.store(self.host, DISK, after.durable)
                self.value = after
                sim.world.tell(self.host.name, f"got {len(cells)} registers for {fetch.operation}")
                self.news.fire()
            return None

        steps = stream(fetch, self._tries, lambda: fetch in self.value.fetching, lambda: self.value.state)
        return perform(steps, *streaming(self.host, sim.world, self._chance, self._slowness, self.news, attempt))

    def serve(self, fetch: RegisterFetch) -> dict[Key, RegisterCell] | NotYet:
        """These registers as a source."""
        if self._life != self.host.life:
            return NotYet()
        found = registers.snapshot(self.value, fetch)
        if isinstance(found, Excerpt):
            return dict(found.after())
        self.sim.did["register", "stream waits" if isinstance(found, Behind) else "stream not served"] += 1
        return NotYet()


Performed = tuple[dict[type, Callable[[Any], Any]], Performers]


def streaming(
    host: SimHost,
    world: SimWorld,
    chance: Chance,
    slowness: Micros,
    news: Signal,
    attempt: Callable[[PullMissing], Step],
    retry: Micros = RETRY_US,
) -> Performed:
    """How a stream to ``host`` is performed: at once, and in time. Its ``news``: there will be no more attempts."""

    def again(effect: Again) -> Step:
        if effect.seconds is None:
            news.fire()
        yield retry

    def turn(_: At) -> Step:
        yield chance.below(slowness) + 1

    return {WallClock: lambda _: world.clock(host)}, {At: turn, PullMissing: attempt, Again: again}
