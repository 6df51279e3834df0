"""A model of the end of a generation, small enough for a full exploration: rows, positions, fences, sealing, consumers.

A generation has ended and the next one is active. Each writer has one write of the old generation in its input. Its
process sends the row, which may never arrive, and raises its low watermark after the row is stored. Another incarnation
may start next to it, without knowledge of the sent row.

An operator fences a writer that appears dead: remove its ACLs at the broker, read the end of the topic, submit the
fence. A coordinator seals the generation as soon as the rules permit. The kernel decides the entries. Entries and rows
arrive at any time, or never.

A consumer leaves the old generation after it has read up to the recorded positions. Two invariants follow. No new row
is stored behind those positions, because no consumer would read it. The row of each unfenced writer is before them. A
write of a fenced writer may be lost as a whole, but not in part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from immutables import Map

from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.fold import decide
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import CdcWriter, ClusterState, Generation
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import CdcOptions, Column, Command, Position, Value, replace
from tests.kernel.generations.clusters import directory

OLD, NEXT = 1, 2
"""Start timestamps of the two generations."""

RULES = frozenset({"every writer is done", "the current incarnation is fenced"})
HABITS = frozenset(
    {
        "registration folded first",
        "durable before it is claimed",
        "positions of the claim after its rows",
        "rights before the fence",
        "rights of all incarnations",
        "positions of the fence after the rights",
    }
)
ALL = RULES | HABITS

LOST = "a row lands where no consumer reads it any more"
MISSING = "a generation closes without the row of a writer that nobody fenced"


class Process(Value):
    """One incarnation. The ``row`` is unsent, in flight, stored, or rejected by a sealed generation."""

    writer: str
    incarnation: str
    folded: int
    row: str = "not sent"
    sent: Command | None = None
    entry: int | None = None
    claimed: bool = False


class World(Value):
    """One situation.

    Attributes:
        topic: the writer of each row.
        denied: incarnations without ACLs.
        fence: the progress of the operator's fence.
        closed: the positions recorded by sealing.
    """

    log: tuple[int, ...]
    processes: tuple[Process, ...]
    topic: tuple[str, ...] = ()
    denied: frozenset[str] = frozenset()
    fence: tuple[str, str, int] | None = None
    fences: int = 1
    closed: int | None = None


class Explorer:
    """Breadth-first exploration of all histories.

    Args:
        without: the rule of ``ALL`` to disable.
        writers: number of writers registered at the start.
        restarts: maximum number of further incarnations.
        fences: maximum number of fences.
    """

    def __init__(
        self, without: str | None = None, writers: tuple[str, ...] = ("v", "w"), restarts: int = 0, fences: int = 1
    ) -> None:
        assert without is None or without in ALL, without
        self._on = ALL - {without}
        self._writers, self._restarts, self._fences = writers, restarts, fences
        self._states: list[ClusterState] = []
        self._numbers: dict[ClusterState, int] = {}
        self._decided: dict[tuple[int, Command], int | None] = {}
        self.seen = 0

    def explore(self) -> str | None:
        """Return the first violated invariant, or None."""
        log = (self._number(_ended(self._writers)),)
        start = World(log, tuple(Process(name, f"{name}-0", 1) for name in self._writers), fences=self._fences)
        known = {start}
        queue = deque([start])
        while queue:
            world = queue.popleft()
            for following in self._steps(world):
                if following not in known:
                    broken = self._broken(world, following)
                    if broken is not None:
                        return broken
                    known.add(following)
                    queue.append(following)
        self.seen = len(known)
        return None

    def _broken(self, before: World, world: World) -> str | None:
        if world.closed is None:
            return None
        read = world.topic[: world.closed]
        if before.closed is None:
            writers = self._states[world.log[-1]].writers
            if any(found.fenced is None and name not in read for name, found in writers.items()):
                return MISSING
        return LOST if any(name not in read for name in world.topic[world.closed :]) else None

    def _number(self, state: ClusterState) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    # Steps

    def _steps(self, world: World) -> Iterator[World]:
        for index, process in enumerate(world.processes):
            for changed, more in self._steps_of(world, process):
                processes = (*world.processes[:index], changed, *world.processes[index + 1 :])
                yield replace(world, processes=processes, **more)
        if len(world.processes) < len(self._writers) + self._restarts:
            for name in self._writers:
                number = sum(process.writer == name for process in world.processes)
                fresh = Process(name, f"{name}-{number}", 1, sent=RegisterCdcWriter(name, f"{name}-{number}"))
                yield replace(world, processes=(*world.processes, fresh))
        yield from self._operator(world)
        after = self._decide(world, CloseCdcGeneration("old")) if world.closed is None else None
        if after is not None:
            positions = self._states[after].generations[0].positions
            yield replace(world, log=(*world.log, after), closed=positions[0].offset if positions else 0)

    def _steps_of(self, world: World, process: Process) -> Iterator[tuple[Process, dict[str, object]]]:
        if process.folded < len(world.log):
            done = process.entry == process.folded
            sent, entry = (None, None) if done else (process.sent, process.entry)
            yield replace(process, folded=process.folded + 1, sent=sent, entry=entry), {}
        if process.sent is not None and process.entry is None:
            after = self._decide(world, process.sent)
            if after is None:
                yield replace(process, sent=None), {}
            else:
                yield replace(process, entry=len(world.log)), {"log": (*world.log, after)}
        if process.row == "on its way":
            if process.incarnation in world.denied:
                yield replace(process, row="not sent"), {}
            else:
                yield replace(process, row="landed"), {"topic": (*world.topic, process.writer)}
        state = self._states[world.log[process.folded - 1]]
        if not self._may_work(process, state):
            return
        if process.row == "not sent":
            yield replace(process, row="refused" if state.generations[0].closed is not None else "on its way"), {}
        is_durable = process.row == "landed" or "durable before it is claimed" not in self._on
        if is_durable and process.sent is None and not process.claimed:
            after_rows = "positions of the claim after its rows" in self._on
            positions = (Position(0, len(world.topic) if after_rows else 0),)
            claim = AdvanceCdcWriter(process.writer, process.incarnation, NEXT, NEXT, positions)
            yield replace(process, sent=claim, claimed=True), {}

    def _may_work(self, process: Process, state: ClusterState) -> bool:
        """Return True for a process that has applied its own registration, or that does not wait for it."""
        found = state.writers[process.writer]
        is_current = found.incarnation == process.incarnation and found.fenced is None
        hurries = "registration folded first" not in self._on and isinstance(process.sent, RegisterCdcWriter)
        return is_current or hurries

    def _operator(self, world: World) -> Iterator[World]:
        """Yield the steps of a fence: ACLs, positions, fence, with other events in between.

        The fence is (name, incarnation, positions or -1).
        """
        end = len(world.topic)
        if world.fence is None:
            state = self._states[world.log[-1]]
            for name in self._writers if world.fences else ():
                current = state.writers[name].incarnation
                all_of_them = "rights of all incarnations" in self._on
                ended = {one.incarnation for one in world.processes if one.writer == name and all_of_them} | {current}
                denied = frozenset(world.denied | ended) if "rights before the fence" in self._on else world.denied
                positions = end if "positions of the fence after the rights" not in self._on else -1
                yield replace(world, fence=(name, current, positions), denied=denied, fences=world.fences - 1)
                if positions >= 0:
                    # The planted bug reads the positions before it removes the ACLs.
                    yield replace(world, fence=(name, current, positions), fences=world.fences - 1)
            return
        name, incarnation, positions = world.fence
        if positions < 0:
            yield replace(world, fence=(name, incarnation, end))
            return
        if incarnation not in world.denied and "rights before the fence" in self._on:
            yield replace(world, denied=world.denied | {incarnation})
            return
        if "the current incarnation is fenced" not in self._on:
            incarnation = self._states[world.log[-1]].writers[name].incarnation
        after = self._decide(world, FenceCdcWriter(name, incarnation, (Position(0, positions),), "gone"))
        log = world.log if after is None else (*world.log, after)
        yield replace(world, log=log, fence=None)

    def _decide(self, world: World, command: Command) -> int | None:
        """Return the number of the next log state, or None for a rejected command."""
        head = world.log[-1]
        if (head, command) not in self._decided:
            state = self._states[head]
            seen = state
            if isinstance(command, CloseCdcGeneration) and "every writer is done" not in self._on:
                writers = {name: replace(found, low_watermark=NEXT) for name, found in state.writers.items()}
                seen = replace(state, writers=Map(writers))
            decision = decide(seen, command, NOW)
            after = None
            if isinstance(decision, Accepted):
                kept = decision.state if seen is state else replace(decision.state, writers=state.writers)
                after = self._number(kept)
            self._decided[head, command] = after
        return self._decided[head, command]


NOW = EntryContext(1, "state", 0)
"""The same context for each entry, so that situations do not differ only in epochs."""

NODES = directory((1, 0))
SEED = bytes(16)


def _ended(names: tuple[str, ...]) -> ClusterState:
    """Return a state with two published generations, registered writers beyond the first one, and a CDC table."""
    generations = tuple(
        Generation(name, start, generate(owners, NODES, SEED), "published", 1, 1, None, ())
        for name, start, owners in (("old", OLD, {0: "a"}), ("next", NEXT, {0: "a", 10: "a"}))
    )
    table = Table("id", "ks", "t", (Column("k", "int"),), ("k",), (), CdcOptions(enabled=True), "v", 1)
    writers = {name: CdcWriter(name, f"{name}-0", 1, NEXT, OLD, OLD, (), ()) for name in names}
    return ClusterState(nodes=Map(NODES), tables=Map({"ks.t": table}), generations=generations, writers=Map(writers))
