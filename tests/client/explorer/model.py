"""All event orders of a small cluster: movements advance, one write succeeds, and a later read must find it.

Replicas, coordinators and gates are the production functions. The model adds the environment: a log that grows as its
gates permit, replicas that adopt states late or skip some, lost and reordered messages, disks, restarts, dead nodes.
Each simplification hides no violation:

- **Coordinators are arbitrary.** A message planned on any state may arrive at any time. The answers count if they are
  enough for a coordinator on any state at least as new as those plans. Late news, new plans, duplicates and lost
  messages therefore need no events.
- **A success is recorded at once.** Later messages of a complete write only copy the value to more nodes, and an
  answer with the value only helps the read. The model treats both as lost.
- **Rows arrive when they are sent.** A later arrival gives the same rows or a refusal. (``rows_travel`` checks this.)
- **Nodes that never serve the key are fast.** They acknowledge and report at once; in stage ``prepared`` all nodes do.
- **Equivalent nodes** (same memberships, gates, sources) are interchangeable.

A node that is declared down stops, unless the declaration is a mistake. The explorer numbers the values of a state and
caches the results of production functions: a state is a tuple of small numbers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import Any

from ringlog.client.data.plans import RequestPlan
from ringlog.kernel.values import Epoch, Value, replace
from ringlog.node.registers import registers
from ringlog.node.registers.cells import CellSnapshot
from ringlog.node.registers.registers import Behind, RegisterReplica, Reply
from ringlog.wire.data import RegisterCell
from tests.client.explorer.coordinators import FIRST_READ, READ, WRITE, Coordinators, Scenario
from tests.client.explorer.log_path import GateRule, Way, gate_is_met

VALUE = RegisterCell(1, b"x")
STEPS_MAX = 150
"""Limit of a random walk, because a first read may repeat often."""


class Explored(Value):
    """Result of a search. ``story``: the events up to a read that misses the write; empty if none was found.
    ``states``: distinct visited states, ``exhausted`` if these are all. ``reads``: states with a complete write.
    """

    states: int
    story: tuple[str, ...]
    reads: int
    exhausted: bool


class Local(Value):
    """One node. ``shape``: number of its registers; ``acked``: last acknowledged log position;
    ``answers``: (log position, answer) of this turn; ``reported``: operations with reported rows.
    """

    shape: int
    acked: int = 0
    answers: tuple[tuple[int, str], ...] = ()
    reported: tuple[str, ...] = ()


Now = tuple[int, int, int, tuple[Any, ...], tuple[int, ...]]
"""(states in the log, turn, restarts left, rows in transit as (target, fetch, has the value), numbers of the nodes)."""


class _Numbers:
    """Numbers of values, in order of first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable, value: Any) -> int:
        number = self._numbers.setdefault(key, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Explorer:
    """A search through all events of a scenario."""

    def __init__(self, scenario: Scenario, rule: GateRule = gate_is_met) -> None:
        self.scenario = scenario
        self.key = scenario.key
        self.way = Way(scenario, rule)
        self.nodes, self.log, self.place, self.twins = self.way.nodes, self.way.log, self.way.place, self.way.twins
        self.coordinators = Coordinators(scenario, self.log, self.nodes)
        self.plans = self.coordinators.plans
        self.shapes, self.locals = _Numbers(), _Numbers()
        # Caches of production functions, valid while the rules of this explorer are unchanged.
        self.registers_of = cache(self._registers_of)
        self.moves = cache(self._moves)
        self.may_grow = cache(self.way.may_grow)
        self.is_done = cache(self.coordinators.is_done)
        self.rows = cache(self._rows)
        self.received = cache(self._received)
        self.next_turn = cache(self._next_turn)

    # ---------------------------------------------------------------------------------------- one node

    def _shape(self, replica: RegisterReplica) -> int:
        cells = tuple(replica.durable.cells.values())
        key = (
            replica.state.epoch,
            replica.durable.epoch,
            cells,
            replica.pending,
            replica.reading,
            replica.fetching,
            replica.received,
            replica.fetched,
        )
        return self.shapes.of(key, replica)

    def _registers_of(self, place: int, shape: int) -> RegisterReplica:
        found: RegisterReplica = self.shapes.values[shape]
        return replace(found, node=self.nodes[place])

    def _local(self, local: Local, replica: RegisterReplica, replies: Iterable[Reply] = (), turn: int = 0) -> int:
        """Return the number of a node after a step."""
        acknowledged = registers.acknowledgeable(replica)
        acked = max(local.acked, max((i for e, i in self.place.items() if e <= acknowledged), default=0))
        answers = set(local.answers)
        for reply in replies:
            what = self._told(reply, turn)
            if what:
                answers.add((self._place(reply.epoch), what))
        reported = tuple(sorted({*local.reported, *replica.received}))
        after = Local(self._shape(replica), acked, tuple(sorted(answers)), reported)
        return self.locals.of(after, after)

    def _place(self, epoch: Epoch) -> int:
        """Return the log position of an epoch, or of an equivalent epoch for the key."""
        return max((place for known, place in self.place.items() if known <= epoch), default=0)

    def _told(self, reply: Reply, turn: int) -> str:
        """Return the stored form of an answer, or None if it cannot help a read to miss the write."""
        if reply.refused or turn == 0:
            return ""
        if turn == READ:
            return "" if reply.number != READ or reply.cell == VALUE else "empty"
        if reply.number == WRITE:
            return "written"
        return "found" if reply.cell == VALUE else "empty"

    def _moves(self, place: int, number: int, length: int, turn: int) -> tuple[tuple[str, int], ...]:
        """Return the steps of a node, alone or after a message: (event, next state of the node)."""
        local: Local = self.locals.values[number]
        replica = self.registers_of(place, local.shape)
        who = self.nodes[place]
        found: list[tuple[str, int]] = []
        for state in self.log[:length]:
            after, replies = registers.adopt(replica, state)
            if after is not replica:
                after = self._without_strangers(after)
                found.append((f"{who} adopts {state.epoch}", self._local(local, after, replies, turn)))
        for write in replica.pending:
            after, replies = registers.apply(replica, write.number)
            found.append((f"{who} has applied the write", self._local(local, after, replies, turn)))
        for reading in replica.reading if turn == WRITE else ():  # otherwise the read finds the value
            after, replies = registers.answer_read(replica, reading.number)
            found.append((f"{who} looks up", self._local(local, after, replies, turn)))
        if turn == WRITE and not replica.pending and self._is_of_use(place, local, replica, "written"):
            found += self._arrivals(place, local, replica, WRITE, length)
        if turn == READ and not replica.reading and self._is_of_use(place, local, replica, "empty"):
            found += self._arrivals(place, local, replica, READ, length)
        asks_first = turn == WRITE and self.scenario.is_read_first and not replica.reading
        if asks_first and self._is_of_use(place, local, replica, "found"):
            found += self._arrivals(place, local, replica, FIRST_READ, length)
        return tuple((what, after) for what, after in dict.fromkeys(found) if after != number)

    def _without_strangers(self, replica: RegisterReplica) -> RegisterReplica:
        """Return the node with all rows of other ranges, which do not matter here."""
        for fetch in replica.fetching:
            if fetch.source not in self.nodes or self.key not in registers.spans_of(replica.state, fetch):
                replica = registers.receive(replica, fetch, {}) or replica
        return replica

    def _is_of_use(self, place: int, local: Local, replica: RegisterReplica, what: str) -> bool:
        """Return whether to ask the node: it has not given an answer that still counts."""
        if not registers.is_ready(replica):
            return False
        group = self.way.group(replica.state)
        since = next((one.since for one in group.write if one.node == self.nodes[place]), None)
        if since is None:
            return False
        since = max(since, registers.creation_epoch(replica.state, self.key.keyspace))
        if what != "written":
            since = max(since, group.changed)
        return not any(told == what and self.log[index].epoch >= since for index, told in local.answers)

    def _arrivals(
        self, place: int, local: Local, replica: RegisterReplica, request: int, length: int
    ) -> Iterator[tuple[str, int]]:
        who = self.nodes[place]
        seen = set()
        for made in self.plans[request][:length]:
            if not isinstance(made, RequestPlan) or who not in made.asked:
                continue
            if request == WRITE:
                after, verdict = registers.admit_write(replica, request, self.key, VALUE, made.mattered)
            else:
                after, verdict = registers.admit_read(replica, request, self.key, made.mattered)
            if isinstance(verdict, Behind) or verdict is not None:
                continue
            what = f"{'write' if request == WRITE else 'read'} planned at {made.epoch} reaches {who}"
            if request == READ and not after.durable.cells:
                # No later answer can be worse for the read.
                after, replies = registers.answer_read(after, READ)
                there = self._local(local, after, replies, READ)
            else:
                there = self._local(local, after)
            if there not in seen:
                seen.add(there)
                yield what, there

    # ------------------------------------------------------------------------------------------- rows

    def _rows(self, place: int, shape: int, fetch: registers.RegisterFetch) -> bool | None:
        """Return whether a source's snapshot has the value; None if the source gives none now."""
        found = registers.snapshot(self.registers_of(place, shape), fetch)
        return self.key in found if isinstance(found, CellSnapshot) else None

    def _received(self, place: int, number: int, fetch: registers.RegisterFetch, has: bool) -> int | None:
        local: Local = self.locals.values[number]
        cells = {self.key: VALUE} if has else {}
        after = registers.receive(self.registers_of(place, local.shape), fetch, cells)
        return None if after is None else self._local(local, after)

    def _streamed(self, now: Now) -> Iterator[tuple[str, Now, bool]]:
        """Return (event, next state, whether the rows have the value)."""
        length, turn, restarts, flights, numbers = now
        for target, number in enumerate(numbers):
            if self.way.is_dead(length, target):
                continue
            for fetch in self.shapes.values[self.locals.values[number].shape].fetching:
                source = self.nodes.index(fetch.source)
                if self.way.is_dead(length, source):
                    continue
                has = self.rows(source, self.locals.values[numbers[source]].shape, fetch)
                if has is None:
                    continue
                what = f"{self.nodes[target]} gets rows of {fetch.source} {'with' if has else 'without'} the value"
                if self.scenario.rows_travel:
                    sent = tuple(sorted({*flights, (target, fetch, has)}, key=repr))
                    if sent != flights:
                        yield f"{what}: under way", (length, turn, restarts, sent, numbers), True
                elif (there := self.received(target, number, fetch, has)) is not None:
                    yield what, (length, turn, restarts, flights, _with(numbers, target, there)), has
        for flight in flights:
            target, fetch, has = flight
            rest = tuple(one for one in flights if one != flight)
            arrived = self.received(target, numbers[target], fetch, has)
            if arrived is not None and not self.way.is_dead(length, target):
                what = f"rows of {fetch.source} reach {self.nodes[target]}"
                yield what, (length, turn, restarts, rest, _with(numbers, target, arrived)), True

    # -------------------------------------------------------------------------------------------------------- all nodes

    def first(self) -> Now:
        """Return the first state: all nodes serve under the oldest state."""
        numbers = []
        for node in self.nodes:
            replica, _ = registers.adopt(registers.restarted(node, registers.Durable()), self.log[0])
            numbers.append(self._local(Local(0), replica))
        return self._canonical((1, WRITE, self.scenario.restarts, (), tuple(numbers)))

    def events(self, now: Now) -> Iterator[tuple[str, Now | None]]:
        """Return (event, next state); None: the read has missed the write."""
        for what, after in self._raw_events(now):
            length, turn, restarts, flights, numbers = after
            told = tuple(self.locals.values[number].answers for number in numbers)
            if not self.is_done(length, turn, told):
                yield what, self._canonical(after)
            elif turn == WRITE:
                there = tuple(self.next_turn(place, number) for place, number in enumerate(numbers))
                yield f"{what}: done", self._canonical((length, READ, restarts, flights, there))
            else:
                yield f"{what}: read, and the write is not found", None

    def _raw_events(self, now: Now) -> Iterator[tuple[str, Now]]:
        """Return the possible events.

        An event that never helps the read is returned alone, because every other event can also follow it.
        """
        length, turn, restarts, flights, numbers = now
        values = self.locals.values
        grown = self._grown(now)
        if grown is not None:
            yield grown
            if self.scenario.mistaken or not self.way.dies(length):
                return
        if not self.scenario.is_read_first:
            for what, after, has in self._streamed(now):
                if not has:
                    yield what, after
                    return
        for place, number in enumerate(numbers):
            if turn == READ and not self.way.is_dead(length, place):
                for what, there in self.moves(place, number, length, turn):
                    if len(values[there].answers) > len(values[number].answers) and what.startswith("read"):
                        yield what, (length, turn, restarts, flights, _with(numbers, place, there))
                        return
        for place, number in enumerate(numbers):
            if self.way.is_dead(length, place):
                continue
            for what, there in self.moves(place, number, length, turn):
                yield what, (length, turn, restarts, flights, _with(numbers, place, there))
            if restarts:
                local: Local = values[number]
                fresh = registers.restarted(self.nodes[place], self.registers_of(place, local.shape).durable)
                there = self._local(local, fresh)
                yield (
                    f"{self.nodes[place]} restarts",
                    (length, turn, restarts - 1, flights, _with(numbers, place, there)),
                )
        for what, after, _ in self._streamed(now):
            yield what, after

    def _grown(self, now: Now) -> tuple[str, Now] | None:
        length, turn, restarts, flights, numbers = now
        if length == len(self.log):
            return None
        locals_ = [self.locals.values[number] for number in numbers]
        acked, reported = tuple(one.acked for one in locals_), tuple(one.reported for one in locals_)
        if not self.may_grow(length, acked, reported):
            return None
        floor = self.way.floors[length]
        there = tuple(
            self.locals.of(one, one) for one in (replace(one, acked=max(one.acked, floor)) for one in locals_)
        )
        return f"log: epoch {self.log[length].epoch}", (length + 1, turn, restarts, flights, there)

    def _next_turn(self, place: int, number: int) -> int:
        """Return a node for the next turn: unanswered messages of the write are lost."""
        local: Local = self.locals.values[number]
        replica = replace(self.registers_of(place, local.shape), pending=(), reading=())
        return self._local(replace(local, answers=()), replica)

    # ------------------------------------------------------------------------------------------- symmetry

    def _canonical(self, now: Now) -> Now:
        if not self.twins:
            return now
        length, turn, restarts, flights, numbers = now
        changed = list(numbers)
        for places in self.twins:
            for place, number in zip(places, sorted(numbers[place] for place in places), strict=True):
                changed[place] = number
        return length, turn, restarts, flights, tuple(changed)

    # ----------------------------------------------------------------------------------------------------------- search

    def explore(self, states_max: int) -> Explored:
        """Visit all states breadth first, or ``states_max`` of them; stop at the first read that misses the write."""
        first = self.first()
        came: dict[Now, Now | None] = {first: None}
        queue = deque([first])
        reads = 0
        while queue and len(came) < states_max:
            now = queue.popleft()
            reads += now[1] == READ
            for what, after in self.events(now):
                if after is None:
                    return Explored(len(came), (*self._story(came, now), what), reads, False)
                if after not in came:
                    came[after] = now
                    queue.append(after)
        return Explored(len(came), (), reads, not queue)

    def _story(self, came: dict[Now, Now | None], here: Now) -> tuple[str, ...]:
        """Return the events from the start to ``here``."""
        told: list[str] = []
        while (before := came[here]) is not None:
            told.append(next(what for what, after in self.events(before) if after == here))
            here = before
        return tuple(reversed(told))

    def walk(self, seed: int, walks: int) -> Explored:
        """Walk at random until no event is possible or ``STEPS_MAX`` events have happened."""
        draw = random.Random(seed)
        seen: set[Now] = set()
        reads = 0
        for _ in range(walks):
            now, story = self.first(), []
            while len(story) < STEPS_MAX and (following := list(self.events(now))):
                what, after = draw.choice(following)
                story.append(what)
                if after is None:
                    return Explored(len(seen), tuple(story), reads, False)
                now = after
                if now not in seen:
                    seen.add(now)
                    reads += now[1] == READ
        return Explored(len(seen), (), reads, False)


def _with(numbers: tuple[int, ...], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])
