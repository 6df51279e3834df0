"""Applications that read and write registers: ``ringlog.client.plans`` decides, this sends, waits and keeps at it.

An application plans on its own replica of the log, which may be late; it sends again, plans again, and gives up at its
deadline, after which nobody knows what became of a write. Each register has one writer, whose timestamps ascend, so
with repairs before answers it is linearizable at QUORUM (Attiya, Bar-Noy, Dolev).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

from ringlog.client import plans
from ringlog.client.plans import Access, Answer, Failed, Level, Plan, Replan, Request, Satisfied, Waiting
from ringlog.kernel.outcome import Entry, Outcome, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros, NodeId
from ringlog.node.registers import Reply
from ringlog.sim.actors.registers import Message
from ringlog.sim.chance import Chance
from ringlog.sim.histories.events import Op
from ringlog.sim.replica import SimReplica, Step
from ringlog.sim.world import MS, SECOND, Host, Signal
from ringlog.wire.cells import Cell, Key, newest

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

DEADLINE_US: Micros = 4 * SECOND
RESEND_US: Micros = 600 * MS
BACKOFF_US: Micros = 50 * MS
KEYSPACE = "ks"


class GaveUp(Exception):
    """The deadline came first."""


@dataclass(eq=False, slots=True)
class Attempt:
    """Answers to one plan, each with what a read found; ``signal`` fires for every one, and for every new epoch.

    ``planned``: the state that the plan was made on.
    """

    planned: ClusterState
    answers: list[tuple[Answer, Cell | None]]
    signal: Signal


class SimApplication:
    """One application on its host, over its lives. ``written``: the last timestamp that it used, by register."""

    def __init__(self, sim: Simulation, host: Host) -> None:
        self.sim = sim
        self.host = host
        self.written: dict[Key, int] = {}
        self._lives = 0
        self._numbers = 0
        self._attempts: list[Attempt] = []
        self._chance = Chance(sim.world.seed, f"application/{host.name}")

    def start(self) -> None:
        """Begin a life on the host, which is up."""
        self._lives += 1
        self._attempts = []
        self._replica = SimReplica(self.sim, self.host, f"{self.host.name}/{self._lives}")
        self._replica.followers.append(self._hear)

    def _hear(self, before: ClusterState, after: ClusterState, _: Entry | Unreadable, __: Outcome, ___: int) -> None:
        if after is not before:
            for attempt in self._attempts:
                attempt.signal.fire()

    def operate(self, access: Access, key: Key, level: Level) -> None:
        """Begin to read or write a register."""
        if self.host.up:
            work = self._write(key, level) if access is Access.WRITE else self._read(key, level)
            self.sim.world.spawn(self.host, f"{self.host.name}.{access}", work)

    def _write(self, key: Key, level: Level) -> Step:
        timestamp = self.written[key] = self.written.get(key, 0) + 1
        for check in self.sim.on_wrote:
            check.wrote(key, timestamp, level, done=False)
        begun = self.sim.recording.invoke(self.host.name, Op.WRITE, key.name.decode(), timestamp)
        try:
            yield from self._carry_out(Access.WRITE, key, level, Cell(timestamp, b"%d" % timestamp), self._deadline())
        except GaveUp:
            self.sim.did["application", "write", level.value, "gave up"] += 1
            return
        self.sim.did["application", "write", level.value, "ok"] += 1
        self.sim.world.tell(self.host.name, f"wrote {key.name.decode()} = {timestamp} at {level}")
        self.sim.recording.ok(begun)
        for check in self.sim.on_wrote:
            check.wrote(key, timestamp, level, done=True)

    def _read(self, key: Key, level: Level) -> Step:
        # At ONE nothing is promised that an order of operations could explain.
        begun = (
            self.sim.recording.invoke(self.host.name, Op.READ, key.name.decode()) if level is not Level.ONE else None
        )
        try:
            cell = yield from self._carry_out(Access.READ, key, level, None, self._deadline())
        except GaveUp:
            self.sim.did["application", "read", level.value, "gave up"] += 1
            return
        self.sim.did["application", "read", level.value, "ok"] += 1
        found = cell.timestamp if cell is not None else None
        self.sim.world.tell(self.host.name, f"read {key.name.decode()} = {found} at {level}")
        if begun is not None:
            self.sim.recording.ok(begun, found)
        for check in self.sim.on_found:
            check.found(key, found, level)

    def _deadline(self) -> Micros:
        return self.sim.world.now + DEADLINE_US

    # ----------------------------------------------------------------------------------------------- recipe

    def _carry_out(self, access: Access, key: Key, level: Level, cell: Cell | None, deadline: Micros) -> Step:
        """What a read found (None for nothing), or None when a write is done. Raises GaveUp."""
        request = Request(key.keyspace, key.token, access, level, "dc1")
        kept: list[tuple[Answer, Cell | None]] = []
        while self.sim.world.now < deadline:
            state = self._replica.state
            made = plans.plan(state, request)
            outcome: plans.Outcome = made if isinstance(made, Failed) else Waiting((), 0)
            attempt = Attempt(state, kept, Signal())
            if isinstance(made, Plan):
                self._attempts.append(attempt)
                outcome = yield from self._attempt(made, attempt, key, cell, deadline)
                self._attempts.remove(attempt)
            if isinstance(outcome, Satisfied) and isinstance(made, Plan):
                if access is Access.WRITE:
                    return None
                return (yield from self._found(made, attempt, key, deadline))
            if isinstance(outcome, Replan):
                self.sim.did["application", "plans again"] += 1
                kept = [pair for pair in attempt.answers if pair[0] in outcome.kept]
            yield BACKOFF_US + self._chance.below(BACKOFF_US)
        raise GaveUp

    def _attempt(self, made: Plan, attempt: Attempt, key: Key, cell: Cell | None, deadline: Micros) -> Step:
        """Send until the answers decide, or the deadline comes (Waiting)."""
        world = self.sim.world
        has_answered = {answer.node for answer, _ in attempt.answers}
        again = world.now
        while True:
            state = self._replica.state
            attempt.answers = [pair for pair in attempt.answers if plans.is_of_this_log(pair[0], state)]
            outcome = plans.count(made, [answer for answer, _ in attempt.answers], state)
            if not isinstance(outcome, Waiting) or world.now >= deadline:
                return outcome
            if world.now >= again:
                again = world.now + RESEND_US
                has_answered = {answer.node for answer, _ in attempt.answers}
                for node in made.asked:
                    if node not in has_answered:
                        self._send(node, attempt, key, cell)
            yield attempt.signal, max(1, min(again, deadline) - world.now)

    def _send(self, node: NodeId, attempt: Attempt, key: Key, cell: Cell | None) -> None:
        target = self.sim.shared["nodes"].get(node)
        if target is None:
            return

        def answer(told: tuple[NodeId, Reply, str]) -> None:
            replica, reply, state_id = told
            attempt.answers.append((Answer(replica, reply.epoch, reply.refused, state_id), reply.cell))
            attempt.signal.fire()

        self.sim.shared["messages"] = number = self.sim.shared.get("messages", 0) + 1
        message = Message(number, key, cell, attempt.planned, self.host, answer)
        self.sim.world.send(self.host, target.host, target.registers.take, message)

    def _found(self, made: Plan, attempt: Attempt, key: Key, deadline: Micros) -> Step:
        """The newest cell that counts, once it is as safe as a write."""
        state = self._replica.state
        now = plans.plan(state, made.request)
        assert isinstance(now, Plan), "what is satisfied can be planned"
        good = [(answer, cell) for answer, cell in attempt.answers if plans.counts(now, answer)]
        best: Cell | None = None
        for _, cell in good:
            best = newest(best, cell) if cell is not None else best
        if best is None:
            return None
        repair = plans.repair(made, [answer for answer, cell in good if cell == best], state)
        if isinstance(repair, Failed):
            raise GaveUp
        if repair is not None:
            self.sim.did["application", "repairs"] += 1
            yield from self._carry_out(Access.WRITE, key, repair.request.level, best, deadline)
        return best


def register_keys(seed: int, tokens: tuple[int, ...]) -> tuple[Key, ...]:
    """The registers of a run: near the tokens that nodes bring with them, so that their groups change. The last one is
    for writes at ONE.
    """
    chance = Chance(seed, "registers")
    near = [token - chance.below(2**20) for token in tokens] or [0]
    return tuple(Key(KEYSPACE, max(chance.pick(near), -(2**63) + 1), name) for name in (b"r0", b"r1", b"one"))


def disturb(sim: Simulation, applications: list[Host], nodes: list[Host]) -> None:
    """Faults that last until all faults end: among applications and nodes, and between either and the broker."""
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
    """(access, level) of an action's word, ``read-QUORUM`` and the like."""
    access, _, level = name.partition("-")
    return Access(access), Level(level)
