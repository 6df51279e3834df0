"""The switch from one generation to the next as a model small enough to explore to its end.

The log is the kernel's: every entry is decided by the real rules, and the states it went through are kept. Around it:
processes of CDC writers, each with the part of the log that it has folded so far and at most one submission on its way;
a coordinator that prepares a generation and submits its commit; an operation that can be cancelled, so that what is
prepared is dropped; an operator who fences a writer, once the broker lets none of its processes write any more, lowers
the horizon of a fenced one to what its processes have used, and withdraws a generation that nobody can have used.
Submissions are decided whenever the explorer likes, or never. A process may be slow for ever, its next incarnation may
run beside it.

One write is routed in each history, by any process at any moment, under the generation that this process sees operating
at the write's timestamp. It is wrong if the log ever says that another one operates there. One write is enough: a
history in which several are routed and one is wrong is also one in which only that one is looked at.

Rules of the kernel and habits of writers can be left out, to see that each is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from immutables import Map

from ringlog.kernel.commands.cdc.clock import (
    LowerCdcWriter,
    WithdrawCdcGeneration,
    decide_lower_cdc_writer,
    decide_withdraw_cdc_generation,
)
from ringlog.kernel.commands.cdc.generations import (
    CommitCdcGeneration,
    RequestCdcGeneration,
    decide_commit_cdc_generation,
    decide_put_cdc_generation_data,
    decide_request_cdc_generation,
    parts_of,
)
from ringlog.kernel.commands.cdc.writers import (
    AdvanceCdcWriter,
    FenceCdcWriter,
    RegisterCdcWriter,
    decide_advance_cdc_writer,
    decide_fence_cdc_writer,
    decide_register_cdc_writer,
)
from ringlog.kernel.generations.acceptance import generation_at
from ringlog.kernel.generations.describe import generate, ranges_digest
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.state import CdcWriter, ClusterState, Generation
from ringlog.kernel.values import Command
from tests.kernel.generations.clusters import directory

SEED = bytes(16)
FIRST = 1
"""Where the first generation starts; all times are small whole numbers from here on."""
LAST = 4
"""The greatest timestamp and horizon."""

RULES = frozenset(
    {
        "above every horizon",
        "frozen while prepared",
        "floor",
        "current incarnation only",
        "horizons of fenced writers",
        "a fenced name keeps its horizon",
        "only fenced writers are lowered",
        "only what no horizon reaches is withdrawn",
    }
)
HABITS = frozenset(
    {
        "folded horizon",
        "lowering binds at once",
        "registration folded first",
        "knowledge and horizon of one state",
        "lowered above what was used",
        "rights before the fence",
    }
)
ALL = RULES | HABITS

WRONG = "a write is routed under a generation that does not operate at its timestamp"
CHASED = "a commit above every horizon is refused because a horizon rose"


@dataclass(frozen=True, slots=True)
class Process:
    """One incarnation of a writer. ``folded``: entries it has seen; ``sent``: submission, which became ``entry``."""

    writer: str
    incarnation: str
    folded: int
    sent: Command | None = None
    entry: int | None = None
    left: int = 1


@dataclass(frozen=True, slots=True)
class World:
    """A situation: the states of the log, the processes, the coordinator's commit on its way, the one routed write.

    ``aborts``: cancels that may still come. ``denied``: incarnations that the broker lets write no more; ``fences``,
    ``lowerings``, ``withdrawals``: how many more may be. The write: timestamp, start of its generation, whose it is.
    """

    log: tuple[int, ...]
    processes: tuple[Process, ...]
    commit: tuple[int, bool] | None = None
    commits_left: int = 1
    write: tuple[int, int, int] | None = None
    aborts: int = 0
    fences: int = 0
    lowerings: int = 0
    withdrawals: int = 0
    denied: frozenset[str] = frozenset()


class Explorer:
    """Breadth first over all histories; ``without`` names what is left out of ``ALL``.

    ``writers`` are registered at first, with ``horizon``; ``restarts`` more incarnations may start. There are
    ``switches`` to another generation one after the other; up to ``aborts`` preparations are dropped, ``fences``
    writers fenced, ``lowerings`` horizons lowered for them, and ``withdrawals`` generations taken back.
    """

    def __init__(
        self,
        without: str | None = None,
        writers: tuple[str, ...] = ("w",),
        restarts: int = 1,
        horizon: int = 3,
        switches: int = 1,
        aborts: int = 0,
        fences: int = 0,
        lowerings: int = 0,
        withdrawals: int = 0,
    ) -> None:
        assert without is None or without in ALL, without
        self._on = ALL - {without}
        self._switches, self._aborts, self._fences = switches, aborts, fences
        self._lowerings, self._withdrawals = lowerings, withdrawals
        self._restarts = restarts
        self._writers = writers
        self._states: list[ClusterState] = []
        self._numbers: dict[ClusterState, int] = {}
        self._decided: dict[tuple[int, Command], int | Rejected] = {}
        self._prepare: dict[int, int] = {}
        self._first_horizon = horizon
        self.seen = 0

    def explore(self) -> str | None:
        """The first broken promise, None if every history is in order."""
        start = World(
            (self._number(founded_with(self._writers, self._first_horizon)),),
            tuple(Process(name, f"{name}-0", 1) for name in self._writers),
            commits_left=self._switches + self._withdrawals,
            aborts=self._aborts,
            fences=self._fences,
            lowerings=self._lowerings,
            withdrawals=self._withdrawals,
        )
        known = {start}
        queue = deque([start])
        while queue:
            world = queue.popleft()
            for following in self._steps(world):
                if isinstance(following, str):
                    return following
                if following not in known:
                    if self._is_wrong(following):
                        return WRONG
                    known.add(following)
                    if not self._is_settled(following):
                        queue.append(following)
        self.seen = len(known)
        return None

    def _number(self, state: ClusterState) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _is_wrong(self, world: World) -> bool:
        if world.write is None:
            return False
        timestamp, routed_under, _ = world.write
        operating = generation_at(self._states[world.log[-1]].generations, timestamp)
        return operating is None or operating.timestamp != routed_under

    def _is_settled(self, world: World) -> bool:
        """The write is routed and the last switch over: nothing that can follow changes the verdict."""
        is_last = len(self._states[world.log[-1]].generations) > self._switches
        return world.write is not None and is_last and not world.withdrawals

    # ------------------------------------------------------------------------------------------------- steps

    def _steps(self, world: World) -> Iterator[World | str]:
        for index, process in enumerate(world.processes):
            yield from self._steps_of(world, index, process)
        yield from self._coordinator(world)
        yield from self._operator(world)
        if len(world.processes) < len(self._writers) + self._restarts:
            for name in self._writers:
                number = sum(process.writer == name for process in world.processes)
                incarnation = f"{name}-{number}"
                # It may start from any part of the log that it has, however old.
                fresh = [
                    Process(name, incarnation, folded, sent=RegisterCdcWriter(name, incarnation))
                    for folded in range(1, len(world.log) + 1)
                ]
                yield from (replace(world, processes=(*world.processes, process)) for process in fresh)

    def _steps_of(self, world: World, index: int, process: Process) -> Iterator[World | str]:
        def with_(changed: Process, **more: object) -> World:
            processes = (*world.processes[:index], changed, *world.processes[index + 1 :])
            return replace(world, processes=processes, **more)  # type: ignore[arg-type]

        if process.folded < len(world.log):
            done = process.entry == process.folded
            yield with_(
                replace(
                    process,
                    folded=process.folded + 1,
                    sent=None if done else process.sent,
                    entry=None if done else process.entry,
                )
            )
        if process.sent is not None and process.entry is None:
            after = self._decide(world, process.sent)
            if isinstance(after, Rejected):
                yield with_(replace(process, sent=None))
            else:
                yield with_(replace(process, entry=len(world.log)), log=(*world.log, after))
        record = self._states[world.log[process.folded - 1]].writers[process.writer]
        if record.incarnation != process.incarnation and self._must_be_registered(process):
            return
        if process.sent is None and process.left:
            used = world.write[0] if world.write is not None and world.write[2] == index else 0
            for horizon in range(used + 1, LAST + 1):
                if horizon >= record.low_watermark:
                    command = AdvanceCdcWriter(process.writer, process.incarnation, horizon, record.low_watermark)
                    yield with_(replace(process, sent=command, left=process.left - 1))
        if world.write is None and process.incarnation not in world.denied:
            for timestamp in range(FIRST, self._horizon(process, record)):
                for folded in self._read_at(process):
                    operating = generation_at(self._states[world.log[folded - 1]].generations, timestamp)
                    assert operating is not None
                    yield replace(world, write=(timestamp, operating.timestamp, index))

    def _read_at(self, process: Process) -> range:
        """Numbers of folded entries at which it may have read the generations; it looks at its horizon now."""
        if "knowledge and horizon of one state" in self._on:
            return range(process.folded, process.folded + 1)
        return range(1, process.folded + 1)

    def _must_be_registered(self, process: Process) -> bool:
        """A process that is not the current incarnation in what it has folded is not registered yet, or has ended."""
        registering = isinstance(process.sent, RegisterCdcWriter)
        return not registering or "registration folded first" in self._on

    def _horizon(self, process: Process, record: CdcWriter) -> int:
        """Below which timestamp the process routes."""
        horizon = record.horizon
        if isinstance(process.sent, AdvanceCdcWriter):
            if process.sent.horizon < horizon and "lowering binds at once" in self._on:
                horizon = process.sent.horizon
            if process.sent.horizon > horizon and "folded horizon" not in self._on:
                horizon = process.sent.horizon
        return horizon

    def _operator(self, world: World) -> Iterator[World]:
        """A fence, which is decided at once: the broker denies this incarnation and all before it, for ever."""
        state = self._states[world.log[-1]]
        for name in self._writers if world.fences else ():
            found = state.writers[name]
            command = FenceCdcWriter(name, found.incarnation, (), "gone")
            after = self._decide(world, command)
            if not isinstance(after, Rejected):
                ended = {found.incarnation, *found.ended}
                # One that registers later has rights that were given to it later.
                denied = frozenset(world.denied | ended) if "rights before the fence" in self._on else world.denied
                yield replace(world, log=(*world.log, after), fences=world.fences - 1, denied=denied)
        yield from self._mending(world)

    def _mending(self, world: World) -> Iterator[World]:
        """What a wrong clock left is taken back, which is decided at once, too."""
        state = self._states[world.log[-1]]
        for name in self._writers if world.lowerings else ():
            found = state.writers[name]
            mine = world.write is not None and world.processes[world.write[2]].writer == name
            used = world.write[0] if mine and world.write and "lowered above what was used" in self._on else 0
            for horizon in range(max(used + 1, found.low_watermark), found.horizon):
                after = self._decide(world, LowerCdcWriter(name, found.incarnation, horizon, "a clock was ahead"))
                if not isinstance(after, Rejected):
                    yield replace(world, log=(*world.log, after), lowerings=world.lowerings - 1)
        if world.withdrawals and len(state.generations) > 1:
            after = self._decide(world, WithdrawCdcGeneration(state.generations[-1].id, SEED, "a clock was ahead"))
            if not isinstance(after, Rejected):
                yield replace(world, log=(*world.log, after), commit=None, withdrawals=world.withdrawals - 1)

    def _coordinator(self, world: World) -> Iterator[World | str]:
        head = world.log[-1]
        state = self._states[head]
        if state.prepared is not None and world.aborts:
            dropped = self._number(replace(state, prepared=None))
            yield replace(world, log=(*world.log, dropped), commit=None, aborts=world.aborts - 1)
        if state.prepared is None:
            if len(state.generations) <= self._switches:
                after = self._prepare.get(head)
                if after is None:
                    after = self._prepare[head] = self._number(prepared_in(state))
                yield replace(world, log=(*world.log, after))
            return
        if world.commit is not None:
            timestamp, was_above = world.commit
            digest = ranges_digest(tuple(item for _, part in state.prepared.received for item in part))
            after = self._decide(world, CommitCdcGeneration(state.prepared.id, timestamp, digest))
            if not isinstance(after, Rejected):
                yield replace(world, commit=None, log=(*world.log, after))
            elif was_above:
                yield CHASED
            else:
                yield replace(world, commit=None)
        elif world.commits_left:
            highest = max(state.generations[-1].timestamp, *(writer.horizon for writer in state.writers.values()))
            for timestamp in range(FIRST + 1, LAST + 2):
                yield replace(world, commit=(timestamp, timestamp > highest), commits_left=world.commits_left - 1)

    # ------------------------------------------------------------------------------------------------- rules

    def _decide(self, world: World, command: Command) -> int | Rejected:
        """The number of the next state of the log, by the kernel's rules but for one that may be left out."""
        head = world.log[-1]
        after = self._decided.get((head, command))
        if after is None:
            decision = _decided(self._states[head], command, self._on)
            after = self._number(decision.state) if isinstance(decision, Accepted) else decision
            self._decided[head, command] = after
        return after


