"""A model of the switch from one generation to the next, small enough for a full exploration.

The log is that of the kernel: the real rules decide each entry. Around it are these actors:

- processes of CDC writers, each with a prefix of the log and at most one submission in flight;
- a coordinator that prepares a generation and submits its commit;
- an operation that can be cancelled, which drops the preparation;
- an operator who fences a writer after the broker denies its processes, lowers the lease of a fenced writer, and
  withdraws an unused generation.

Submissions are decided at any time, or never. A process may be slow indefinitely while its next incarnation runs.

Each history routes one write, by any process at any time, with the generation that the process sees as active at the
write's timestamp. The history fails if the log later has another active generation at that timestamp. One write is
enough, because each failing history with more writes contains one with a single write.

Rules of the kernel and of writers can be disabled, which shows that each is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

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
from ringlog.kernel.values import Command, Value, replace
from tests.kernel.generations.clusters import directory

SEED = bytes(16)
FIRST = 1
"""Start of the first generation. All times are small integers."""
LAST = 4
"""The greatest timestamp and lease."""

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


class Process(Value):
    """One incarnation of a writer.

    Attributes:
        folded: number of applied entries.
        sent: the submission, which became ``entry``.
    """

    writer: str
    incarnation: str
    folded: int
    sent: Command | None = None
    entry: int | None = None
    left: int = 1


class World(Value):
    """One situation: log states, processes, the commit in flight, and the routed write.

    Attributes:
        aborts: number of cancels left.
        denied: incarnations denied by the broker.
        fences, lowerings, withdrawals: number of these left.
        write: timestamp, start of its generation, process.
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
    """Breadth-first exploration of all histories.

    Args:
        without: the rule of ``ALL`` to disable.
        writers: writers registered at the start, with ``horizon``.
        restarts: maximum number of further incarnations.
        switches: number of further generations, one after the other.
        aborts: maximum number of dropped preparations.
        fences, lowerings, withdrawals: maximum number of each.
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
        """Return the first violated invariant, or None."""
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
        """Return True if the write is routed and the last switch is over, so that the result is final."""
        is_last = len(self._states[world.log[-1]].generations) > self._switches
        return world.write is not None and is_last and not world.withdrawals

    # Steps

    def _steps(self, world: World) -> Iterator[World | str]:
        for index, process in enumerate(world.processes):
            yield from self._steps_of(world, index, process)
        yield from self._coordinator(world)
        yield from self._operator(world)
        if len(world.processes) < len(self._writers) + self._restarts:
            for name in self._writers:
                number = sum(process.writer == name for process in world.processes)
                incarnation = f"{name}-{number}"
                # A process may start from any prefix of its log.
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
        """Return the possible positions of the process when it read the generations."""
        if "knowledge and horizon of one state" in self._on:
            return range(process.folded, process.folded + 1)
        return range(1, process.folded + 1)

    def _must_be_registered(self, process: Process) -> bool:
        """Return True if a process must have applied its registration to continue."""
        registering = isinstance(process.sent, RegisterCdcWriter)
        return not registering or "registration folded first" in self._on

    def _horizon(self, process: Process, record: CdcWriter) -> int:
        """Return the upper bound of the timestamps that the process routes."""
        horizon = record.horizon
        if isinstance(process.sent, AdvanceCdcWriter):
            if process.sent.horizon < horizon and "lowering binds at once" in self._on:
                horizon = process.sent.horizon
            if process.sent.horizon > horizon and "folded horizon" not in self._on:
                horizon = process.sent.horizon
        return horizon

    def _operator(self, world: World) -> Iterator[World]:
        """Yield the states after a fence. The broker has denied this incarnation and all earlier ones."""
        state = self._states[world.log[-1]]
        for name in self._writers if world.fences else ():
            found = state.writers[name]
            command = FenceCdcWriter(name, found.incarnation, (), "gone")
            after = self._decide(world, command)
            if not isinstance(after, Rejected):
                ended = {found.incarnation, *found.ended}
                # A later incarnation gets its ACLs later.
                denied = frozenset(world.denied | ended) if "rights before the fence" in self._on else world.denied
                yield replace(world, log=(*world.log, after), fences=world.fences - 1, denied=denied)
        yield from self._clock_repairs(world)

    def _clock_repairs(self, world: World) -> Iterator[World]:
        """Yield the states after the repair of values from a wrong clock, which is decided immediately."""
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

    # Rules

    def _decide(self, world: World, command: Command) -> int | Rejected:
        """Return the number of the next log state by the kernel's rules, except for the disabled rule."""
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
                return _restarted(state, command, decision)
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


def _restarted(state: ClusterState, command: RegisterCdcWriter, decision: Accepted) -> Accepted:
    """Return a decision that starts a fenced writer like a new one, at the oldest active generation."""
    if state.writers[command.writer].fenced is None:
        return decision
    made = decision.state.writers[command.writer]
    low = replace(made, horizon=made.low_watermark, floor=made.low_watermark)
    return Accepted(replace(decision.state, writers=decision.state.writers.set(command.writer, low)))


def _published(state: ClusterState) -> ClusterState:
    """Return the state with the last generation published, because the model excludes publication."""
    last = replace(state.generations[-1], status="published", published=1)
    return replace(state, generations=(*state.generations[:-1], last))


NOW = EntryContext(1, "state", 0)
"""The same context for each entry, so that situations do not differ only in epochs."""


TOKENS = {0: "a", 10: "a"}
NODES = directory((1, 0))


def founded_with(names: tuple[str, ...], horizon: int) -> ClusterState:
    """Return a state with two tokens, a published generation of one token, and registered writers."""
    first = Generation("first", FIRST, generate({0: "a"}, NODES, SEED), "published", 1, 1, None, ())
    writers = {name: CdcWriter(name, f"{name}-0", 1, horizon, FIRST, FIRST, (), ()) for name in names}
    return ClusterState(nodes=Map(NODES), token_owners=Map(TOKENS), generations=(first,), writers=Map(writers))


def prepared_in(state: ClusterState) -> ClusterState:
    """Return the state with a prepared generation and all its data. The ring gets one more token if needed."""
    owners = {**TOKENS, **{10 * number: "a" for number in range(2, len(state.generations) + 1)}}
    state = replace(state, token_owners=Map(owners))
    # Without a request record, because it would distinguish states. The epoch names the generation.
    now = replace(NOW, epoch=NOW.epoch + len(state.generations))
    decision = decide_request_cdc_generation(state, RequestCdcGeneration(SEED, ""), now)
    assert isinstance(decision, Accepted)
    return _with_data(decision.state)


def _with_data(state: ClusterState) -> ClusterState:
    """Return the state with all data of the prepared generation."""
    if state.prepared is None or state.prepared.parts:
        return state
    ranges = generate(dict(state.token_owners), NODES, SEED)
    for part in parts_of(state.prepared.id, ranges):
        decision = decide_put_cdc_generation_data(state, part, NOW)
        assert isinstance(decision, Accepted)
        state = decision.state
    return state
