"""Protocol of a CDC writer: it registers an incarnation, keeps its horizon ahead of use, and claims its low-watermark.

The promises are in the metadata log, so the switch of generations needs no clock.

Invariants:

* Rows are routed only below the *folded* horizon. A lowering applies from its start until its outcome is final and
  folded.
* No row is routed before the log has a validation watermark.
* Under the lock (``Locked``) a plan is checked against the horizon and stored, and a lowering starts. A lowering thus
  never goes below the use of a stored plan.
* One promise is in flight at a time. Its request is repeated with the same id until there is an answer.
* A writer whose principal was revoked, or lost its role, stops. One whose key was rotated asks again: its key file may
  get the next key.

``ringlog_cdc.plan.leases`` decides which promise to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ringlog.kernel.authorization import NOT_AUTHORIZED
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog.kernel.values import Epoch, Micros, Position, Value
from ringlog.protocol.effects import FOREVER, Barrier, Draw, FaultPoint, Newest, Now, Until, WallClock
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.protocol.submission.submission import submit_until_answered
from ringlog_cdc.errors import CdcError, WriterNotAuthorized, WriterReplaced, source_in_use
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.leases import (
    Claim,
    WriterStanding,
    binding,
    closed_before,
    closes_before_nothing,
    covers,
    is_replaced,
    next_claim,
    next_closing,
    next_horizon,
)
from ringlog_cdc.plan.plan import close_entry
from ringlog_cdc.plan.recovered_rows import has_said, withdrawn
from ringlog_cdc.protocol.effects import (
    AppendPlan,
    EndsOf,
    FirstSince,
    Locked,
    OfChain,
    Wake,
    Woken,
    chain_head,
)

INCARNATION_BYTES = 16


class WriterTimes(Value):
    """Intervals of the protocol, microseconds.

    Attributes:
        look: Longest wait between two checks.
        close_look: Interval of asking the broker whether a generation can be closed.
        clock_margin: Distance of the clock from a time after which no broker appends below that time.
        timeout: Limit of a read barrier.
    """

    look: Micros
    close_look: Micros
    clock_margin: Micros
    timeout: Micros


class Promises:
    """One incarnation of a writer, which turns ``source`` into ``sink``.

    Attributes:
        incarnation: Random id, hex.
        tried: Incarnations that it tried to register. The last one is its own.
    """

    def __init__(self, name: str, source: str, sink: str, draw: Draw, times: WriterTimes) -> None:
        self.name, self.source = name, source
        self.incarnation = draw.take(INCARNATION_BYTES).hex()
        self.tried: list[str] = []
        self._sink = sink
        self._draw = draw
        self._times = times
        self._bound: Micros | None = None
        self._held = False
        self._active_until: Micros = 0
        self._is_asked = False
        self._close_at: Micros = 0

    # ----------------------------------------------------------------------------------------- for plans

    def mine(self, state: ClusterState) -> CdcWriter:
        """Return this writer in ``state``.

        Raises:
            WriterReplaced: The incarnation is not the current one, or is fenced.
            WriterNotAuthorized: The principal with the writer's name was revoked.
        """
        principal = state.principals.get(self.name)
        if principal is not None and principal.revoked is not None:
            raise WriterNotAuthorized(self.name, f"its principal was revoked with epoch {principal.revoked}")
        found = state.writers.get(self.name)
        if found is None or found.incarnation != self.incarnation or found.fenced is not None:
            raise WriterReplaced(self.name, self.incarnation, found.incarnation if found else "")
        return found

    def horizon(self, state: ClusterState) -> Micros:
        """Return the exclusive upper bound of times that may be routed, microseconds.

        It is the folded horizon, or a lowering in flight, or 0 until the log promises a validation watermark. Before
        that, a later ALTER or DROP would change the verdict on a write that already has rows.
        """
        return binding(min(self.mine(state).horizon, state.settled.until), self._bound)

    async def need(self, held: bool) -> None:
        """Note that rows are being planned, and whether they wait for a higher horizon (``held``)."""
        state = await Newest()
        self._held = held
        self._active_until = await Now() + _lead(state)
        if held:
            await Wake()

    async def says(self, state: ClusterState) -> bool:
        """Return True if the log of ``state`` has all decisions so far. Otherwise request that they are reported."""
        if has_said(self.mine(state), await OfChain(PlanChain.durable_positions)):
            return True
        self._is_asked = True
        await Wake()
        return False

    # -------------------------------------------------------------------------------------------- asking

    async def register(self) -> Epoch:
        """Register this incarnation and fold its entry. Return the epoch.

        Raises:
            CdcError: The registration was rejected.
            WriterReplaced: Another incarnation registered afterwards.
        """
        while True:
            self.tried.append(self.incarnation)
            answer = await submit_until_answered(
                RegisterCdcWriter(self.name, self.incarnation, self.source), self._draw
            )
            if isinstance(answer, RejectedResult) and answer.code == "source_in_use":
                raise source_in_use(answer.detail)
            if isinstance(answer, RejectedResult):
                raise CdcError("not_registered", f"{answer.code}: {answer.detail}")
            if isinstance(answer, AppliedResult):
                self.mine(await _folded(answer.epoch))
                return answer.epoch
            # The expired request may have had an effect. A new incarnation ends the old one in both cases.
            self.incarnation = self._draw.take(INCARNATION_BYTES).hex()

    async def keep(self) -> None:
        """Keep the promises until an error ends it: WriterReplaced or another CdcError.

        The first extension is requested at once, while the first batch is still being read.
        """
        await self.need(held=False)
        while True:
            await Woken(self._times.look)
            await self.step()

    async def step(self) -> None:
        """Make the promises needed now, and close and claim generations if possible."""
        state = await Newest()
        mine = self.mine(state)
        now = await WallClock()
        horizon = await Locked(partial(self._wish, state, mine, now))
        if horizon is not None or self._is_asked:
            self._is_asked = False
            if horizon is not None and horizon < mine.horizon:
                await FaultPoint("lowering")
            await self.advance(mine.horizon if horizon is None else horizon, mine.low_watermark, ())
        if self._held:
            await self._settle()
        tick = await Now()
        if tick >= self._close_at:
            self._close_at = tick + self._times.close_look
            state = await Newest()
            await self._claim(state, self.mine(state), now)

    async def _wish(self, state: ClusterState, mine: CdcWriter, now: Micros) -> Micros | None:
        """Return the horizon to request, or None to keep the current one. A lowering applies from here on."""
        head = await OfChain(chain_head)
        standing = WriterStanding(
            horizon=mine.horizon,
            floor=mine.floor,
            low_watermark=mine.low_watermark,
            used=head.used,
            prepared=state.prepared is not None,
            active=await Now() < self._active_until,
            held=self._held,
        )
        horizon = next_horizon(standing, now, _lead(state))
        if horizon is not None and horizon < mine.horizon:
            self._bound = horizon
        return horizon

    async def _settle(self) -> None:
        """Request the first validation watermark of the cluster, as nodes do. From then on each horizon raises it."""
        state = await Newest()
        horizon = self.mine(state).horizon
        if state.settled.until or not horizon:
            return
        answer = await submit_until_answered(SettleVerdicts(horizon), self._draw)
        if isinstance(answer, AppliedResult):
            await _folded(answer.epoch)

    async def _claim(self, state: ClusterState, mine: CdcWriter, now: Micros) -> None:
        """Close generations if possible, and claim the low-watermark that the chain allows."""
        claimed, durable = await OfChain(lambda chain: (chain.head.low_watermark, chain.durable_positions()))
        if closes_before_nothing(state.generations, claimed, mine.low_watermark):
            raise withdrawn(self.name, claimed)
        following = next_closing(state.generations, max(claimed, mine.low_watermark))
        if following is not None:
            limit = following.timestamp + leeway_at(state, following)
            if await self._is_passed(limit, durable, now > limit + self._times.clock_margin):
                claimed = following.timestamp
                await Locked(partial(self._close, state, claimed))
                await FaultPoint("closing")
        claim = next_claim(mine, claimed, await OfChain(PlanChain.is_closing_durable))
        if claim is Claim.RAISE_HORIZON:
            await self.need(held=self._held)
        if claim is Claim.SUBMIT:
            ends = await EndsOf(self._sink)
            if ends is not None:
                await self.advance(mine.horizon, claimed, places(ends))

    async def _close(self, state: ClusterState, low_watermark: Micros) -> None:
        """Append a closing to the chain."""
        head = await OfChain(chain_head)
        closed = closed_before(state.generations, low_watermark)
        epoch, mine = state.epoch, self.incarnation
        await AppendPlan(
            close_entry(head, generations=closed, low_watermark=low_watermark, epoch=epoch, incarnation=mine)
        )

    async def _is_passed(self, limit: Micros, durable: Mapping[int, int], clock_is_past: bool) -> bool:
        """Return True if everything appended below ``limit`` is durable.

        The ends are read first: any record after them is covered by ``later`` or by the clock.
        """
        ends = await EndsOf(self.source)
        if ends is None:
            return False
        later = await FirstSince(self.source, limit)
        return later is not None and covers(durable, later, ends, clock_is_past)

    async def advance(self, horizon: Micros, low_watermark: Micros, positions: tuple[Position, ...]) -> None:
        """Make one promise and wait until its outcome is final and folded. A lowering applies until then."""
        decided = places(await OfChain(PlanChain.durable_positions))
        answer = await submit_until_answered(
            AdvanceCdcWriter(self.name, self.incarnation, horizon, low_watermark, positions, decided), self._draw
        )
        if isinstance(answer, AppliedResult):
            await _folded(answer.epoch)
        elif is_replaced(answer):
            raise WriterReplaced(self.name, self.incarnation, "")
        elif isinstance(answer, RejectedResult) and answer.code == NOT_AUTHORIZED:
            raise WriterNotAuthorized(self.name, answer.detail)
        else:
            await Barrier(self._times.timeout)
        await Locked(self._unbind)

    async def report(self) -> None:
        """Report the durable positions once, unless the log has them. The last step of a stopped writer."""
        mine = self.mine(await Newest())
        if not has_said(mine, await OfChain(PlanChain.durable_positions)):
            await self.advance(mine.horizon, mine.low_watermark, ())

    async def _unbind(self) -> None:
        """End the effect of a lowering, which is folded by now or void."""
        self._bound = None


async def _folded(epoch: Epoch) -> ClusterState:
    """Wait until the epoch is folded."""
    found = await Until(lambda state: state if state.epoch >= epoch else None, FOREVER, f"epoch {epoch} to be applied")
    assert found is not None, "the wait has no timeout"
    return found


def _lead(state: ClusterState) -> Micros:
    """Return the distance of the horizon from the clock, microseconds."""
    return setting(state, "cdc_horizon_lead_us")


def places(offsets: Mapping[int, int]) -> tuple[Position, ...]:
    """Convert partition to offset into the log's form."""
    return tuple(Position(partition, offset) for partition, offset in sorted(offsets.items()))
