"""One verdict on each write: the rule as a model small enough to explore to its end.

The log holds schema changes, changes of the leeway, generations, and entries that raise its *settled time*: the
promise that nothing which is decided later changes a verdict on a write appended below it. A write has an append time,
which any broker's clock may have given it (late, early, going back), a timestamp, a column, and what its author names:
nothing, an epoch, a table's id, or a table's id and version. All of that is free: no clock is modelled, so no clock is
trusted. Every write is there from the beginning, unless the log may have its settled time *lowered*: then writes are
appended one after the other, and a reader judges what is there when it reads.

A reader is a prefix of the log. One that is slow, one that was started again, a job that goes on from a checkpoint and
a node that replays after a week are all prefixes, of different length. So the promise is: **two prefixes of one log
never give two verdicts on one write**. A prefix may also say that it is too early to judge (``None``), and that the
write is older than anything it has kept (``GONE``, only of writes that could be judged before); neither is a verdict.
Three more promises keep the rule useful: a write that names a table's id never lands in another table; one that names
what counts at its append time is read by it; and for every write the log can be brought to a state that judges it, so
that no write stops a reader. Where the settled time is lowered one more: what the log says by now counts from the
settled time on.

A node folds the log once it has read a write, so a prefix judges only what was appended before the entry that follows
it. A CDC writer does not: below the horizon that a prefix gives it, it judges by that prefix whatever comes later.

Invariant of the exploration: ``said`` has the verdict of every write that some prefix of this log has judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

NEVER = 99
"""Later than every time of the model."""

SETTLED_FIRST = "judged only below the settled time"
SINCE_SETTLED = "a change counts from the settled time on"
SETTINGS_SINCE = "a setting counts from the settled time on, too"
KEPT = "earlier versions are kept"
DROPS_KEPT = "dropped tables are kept"
NEVER_SINKS = "the settled time never sinks"
GENERATION_ABOVE = "a generation starts above the settled time"
WITHDRAWN_ABOVE = "a generation is withdrawn only above the settled time"
TIMESTAMP_TOO = "the timestamp is below the settled time, too"
ID_DECIDES = "the id decides which table is meant"
EPOCH_CAPPED = "an epoch names only what counts at the append time"
ONE_CODE = "one code for not yet, never and gone"
NAMES_END = "the name of a replaced version ends"
FORGOTTEN_LATE = "only what no name reaches is forgotten"
SETTLED_FORGETS = "only below the settled time is forgotten"
GONE_IS_NONE = "a write below the forgotten time is not judged"
OLD_READS = "a version that was replaced may still be named"
NO_WAIT = "no reader waits for an epoch"
READ_FIRST = "a node folds the log after it has read a write"
LOWERED_ABOVE_USED = "the settled time sinks to above all append times only"
LOWERED_STAMPS_TOO = "and above all timestamps"
LOWERED_ABOVE_HORIZON = "the settled time never sinks below a CDC writer's horizon"
LOWERED_ABOVE_FORGOTTEN = "the settled time never sinks below what is forgotten"
LOWERED_CUTS = "what was to count from above the lowered time counts from there"
ALL = frozenset(
    {
        SETTLED_FIRST,
        SINCE_SETTLED,
        SETTINGS_SINCE,
        KEPT,
        DROPS_KEPT,
        NEVER_SINKS,
        GENERATION_ABOVE,
        WITHDRAWN_ABOVE,
        TIMESTAMP_TOO,
        ID_DECIDES,
        EPOCH_CAPPED,
        ONE_CODE,
        NAMES_END,
        FORGOTTEN_LATE,
        SETTLED_FORGETS,
        GONE_IS_NONE,
        OLD_READS,
        NO_WAIT,
        READ_FIRST,
        LOWERED_ABOVE_USED,
        LOWERED_STAMPS_TOO,
        LOWERED_ABOVE_HORIZON,
        LOWERED_ABOVE_FORGOTTEN,
        LOWERED_CUTS,
    }
)

GONE = "gone"
DISAGREE = "two readers give two verdicts"
WRONG_TABLE = "a write lands in a table that its author did not name"
NOT_READ = "a version that counts cannot be named"
LOST = "a write is taken for old that nobody has judged"
STOPPED = "a write can never be judged"
LATE = "what the log says does not count from the settled time on"

GRACE = 1
"""How long after its end a version may be named."""


@dataclass(frozen=True, slots=True)
class Version:
    """A table's columns as of ``epoch``; for writes it counts from ``since``, and may be named until ``end``."""

    number: int
    epoch: int
    since: int
    columns: str
    end: int = NEVER