def _decided(state: ClusterState, command: Command, rules: frozenset[str]) -> Decision:
    match command:
        case RegisterCdcWriter():
            decision = decide_register_cdc_writer(state, command, NOW)
            if isinstance(decision, Accepted) and "floor" not in rules:
                writers = decision.state.writers
                lower = replace(writers[command.writer], floor=0)
                return Accepted(replace(decision.state, writers=writers.set(command.writer, lower)))
            if isinstance(decision, Accepted) and "a fenced name keeps its horizon" not in rules:
                return _anew(state, command, decision)
            return decision
        case FenceCdcWriter():
            return decide_fence_cdc_writer(state, command, NOW)
        case LowerCdcWriter():
            return _lowered(state, command, rules)
        case WithdrawCdcGeneration():
            seen = state if "only what no horizon reaches is withdrawn" in rules else replace(state, writers=Map())
            decision = decide_withdraw_cdc_generation(seen, command, NOW)
            if not isinstance(decision, Accepted):
                return decision
            return Accepted(_with_data(replace(decision.state, writers=state.writers)))
        case AdvanceCdcWriter():
            if "current incarnation only" not in rules:
                command = replace(command, incarnation=state.writers[command.writer].incarnation)
            seen = state if "frozen while prepared" in rules else replace(state, prepared=None)
            decision = decide_advance_cdc_writer(seen, command, NOW)
            return (
                Accepted(replace(decision.state, prepared=state.prepared))
                if isinstance(decision, Accepted)
                else decision
            )
        case CommitCdcGeneration():
            seen = state if "above every horizon" in rules else replace(state, writers=Map())
            if "horizons of fenced writers" not in rules:
                left = {name: found for name, found in state.writers.items() if found.fenced is None}
                seen = replace(state, writers=Map(left))
            decision = decide_commit_cdc_generation(seen, command, NOW)
            return (
                Accepted(_published(replace(decision.state, writers=state.writers)))
                if isinstance(decision, Accepted)
                else decision
            )
    raise NotImplementedError(command)


