"""Simulated registers: ``ringlog.node.protocol.registers`` with a journal and messages on virtual time.

They exist next to a node's rows and follow the log at their own speed. The node acknowledges an epoch when both have
it. A batch of the journal takes some time to reach the disk. Its key on the host's disk is ``registers``.

Held requests use ``ringlog.node.protocol.requests`` on virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId, OperationId, Value
from ringlog.node.protocol.registers import Done, DurableRegisters
from ringlog.node.protocol.requests import WaitUntil, admit_register_request
from ringlog.node.protocol.stream import AwaitRetry, EndPages, KeepPage, NextPage, StreamInterrupted, stream
from ringlog.node.registers import registers
from ringlog.node.registers.cells import CellSnapshot
from ringlog.node.registers.image import Image, fold
from ringlog.node.registers.registers import Admission, Behind, RegisterFetch, RegisterReplica, Reply
from ringlog.node.rows.replica import NotReady, NotServed
from ringlog.protocol.effects import FaultPoint, Steps, WallClock
from ringlog.wire.data import JournalRecord, Key, ReadReply, ReadRequest, RegisterCell, WriteReply, WriteRequest
from ringlog_sim.devices.world import MS, SECOND, Chance, Signal, SimHost, SimWorld, Unanswered
from ringlog_sim.replica import Performers, SimReplica, Step, perform, wait_for

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


def hold(world: SimWorld, changed: Signal, steps: Steps[Any]) -> Step:
    """Perform steps to their end. ``changed`` fires when a wait may be over."""
    return perform(steps, {}, {WaitUntil: lambda effect: wait_for(effect.over, changed, world, effect.timeout)})


DISK = "registers"
RETRY_US: Micros = 250 * MS
CALL_US: Micros = 2 * SECOND
"""Timeout of a call. It is short, so a stream needs several calls."""
PAGE = 2
"""Maximum cells of a stream's page. It is small, so streams are interrupted between pages."""


class NotYet(Exception):
    """A source cannot serve its cells, or not yet."""


class Message(Value):
    """A request in transit. ``planned``: the state on which it was planned.

    ``answer`` is called with the reply on the requesting host ``source``.
    """

    request: WriteRequest | ReadRequest
    planned: ClusterState
    source: SimHost
    answer: Callable[[Any], None]


@dataclass(eq=False, slots=True)
class CellsCall:
    """A call for the cells after ``after``, by a node at epoch ``newest``.

    ``found``: the answer of the source in its ``incarnation``. ``cells``: the unsent cells of the answer.
    """

    fetch: RegisterFetch
    after: Key | None
    newest: Epoch
    found: CellSnapshot | None = None
    cells: Iterator[tuple[Key, RegisterCell]] = field(default_factory=lambda: iter(()))
    incarnation: int = -1


class SimJournal:
    """A journal on the disk of ``host``. Waiting records are written together, within ``slowness()``."""

    def __init__(self, world: SimWorld, host: SimHost, slowness: Callable[[], Micros]) -> None:
        self._world = world
        self._host = host
        self._slowness = slowness
        self._waiting: list[tuple[JournalRecord, Done]] = []
        self._news = Signal()
        self.found: Image = host.disk.get(DISK, Image())
        world.spawn(host, f"{host.name}.journal", self._run())

    def append(self, record: JournalRecord, done: Done) -> None:
        """Append a record, as the port specifies."""
        self._waiting.append((record, done))
        self._news.fire()

    def _run(self) -> Step:
        image = self.found
        while True:
            if not self._waiting:
                yield self._news
            batch, self._waiting = self._waiting, []
            yield self._slowness()
            for record, _ in batch:
                image = fold(image, record)
                self._world.store(self._host, DISK, image)
            for _, done in batch:
                done()


