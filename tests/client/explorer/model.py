"""Every order of events of a small cluster: one range that moves, one write, then one read that must find it.

Replicas, coordinators and gates are the production functions; the model brings the rest: a log that grows when its gate
lets it, replicas that adopt its states late or by leaps, messages that arrive in any order or never, disks, a restart.
An answer reaches its coordinator at once, for that is no restriction: a coordinator may stay ignorant of new epochs for
as long as it likes. A coordinator whose plan cannot succeed any more gives up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ringlog.client import plans
from ringlog.client.plans import Access, Answer, Level, Plan, Request, Satisfied, Waiting
from ringlog.kernel.commands.model import Witness
from ringlog.kernel.operations.gates import Gate, gate, missing
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD, in_flight
from ringlog.kernel.state import ClusterState
from ringlog.node import registers
from ringlog.node.registers import Behind, Registers, Reply
from ringlog.wire.cells import Cell, Key

WRITE, READ = 1, 2
"""Numbers of the two requests."""
VALUE = Cell(1, b"x")

GateRule = Callable[[Gate, tuple[Witness, ...]], bool]


def gate_is_met(found: Gate, witnesses: tuple[Witness, ...]) -> bool:
    """The rule of the log."""
    return not missing(found, witnesses)


@dataclass(frozen=True, slots=True)
class Flight:
    """A message under way. ``what``: write, read or rows; ``epoch``: of the plan; ``rows``: (fetch, cells)."""

    what: str
    node: str
    epoch: int = 0
    rows: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Now:
    """All there is. ``length``: states in the log; ``known``: index of the coordinator's; ``turn``: WRITE or READ."""

    length: int
    replicas: tuple[Registers, ...]
    acked: tuple[int, ...]
    flights: frozenset[Flight] = frozenset()
    turn: int = WRITE
    made: Plan | None = None
    known: int = 0
    answers: tuple[tuple[Answer, Cell | None], ...] = ()
    restarts: int = 1


@dataclass(frozen=True, slots=True)
class Explored:
    """``story``: the events that lead to a read that misses the write; empty if none does. ``states``: how many."""

    states: int
    story: tuple[str, ...]
    reads: int


