"""A simulated replica of the metadata log, its effects of protocols, and direct authors on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringlog.kernel.commands.cluster.snapshots import is_mark
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.log.author import Author
from ringlog.log.errors import WaitTimedOut
from ringlog.log.folding import follow, judge
from ringlog.log.replicas.recent import LAST_ALONE, RecentEntries
from ringlog.log.replicas.subscribers import Follower
from ringlog.protocol.effects import (
    FOREVER,
    Append,
    Barrier,
    CatchUp,
    Draw,
    Exclusive,
    FaultPoint,
    LogEnd,
    Newest,
    Now,
    ReadUpTo,
    Steps,
    Until,
    WallClock,
    read_barrier,
)
from ringlog.protocol.submission.direct import Direct, folded
from ringlog_sim.devices.broker import ANSWER_US, METADATA, RETRY_US, SimRecord
from ringlog_sim.devices.listener import LOG
from ringlog_sim.devices.world import SECOND, Chance, Signal, SimHost, SimWorld, Unanswered, Work
from ringlog_sim.simulation import Simulation
from ringlog_testing.histories.events import Op

Step = Work
LONG: Micros = 1_000 * SECOND
"""A wait that may last this long has no end, because no run lasts that long."""
Performers = dict[type, Callable[[Any], Step]]


class SimReplica:
    """A replica that folds the metadata log on one host.

    It begins with a snapshot, or at the end of the log before the run. ``is_independent``: in a run with independent
    replicas, it does its own decoding and folding, so its digest is evidence. Other replicas share this work.
    ``changed`` fires after each batch of records. ``recent`` gets the applied entries. ``at_once`` and ``in_time``
    perform the effects without and with waits; the owner of the replica may add to them.
    """

    __slots__ = (
        "at_once",
        "busy",
        "changed",
        "followers",
        "free",
        "host",
        "in_time",
        "is_independent",
        "name",
        "position",
        "recent",
        "sim",
        "state",
        "tail",
    )

    def __init__(self, sim: Simulation, host: SimHost, name: str, is_independent: bool = False) -> None:
        self.sim = sim
        self.host = host
        self.name = name
        self.is_independent = is_independent and sim.has_independent_replicas
        start = sim.begin(name)
        self.state = start.state if self.is_independent else sim.log.states[start.state.epoch]
        self.position = start.position
        self.changed = Signal()
        self.followers: list[Follower] = []
        self.recent = RecentEntries(LAST_ALONE)
        self.busy = False
        self.free = Signal()
        world = sim.world
        self.at_once: dict[type, Callable[[Any], Any]] = {
            Newest: lambda _: self.state,
            Now: lambda _: world.now,
            WallClock: lambda _: world.clock(host),
        }
        self.in_time: Performers = {
            Append: self._append,
            Barrier: lambda effect: self.barrier(effect.timeout),
            CatchUp: lambda _: self.barrier(),
            LogEnd: self._end,
            ReadUpTo: self._read_up_to,
            Until: self._until,
            Exclusive: self._exclusive,
            FaultPoint: lambda effect: sim.moments.at(effect.moment, host),
        }
        self.tail = sim.broker.tail(host, METADATA, 0, self.position, self._take)
        sim.replicas.append(self)

    def close(self) -> None:
        """Stop folding."""
        self.tail.close()
        self.followers.clear()
        self.at_once, self.in_time = {}, {}
        if self in self.sim.replicas:
            self.sim.replicas.remove(self)

    def is_alive(self) -> bool:
        """Return False after it was closed, or after its host has crashed."""
        return not self.tail.closed and self.tail.incarnation == self.host.incarnation

    def _take(self, records: list[SimRecord]) -> None:
        sim = self.sim
        folding = follow(records, self.state, judge if self.is_independent else sim.judge)
        for record, made in zip(records, folding, strict=False):
            before, after = made.before, made.after
            if made.is_halt:
                sim.broken("halt", f"{self.name} halts at offset {made.offset}: {made.outcome.detail}")
            self.state = after
            self.position = made.offset + 1
            if after is not before:
                self.recent.add(after.epoch, record.value, made.next if is_mark(before, after) else None)
                for check in sim.on_folded:
                    check.folded(self, before, after)
            for follower in tuple(self.followers):
                follower(before, after, made.item, made.outcome, made.offset)
        self.position = max(self.position, self.tail.position)
        self.changed.fire()

    # ------------------------------------------------------------------------------------------- effects

    def perform(self, steps: Steps[Any]) -> Step:
        """Perform a protocol to its end. Its process may be interrupted between any two effects."""
        return perform(steps, self.at_once, self.in_time)

    def barrier(self, timeout: Micros = FOREVER) -> Step:
        """Return a state with every entry that was in the log at the start of this call. Raise WaitTimedOut."""
        begun = self.sim.recording.invoke(self.name, Op.BARRIER, LOG)
        state: ClusterState = yield from self.perform(read_barrier(timeout))
        self.sim.recording.ok(begun, state.epoch)
        return state

    def _end(self, effect: LogEnd) -> Step:
        began = self.sim.world.now
        while (left := began + effect.timeout - self.sim.world.now) > 0:
            try:
                return (yield from self.sim.broker.end(self.host, METADATA, timeout=min(left, ANSWER_US)))
            except Unanswered:
                yield RETRY_US
        raise WaitTimedOut("the log's end", effect.timeout / SECOND)

    def _read_up_to(self, effect: ReadUpTo) -> Step:
        found = yield from wait_for(lambda: self.position >= effect.end, self.changed, self.sim.world, effect.timeout)
        if not found:
            raise WaitTimedOut(f"the log to be read up to offset {effect.end}", effect.timeout / SECOND)
        return self.state

    def until_founded(self) -> Step:
        """Wait until the cluster exists."""
        while self.state.epoch == 0:
            yield self.changed

    def _append(self, effect: Append) -> Step:
        yield from self.sim.broker.try_append(self.host, METADATA, [("", data) for data in effect.records])

    def _until(self, effect: Until[Any]) -> Step:
        return (yield from wait_for(lambda: effect.found(self.state), self.changed, self.sim.world, effect.timeout))

    def _exclusive(self, effect: Exclusive[Any]) -> Step:
        while self.busy:
            yield self.free
        self.busy = True
        try:
            return (yield from self.perform(effect.start()))
        finally:
            self.busy = False
            self.free.fire()


def wait_for(found: Callable[[], Any], changed: Signal, world: SimWorld, timeout: Micros) -> Step:
    """Return the first result of ``found`` that is neither None nor False. It is called whenever ``changed`` fires.

    Return the last result after ``timeout``.
    """
    deadline = world.now + timeout
    while (value := found()) is None or value is False:
        left = deadline - world.now
        if left <= 0:
            break
        yield changed if left > LONG else (changed, left)
    return value


def perform(steps: Steps[Any], at_once: dict[type, Callable[[Any], Any]], in_time: Performers) -> Step:
    """Perform a protocol to its end. Its process may be interrupted between any two effects."""
    send = steps.send
    outcome: Any = None
    try:
        while True:
            effect = send(outcome)
            kind = type(effect)
            outcome = at_once[kind](effect) if kind in at_once else (yield from in_time[kind](effect))
    except StopIteration as done:
        return done.value
    finally:
        steps.close()


class HostClock:
    """The clocks of a simulated machine."""

    __slots__ = ("_host", "_world")

    def __init__(self, world: SimWorld, host: SimHost) -> None:
        self._world = world
        self._host = host

    def now_us(self) -> Micros:
        """Return the host's wall clock."""
        return self._world.clock(self._host)

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self._world.now / SECOND


class SimAuthor:
    """``ringlog.protocol.submission.direct`` on a simulated replica. Protocols that build on it use ``steps``."""

    __slots__ = ("_clock", "_perform", "steps")

    def __init__(self, replica: SimReplica, submitter: str, draw: Draw) -> None:
        sim = replica.sim
        self._clock = HostClock(sim.world, replica.host)
        self._perform = replica.perform
        author = Author(submitter, self._clock, draw, founds=sim.cluster_id, warns=False)
        self.steps = Direct(author, folded if replica.is_independent else sim.folding)

    def now(self) -> Micros:
        """Return the host's wall clock."""
        return self._clock.now_us()

    def submit(self, command: Command) -> Step:
        """Apply the command, or return the reason why it was not applied."""
        return self._perform(self.steps.submit(command))

    def withdraw(self, request_id: str, since: int) -> Step:
        """Withdraw a request, as in ``Direct``."""
        return self._perform(self.steps.withdraw(request_id, since))


def draw_of(sim: Simulation, name: str) -> Draw:
    """Return a source of random bits for the user ``name``."""
    return Chance(sim.world.seed, f"draw/{name}")
