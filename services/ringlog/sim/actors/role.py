"""One role on one host: member of its consumer group, and while it owns the partition, a worker that takes over.

The recipe of ``ringlog.agents``: who owns the role's topic starts a worker; it serves one term, from its take-over
until a higher term is folded, it is fenced, or the group gives the partition to another. It is started again then.
The group is faust's and the broker's business, so nothing of ours is retold but who begins a worker, and when it ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringlog.agents.exits import Superseded
from ringlog.agents.snapshots import looks_after
from ringlog.agents.transactions import TransactionalProducer
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable
from ringlog.log.recent import LAST_ALONE, RecentEntries
from ringlog.protocol.direct import RoleRefused
from ringlog.protocol.role import Acts, Initialise, Look, superseded, take_role
from ringlog.sim.actors.snapshots import SimSnapshots
from ringlog.sim.broker import NotOwner, SimTail
from ringlog.sim.replica import SimAuthor, SimReplica, Step, draw_of
from ringlog.sim.transactions import SimTransactions
from ringlog.sim.world import MS, SECOND, Ended, Process, SimHost, Unanswered

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

BEAT_US: Micros = 2 * SECOND
SESSION_US: Micros = 4_500 * MS
NEWS_US: Micros = SECOND


class Worker(ABC):
    """One instance of a role, for one term. ``written``: the topic of its transactions, if it has any."""

    role: str
    written = ""

    def __init__(self, sim: Simulation, host: SimHost, committed: int) -> None:
        self.sim = sim
        self.host = host
        self.committed = committed
        number = sim.shared[f"{self.role}/instances"] = sim.shared.get(f"{self.role}/instances", 0) + 1
        self.instance = f"{self.role}-{number}"
        self.name = f"{self.instance}@{host.name}"
        self.term = 0
        self.fenced: TransactionalProducer[tuple[str, Any], Step] = SimTransactions(
            sim.broker, host, self.role, self.written
        )
        self.draw = draw_of(sim, self.instance)
        self.replica = SimReplica(sim, host, self.name, alone=number == 1 and self.role == "validator")
        self.direct = SimAuthor(self.replica, self.instance, self.draw)
        self.replica.at_once |= {Acts: self._act, Look: lambda _: self.look()}
        self.replica.in_time |= {Initialise: lambda _: self.initialise()}
        self._snapshots: SimSnapshots | None = None
        self._looks_after = sim.log_ends.looked_after and looks_after(self.role)
        self.replica.recent = RecentEntries(LAST_ALONE, keeps_mark=self._looks_after)
        self.tails: list[SimTail] = []

    def run(self) -> Step:
        """Take the role over, then work, until ``Ended`` is raised."""
        try:
            yield from self.replica.perform(take_role(self.direct.steps, self.role, self.instance))
            yield from self.work()
        except RoleRefused as error:
            raise Ended(f"take-over refused: {error.code}") from None
        finally:
            self.close()

    def close(self) -> None:
        """Let go of readers."""
        self.replica.close()
        for tail in self.tails:
            tail.close()
        if self._snapshots is not None:
            self._snapshots.close()

    @abstractmethod
    def work(self) -> Step:
        """The role's work."""

    def look(self) -> None:
        """Raises Ended if another instance acts now, as far as this one has folded."""
        why = superseded(self.replica.state, self.role, self.term)
        if why is not None:
            raise Ended(why)

    def _act(self, acts: Acts) -> None:
        self.term = acts.term
        self.sim.world.tell(self.name, f"acts in term {self.term}")
        if self._looks_after:
            self._snapshots = SimSnapshots(self)

    def initialise(self) -> Step:
        """Take the role's transactional id."""
        while True:
            try:
                yield from self.fenced.initialise()
                return
            except LogUnavailable:
                self.look()

    def transact(self, values: Sequence[tuple[str, Any]]) -> Step:
        """One transaction under the role's id; if it has no answer, this producer is of no use any more."""
        try:
            yield from self.fenced.commit(values)
        except Superseded:
            raise Ended("fenced") from None
        except LogUnavailable:
            raise Ended("a transaction has no answer") from None

    def read(self, topic: str) -> Step:
        """Every record of a topic that is there now."""
        while True:
            try:
                return (yield from self.sim.broker.read(self.host, topic))
            except Unanswered:
                self.look()

    def acknowledge(self, offset: int) -> None:
        """Everything up to this offset of the role's topic is done with."""
        self.sim.broker.commit_offset(self.host, self.role, self.member(), offset + 1)

    def member(self) -> object:
        """Who this host is in the role's group."""
        return self.sim.shared[f"{self.role}/member/{self.host.name}/{self.host.life}"]


def member(sim: Simulation, host: SimHost, make: type[Worker]) -> Step:
    """The member of the role's group on ``host``: keeps its heartbeat, and a worker while it owns the partition."""
    broker, identity = sim.broker, object()
    sim.shared[f"{make.role}/member/{host.name}/{host.life}"] = identity
    worker: Process | None = None
    while True:
        try:
            committed = yield from broker.poll(host, make.role, identity, SESSION_US)
            if worker is None or worker.over:
                made = make(sim, host, committed)
                worker = sim.world.spawn(
                    host, made.name, made.run(), lambda why: sim.world.tell(make.role, f"ends: {why}")
                )
        except NotOwner:
            if worker is not None and not worker.over:
                sim.world.tell(worker.name, "loses its partition")
                worker.stop()
            worker = None
        except Unanswered:
            pass
        yield BEAT_US
