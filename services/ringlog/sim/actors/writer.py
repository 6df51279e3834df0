"""The promises of the simulated CDC job: the thread of ``ringlog_cdc.writer`` that registers, asks and claims.

What to ask for is decided by ``ringlog_cdc.promises``; the order of steps is that of the production class: one promise
at a time, a lowering binds from the moment it is submitted until its fate is final and folded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.client.results import AppliedResult, RejectedResult
from ringlog.kernel.commands.cdc_writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.settings import leeway_at, setting
from ringlog.kernel.state import CdcWriter, ClusterState
from ringlog.kernel.values import Command, Micros, Position
from ringlog.protocol.submission import NoAnswer
from ringlog.sim.actors.checkpoint import Checkpoint
from ringlog.sim.broker import CDC, MUTATIONS
from ringlog.sim.client import SimClient
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, SECOND, Host, Signal, Unanswered
from ringlog_cdc.errors import CdcError, WriterReplaced
from ringlog_cdc.known import has_said, withdrawn
from ringlog_cdc.plan import close_entry
from ringlog_cdc.promises import (
    Claim,
    Standing,
    binding,
    closed_before,
    closes_before_nothing,
    covers,
    is_replaced,
    next_claim,
    next_closing,
    next_horizon,
)

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

WRITER_NAME = "cdc"
LOOK_US: Micros = 500 * MS
CLOSE_LOOK_US: Micros = SECOND
CLOCK_MARGIN_US: Micros = 1_500 * MS
"""Shorter than in production, as all times of the simulator are; the broker's clock is wrong by less."""
SUBMIT_US: Micros = 5 * SECOND


