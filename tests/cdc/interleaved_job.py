"""The CDC job of ``interleaved``: its checkpoint in memory, and drivers that may die after any effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, asdict
from ringlog.protocol.effects import Barrier, FaultPoint, Newest, Now, Steps, WallClock
from ringlog.wire.records import decode_cdc_row
from ringlog_cdc.definition.decision import PartContext, decide
from ringlog_cdc.definition.reasons import CODES, ROUTED
from ringlog_cdc.plan.chain import StoredChain, canonical, context_name
from ringlog_cdc.plan.decisions import context_of, table_of
from ringlog_cdc.plan.plan import PlanEntry, check_link
from ringlog_cdc.protocol.batch import (
    AppendedSince,
    AwaitState,
    Batches,
    FactsOf,
    MarkDone,
    PutContext,
    ReportHeld,
    WriteRows,
)
from ringlog_cdc.protocol.effects import AppendPlan, Locked, OfChain
from ringlog_cdc.stored_files import decode_file
from ringlog_sim.actors.cdc.driver import facts

if TYPE_CHECKING:
    from tests.cdc.interleaved import Cluster

MS: Micros = 1_000
SECOND: Micros = 1_000_000
PARTITIONS = 2
WRITER = "w"
Place = tuple[int, int]


class Chain(StoredChain[None, str]):
    """Plans in memory that survive the driver."""

    def __init__(self) -> None:
        super().__init__({}, ())
        self._contexts: dict[str, bytes] = {}

    def append(self, entry: PlanEntry) -> None:
        check_link(self.head, entry)
        self._entries[entry.sequence] = entry

    def mark_done(self, entry: PlanEntry) -> None:
        self._done.add(entry.sequence)

    def put_context(self, context: Mapping[str, Any]) -> str:
        data = canonical(context)
        self._contexts[context_name(data)] = data
        return context_name(data)

    def context(self, name: str) -> Mapping[str, Any]:
        return decode_file("context", self._contexts[name], name, dict)


class Ended(Exception):
    """The driver ended: its batch waits, or the driver was killed."""


class Kept:
    """The leases of the job's writer as the log has them; the test sets them."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation

    def mine(self, state: ClusterState) -> Any:
        return state.writers[WRITER]

    def horizon(self, state: ClusterState) -> Micros:
        found: Micros = state.writers[WRITER].horizon
        return found

    async def need(self, held: bool) -> None:
        await Now()

    async def says(self, state: ClusterState) -> bool:
        await Now()
        return True


