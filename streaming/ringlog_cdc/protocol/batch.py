"""Protocol of the CDC job: start on a checkpoint, and processing of batches.

A start claims the checkpoint, checks whether a fence cut it off, and only then registers the writer's incarnation.
Registration ends the writer's fence. So the start first records whether a lost checkpoint may have written. It looks up
those rows after the registration.

A batch first executes its stored plan parts. Until all its rows are planned, it then makes the next part. That starts
with a read barrier, the writer's horizon in that state, and a check of the times that the rows would use. The entry of
the chain follows, and only then the rows. If not a single row may be routed yet, the batch waits, and reports it.

The check rarely reads rows. If the broker says that nothing of the batch was appended after some time, the batch uses
at most that time plus the allowed lateness. Rows are read only if that is not below the horizon.

Invariant: no offset is passed before its row or dead letter is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ringlog.kernel.commands.cdc.writers import held_source, source_owner
from ringlog.kernel.generations.verdicts import widest_leeway
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.protocol.effects import Barrier, Effect, FaultPoint, Newest, Now, WallClock
from ringlog.protocol.role import CheckSuperseded
from ringlog_cdc.errors import CdcError, ChainBroken, checkpoint_lost, source_in_use
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.decisions import Draft, check_place, closed_for, decide, next_positions, still_known
from ringlog_cdc.plan.plan import (
    OffsetRange,
    PartitionFacts,
    PlanEntry,
    append_limits,
    at_most,
    is_before,
    most_used,
    next_ranges,
    used_by,
)
from ringlog_cdc.plan.recovered_rows import cut_off, is_cut_off, is_lost, may_revive, settled_of
from ringlog_cdc.protocol.effects import AppendPlan, Locked, OfChain, chain_head
from ringlog_cdc.protocol.writer import Promises

PATIENCE: Micros = 30_000_000
"""Limit of a read barrier, microseconds."""
Context = Mapping[str, Any]
"""Context of a plan part, JSON fields."""


class ClaimCheckpoint(Effect[bool], Value):
    """Tie the checkpoint to the writer.

    Outcome: True if it is new. The driver raises CdcError if ``is_lost`` and it is.
    """

    state: ClusterState
    is_lost: bool


class CheckCheckpoint(Effect[bool], Value):
    """Check the checkpoint against ``state``. The driver raises CdcError if it is inconsistent.

    Outcome: True if the topics may have rows of an earlier checkpoint. That answer is stored durably.
    """

    state: ClusterState


class GiveUpClaim(Effect[None], Value):
    """Remove the claim. Nothing was done under it."""


class BeginLookUp(Effect[None], Value):
    """Start to record the rows and letters of earlier checkpoints. Results of an earlier attempt are discarded.

    The driver raises CdcError if the source ends before ``settled``.

    Attributes:
        settled: Source partition to an offset. All writes below it are decided.
    """

    settled: Mapping[int, int]


class NoteTopic(Effect[None], Value):
    """Record the current content of the CDC topic, or of the dead-letter topic if ``letters``.

    ``state`` is the current state.
    """

    state: ClusterState
    letters: bool


class EndLookUp(Effect[None], Value):
    """Store the recorded rows and letters permanently. A result that another driver stored meanwhile stays."""


class AppendedSince(Effect[dict[int, int | None]], Value):
    """Ask for the first records since ``limit`` (milliseconds), for the current batch.

    The driver raises if the broker does not answer.

    Outcome: source partition to the first offset appended then or later, or None if there are no such records.
    """

    limit: int


class FactsOf(Effect[Sequence[PartitionFacts]], Value):
    """Read the rows of the current batch from ``positions`` on. Outcome: their PartitionFacts."""

    positions: Mapping[int, int]
    ends: Mapping[int, int]
    horizon: Micros
    leeway: Micros


class PutContext(Effect[str], Value):
    """Store the context of a part. Outcome: its name."""

    context: Context


class ReportHeld(Effect[None], Value):
    """Report, now and then, that the batch is waiting.

    Attributes:
        horizon: The horizon that is too low. None: the batch waits for its decisions to reach the log.
        since: Start of the wait, as of ``Now``.
    """

    batch: int
    part: int
    horizon: Micros | None
    since: Micros


class AwaitState(Effect[ClusterState], Value):
    """Wait briefly for a state after ``seen``. Outcome: the newest state."""

    seen: ClusterState


class Begin(Effect[None], Value):
    """Report that a part starts, or is skipped because it is done (``is_done``)."""

    entry: PlanEntry
    is_done: bool


class WriteRows(Effect[tuple[OffsetRange, ...]], Value):
    """Write the rows and letters of ``ranges`` of a part, each source partition in order.

    Outcome: the ranges left to write.

    ``context``, ``closed`` and ``state`` determine the routing table (``ringlog_cdc.plan.decisions.table_of``).
    """

    entry: PlanEntry
    ranges: tuple[OffsetRange, ...]
    context: Context
    closed: tuple[str, ...]
    state: ClusterState


class MarkDone(Effect[None], Value):
    """Record durably that all rows of the entry are durable."""

    entry: PlanEntry


async def start(promises: Promises) -> Epoch:
    """Prepare the checkpoint and register the writer. Return the epoch of the registration.

    Raises:
        CdcError: The checkpoint or the writer cannot be used.
    """
    name, source = promises.name, promises.source
    state = await Barrier(PATIENCE)
    other = source_owner(state, name, source)
    if other is not None:
        raise source_in_use(held_source(other, source))
    before = state.writers.get(name)
    is_new = await ClaimCheckpoint(state, is_lost(before))
    undone = await OfChain(PlanChain.undone)
    if is_cut_off(undone, state):
        raise cut_off(name)
    recovers = await CheckCheckpoint(state)
    try:
        epoch = await promises.register()
    except CdcError as error:
        if is_new and error.code == "source_in_use":
            await GiveUpClaim()
        raise
    registered = await Newest()
    if is_cut_off(undone, registered):
        # A fence and a close happened after the check. From here on no generation closes without this writer.
        raise cut_off(name)
    ended = set(promises.mine(registered).ended)
    earlier = {*before.ended, before.incarnation} if before is not None else set()
    if is_new and not ended - earlier <= set(promises.tried):
        # Another driver claimed another empty checkpoint under this name at the same time, and registered first.
        await GiveUpClaim()
        raise checkpoint_lost(name)
    if recovers:
        await look_up(source)
    return epoch


async def look_up(source: str) -> None:
    """Record the existing rows and letters for the mutations of ``source``. Only this writer may write meanwhile."""
    state = await Newest()
    await BeginLookUp(settled_of(state, source))
    await NoteTopic(state, letters=False)
    await NoteTopic(state, letters=True)
    await EndLookUp()


class Batches:
    """Processing of the batches of a started job, one at a time.

    Attributes:
        limit: Most offsets of the next part.
    """

    def __init__(
        self,
        promises: Promises,
        starts: Mapping[int, int],
        context: Callable[[ClusterState], Context],
        stored: Callable[[str], Context],
        ends: Callable[[int], Mapping[int, int]],
        limit: int,
    ) -> None:
        """Create the protocol.

        Args:
            promises: The writer.
            starts: First offset of each source partition.
            context: Function from a state to the context of a part.
            stored: Function from a name to the stored context.
            ends: Function from a batch to its end in Spark's offset log.
            limit: Most offsets of the next part.
        """
        self.limit = limit
        self._promises = promises
        self._starts = starts
        self._context = context
        self._stored = stored
        self._ends = ends

    async def run(self, batch: int) -> None:
        """Process a batch.

        Raises:
            CdcError: The job must stop.
        """
        ends = self._ends(batch)
        parts, head = await OfChain(lambda chain: (chain.parts(batch), chain.head))
        before = {} if parts or not batch else self._ends(batch - 1)
        check_place(batch, parts, head, ends, before)
        for entry in parts:
            await self._carry_out(entry, ends)
        while not parts or not parts[-1].last:
            entry = await self.plan(batch, len(parts), ends)
            await self._carry_out(entry, ends)
            parts = (*parts, entry)
        await self._promises.need(held=False)

    # ---------------------------------------------------------------------------------------------- plans

    async def plan(self, batch: int, part: int, ends: Mapping[int, int]) -> PlanEntry:
        """Make and store the next part of a batch. Waits while no row may be routed."""
        since: Micros | None = None
        while True:
            await CheckSuperseded()
            state = await Barrier(PATIENCE)
            await self._until_said(batch, part, state)
            horizon = self._promises.horizon(state)
            await self._promises.need(held=since is not None)
            positions = next_positions(self._starts, ends, await OfChain(chain_head))
            leeway = widest_leeway(state)
            greatest = await _most_used(ends, horizon, leeway)
            await FaultPoint("asked")
            found = () if greatest is not None else await FactsOf(positions, ends, horizon, leeway)
            ranges, complete = at_most(*next_ranges(found, positions, ends), self.limit)
            if not ranges and not complete:
                since = await self._hold(batch, part, horizon, since)
                continue
            used = used_by(found, horizon) if greatest is None else greatest
            draft = Draft(batch, part, complete, ranges, horizon, used if ranges else 0, positions)
            context = self._context(state)
            name = await PutContext(context)
            entry = await Locked(partial(self._decide, draft, context, name))
            if entry is not None:
                await self._promises.need(held=False)
                return entry

    async def _until_said(self, batch: int, part: int, state: ClusterState) -> None:
        """Before planning under changed tables, wait until the log has all decisions so far."""
        before = (await OfChain(chain_head)).context
        if not before or not may_revive(self._stored(before), self._context(state)):
            return
        since, state = await Now(), await Newest()
        while not await self._promises.says(state):
            await ReportHeld(batch, part, None, since)
            await CheckSuperseded()
            state = await AwaitState(state)

    async def _hold(self, batch: int, part: int, horizon: Micros, since: Micros | None) -> Micros:
        """Wait until the horizon changes. Return the start of the wait."""
        began = await Now() if since is None else since
        await self._promises.need(held=True)
        state = await Newest()
        while self._promises.horizon(state) == horizon:
            await ReportHeld(batch, part, horizon, began)
            await CheckSuperseded()
            state = await AwaitState(state)
        return began

    async def _decide(self, draft: Draft, context: Context, name: str) -> PlanEntry | None:
        """Store a part decided under ``context``.

        Return None if the log has changed in between, and the part must be planned again.

        Context and horizon must belong to the same state. After the rows were read, the horizon may have been lowered,
        a generation committed above it, and the horizon raised again. Under the lock no lowering can start. A later one
        stays above the use of all stored plans.
        """
        now = await Newest()
        if self._context(now) != context:
            await FaultPoint("decided anew")
            return None
        head, horizon = await OfChain(chain_head), self._promises.horizon(now)
        entry = decide(draft, head, now, horizon, context=name, incarnation=self._promises.incarnation)
        if entry is not None:
            await AppendPlan(entry)
        return entry

    # ------------------------------------------------------------------------------------------ execution

    async def _carry_out(self, entry: PlanEntry, ends: Mapping[int, int]) -> None:
        """Write the rows of a part, unless they are durable already."""
        if any(item.end > ends.get(item.partition, item.end) for item in entry.ranges):
            raise ChainBroken(f"plan {entry.sequence} ends after the end of batch {entry.batch}")
        is_done = await OfChain(lambda chain: chain.is_done(entry))
        await Begin(entry, is_done)
        if is_done:
            return
        left = entry.ranges
        while left:
            state = await Newest()
            # Another incarnation may have executed the part and closed its generation, so these rows are not late. This
            # incarnation must stop instead.
            self._promises.mine(state)
            context = still_known(self._stored(entry.context), state, entry.used)
            left = await WriteRows(entry, left, context, closed_for(entry, state), state)
        await MarkDone(entry)


async def _most_used(ends: Mapping[int, int], horizon: Micros, leeway: Micros) -> Micros | None:
    """Return the largest time that routing the batch uses, if the broker can prove that it is below the horizon.

    Else None.
    """
    for limit in append_limits(await WallClock(), horizon, leeway):
        if is_before(await AppendedSince(limit), ends):
            return most_used(limit, leeway)
    return None
