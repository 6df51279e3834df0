"""A member's copy of the log on the simulated disk: ``ringlog.node.protocol.copying`` on virtual time.

The file is a value here. Tests of ``ringlog.node.log.log_copy`` cover file damage. The copy begins at the start of the
run or with a snapshot. Its key on the host's disk is ``log``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ringlog.kernel.values import Micros, NodeId, Value, replace
from ringlog.log.errors import LogUnavailable
from ringlog.log.folding import Start
from ringlog.log.port import LogRecord
from ringlog.node.log.log_copy import CopyState
from ringlog.node.log.member_copy import continue_or_restart
from ringlog.node.protocol.copying import AppendRecords, AwaitMember, CloseCopy, CopyProgress, OpenCopy, keep_copy
from ringlog.node.protocol.mutation_loop import MayAcknowledge, Sleep
from ringlog_sim.devices.at_once import IDENTITY, TopicAtOnce
from ringlog_sim.devices.broker import METADATA, SimRecord, SimTail
from ringlog_sim.devices.world import MS, Chance, Signal, SimHost
from ringlog_sim.replica import Performers, SimReplica, Step, perform

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

DISK: Final = "log"


class KeptLog(Value):
    """The content of the disk: the first state, and the records from the entry that made it."""

    base: Start
    records: tuple[LogRecord, ...] = ()


class SimLogCopy(CopyProgress):
    """The copy of a node between two restarts. ``news`` fires when there may be more to acknowledge."""

    def __init__(self, sim: Simulation, host: SimHost, node: NodeId, replica: SimReplica, news: Signal) -> None:
        super().__init__(node, host.disk.get("acknowledged", 0))
        self._sim = sim
        self._host = host
        self._replica = replica
        self._news = news
        self._chance = Chance(sim.world.seed, f"copy/{host.name}/{host.incarnation}")
        self._slowness: Micros = Chance(sim.world.seed, f"copy/{host.name}").pick([1, 20, 200, 900]) * MS
        self._log: CopyState | None = None
        self._tail: SimTail | None = None
        self._inbox: list[SimRecord] = []
        self._arrived = Signal()

    def run(self) -> Step:
        """Update the copy while the node is a member. It does not end."""
        at_once: dict[type, Callable[[Any], Any]] = {
            OpenCopy: lambda _: self._open(),
            CloseCopy: lambda _: self._close(),
            MayAcknowledge: lambda _: self._news.fire(),
        }
        in_time: Performers = {
            AwaitMember: lambda _: self._await_member(),
            AppendRecords: self._take,
            Sleep: lambda effect: self._rest(effect.time),
        }
        yield from perform(keep_copy(self, lambda: self._replica.state), at_once, in_time)

    def _await_member(self) -> Step:
        while not self.is_member(self._replica.state):
            yield self._replica.changed

    def _rest(self, time: Micros) -> Step:
        yield time

    def _open(self) -> bool:
        self._close()
        sim, host = self._sim, self._host
        kept: KeptLog | None = host.disk.get(DISK)
        before = None
        if kept is not None:
            before = CopyState(IDENTITY, kept.base)
            for record in kept.records:
                before.append(record)
        topic = TopicAtOnce(sim.broker, METADATA, sim.log_ends.deaths, host)
        try:
            held = continue_or_restart(before, topic, lambda: sim.begin(f"{host.name}'s copy"), host.name)
        except LogUnavailable:
            return False
        if held is not before:
            sim.world.store(host, DISK, KeptLog(held.base))
            sim.did["members", "copies begun"] += 1
        self._log, self._tail = held, sim.broker.tail(host, METADATA, 0, held.next, self._came)
        return True

    def _came(self, records: list[SimRecord]) -> None:
        self._inbox += records
        self._arrived.fire()

    def _take(self, effect: AppendRecords) -> Step:
        held = self._log
        assert held is not None, "a copy is open"
        if not self._inbox:
            yield self._arrived, effect.timeout
        if self._inbox:
            yield self._chance.below(self._slowness) + 1
            taken = [LogRecord(one.offset, one.value, one.time) for one in self._inbox]
            self._inbox.clear()
            self._keep(held, [record for record in taken if held.append(record)])
        return held.at.state.epoch

    def _close(self) -> None:
        if self._tail is not None:
            self._tail.close()
        self._log = self._tail = None
        self._inbox.clear()

    def _keep(self, held: CopyState, more: list[LogRecord]) -> None:
        """Store the new records on the disk."""
        kept: KeptLog = self._host.disk[DISK]
        kept = replace(kept, records=(*kept.records, *more))
        self._sim.world.store(self._host, DISK, kept)
        if (base := held.newer_base()) is not None:
            held.base = base
            kept = KeptLog(base, tuple(one for one in kept.records if one.offset >= base.position - 1))
            self._sim.world.store(self._host, DISK, kept)
            self._sim.did["members", "copies begun with a snapshot"] += 1
