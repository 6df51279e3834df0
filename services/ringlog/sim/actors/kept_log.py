"""A member's copy of the log on the simulated disk: what may be acknowledged, and with what it goes on, is as it ships.

Retold is the loop around that: in production it blocks on a reader of the log and writes to a file, whose damage is
tested there (``ringlog.node.log_copy``). It begins where the run does, or with a snapshot. On the host's disk: ``log``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ringlog.kernel.values import Micros, NodeId
from ringlog.log.errors import LogUnavailable
from ringlog.log.folding import Start
from ringlog.log.port import LogRecord
from ringlog.node.log_copy import HeldLog
from ringlog.node.member_copy import CopySide, goes_on
from ringlog.sim.at_once import IDENTITY, TopicAtOnce
from ringlog.sim.broker import METADATA, RETRY_US, SimRecord
from ringlog.sim.chance import Chance
from ringlog.sim.replica import SimReplica, Step
from ringlog.sim.world import MS, Signal, SimHost

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

DISK: Final = "log"
LOOK_US: Micros = 200 * MS


@dataclass(frozen=True, slots=True)
class KeptLog:
    """What is on a disk: the state with which it begins, and the records from the entry on that made it."""

    base: Start
    records: tuple[LogRecord, ...] = ()


class SimLogCopy(CopySide):
    """The copy of a node, for one life of it. ``news`` fires when there may be more to acknowledge."""

    def __init__(self, sim: Simulation, host: SimHost, node: NodeId, replica: SimReplica, news: Signal) -> None:
        super().__init__(node, host.disk.get("acknowledged", 0))
        self._sim = sim
        self._host = host
        self._replica = replica
        self._news = news
        self._chance = Chance(sim.world.seed, f"copy/{host.name}/{host.life}")
        self._slowness: Micros = Chance(sim.world.seed, f"copy/{host.name}").pick([1, 20, 200, 900]) * MS

    def run(self) -> Step:
        """Keep the copy while the node is a member, for ever."""
        while True:
            while not self.is_member(self._replica.state):
                yield self._replica.changed
            held = yield from self._opened()
            yield from self._fill(held)

    def _opened(self) -> Step:
        sim, host = self._sim, self._host
        kept: KeptLog | None = host.disk.get(DISK)
        before = None
        if kept is not None:
            before = HeldLog(IDENTITY, kept.base)
            for record in kept.records:
                before.take(record)
        topic = TopicAtOnce(sim.broker, METADATA, sim.log_ends.deaths, host)
        while True:
            try:
                held = goes_on(before, topic, lambda: sim.begin(f"{host.name}'s copy"), host.name)
                break
            except LogUnavailable:
                yield RETRY_US
        if held is not before:
            sim.world.store(host, DISK, KeptLog(held.base))
            sim.did["members", "copies begun"] += 1
        return held

    def _fill(self, held: HeldLog) -> Step:
        came, inbox, host = Signal(), list[SimRecord](), self._host

        def take(records: list[SimRecord]) -> None:
            inbox.extend(records)
            came.fire()

        tail = self._sim.broker.tail(host, METADATA, 0, held.next, take)
        while self.is_member(self._replica.state):
            if not inbox:
                yield came, LOOK_US
                continue
            yield self._chance.below(self._slowness) + 1
            taken = [LogRecord(one.offset, one.value, one.time) for one in inbox]
            inbox.clear()
            self._keep(held, [record for record in taken if held.take(record)])
            if self.holds(held.at.state.epoch):
                self._news.fire()
        tail.close()

    def _keep(self, held: HeldLog, more: list[LogRecord]) -> None:
        """Have it on the disk."""
        kept: KeptLog = self._host.disk[DISK]
        kept = replace(kept, records=(*kept.records, *more))
        self._sim.world.store(self._host, DISK, kept)
        if (base := held.newer_base()) is not None:
            held.base = base
            kept = KeptLog(base, tuple(one for one in kept.records if one.offset >= base.position - 1))
            self._sim.world.store(self._host, DISK, kept)
            self._sim.did["members", "copies begun with a snapshot"] += 1