class SimRegisters:
    """The registers of one node, across its restarts. ``news`` fires when there may be more to acknowledge.

    ``disk``: maximum duration of a disk write.
    """

    def __init__(self, sim: Simulation, host: SimHost, node: NodeId) -> None:
        self.sim = sim
        self.host = host
        self.node = node
        self.news = Signal()
        self._tries = StreamAttempts()
        self._incarnation = -1
        self._chance = Chance(sim.world.seed, f"registers/{host.name}")
        self._slowness: Micros = self._chance.pick([1, 5, 20, 100, 400]) * MS
        self.disk: Micros = self._chance.pick([1] if sim.shared["keeps_rows"] else [1, 20, 300, 1_500]) * MS
        self._registers: DurableRegisters | None = None
        self._open: dict[int, Message] = {}
        self._adopted = Signal()
        self._is_busy = False
        self._free = Signal()

    def start(self, replica: SimReplica, news: Signal, tries: StreamAttempts) -> None:
        """Start with the content of the disk."""
        self._tries = tries
        self._incarnation = self.host.incarnation
        self.news = news
        self._open.clear()
        journal = SimJournal(self.sim.world, self.host, lambda: self._chance.below(self.disk) + 1)
        self._registers = DurableRegisters(self.node, journal.found, journal, self._written)
        self.sim.world.spawn(self.host, f"{self.host.name}.registers", self._follow(self._registers, replica))

    @property
    def value(self) -> RegisterReplica:
        """Return the current registers, or the last ones of an ended node."""
        return RegisterReplica(self.node) if self._registers is None else self._registers.value

    def acknowledgeable(self) -> Epoch:
        """Return the newest epoch that the registers allow the node to acknowledge."""
        return registers.acknowledgeable(self.value)

    def received(self, operation: OperationId) -> bool:
        """Return True if all streams of the operation are complete."""
        return operation in self.value.received

    # ----------------------------------------------------------------------------------------------- epochs

    def _follow(self, kept: DurableRegisters, replica: SimReplica) -> Step:
        yield from self._on_disk(kept.begin)
        seen: ClusterState | None = None
        while True:
            if replica.state is seen:
                yield replica.changed
            yield self._chance.below(self._slowness) + 1
            seen = replica.state
            yield from self._adopt(kept, seen)

    def _adopt(self, kept: DurableRegisters, state: ClusterState) -> Step:
        before = kept.value

        def begin(done: Done) -> bool:
            lost = kept.lost_under(state)
            if lost is not None:
                kept.adopt(state, lost, done)
            return lost is not None

        if not (yield from self._on_disk(begin)):
            return
        for check in self.sim.on_serves:
            check.serves(self.node, kept.value.state)
        for fetch in kept.value.fetching:
            if fetch not in before.fetching:
                self.sim.world.spawn(self.host, f"{self.host.name}.cells", self._fetch(kept, fetch))
        self._adopted.fire()
        self.news.fire()

    def _on_disk(self, begin: Callable[[Done], bool | None]) -> Step:
        """Begin an operation and wait until it is on the disk. Operations run one at a time.

        Return False if the operation was rejected.
        """
        while self._is_busy:
            yield self._free
        self._is_busy = True
        try:
            over = Signal()
            if begin(over.fire) is False:
                return False
            yield over
            return True
        finally:
            self._is_busy = False
            self._free.fire()

    # ------------------------------------------------------------------------------------- reads and writes

    def take(self, message: Message) -> None:
        """Receive a message."""
        if self._incarnation == self.host.incarnation and self._registers is not None:
            self.sim.world.begin(self.host, "request", self._answer(self._registers, message))

    def _answer(self, kept: DurableRegisters, message: Message) -> Step:
        request, came = message.request, self.sim.world.now
        found: Admission = yield from hold(self.sim.world, self._adopted, admit_register_request(kept, request))
        self.sim.did["register", "waits for the epoch"] += self.sim.world.now > came
        is_write = isinstance(request, WriteRequest)
        for check in self.sim.on_came:
            check.came(self.node, kept.value.state, request.key, is_write, message.planned, found)
        if isinstance(found, Behind):
            self.sim.shared["nodes"][self.node].named(found.epoch)
        elif isinstance(found, int) or not found.refused:
            number = found if isinstance(found, int) else found.number
            for check in self.sim.on_admitted:
                check.admitted(self.node, number, self.value.state.epoch, is_write, message.planned)
        if isinstance(found, int):
            self._open[found] = message
        else:
            self._reply(message, found)

    def _written(self, reply: Reply) -> None:
        self.news.fire()
        self._reply(self._open.pop(reply.number), reply)

    def _reply(self, message: Message, reply: Reply | Behind) -> None:
        if isinstance(reply, Reply):
            for check in self.sim.on_replied:
                check.replied(self.node, reply)
        request = message.request
        sent: ReadReply | WriteReply = (
            registers.read_reply(self.value, reply, request.digest)
            if isinstance(request, ReadRequest)
            else registers.write_reply(self.value, reply)
        )
        self.sim.did[
            "register", f"{'read' if isinstance(request, ReadRequest) else 'write'} {sent.refused or 'answered'}"
        ] += 1
        self.sim.world.send(self.host, message.source, message.answer, sent)

    # -------------------------------------------------------------------------------------------- streaming

    def _fetch(self, kept: DurableRegisters, fetch: RegisterFetch) -> Step:
        world, did = self.sim.world, self.sim.did
        source: SimRegisters = self.sim.shared["nodes"][fetch.source].registers
        calls = StreamCalls(world, self.host, source.host)
        newest = kept.value.state.epoch
        call = CellsCall(fetch, None, newest)

        def next_page(effect: NextPage) -> Step:
            nonlocal call
            if effect.is_first:
                call = CellsCall(fetch, kept.mark(fetch), newest)
            return calls.ask(effect, partial(source.page, call))

        def keep(effect: KeepPage) -> Step:
            nonlocal newest
            yield from self.sim.moments.at("registers streamed", self.host)
            is_kept = yield from self._on_disk(partial(kept.receive_page, fetch, effect.page))
            if not is_kept:
                did["register", "page refused"] += 1
                newest = kept.value.state.epoch
            return is_kept

        def end(_: EndPages) -> Step:
            while self._is_busy:
                yield self._free
            did["register", "stream kept" if kept.receive_end(fetch) else "stream refused"] += 1
            world.tell(self.host.name, f"has the registers for {fetch.operation}")
            self.news.fire()

        at_once, in_time = streaming(self.host, world, self._chance, self._slowness, self.news)
        performers: Performers = {**in_time, NextPage: next_page, KeepPage: keep, EndPages: end}

        def work() -> Step:
            steps = stream(fetch, self._tries, lambda: fetch in kept.value.fetching, lambda: kept.value.state)
            yield from perform(steps, at_once, performers)

        return work()

    def page(self, call: CellsCall, answer: Callable[[Any], None]) -> None:
        """Serve a page of a stream as its source, from the cells that existed when the call began."""
        if self._incarnation != self.host.incarnation or (
            call.found is not None and call.incarnation != self._incarnation
        ):
            answer(NotYet())
            return
        if call.found is None:
            found = registers.snapshot(self.value, call.fetch, call.newest)
            if not isinstance(found, CellSnapshot):
                self.sim.did["register", "stream waits" if isinstance(found, Behind) else "stream not served"] += 1
                answer(NotYet())
                return
            call.found, call.cells, call.incarnation = found, found.after(call.after), self._incarnation
        answer(call.found.page(islice(call.cells, PAGE)))