class Promises:
    """One incarnation of the writer. ``failure``: what stopped it; it is looked at between steps. ``epoch``: at which
    it was registered.
    """

    def __init__(self, sim: Simulation, host: Host, client: SimClient, store: Checkpoint) -> None:
        self.sim = sim
        self.host = host
        self.incarnation = client.draw.take(16).hex()
        self.tried: list[str] = []
        self.epoch = 0
        self.failure: CdcError | None = None
        self._client = client
        self._replica = client.replica
        self._store = store
        self._bound: int | None = None
        self._held = False
        self._active_until: Micros = 0
        self._close_at: Micros = 0
        self._wake = Signal()
        self._woken = True
        self._ahead = False
        self._is_asked = False
        self._locked = False
        self._unlocked = Signal()

    # ------------------------------------------------------------------------------------------ for the driver

    def lock(self) -> Step:
        """Wait for the lock, and take it."""
        while self._locked:
            yield self._unlocked
        self._locked = True

    def unlock(self) -> None:
        """Give it back."""
        self._locked = False
        self._unlocked.fire()

    def mine(self, state: ClusterState) -> CdcWriter:
        """This writer in ``state``; raises WriterReplaced if the incarnation is not the current one."""
        found = state.writers.get(WRITER_NAME)
        if found is None or found.incarnation != self.incarnation or found.fenced is not None:
            raise WriterReplaced(WRITER_NAME, self.incarnation, found.incarnation if found else "")
        return found

    def horizon(self, state: ClusterState) -> int:
        """The horizon that binds under ``state``."""
        return binding(self.mine(state).horizon, self._bound)

    def has_said(self, state: ClusterState) -> bool:
        """True if the log of ``state`` has all that is decided; if not, it will be said."""
        if has_said(self.mine(state), self._store.durable_positions()):
            return True
        self._is_asked = True
        self.wake()
        return False

    def note_need(self, held: bool) -> None:
        """Rows are being planned now; ``held`` ones wait for a higher horizon."""
        self._held = held
        self._active_until = self.sim.world.now + self._lead()
        if held:
            self.wake()

    def wake(self, *_: object) -> None:
        """Look again now."""
        self._woken = True
        self._wake.fire()

    # ---------------------------------------------------------------------------------------------- asking

    def register(self) -> Step:
        """Register this incarnation and fold at least to it."""
        while True:
            self.tried.append(self.incarnation)
            answer = yield from self._settle(RegisterCdcWriter(WRITER_NAME, self.incarnation, MUTATIONS))
            if isinstance(answer, RejectedResult):
                raise CdcError("not_registered", f"{answer.code}: {answer.detail}")
            if isinstance(answer, AppliedResult):
                self.epoch = answer.epoch
                yield from self._folded(answer.epoch)
                self.mine(self._replica.state)
                return
            self.incarnation = self._client.draw.take(16).hex()

    def keep(self) -> Step:
        """Keep the promises, until something stops this."""
        self.note_need(held=False)
        self._replica.followers.append(self.wake)
        try:
            while True:
                if not self._woken:
                    yield self._wake, LOOK_US
                self._woken = False
                yield from self._step()
        except CdcError as error:
            self.failure = error
            self.sim.world.tell(f"cdc {self.incarnation[:6]}", f"keeps no promises any more: {error.code}")
            self._replica.changed.fire()

    def _step(self) -> Step:
        state = self._replica.state
        mine = self.mine(state)
        now = self.sim.world.clock(self.host)
        yield from self.lock()
        standing = Standing(
            horizon=mine.horizon,
            floor=mine.floor,
            low_watermark=mine.low_watermark,
            used=self._store.head.used,
            prepared=state.prepared is not None,
            active=self.sim.world.now < self._active_until,
            held=self._held,
        )
        horizon = next_horizon(standing, now, self._lead())
        if horizon is not None and horizon < mine.horizon:
            self._bound = horizon
        self.unlock()
        if horizon is not None or self._is_asked:
            self._is_asked = False
            if horizon is not None and horizon < mine.horizon:
                yield from self.sim.moments.at("lowering", self.host)
            yield from self._advance(mine.horizon if horizon is None else horizon, mine.low_watermark, ())
        if self.sim.world.now >= self._close_at:
            self._close_at = self.sim.world.now + CLOSE_LOOK_US
            state = self._replica.state
            yield from self._claim(state, self.mine(state), now)

    def _claim(self, state: ClusterState, mine: CdcWriter, now: Micros) -> Step:
        claimed = self._store.head.low_watermark
        durable = self._store.durable_positions()
        self._ahead = self.host.skew > 0
        if closes_before_nothing(state.generations, claimed, mine.low_watermark):
            raise withdrawn(WRITER_NAME, claimed)
        following = next_closing(state.generations, max(claimed, mine.low_watermark))
        if following is not None:
            limit = following.timestamp + leeway_at(state, following)
            if (yield from self._is_passed(limit, durable, now > limit + CLOCK_MARGIN_US)):
                claimed = following.timestamp
                yield from self._close(state, claimed)
                yield from self.sim.moments.at("closing", self.host)
        claim = next_claim(mine, claimed, self._store.is_closing_durable())
        if claim is Claim.RAISE_HORIZON:
            self.note_need(held=self._held)
        if claim is Claim.SUBMIT:
            positions = []
            for partition in self.sim.broker.topics[CDC]:
                try:
                    end = yield from self.sim.broker.end(self.host, CDC, partition.number)
                except Unanswered:
                    return
                positions.append(Position(partition.number, end))
            yield from self._advance(mine.horizon, claimed, tuple(positions))

    def _close(self, state: ClusterState, low_watermark: int) -> Step:
        yield from self.lock()
        try:
            closed = closed_before(state.generations, low_watermark)
            entry = close_entry(
                self._store.head,
                generations=closed,
                low_watermark=low_watermark,
                epoch=state.epoch,
                incarnation=self.incarnation,
            )
            yield from self._store.append(entry, lambda: self._stored(low_watermark))
        finally:
            self.unlock()

    def _stored(self, low_watermark: Micros) -> None:
        self.sim.did["cdc", "closing"] += 1
        self.sim.world.tell(f"cdc {self.incarnation[:6]}", f"closes all below {low_watermark} in its chain")
        for check in self.sim.on_closing:
            check.closing(low_watermark, self._ahead)

    def _is_passed(self, limit: int, durable: dict[int, int], clock_is_past: bool) -> Step:
        ends: dict[int, int] = {}
        later: dict[int, int | None] = {}
        broker = self.sim.broker
        try:
            for partition in broker.topics[MUTATIONS]:
                ends[partition.number] = yield from broker.end(self.host, MUTATIONS, partition.number)
            for partition in broker.topics[MUTATIONS]:
                later[partition.number] = yield from broker.first_at(self.host, MUTATIONS, partition.number, limit)
        except Unanswered:
            return False
        return covers(durable, later, ends, clock_is_past)

    def _advance(self, horizon: int, low_watermark: int, positions: tuple[Position, ...]) -> Step:
        durable = self._store.durable_positions()
        decided = tuple(Position(partition, offset) for partition, offset in sorted(durable.items()))
        command = AdvanceCdcWriter(WRITER_NAME, self.incarnation, horizon, low_watermark, positions, decided)
        answer = yield from self._settle(command)
        if isinstance(answer, AppliedResult):
            yield from self._folded(answer.epoch)
        elif is_replaced(answer):
            raise WriterReplaced(WRITER_NAME, self.incarnation, "")
        else:
            yield from self._replica.barrier()
        yield from self.lock()
        self._bound = None
        self.unlock()

    def _folded(self, epoch: int) -> Step:
        while self._replica.state.epoch < epoch:
            yield self._replica.changed

    def _settle(self, command: Command) -> Step:
        """The final answer to a command: the same request is sent again until there is one."""
        request, since = self._client.new_request_id(), self._replica.state.epoch
        while True:
            try:
                return (yield from self._client.submit(command, SUBMIT_US, request, since))
            except NoAnswer:
                continue

    def _lead(self) -> int:
        return setting(self._replica.state, "cdc_horizon_lead_us")
