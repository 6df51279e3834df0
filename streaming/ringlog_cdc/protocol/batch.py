"""The CDC job at work: how it starts on a checkpoint, and what it does with a batch. Nothing is passed over.

A start claims the checkpoint, looks whether a fence cut it off, and only then registers the writer's incarnation. What
a lost checkpoint may have written is noted before that, since to register ends the writer's fence; it is looked up
afterwards.

The stored plan parts of a batch are carried out first; then, until all its rows are planned, the next part is made:
read barrier, the writer's horizon in that very state, a look at what the rows would use, the entry of the chain, and
only then the rows. Where not a single row may be routed yet, the batch waits, visibly.

The look seldom reads a row: if the broker says that nothing of the batch was appended after some time, the batch can
use no more than that and the leeway. Only where that is not below the horizon the rows are gone through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.commands.cdc.writers import held_source, source_owner
from ringlog.kernel.generations.verdicts import widest_leeway
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.protocol.effects import Barrier, FaultPoint, Newest, Now, Steps, WallClock
from ringlog.protocol.role import CheckSuperseded
from ringlog_cdc.errors import CdcError, ChainBroken, checkpoint_lost, source_in_use
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.decisions import Draft, check_place, closed_for, decide, next_positions, still_known
from ringlog_cdc.plan.plan import (
    OffsetRange,
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
Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimCheckpoint:
    """Tie the checkpoint to the writer. Outcome: True if it is new. The driver raises CdcError if one ``is_lost``."""

    state: ClusterState
    is_lost: bool


@dataclass(frozen=True, slots=True)
class CheckCheckpoint:
    """Is the checkpoint whole, as far as ``state`` can tell? The driver raises CdcError if not. Outcome: True if the
    topics may have rows by one before it, which is noted durably.
    """

    state: ClusterState


@dataclass(frozen=True, slots=True)
class GiveUpClaim:
    """Take back the claim, which nothing was done under."""


@dataclass(frozen=True, slots=True)
class BeginLookUp:
    """Begin to note what the topics have by checkpoints before this one: an attempt before is forgotten. ``settled``:
    source partition to the offset below which all is decided. The driver raises CdcError where the source ends before.
    """

    settled: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NoteTopic:
    """Note all that the topic of rows, or that of the ``letters``, has now. ``state``: the log by then."""

    state: ClusterState
    letters: bool


@dataclass(frozen=True, slots=True)
class EndLookUp:
    """All is noted: keep it, for ever. What another driver kept meanwhile stays."""


@dataclass(frozen=True, slots=True)
class AppendedSince:
    """Outcome: source partition to the first offset appended at ``limit`` (milliseconds) or later, None if there is
    none: for the batch in hand. The driver raises if the broker does not answer.
    """

    limit: int


@dataclass(frozen=True, slots=True)
class FactsOf:
    """Go through the rows of the batch in hand from ``positions`` on. Outcome: their PartitionFacts."""

    positions: Mapping[int, int]
    ends: Mapping[int, int]
    horizon: Micros
    leeway: Micros


@dataclass(frozen=True, slots=True)
class PutContext:
    """Store what a part is decided with. Outcome: its name."""

    context: Context


@dataclass(frozen=True, slots=True)
class ReportHeld:
    """For all to see, now and then: the batch waits ``since`` (``Now``). ``horizon``: the one that is too low; None if
    it waits for the log to have what is decided.
    """

    batch: int
    part: int
    horizon: Micros | None
    since: Micros


@dataclass(frozen=True, slots=True)
class AwaitState:
    """Wait a while for a state after ``seen``; outcome: the newest one."""

    seen: ClusterState


@dataclass(frozen=True, slots=True)
class Begin:
    """For all to see: a part is carried out now; or it is passed over, since it was before (``is_done``)."""

    entry: PlanEntry
    is_done: bool


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Write the rows and letters of ``ranges`` of a part, those of each source partition in its order; outcome: the
    ranges that are left to do.

    ``context``, ``closed``, ``state``: what gives the routing table (``decisions.table_of``).
    """

    entry: PlanEntry
    ranges: tuple[OffsetRange, ...]
    context: Context
    closed: tuple[str, ...]
    state: ClusterState


@dataclass(frozen=True, slots=True)
class MarkDone:
    """All rows of the entry are durable: note it durably."""

    entry: PlanEntry


def start(promises: Promises) -> Steps[Epoch]:
    """Make the checkpoint ready and register the writer; gives the epoch of that. Raises CdcError."""
    name, source = promises.name, promises.source
    state = yield Barrier(PATIENCE)
    other = source_owner(state, name, source)
    if other is not None:
        raise source_in_use(held_source(other, source))
    before = state.writers.get(name)
    is_new = yield ClaimCheckpoint(state, is_lost(before))
    undone = yield OfChain(PlanChain.undone)
    if is_cut_off(undone, state):
        raise cut_off(name)
    recovers = yield CheckCheckpoint(state)
    try:
        epoch = yield from promises.register()
    except CdcError as error:
        if is_new and error.code == "source_in_use":
            yield GiveUpClaim()
        raise
    registered = yield Newest()
    if is_cut_off(undone, registered):
        raise cut_off(name)  # a fence and a close came after the look; from here on none closes without this writer
    ended = set(promises.mine(registered).ended)
    earlier = {*before.ended, before.incarnation} if before is not None else set()
    if is_new and not ended - earlier <= set(promises.tried):
        # Another driver claimed another empty checkpoint under this name at the same time, and was faster.
        yield GiveUpClaim()
        raise checkpoint_lost(name)
    if recovers:
        yield from look_up(source)
    return epoch