class StreamCalls:
    """The calls of one stream to ``host`` from ``source``, each with its timeout."""

    def __init__(self, world: SimWorld, host: SimHost, source: SimHost) -> None:
        self._world = world
        self._host = host
        self._source = source
        self._until: Micros = 0

    def ask(self, effect: NextPage, ask: Callable[[Callable[[Any], None]], None]) -> Step:
        """Return the answer to ``ask``, or StreamInterrupted."""
        world = self._world
        if effect.is_first:
            self._until = world.now + CALL_US
        try:
            return (yield from world.call(self._host, self._source, ask, max(self._until - world.now, 1)))
        except Unanswered as late:
            return StreamInterrupted(type(late).__name__, is_late=True)
        except (NotYet, NotReady, NotServed) as waiting:
            return StreamInterrupted(type(waiting).__name__)


def streaming(
    host: SimHost,
    world: SimWorld,
    chance: Chance,
    slowness: Micros,
    news: Signal,
    retry: Micros = RETRY_US,
) -> tuple[dict[type, Callable[[Any], Any]], Performers]:
    """Return the performers of a stream to ``host``. ``news`` fires after the last attempt."""

    def again(effect: AwaitRetry) -> Step:
        if effect.seconds is None:
            news.fire()
        yield retry

    def turn(_: FaultPoint) -> Step:
        yield chance.below(slowness) + 1

    return {WallClock: lambda _: world.clock(host)}, {FaultPoint: turn, AwaitRetry: again}