class Job:
    """The CDC job: its checkpoint and its current driver."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self._chain = Chain()
        self._ends: list[dict[int, int]] = []
        self._committed = 0
        self._lives = 0
        self._meanwhile: Callable[[], None] | None = None
        self.restart()

    def restart(self, *_: int) -> None:
        """Start another incarnation on the checkpoint."""
        self._lives += 1
        promises: Any = Kept(f"life-{self._lives}")
        assert self.world.submit(RegisterCdcWriter(WRITER, promises.incarnation, "c.mutations"))
        self._incarnation = promises.incarnation
        self._batches = Batches(promises, {}, self._context, self._chain.context, self._ends.__getitem__, 4)

    def _context(self, state: ClusterState) -> dict[str, Any]:
        return context_of(state, "c.mutations", 2, 1_000_000)

    def raise_horizon(self, to: Micros) -> None:
        """Raise the lease, or lower it as far as stored plans allow."""
        mine = self.world.state.writers[WRITER]
        horizon = max(to, self._chain.head.used + 1, mine.floor, mine.low_watermark)
        self.world.submit(AdvanceCdcWriter(WRITER, self._incarnation, horizon, mine.low_watermark))

    def promise(self, ahead: int, *_: int) -> None:
        """Move the lease to a time around the present."""
        self.raise_horizon(self.world.now + (ahead % 9 - 2) * SECOND)

    def is_behind(self) -> bool:
        """Return whether records are not logged yet."""
        ends = {number: len(records) for number, records in enumerate(self.world.topic)}
        return self._committed < len(self._ends) or not self._ends or self._ends[-1] != ends

    def batch(self, count: int, killed: int, meanwhile: int) -> None:
        """Run a batch, or the unfinished one.

        ``killed`` is the number of effects before the driver dies (0: never). ``meanwhile`` changes the table during
        the scan of the rows (each third time).
        """
        if self._committed == len(self._ends):
            before = self._ends[-1] if self._ends else dict.fromkeys(range(PARTITIONS), 0)
            whole = {number: len(records) for number, records in enumerate(self.world.topic)}
            self._ends.append({number: min(whole[number], before[number] + 1 + count) for number in before})
        self._left = killed % 23 or -1
        self._meanwhile = (lambda: self.world.alter(meanwhile, meanwhile // 3, 1)) if meanwhile % 3 == 1 else None
        try:
            self._run_steps(self._batches.run(self._committed))
        except Ended:
            self.world.met["batch left"] += 1
            return
        self._committed += 1
        self.world.met["batch done"] += 1

    def _run_steps(self, steps: Steps[Any]) -> Any:
        outcome: Any = None
        while True:
            try:
                effect = steps.send(outcome)
            except StopIteration as done:
                return done.value
            self._left -= 1
            if self._left == 0:
                raise Ended
            outcome = self._perform(effect)

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Barrier() | Newest():
                return self.world.state
            case Now() | WallClock():
                return self.world.now
            case OfChain():
                return effect.read(self._chain)
            case AppendedSince():
                return self._later(effect.limit)
            case FactsOf():
                inputs = self._within({number: (0, end) for number, end in effect.ends.items()})
                return facts(inputs, effect.positions, effect.horizon, effect.leeway)
            case FaultPoint(moment="asked") if self._meanwhile is not None:
                happens, self._meanwhile = self._meanwhile, None
                happens()
            case PutContext():
                return self._chain.put_context(effect.context)
            case Locked():
                return self._run_steps(effect.start())
            case AppendPlan():
                self._chain.append(effect.entry)
            case ReportHeld() | AwaitState():
                raise Ended
            case WriteRows():
                return self._write(effect)
            case MarkDone():
                self._chain.mark_done(effect.entry)
        return None

    def _within(self, ranges: Mapping[int, tuple[int, int]]) -> list[Any]:
        return [
            self.world.topic[number][offset] for number, (start, end) in ranges.items() for offset in range(start, end)
        ]

    def _later(self, limit: int) -> dict[int, int | None]:
        ends = self._ends[self._committed]
        begin = self._ends[self._committed - 1] if self._committed else dict.fromkeys(ends, 0)
        late = {
            number: [o for o in range(begin[number], end) if self.world.topic[number][o].appended >= limit * MS]
            for number, end in ends.items()
        }
        return {number: min(found, default=None) for number, found in late.items()}

    def _write(self, effect: WriteRows) -> tuple[()]:
        """Write rows and letters; a repeated write has to equal the first."""
        entry = effect.entry
        inputs = [one.item for one in self._within({item.partition: (item.start, item.end) for item in entry.ranges})]
        table = table_of(effect.context, effect.closed, effect.state)
        part = PartContext("c.mutations", entry.incarnation, entry.epoch, 1_000_000)
        codes: dict[Place, str] = {(item.partition, item.offset): "" for item in inputs}
        rows: dict[Place, list[dict[str, Any]]] = {place: [] for place in codes}
        for item, out in [(one, out) for one in inputs for out in decide(table, one, part)]:
            place = item.partition, item.offset
            if out.reason == ROUTED:
                rows[place].append(asdict(decode_cdc_row(out.value)))
            elif out.reason > ROUTED:
                codes[place] = CODES[out.reason]
        for place, code in codes.items():
            self.world.say("the job", place, code)
            assert self.world.rows.setdefault(place, rows[place]) == rows[place]
        return ()