class Explorer:
    """Goes through all that can happen on the way through ``log``, breadth first."""

    def __init__(self, log: list[ClusterState], nodes: list[str], key: Key, rule: GateRule = gate_is_met) -> None:
        self.log = log
        self.nodes = nodes
        self.key = key
        self.rule = rule

    def explore(self, states_max: int) -> Explored:
        """All states, or ``states_max`` of them; stops at the first read that misses the write."""
        replicas = []
        for node in self.nodes:
            replica, _ = registers.adopt(registers.restarted(node, registers.Durable()), self.log[0])
            replicas.append(replica)
        first = Now(1, tuple(replicas), (0,) * len(replicas))
        came: dict[Any, tuple[Any, str]] = {self._digest(first): (None, "")}
        queue = deque([first])
        reads = 0
        while queue and len(came) < states_max:
            now = queue.popleft()
            here = self._digest(now)
            for what, after in self._events(now):
                after = self._acknowledged(after)
                if after.turn == 0:
                    reads += 1
                    if not any(cell == VALUE for _, cell in after.answers):
                        return Explored(len(came), (*_story(came, here), what), reads)
                    continue
                there = self._digest(after)
                if there not in came:
                    came[there] = (here, what)
                    queue.append(after)
        return Explored(len(came), (), reads)

    # ----------------------------------------------------------------------------------------------- events

    def _events(self, now: Now) -> Iterator[tuple[str, Now]]:
        if now.length < len(self.log) and self._may_grow(now):
            yield f"log: epoch {self.log[now.length].epoch}", replace(now, length=now.length + 1)
        if now.known + 1 < now.length:
            yield from self._judged(f"coordinator learns {now.known + 1}", replace(now, known=now.known + 1))
        if now.made is None:
            yield from self._planned(now)
        for place, node in enumerate(self.nodes):
            yield from self._replica_events(now, place, node)
        for flight in sorted(now.flights, key=repr):
            yield from self._arrival(now, flight)

    def _may_grow(self, now: Now) -> bool:
        state = self.log[now.length - 1]
        witnesses = tuple(Witness(node, acked, acked) for node, acked in zip(self.nodes, now.acked, strict=True))
        for operation in in_flight(state):
            following = self.log[now.length].operations[operation.id]
            if following.stage in (operation.stage, "cancelled"):
                continue
            if not self.rule(gate(state, operation), witnesses):
                return False
            joiner = now.replicas[self.nodes.index(operation.node)]
            if operation.stage == WRITE_BOTH_READ_OLD and operation.id not in joiner.received:
                return False
        return True

    def _planned(self, now: Now) -> Iterator[tuple[str, Now]]:
        access = Access.WRITE if now.turn == WRITE else Access.READ
        made = plans.plan(self.log[now.known], Request(self.key.keyspace, self.key.token, access, Level.QUORUM, "dc1"))
        if isinstance(made, Plan):
            sent = {Flight(access.value, node, made.epoch) for node in made.asked}
            yield f"{access} planned at {made.epoch}", replace(now, made=made, flights=now.flights | sent)

    def _replica_events(self, now: Now, place: int, node: str) -> Iterator[tuple[str, Now]]:
        replica = now.replicas[place]
        for state in self.log[: now.length]:
            after, replies = registers.adopt(replica, state)
            if after is not replica:
                yield from self._answered(f"{node[-1]} adopts {state.epoch}", _with(now, place, after), node, replies)
        for write in replica.pending:
            after, replies = registers.apply(replica, write.number)
            yield from self._answered(f"{node[-1]} has applied the write", _with(now, place, after), node, replies)
        for reading in replica.reading:
            after, replies = registers.look_up(replica, reading.number)
            yield from self._answered(f"{node[-1]} answers the read", _with(now, place, after), node, replies)
        for fetch in replica.fetching:
            found = registers.snapshot(now.replicas[self.nodes.index(fetch.source)], fetch)
            if isinstance(found, dict):
                sent = Flight("rows", node, 0, (fetch, tuple(sorted(found.items()))))
                yield f"{fetch.source[-1]} takes its snapshot", replace(now, flights=now.flights | {sent})
        if now.restarts:
            fresh = registers.restarted(node, replica.durable)
            yield f"{node[-1]} restarts", replace(_with(now, place, fresh), restarts=now.restarts - 1)

    def _arrival(self, now: Now, flight: Flight) -> Iterator[tuple[str, Now]]:
        place = self.nodes.index(flight.node)
        replica = now.replicas[place]
        verdict: Reply | Behind | None = None
        if flight.what == "rows":
            fetch, cells = flight.rows
            after = registers.receive(replica, fetch, dict(cells)) or replica
        elif flight.what == "write":
            after, verdict = registers.admit_write(replica, WRITE, self.key, VALUE, flight.epoch)
        else:
            after, verdict = registers.admit_read(replica, READ, self.key, flight.epoch)
        if isinstance(verdict, Behind):
            return
        now = replace(_with(now, place, after), flights=now.flights - {flight})
        replies = (verdict,) if verdict is not None else ()
        yield from self._answered(f"{flight.what} reaches {flight.node[-1]}", now, flight.node, replies)

    # ---------------------------------------------------------------------------------------------- answers

    def _answered(self, what: str, now: Now, node: str, replies: tuple[Reply, ...]) -> Iterator[tuple[str, Now]]:
        told = tuple(
            (Answer(node, reply.epoch, reply.refused), reply.cell) for reply in replies if reply.number == now.turn
        )
        yield from self._judged(what, replace(now, answers=now.answers + told))

    def _judged(self, what: str, now: Now) -> Iterator[tuple[str, Now]]:
        if now.made is None:
            yield what, now
            return
        state = self.log[now.known]
        outcome = plans.count(now.made, [answer for answer, _ in now.answers], state)
        if isinstance(outcome, Waiting):
            yield what, now
        elif isinstance(outcome, Satisfied) and now.turn == WRITE:
            yield f"{what}: written", replace(now, turn=READ, made=None, known=0, answers=())
        elif isinstance(outcome, Satisfied):
            good = tuple(pair for pair in now.answers if pair[0].node in outcome.counted)
            yield f"{what}: read", replace(now, turn=0, answers=good)

    def _acknowledged(self, now: Now) -> Now:
        acked = tuple(
            max(before, registers.acknowledgeable(replica))
            for before, replica in zip(now.acked, now.replicas, strict=True)
        )
        return now if acked == now.acked else replace(now, acked=acked)

    def _digest(self, now: Now) -> Any:
        replicas = tuple(
            (
                one.state.epoch,
                one.durable.epoch,
                len(one.durable.cells),
                one.pending,
                one.reading,
                one.fetching,
                one.received,
            )
            for one in now.replicas
        )
        made = now.made.epoch if now.made is not None else None
        return now.length, replicas, now.acked, now.flights, now.turn, made, now.known, now.answers, now.restarts


def _with(now: Now, place: int, replica: Registers) -> Now:
    return replace(now, replicas=(*now.replicas[:place], replica, *now.replicas[place + 1 :]))


def _story(came: dict[Any, tuple[Any, str]], here: Any) -> tuple[str, ...]:
    told = []
    while here is not None:
        here, what = came[here]
        told.append(what)
    return tuple(reversed(told))[1:]