def _lowered(state: ClusterState, command: LowerCdcWriter, rules: frozenset[str]) -> Decision:
    found = state.writers[command.writer]
    if "only fenced writers are lowered" in rules or found.fenced is not None:
        return decide_lower_cdc_writer(state, command, NOW)
    fenced = replace(state, writers=state.writers.set(command.writer, replace(found, fenced=1)))
    decision = decide_lower_cdc_writer(fenced, command, NOW)
    if not isinstance(decision, Accepted):
        return decision
    lowered = replace(decision.state.writers[command.writer], fenced=None)
    return Accepted(replace(decision.state, writers=decision.state.writers.set(command.writer, lowered)))


def _anew(state: ClusterState, command: RegisterCdcWriter, decision: Accepted) -> Accepted:
    """A fenced name begins like a new one, with the start of the oldest open generation for its horizon."""
    if state.writers[command.writer].fenced is None:
        return decision
    made = decision.state.writers[command.writer]
    low = replace(made, horizon=made.low_watermark, floor=made.low_watermark)
    return Accepted(replace(decision.state, writers=decision.state.writers.set(command.writer, low)))


def _published(state: ClusterState) -> ClusterState:
    """The last generation is published at once: that is not what this model is about."""
    last = replace(state.generations[-1], status="published", published=1)
    return replace(state, generations=(*state.generations[:-1], last))


