"""The writer of the simulated CDC job. It performs ``ringlog_cdc.protocol.writer`` in the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ringlog.kernel.values import Micros
from ringlog.protocol.submission.submission import NoAnswer, SubmitCommand
from ringlog_cdc.errors import CdcError
from ringlog_cdc.plan.plan import PlanEntry
from ringlog_cdc.protocol.effects import AppendPlan, EndsOf, FirstSince, Locked, OfChain, Wake, Woken
from ringlog_cdc.protocol.writer import Promises, WriterTimes
from ringlog_sim.actors.cdc.checkpoint import Checkpoint
from ringlog_sim.client import SimClient
from ringlog_sim.devices.broker import CDC, MUTATIONS
from ringlog_sim.devices.keys import WRITER_NAME
from ringlog_sim.devices.world import MS, SECOND, Signal, SimHost, Unanswered
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

TIMES = WriterTimes(look=500 * MS, close_look=SECOND, clock_margin=1_500 * MS, timeout=30 * SECOND)
"""Shorter than in production, like all times of the simulator. The broker's clock error is less than the margin."""
SUBMIT_US: Micros = 5 * SECOND


class SimWriter:
    """One incarnation of the writer. ``failure``: the error that stopped it, checked between steps.

    ``routed`` is called when a plan part is in the chain.
    """

    def __init__(self, sim: Simulation, host: SimHost, client: SimClient, routed: Callable[[PlanEntry], None]) -> None:
        self.sim = sim
        self.host = host
        self.promises = Promises(WRITER_NAME, MUTATIONS, CDC, client.draw, TIMES)
        self.failure: CdcError | None = None
        self._client = client
        self._replica = client.replica
        self.store: Checkpoint
        self._routed = routed
        self._wake = Signal()
        self._woken = True
        self._ends_read: Mapping[int, int] | None = None
        self._locked = False
        self._unlocked = Signal()
        self._replica.at_once |= {Wake: self._wake_up, OfChain: lambda effect: effect.read(self.store)}
        self._replica.in_time |= {
            SubmitCommand: self._submit_command,
            Woken: self._wait,
            Locked: self._lock,
            AppendPlan: lambda effect: self.store.append(effect.entry),
            EndsOf: self._ends,
            FirstSince: self._first,
        }

    def keep(self) -> Step:
        """Renew the promises until an error occurs."""
        self._replica.followers.append(self._wake_up)
        try:
            yield from self._replica.perform(self.promises.keep())
        except CdcError as error:
            self.failure = error
            self.sim.world.tell(f"cdc {self.promises.incarnation[:6]}", f"keeps no promises any more: {error.code}")
            self._replica.changed.fire()

    def _wake_up(self, *_: object) -> None:
        self._woken = True
        self._wake.fire()

    def _wait(self, effect: Woken) -> Step:
        if not self._woken:
            yield self._wake, effect.timeout
        self._woken = False

    def _lock(self, effect: Locked[Any]) -> Step:
        while self._locked:
            yield self._unlocked
        self._locked = True
        try:
            return (yield from self._replica.perform(effect.start()))
        finally:
            self._locked = False
            self._unlocked.fire()

    def _submit_command(self, effect: SubmitCommand) -> Step:
        try:
            return (yield from self._client.submit(effect.command, SUBMIT_US, effect.request_id, effect.since_epoch))
        except NoAnswer:
            return None

    def stored(self, entry: PlanEntry) -> None:
        """Report a stored entry of the chain to the checks."""
        if entry.kind == "route":
            self._routed(entry)
            return
        low_watermark = entry.low_watermark
        self.sim.did["cdc", "closing"] += 1
        self.sim.world.tell(f"cdc {self.promises.incarnation[:6]}", f"closes all below {low_watermark} in its chain")
        for check in self.sim.on_closing:
            check.closing(low_watermark, self._ends_read)

    def _ends(self, effect: EndsOf) -> Step:
        is_ahead = self.host.skew > 0
        found = yield from self.sim.broker.ends(self.host, effect.topic)
        if effect.topic == MUTATIONS:
            self._ends_read = found if is_ahead else None
        return found

    def _first(self, effect: FirstSince) -> Step:
        found: dict[int, int | None] = {}
        try:
            for partition in self.sim.broker.topics[effect.topic]:
                where = (effect.topic, partition.number, effect.limit)
                found[partition.number] = yield from self.sim.broker.first_at(self.host, *where)
        except Unanswered:
            return None
        return found
