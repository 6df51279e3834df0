"""Applications that read and write registers and read rows, on virtual time.

They perform ``ringlog.client.data.registers`` and ``ringlog.client.data.row_reads``. An application plans on its own
replica of the log, which may be late. After its deadline it gives up, and the outcome of a write is unknown. Each
register has one writer with ascending timestamps. So, with repairs before answers, it is linearizable at QUORUM
(Attiya, Bar-Noy, Dolev).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, permutations
from typing import TYPE_CHECKING, Any

from ringlog.client.data import registers as protocol
from ringlog.client.data.plans import Access, Level
from ringlog.client.data.registers import (
    AskReplica,
    AwaitReplies,
    ReadNewest,
    ReceivedReply,
    RegisterResult,
    found_in,
)
from ringlog.client.data.row_reads import FoundPartition, ReadEnds, found_rows, message_of
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import Micros
from ringlog.log.errors import WaitTimedOut
from ringlog.protocol.effects import Steps
from ringlog.wire.data import Key, ReadReply, ReadRowsReply, ReadRowsRequest, RegisterCell, WriteReply
from ringlog_sim.actors.cdc.producer import REUSED
from ringlog_sim.actors.nodes.registers import Message
from ringlog_sim.actors.nodes.row_reads import RowsMessage, take
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_sim.devices.world import MS, SECOND, Chance, Signal, SimHost
from ringlog_sim.replica import Performers, SimReplica, Step, perform
from ringlog_testing.histories.events import Op

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

DEADLINE_US: Micros = 4 * SECOND
BREAKS_US: tuple[Micros, ...] = (600 * MS, 600 * MS, 3 * SECOND)
"""A connection breaks after this time without a reply. Sent messages may still arrive."""
KEYSPACE = "ks"
DATACENTER = "dc1"


class SimCalls:
    """The calls of one request to replicas. ``signal`` fires for every reply and every new epoch."""

    __slots__ = ("_breaks", "replies", "signal")

    def __init__(self) -> None:
        self.signal = Signal()
        self.replies: list[ReceivedReply] = []
        self._breaks: dict[AskReplica, Micros] = {}

    def begin(self, asked: AskReplica, breaks: Micros) -> None:
        """Register a call. Its reply may arrive before ``breaks``."""
        self._breaks[asked] = breaks

    def put(self, asked: AskReplica, reply: ReadReply | WriteReply | ReadRowsReply) -> None:
        """Add a reply, if its connection has not broken."""
        if self._breaks.pop(asked, None) is not None:
            found = found_rows(reply) if isinstance(reply, ReadRowsReply) else found_in(reply)
            self.replies.append((asked, found))
            self.signal.fire()

    def next_break(self, latest: Micros) -> Micros:
        """Return the time when the next connection breaks, or ``latest``."""
        return min(self._breaks.values(), default=latest)

    def take(self, now: Micros) -> list[ReceivedReply]:
        """Return the replies since the last call, and None for each connection that has broken."""
        for asked in [asked for asked, breaks in self._breaks.items() if breaks <= now]:
            del self._breaks[asked]
            self.replies.append((asked, None))
        taken, self.replies = self.replies, []
        return taken


class SimApplication:
    """One application on its host, across its restarts. ``written``: its last timestamp by register."""

    asks = DATACENTER, DEADLINE_US
    """Its datacenter and its deadline."""

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self.written: dict[Key, int] = {}
        self._starts = 0
        self._under_way: list[SimCalls] = []
        self._chance = Chance(sim.world.seed, f"application/{host.name}")

    def start(self) -> None:
        """Start the application on its host, which is up."""
        self._starts += 1
        self._under_way = []
        self._replica = SimReplica(self.sim, self.host, f"{self.host.name}/{self._starts}")
        self._replica.followers.append(self._hear)

    def _hear(
        self, before: ClusterState, after: ClusterState, _: Entry | UnreadableEntry, __: Outcome, ___: int
    ) -> None:
        if after is not before:
            for calls in self._under_way:
                calls.signal.fire()

    def operate(self, access: Access, key: Key, level: Level) -> None:
        """Begin to read or write a register."""
        if self.host.up:
            for one in (key, *self._in_tablets(key), *self._in_reused(key)):
                work = self._write(one, level) if access is Access.WRITE else self._read(one, level)
                self.sim.world.spawn(self.host, f"{self.host.name}.{access}", work)

    def _in_tablets(self, key: Key) -> Iterator[Key]:
        """Yield the register of that name in a table in tablets, if there is one. A table of the same name has other
        registers.
        """
        tables = (table for _, table in in_order(self._replica.state.tables) if table.tablets is not None)
        for table in islice(tables, 1):
            yield Key(table.full_name, key.token, b"%b/%b" % (table.id.encode(), key.name))

    def _in_reused(self, key: Key) -> Iterator[Key]:
        """Yield the register of that name in the keyspace ``REUSED``, if it exists. Each keyspace has its own
        registers.
        """
        keyspace = self._replica.state.keyspaces.get(REUSED)
        if keyspace is not None:
            yield Key(REUSED, key.token, b"%d/%b" % (keyspace.made, key.name))

    def _is_there(self, key: Key) -> bool:
        """Return False for a register of a dropped table or keyspace, which no longer has values."""
        if key.keyspace == REUSED:
            return is_of_reused(self._replica.state, key)
        table = self._replica.state.tables.get(key.keyspace)
        return "." not in key.keyspace or (table is not None and key.name.startswith(table.id.encode()))

    def _write(self, key: Key, level: Level) -> Step:
        timestamp = self.written[key] = self.written.get(key, 0) + 1
        for check in self.sim.on_wrote:
            check.wrote(key, timestamp, level, None)
        begun = self.sim.recording.invoke(self.host.name, Op.WRITE, key.name.decode(), timestamp)
        cell = RegisterCell(timestamp, b"%d" % timestamp)
        result = yield from self.perform(protocol.write(key, cell, level, *self.asks))
        if result is None:
            self.sim.did["application", "write", level.value, "gave up"] += 1
            return
        if not self._is_there(key):
            return
        self.sim.did["application", "write", level.value, "ok"] += 1
        self.sim.world.tell(self.host.name, f"wrote {key.name.decode()} = {timestamp} at {level}")
        self.sim.recording.ok(begun)
        for check in self.sim.on_wrote:
            check.wrote(key, timestamp, level, result.epoch)

    def _read(self, key: Key, level: Level) -> Step:
        # Reads at ONE have no guarantee that linearizability could check.
        begun = (
            self.sim.recording.invoke(self.host.name, Op.READ, key.name.decode()) if level is not Level.ONE else None
        )
        result = yield from self.perform(protocol.read(key, level, *self.asks))
        if result is None:
            self.sim.did["application", "read", level.value, "gave up"] += 1
            return
        if not self._is_there(key):
            return
        self.sim.did["application", "read", level.value, "ok"] += 1
        found = result.cell.timestamp if result.cell is not None else None
        self.sim.world.tell(self.host.name, f"read {key.name.decode()} = {found} at {level}")
        if begun is not None:
            self.sim.recording.ok(begun, found)
        for check in self.sim.on_found:
            check.found(key, found, level, result.epoch)

    # ---------------------------------------------------------------------------------------------- effects

    def perform(self, steps: Steps[RegisterResult] | Steps[FoundPartition]) -> Step:
        """Return the result of a request, or None if the application gave up and the outcome is unknown."""
        calls, replica = SimCalls(), self._replica
        at_once: dict[type, Callable[[Any], Any]] = {
            **replica.at_once,
            AskReplica: lambda effect: self._ask(calls, effect),
        }
        in_time: Performers = {
            **replica.in_time,
            AwaitReplies: lambda effect: self._await(calls, effect),
            ReadNewest: self._find_newest,
            ReadEnds: lambda _: self.sim.broker.ends(self.host, MUTATIONS),
        }
        self._under_way.append(calls)
        try:
            result: RegisterResult | FoundPartition = yield from perform(steps, at_once, in_time)
        except (RequestTimedOut, RequestImpossible):
            return None
        finally:
            self._under_way.remove(calls)
        self.sim.did["application", "plans again"] += result.attempts > 1
        self.sim.did["application", "repairs"] += result.repair is not None
        return result

    def _find_newest(self, effect: ReadNewest) -> Step:
        try:
            yield from self._replica.barrier(effect.timeout)
        except WaitTimedOut:
            return False
        return True

    def _await(self, calls: SimCalls, effect: AwaitReplies[Any]) -> Step:
        now, latest = self.sim.world.now, self.sim.world.now + effect.timeout
        if not calls.replies:
            yield calls.signal, max(min(calls.next_break(latest), latest) - now, 1)
        return calls.take(self.sim.world.now)

    def _ask(self, calls: SimCalls, effect: AskReplica) -> None:
        target = self.sim.shared["nodes"].get(effect.node)
        calls.begin(effect, self.sim.world.now + min(effect.timeout, self._chance.pick(BREAKS_US)))
        if target is None:
            return
        request, answer = message_of(effect), partial(calls.put, effect)
        if isinstance(request, ReadRowsRequest):
            self.sim.world.send(self.host, target.host, take, RowsMessage(target, request, self.host, answer))
        else:
            message = Message(request, effect.planned, self.host, answer)
            self.sim.world.send(self.host, target.host, target.registers.take, message)


def register_keys(seed: int, tokens: tuple[int, ...]) -> tuple[Key, ...]:
    """Return the registers of a run, near the nodes' tokens, so that their groups change.

    The last register is for writes at ONE.
    """
    chance = Chance(seed, "registers")
    near = [token - chance.below(2**20) for token in tokens] or [0]
    return tuple(Key(KEYSPACE, max(chance.pick(near), -(2**63) + 1), name) for name in (b"r0", b"r1", b"one"))


def is_of_reused(state: ClusterState, key: Key) -> bool:
    """Return True if a register of the keyspace ``REUSED`` belongs to the keyspace that has the name in this state."""
    keyspace = state.keyspaces.get(REUSED)
    return keyspace is not None and key.name.startswith(b"%d/" % keyspace.made)


def disturb(sim: Simulation, applications: list[SimHost], nodes: list[SimHost]) -> None:
    """Inject faults between applications, nodes and the broker. They last until all faults end."""
    chance, world = Chance(sim.world.seed, "disturbed"), sim.world
    lost, late = chance.pick([0.0, 0.1, 0.3, 0.5]), chance.pick([0.0, 0.1, 0.3])
    for application in applications:
        for node in nodes:
            there, back = world.link(application.name, node.name), world.link(node.name, application.name)
            there.lost = back.lost = lost
            there.late = back.late = late
            there.cut = chance.happens(0.08)
            back.cut = chance.happens(0.08)
        world.link("broker", application.name).slow = chance.pick([0, 0, 300, 1_500, 3_000]) * MS
    streams = chance.pick([0, 0, 200, 600]) * MS
    for pair in permutations(nodes, 2):
        world.link(pair[0].name, pair[1].name).slow = streams
    if nodes and chance.happens(0.5):
        world.link("broker", chance.pick(nodes).name).slow = chance.pick([100, 300, 1_000, 2_000]) * MS


def level_of(name: str) -> tuple[Any, ...]:
    """Return (access, level) of an action's name, such as ``read-QUORUM``."""
    access, _, level = name.partition("-")
    return Access(access), Level(level)