NOW = EntryContext(1, "state", 0)
"""The same for every entry, so that situations that differ only in their epochs are one."""


TOKENS = {0: "a", 10: "a"}
NODES = directory((1, 0))


def founded_with(names: tuple[str, ...], horizon: int) -> ClusterState:
    """Two tokens, a published generation that is not optimal (it knows one), registered writers with some horizon."""
    first = Generation("first", FIRST, generate({0: "a"}, NODES, SEED), "published", 1, 1, None, ())
    writers = {name: CdcWriter(name, f"{name}-0", 1, horizon, FIRST, FIRST, (), ()) for name in names}
    return ClusterState(nodes=Map(NODES), token_owners=Map(TOKENS), generations=(first,), writers=Map(writers))


def prepared_in(state: ClusterState) -> ClusterState:
    """The state with a generation prepared, all its data there; the ring has grown by one token if it must."""
    owners = {**TOKENS, **{10 * number: "a" for number in range(2, len(state.generations) + 1)}}
    state = replace(state, token_owners=Map(owners))
    # No record, which would tell states apart; the epoch names the generation.
    now = replace(NOW, epoch=NOW.epoch + len(state.generations))
    decision = decide_request_cdc_generation(state, RequestCdcGeneration(SEED, ""), now)
    assert isinstance(decision, Accepted)
    return _with_data(decision.state)


def _with_data(state: ClusterState) -> ClusterState:
    """The state with all data of the generation that is prepared, if one is and has none."""
    if state.prepared is None or state.prepared.parts:
        return state
    ranges = generate(dict(state.token_owners), NODES, SEED)
    for part in parts_of(state.prepared.id, ranges):
        decision = decide_put_cdc_generation_data(state, part, NOW)
        assert isinstance(decision, Accepted)
        state = decision.state
    return state
