"""One role on one host: a member of its consumer group that starts a worker while it owns the partition.

A worker serves one term, as in ``ringlog.agents``. The term ends when a higher one is folded, when it is fenced, or
when the group gives the partition to another member. Then a new worker is started. The group itself belongs to faust
and the broker, so only the start and end of workers are simulated. ``SimTransactions`` implements the port
``ringlog.agents.ports`` on the simulated broker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ringlog.agents.exits import Superseded
from ringlog.agents.maintenance.snapshots import handles_snapshots
from ringlog.agents.ports import TransactionalProducer
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable
from ringlog.log.replicas.recent import LAST_ALONE, RecentEntries
from ringlog.protocol.role import BecomeActive, CheckSuperseded, Initialise, superseded, take_role
from ringlog.protocol.submission.direct import RoleRefused
from ringlog_sim.actors.snapshots import SimSnapshots
from ringlog_sim.devices.broker import Fenced, NotOwner, SimBroker, SimTail
from ringlog_sim.devices.world import MS, SECOND, Ended, Process, SimHost, Unanswered, Work
from ringlog_sim.replica import SimAuthor, SimReplica, Step, draw_of

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


NO_ANSWER = "nobody knows what became of it"


class SimTransactions:
    """Transactions of (key, value) pairs by a process on ``host``, to partition 0 of ``topic``."""

    def __init__(self, broker: SimBroker, host: SimHost, transactional_id: str, topic: str) -> None:
        self._broker = broker
        self._host = host
        self._id = transactional_id
        self._topic = topic
        self._epoch = 0

    def initialise(self) -> Work:
        """Initialise the transactional id, as in the port."""
        try:
            self._epoch = yield from self._broker.initialise(self._host, self._id)
        except Unanswered:
            raise LogUnavailable(f"{self._id}: no answer", NO_ANSWER) from None

    def commit(self, records: Iterable[tuple[str, Any]]) -> Work:
        """Write all records or none, as in the port."""
        return self._commit(tuple(records))

    def _commit(self, values: tuple[tuple[str, Any], ...]) -> Work:
        try:
            yield from self._broker.transact(self._host, self._id, self._epoch, self._topic, values)
        except Fenced:
            raise Superseded(f"{self._id}: another instance took over") from None
        except Unanswered:
            raise LogUnavailable(f"{self._id}: no answer", NO_ANSWER) from None


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
        self.replica = SimReplica(sim, host, self.name, is_independent=number == 1 and self.role == "validator")
        self.direct = SimAuthor(self.replica, self.instance, self.draw)
        self.replica.at_once |= {BecomeActive: self._become_active, CheckSuperseded: lambda _: self.check_superseded()}
        self.replica.in_time |= {Initialise: lambda _: self.initialise()}
        self._snapshots: SimSnapshots | None = None
        self._stores_snapshots = sim.log_ends.looked_after and handles_snapshots(self.role)
        self.replica.recent = RecentEntries(LAST_ALONE, keeps_mark=self._stores_snapshots)
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
        """Close the readers."""
        self.replica.close()
        for tail in self.tails:
            tail.close()
        if self._snapshots is not None:
            self._snapshots.close()

    @abstractmethod
    def work(self) -> Step:
        """Do the role's work."""

    def check_superseded(self) -> None:
        """Raise Ended if another instance is active now, as far as this one has folded."""
        why = superseded(self.replica.state, self.role, self.term)
        if why is not None:
            raise Ended(why)

    def _become_active(self, acts: BecomeActive) -> None:
        self.term = acts.term
        self.sim.world.tell(self.name, f"acts in term {self.term}")
        if self._stores_snapshots:
            self._snapshots = SimSnapshots(self)

    def initialise(self) -> Step:
        """Initialise the role's transactional id."""
        while True:
            try:
                yield from self.fenced.initialise()
                return
            except LogUnavailable:
                self.check_superseded()

    def transact(self, values: Sequence[tuple[str, Any]]) -> Step:
        """Commit one transaction with the role's id. Raise Ended without an answer, because the producer is then
        unusable.
        """
        try:
            yield from self.fenced.commit(values)
        except Superseded:
            raise Ended("fenced") from None
        except LogUnavailable:
            raise Ended("a transaction has no answer") from None

    def read(self, topic: str) -> Step:
        """Return every current record of a topic."""
        while True:
            try:
                return (yield from self.sim.broker.read(self.host, topic))
            except Unanswered:
                self.check_superseded()

    def acknowledge(self, offset: int) -> None:
        """Commit this offset: the role has finished all records up to it."""
        self.sim.broker.commit_offset(self.host, self.role, self.member(), offset + 1)

    def member(self) -> object:
        """Return this host's identity in the role's group."""
        return self.sim.shared[f"{self.role}/member/{self.host.name}/{self.host.incarnation}"]


def member(sim: Simulation, host: SimHost, make: type[Worker]) -> Step:
    """Run the member of the role's group on ``host``: its heartbeat, and a worker while it owns the partition."""
    broker, identity = sim.broker, object()
    sim.shared[f"{make.role}/member/{host.name}/{host.incarnation}"] = identity
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