def look_up(source: str) -> Steps[None]:
    """Have it noted what is there of the mutations of ``source``, under no right to write but this writer's."""
    state = yield Newest()
    yield BeginLookUp(settled_of(state, source))
    yield NoteTopic(state, letters=False)
    yield NoteTopic(state, letters=True)
    yield EndLookUp()


class Batches:
    """What a job that was started does with its batches, one after the other.

    ``starts``: where the source begins; ``context``: what a part is decided with in a state, ``stored``: the one of a
    name; ``ends``: where Spark's own record says that a batch ends; ``limit``: offsets of the next part at most.
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
        self.limit = limit
        self._promises = promises
        self._starts = starts
        self._context = context
        self._stored = stored
        self._ends = ends

    def run(self, batch: int) -> Steps[None]:
        """Carry out a batch. Raises CdcError."""
        ends = self._ends(batch)
        parts, head = yield OfChain(lambda chain: (chain.parts(batch), chain.head))
        before = {} if parts or not batch else self._ends(batch - 1)
        check_place(batch, parts, head, ends, before)
        for entry in parts:
            yield from self._carry_out(entry, ends)
        while not parts or not parts[-1].last:
            entry = yield from self.plan(batch, len(parts), ends)
            yield from self._carry_out(entry, ends)
            parts = (*parts, entry)
        yield from self._promises.need(held=False)

    # ---------------------------------------------------------------------------------------------- plans

    def plan(self, batch: int, part: int, ends: Mapping[int, int]) -> Steps[PlanEntry]:
        """Make and store the next part of a batch; waits while no row may be routed."""
        since: Micros | None = None
        while True:
            yield CheckSuperseded()
            state = yield Barrier(PATIENCE)
            yield from self._until_said(batch, part, state)
            horizon = self._promises.horizon(state)
            yield from self._promises.need(held=since is not None)
            positions = next_positions(self._starts, ends, (yield OfChain(chain_head)))
            leeway = widest_leeway(state)
            greatest = yield from _most_used(ends, horizon, leeway)
            yield FaultPoint("asked")
            found = () if greatest is not None else (yield FactsOf(positions, ends, horizon, leeway))
            ranges, complete = at_most(*next_ranges(found, positions, ends), self.limit)
            if not ranges and not complete:
                since = yield from self._hold(batch, part, horizon, since)
                continue
            used = used_by(found, horizon) if greatest is None else greatest
            draft = Draft(batch, part, complete, ranges, horizon, used if ranges else 0, positions)
            context = self._context(state)
            name = yield PutContext(context)
            entry: PlanEntry | None = yield Locked(self._decide(draft, context, name))
            if entry is not None:
                yield from self._promises.need(held=False)
                return entry

    def _until_said(self, batch: int, part: int, state: ClusterState) -> Steps[None]:
        """Before anything is planned under tables that are not what they were, the log has what was decided so far."""
        before = (yield OfChain(chain_head)).context
        if not before or not may_revive(self._stored(before), self._context(state)):
            return
        since, state = (yield Now()), (yield Newest())
        while not (yield from self._promises.says(state)):
            yield ReportHeld(batch, part, None, since)
            yield CheckSuperseded()
            state = yield AwaitState(state)

    def _hold(self, batch: int, part: int, horizon: Micros, since: Micros | None) -> Steps[Micros]:
        """Wait until the horizon is another one; gives since when."""
        began: Micros = (yield Now()) if since is None else since
        yield from self._promises.need(held=True)
        state = yield Newest()
        while self._promises.horizon(state) == horizon:
            yield ReportHeld(batch, part, horizon, began)
            yield CheckSuperseded()
            state = yield AwaitState(state)
        return began

    def _decide(self, draft: Draft, context: Context, name: str) -> Steps[PlanEntry | None]:
        """Store a part decided under ``context``; None if the log has moved on meanwhile, and it must be made anew.

        Knowledge and horizon must be of one and the same state: after the rows were looked at, the horizon may have
        been lowered, a generation committed above it, and the horizon raised again. Under the lock no lowering
        begins, and one that begins later stays above all that stored plans use.
        """
        now = yield Newest()
        if self._context(now) != context:
            yield FaultPoint("decided anew")
            return None
        head, horizon = (yield OfChain(chain_head)), self._promises.horizon(now)
        entry = decide(draft, head, now, horizon, context=name, incarnation=self._promises.incarnation)
        if entry is not None:
            yield AppendPlan(entry)
        return entry

    # ------------------------------------------------------------------------------------------ execution

    def _carry_out(self, entry: PlanEntry, ends: Mapping[int, int]) -> Steps[None]:
        """Write the rows of a part, unless they are durable already."""
        if any(item.end > ends.get(item.partition, item.end) for item in entry.ranges):
            raise ChainBroken(f"plan {entry.sequence} goes beyond the end of batch {entry.batch}")
        is_done = yield OfChain(lambda chain: chain.is_done(entry))
        yield Begin(entry, is_done)
        if is_done:
            return
        left = entry.ranges
        while left:
            state = yield Newest()
            # Another incarnation may have carried the part out, and closed its generation: these rows are no late ones.
            self._promises.mine(state)
            context = still_known(self._stored(entry.context), state, entry.used)
            left = yield WriteRows(entry, left, context, closed_for(entry, state), state)
        yield MarkDone(entry)


def _most_used(ends: Mapping[int, int], horizon: Micros, leeway: Micros) -> Steps[Micros | None]:
    """The most that routing the batch uses, if the broker can tell that it lies below the horizon."""
    for limit in append_limits((yield WallClock()), horizon, leeway):
        if is_before((yield AppendedSince(limit)), ends):
            return most_used(limit, leeway)
    return None
