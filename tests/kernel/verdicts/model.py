"""A model of the validation rule for writes, small enough for a full exploration.

The log contains schema changes, changes of the allowed lateness, generations, and entries that raise its *validation
watermark*. No later entry changes a decision on a write appended below the watermark. A write has an append time, a
timestamp, a column, and the reference of its author: none, an epoch, a table id, or a table id and version. The append
time comes from any broker's clock, so it may be late, early or decreasing. The model trusts no clock.

All writes exist from the start, unless the log may lower its watermark. In that case writes are appended one after the
other, and a reader validates the existing writes when it reads.

A reader is a prefix of the log. Slow readers, restarted readers, jobs that continue from a checkpoint and nodes that
replay a week are prefixes of different length. The invariant is: **two prefixes of a log never make two decisions on
one write**. A prefix may answer that it is too early (``None``), or that the write is older than its stored versions
(``GONE``, only for writes that were decidable before). Neither is a decision.

Three further invariants make the rule useful. A write with a table id never enters another table. A write with a valid
reference at its append time is read by that version. For each write, some extension of the log decides it, so no write
blocks a reader. For a lowered watermark there is one more: the current content of the log counts from the watermark on.

A node applies the log after it has read a write, so a prefix validates only the writes appended before its next entry.
A CDC writer validates all writes below its lease by the prefix that granted the lease.

Invariant of the exploration: ``said`` contains the decision on each write that a prefix of this log has decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringlog.kernel.values import Value, replace

NEVER = 99
"""Later than all times of the model."""

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
"""A version can be named for this time after its end."""


class Version(Value):
    """The columns of a table at ``epoch``. Writes use them from ``since``, and may name them until ``end``."""

    number: int
    epoch: int
    since: int
    columns: str
    end: int = NEVER


class Life(Value):
    """A table from CREATE to DROP. All have the same name. From ``until`` on, the table accepts no writes."""

    id: str
    epoch: int
    since: int
    versions: tuple[Version, ...]
    until: int = NEVER
    is_dropped: bool = False


class State(Value):
    """The content of a prefix of the log. ``horizon`` is the lease of the CDC writer.

    With a lowered watermark, ``topic`` contains the writes appended so far, and ``past`` the shorter prefixes.
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
        """Return the table with the name at this epoch."""
        return self.lifetimes[-1] if self.lifetimes and not self.lifetimes[-1].is_dropped else None


class Write(Value):
    """A write of one cell. An epoch of 0, an empty table and a version of 0 mean no reference."""

    appended: int
    timestamp: int
    column: str
    table: str = ""
    version: int = 0
    epoch: int = 0


@dataclass(slots=True)
class Explorer:
    """Breadth-first exploration of all logs of ``length`` entries of ``kinds``.

    Args:
        without: the part of ``ALL`` to disable.
        last: the greatest time.
        start: the first state of each log.
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
        """Return the first violated invariant, or None. ``found`` then contains the entries of the log."""
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

    # Invariants

    def _said(self, state: State, said: Mapping[Write, str]) -> Mapping[Write, str] | str:
        """Return the decisions extended by one more reader, or the invariant that this reader violates."""
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
        """Yield the pairs of reader and write to validate in this state."""
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
        """Return True if no watermark lets a reader decide."""
        return self.verdict(replace(state, settled=NEVER), write) is None

    def _must_be_read(self, state: State, write: Write) -> bool:
        """Return True if the write fits a version that it names, of a table that accepts writes."""
        return any(
            lifetime.id == write.table
            and version.number == write.version
            and max(lifetime.since, version.since) <= write.appended < min(lifetime.until, version.end)
            and write.column in version.columns
            and write.timestamp == write.appended
            for lifetime in state.lifetimes
            for version in lifetime.versions
        )

    # Rule

    def verdict(self, state: State, write: Write) -> str | None:
        """Return the decision of a reader with this prefix: ``row`` with table and version, or a code. Return None if
        it is too early.
        """
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
        """Return the table and version that read the write, or the rejection code."""
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

    # Log

    def _entries(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each possible next entry and each possible append of a write."""
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
        """Yield appends. A correct clock is above the pruned times, and a wrong clock may be above all times."""
        for write in self.writes:
            if write not in state.topic and write.appended >= min(state.forgotten, state.settled):
                name = f"append {write.appended}" + (f" of {write.timestamp}" if write.timestamp else "")
                yield name, replace(state, topic=(*state.topic, write))

    def _lowest(self, state: State) -> int:
        """Return the lowest value of a lowered watermark."""
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
        """Return the table after an ALTER. The second version has other columns, the third has both."""
        last = table.versions[-1]
        new = Version(last.number + 1, epoch, since, ("ab", "b")[last.number - 1])
        if not self._on(KEPT):
            return replace(table, versions=(new,))
        ended = replace(last, end=since + GRACE) if self._on(NAMES_END) else last
        return replace(table, versions=(*table.versions[:-1], ended, new))

    def _with(self, state: State, lifetime: Life) -> State:
        return replace(state, lifetimes=(*state.lifetimes[:-1], lifetime))

    def _forgotten(self, state: State, below: int) -> State:
        """Return the state without the versions and tables that no write from ``below`` on can use."""

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
    """Return the greatest time that the decision depends on."""
    return max(write.appended, write.timestamp)