@dataclass(frozen=True, slots=True)
class Life:
    """A table, from its CREATE to its DROP. All have the same name; ``until``: from then on it takes no writes."""

    id: str
    epoch: int
    since: int
    versions: tuple[Version, ...]
    until: int = NEVER
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """What a prefix of the log says; ``horizon``: the CDC writer's. Where it matters, ``topic``: the writes that were
    appended by then, and ``past``: the shorter prefixes.
    """

    epoch: int = 1
    settled: int = 1
    lifetimes: tuple[Life, ...] = ()
    leeways: tuple[tuple[int, int], ...] = ((0, 1),)
    generations: tuple[int, ...] = ()
    forgotten: int = 0
    horizon: int = 0
    topic: tuple[Write, ...] = ()
    past: frozenset[State] = frozenset()

    @property
    def table(self) -> Life | None:
        """The one that has the name at this epoch."""
        return self.lifetimes[-1] if self.lifetimes and not self.lifetimes[-1].is_dropped else None


@dataclass(frozen=True, slots=True)
class Write:
    """A write of one cell. ``epoch`` 0, ``table`` empty, ``version`` 0: its author names none."""

    appended: int
    timestamp: int
    column: str
    table: str = ""
    version: int = 0
    epoch: int = 0


@dataclass(slots=True)
class Explorer:
    """Breadth first over all logs of ``length`` entries of ``kinds``; ``without``: what is left out of ``ALL``.

    Times are at most ``last``. ``start``: the state that every log begins with.
    """

    without: str | None = None
    kinds: tuple[str, ...] = ("settle", "create", "alter", "drop")
    writes: tuple[Write, ...] = ()
    length: int = 5
    last: int = 4
    start: State = field(default_factory=State)
    seen: int = 0
    found: tuple[str, ...] = ()

    def explore(self) -> str | None:
        """The first broken promise, None if no log breaks one. ``found``: the entries of the log that does."""
        assert self.without is None or self.without in ALL, self.without
        said = self._said(self.start, MappingProxyType({}))
        if isinstance(said, str):
            return said
        queue: deque[tuple[State, Mapping[Write, str], tuple[str, ...]]] = deque([(self.start, said, ())])
        known: set[tuple[State, frozenset[tuple[Write, str]]]] = set()
        while queue:
            state, said, log = queue.popleft()
            self.seen += 1
            if len(log) == self.length:
                continue
            for name, following in self._entries(state):
                now = self._said(following, said)
                if isinstance(now, str):
                    self.found = (*log, name)
                    return now
                key = (following, frozenset(now.items()))
                if key not in known:
                    known.add(key)
                    queue.append((following, now, (*log, name)))
        return None

    def _on(self, rule: str) -> bool:
        return rule != self.without

    # ------------------------------------------------------------------------------------------------ promises

    def _said(self, state: State, said: Mapping[Write, str]) -> Mapping[Write, str] | str:
        """The verdicts with those of one more reader, or the promise that this reader breaks."""
        after = dict(said)
        if "lower" in self.kinds and not self._counts_by_now(state):
            return LATE
        for reader, write in self._judged(state):
            verdict = self.verdict(reader, write)
            if verdict is None:
                if self._is_stuck(reader, write):
                    return STOPPED
            elif verdict == GONE:
                if write not in said:
                    return LOST
            else:
                if after.setdefault(write, verdict) != verdict:
                    return DISAGREE
                if write.table and verdict.startswith("row") and verdict[4] != write.table:
                    return WRONG_TABLE
                if not verdict.startswith("row") and self._must_be_read(state, write):
                    return NOT_READ
        return after

    def _judged(self, state: State) -> Iterator[tuple[State, Write]]:
        """What is judged now, and by which prefix."""
        if "append" not in self.kinds:
            yield from ((state, write) for write in self.writes)
            return
        yield from ((state, write) for write in state.topic)
        for write in state.topic[-1:]:
            for earlier in state.past:
                if not self._on(READ_FIRST) or _uses(write) < earlier.horizon:
                    yield earlier, write

    def _counts_by_now(self, state: State) -> bool:
        for time in range(state.settled, self.last + 2):
            found = self._version(state, Write(time, time, "a"))
            table = state.table
            if found != ("unknown_table" if table is None else (table, table.versions[-1])):
                return False
        return True

    def _is_stuck(self, state: State, write: Write) -> bool:
        """True if not even a settled time above everything lets a reader judge."""
        return self.verdict(replace(state, settled=NEVER), write) is None

    def _must_be_read(self, state: State, write: Write) -> bool:
        """True if the write names a version of a table that takes writes, replaced since then or not, and fits it."""
        return any(
            lifetime.id == write.table
            and version.number == write.version
            and max(lifetime.since, version.since) <= write.appended < min(lifetime.until, version.end)
            and write.column in version.columns
            and write.timestamp == write.appended
            for lifetime in state.lifetimes
            for version in lifetime.versions
        )

    # ------------------------------------------------------------------------------------------------- the rule

    def verdict(self, state: State, write: Write) -> str | None:
        """What a reader with this prefix says: ``row``, table and version, or a code; None: it is too early."""
        at = write.appended
        if not self._on(NO_WAIT) and write.epoch > state.epoch:
            return None
        if self._on(SETTLED_FIRST):
            uses = _uses(write) if self._on(TIMESTAMP_TOO) else at
            if uses >= state.settled:
                return None
        if at < state.forgotten and self._on(GONE_IS_NONE):
            return GONE
        version = self._version(state, write)
        if isinstance(version, str):
            return version
        lifetime, read_by = version
        if write.column not in read_by.columns:
            return "unknown_column"
        return self._window(state, write) or f"row {lifetime.id} {read_by.number}"

    def _version(self, state: State, write: Write) -> tuple[Life, Version] | str:
        """The table and the version by which the write is read, or the code of its refusal."""
        at = write.appended
        if not self._on(ONE_CODE) and write.table and all(lifetime.id != write.table for lifetime in state.lifetimes):
            return "never_heard_of_table"
        lifetimes = [lifetime for lifetime in state.lifetimes if lifetime.since <= at]
        if not lifetimes or at >= lifetimes[-1].until:
            return "unknown_table"
        lifetime = lifetimes[-1]
        if self._on(ID_DECIDES) and write.table not in ("", lifetime.id):
            return "unknown_table"
        versions = [version for version in lifetime.versions if version.since <= at]
        if write.version:
            named = versions if self._on(OLD_READS) else versions[-1:]
            versions = [version for version in named if version.number == write.version]
        elif write.epoch:
            is_named = [one for one in lifetime.versions if one.since <= at or not self._on(EPOCH_CAPPED)]
            versions = [version for version in is_named if version.epoch <= write.epoch]
        if not versions or (self._on(NAMES_END) and (write.version or write.epoch) and at >= versions[-1].end):
            return "unknown_version"
        return lifetime, versions[-1]

    def _window(self, state: State, write: Write) -> str:
        leeway = [value for since, value in state.leeways if since <= write.appended][-1]
        if write.timestamp > write.appended + leeway:
            return "timestamp_in_future"
        if not state.generations:
            return "no_generation" if write.timestamp >= 0 else ""
        own = sum(start <= write.timestamp for start in state.generations)
        now = sum(start <= write.appended for start in state.generations)
        if own == 0:
            return "no_generation"
        return "timestamp_too_old" if own < now and write.timestamp <= write.appended - leeway else ""

    # ------------------------------------------------------------------------------------------------ the log

    def _entries(self, state: State) -> Iterator[tuple[str, State]]:
        """Every entry that may follow, and every write that may be appended."""
        after = replace(state, epoch=state.epoch + 1)
        if "append" in self.kinds:
            yield from self._appended(state)
            past = replace(state, topic=(), past=frozenset())
            after = replace(after, past=state.past | {past})
        since = state.settled if self._on(SINCE_SETTLED) else 0
        for kind in self.kinds:
            if kind == "create" and state.table is None and len(state.lifetimes) < 2:
                lifetime = Life("xy"[len(state.lifetimes)], after.epoch, since, (Version(1, after.epoch, since, "a"),))
                lifetimes = state.lifetimes if self._on(DROPS_KEPT) else ()
                yield kind, replace(after, lifetimes=(*lifetimes, lifetime))
            elif kind == "alter" and state.table is not None and state.table.versions[-1].number < 3:
                yield kind, self._with(after, self._altered(state.table, after.epoch, since))
            elif kind == "drop" and state.table is not None:
                dropped = replace(state.table, until=since, is_dropped=True)
                yield kind, self._with(after, dropped) if self._on(DROPS_KEPT) else replace(after, lifetimes=())
            elif kind == "leeway" and len(state.leeways) < 3:
                begins = state.settled if self._on(SETTINGS_SINCE) else 0
                changed = (begins, 1 - state.leeways[-1][1])
                yield kind, replace(after, leeways=(*state.leeways, changed))
            elif kind == "settle":
                low = state.settled + 1 if self._on(NEVER_SINKS) else 1
                for time in range(low, self.last + 1):
                    yield f"settle {time}", replace(after, settled=time)
            elif kind == "commit" and len(state.generations) < 3:
                low = state.settled if self._on(GENERATION_ABOVE) else 0
                for time in range(max(low, (state.generations or (-1,))[-1] + 1), self.last + 1):
                    yield f"commit {time}", replace(after, generations=(*state.generations, time))
            elif kind == "withdraw" and state.generations:
                if state.generations[-1] >= state.settled or not self._on(WITHDRAWN_ABOVE):
                    yield kind, replace(after, generations=state.generations[:-1])
            elif kind == "forget":
                high = state.settled if self._on(SETTLED_FORGETS) else self.last
                for time in range(state.forgotten + 1, high + 1):
                    yield f"forget {time}", self._forgotten(replace(after, forgotten=time), time)

            elif kind == "promise":
                for time in range(state.horizon + 1, self.last + 1):
                    yield f"promise {time}", replace(after, horizon=time, settled=max(state.settled, time))
            elif kind == "lower":
                for time in range(self._lowest(state), state.settled):
                    yield f"lower {time}", self._lowered(after, time)

    def _appended(self, state: State) -> Iterator[tuple[str, State]]:
        """Nothing comes below what is forgotten, which a right clock has passed; a wrong one's may be above all."""
        for write in self.writes:
            if write not in state.topic and write.appended >= min(state.forgotten, state.settled):
                name = f"append {write.appended}" + (f" of {write.timestamp}" if write.timestamp else "")
                yield name, replace(state, topic=(*state.topic, write))

    def _lowest(self, state: State) -> int:
        """How far the settled time may sink."""
        rules = (
            (LOWERED_ABOVE_USED, max((write.appended + 1 for write in state.topic), default=1)),
            (LOWERED_STAMPS_TOO, max((write.timestamp + 1 for write in state.topic), default=1)),
            (LOWERED_ABOVE_HORIZON, state.horizon),
            (LOWERED_ABOVE_FORGOTTEN, state.forgotten + 1),
        )
        return max(1, *(low for rule, low in rules if self._on(rule)))

    def _lowered(self, state: State, settled: int) -> State:
        if not self._on(LOWERED_CUTS):
            return replace(state, settled=settled)
        lifetimes = []
        for lifetime in state.lifetimes:
            ends = [
                min(version.end, settled + GRACE) if version.end != NEVER else NEVER for version in lifetime.versions
            ]
            versions = tuple(
                replace(version, since=min(version.since, settled), end=end)
                for version, end in zip(lifetime.versions, ends, strict=True)
            )
            until = min(lifetime.until, settled) if lifetime.is_dropped else lifetime.until
            lifetimes.append(replace(lifetime, since=versions[0].since, versions=versions, until=until))
        leeways = tuple((min(since, settled), value) for since, value in state.leeways)
        return replace(state, settled=settled, lifetimes=tuple(lifetimes), leeways=leeways)

    def _altered(self, table: Life, epoch: int, since: int) -> Life:
        """The table after an ALTER: the second version has other columns, the third has both."""
        last = table.versions[-1]
        new = Version(last.number + 1, epoch, since, ("ab", "b")[last.number - 1])
        if not self._on(KEPT):
            return replace(table, versions=(new,))
        ended = replace(last, end=since + GRACE) if self._on(NAMES_END) else last
        return replace(table, versions=(*table.versions[:-1], ended, new))

    def _with(self, state: State, lifetime: Life) -> State:
        return replace(state, lifetimes=(*state.lifetimes[:-1], lifetime))

    def _forgotten(self, state: State, below: int) -> State:
        """The state without the versions and tables that no write from ``below`` on can be read by."""

        def is_needed(lifetime: Life, index: int) -> bool:
            if index == len(lifetime.versions) - 1:
                return True
            end = lifetime.versions[index].end if self._on(NAMES_END) else lifetime.versions[index + 1].since
            return (end if self._on(FORGOTTEN_LATE) else lifetime.versions[index + 1].since) > below

        lifetimes = tuple(
            replace(
                lifetime,
                versions=tuple(one for index, one in enumerate(lifetime.versions) if is_needed(lifetime, index)),
            )
            for lifetime in state.lifetimes
            if lifetime.until > below
        )
        counting = [index for index, (since, _) in enumerate(state.leeways) if since <= below]
        return replace(state, lifetimes=lifetimes, leeways=state.leeways[counting[-1] :])


def _uses(write: Write) -> int:
    """The greatest time that its verdict depends on."""
    return max(write.appended, write.timestamp)
