"""One verdict on each write, by every judge at every time: the rule, and what a reader must have folded for it.

The verdict is a function of the write, its append time and the log. The state's **settled time** makes it so: no entry
changes a verdict on a write appended below the settled time of the state that it is decided on.

- A reader judges a write once it has folded a settled time above all that the write uses: its append time, and each
  of its timestamps that is not refused as of the future (``is_settled``).
- What an entry changes for writes counts for those appended from the settled time on (``schema.table_versions``,
leeways); a
  generation starts at its own timestamp, which is not below it.
- The name and the append time say which table is meant. What the author names must fit: the table's id; its version, or
  the last one that there was at an epoch. A version may be named from when it counts until an hour after its end.
- What is not so at the append time has one code, whether it is to come, is over, or never was.

- After it has read a write, and before it judges it, a node folds all that the log has then. So a write that is judged
  by a state from before an entry was appended before it.

A writer's horizon raises the settled time, for who routes below a horizon judges there, too (``raised``); an operator
may take back what wrong clocks promised (``lowered_to``). Explored by ``tests.kernel.verdicts``: without any part of
this two readers disagree, or a write stops them. Where no settled time was ever promised, the newest state judges, as
it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from ringlog.kernel.generations.statements import TableShape, shape_of_table
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import PastLeeway, Settled, Table, TableLifetime, TableVersion
from ringlog.kernel.values import Epoch, Micros

UNKNOWN_TABLE: Final = "unknown_table"
UNKNOWN_VERSION: Final = "unknown_version"
FORGOTTEN: Final = "verdict_forgotten"
LEEWAYS_MAX: Final = 1_000


class NamedVersion(Protocol):
    """What a write says about the table that its author knew; None: nothing."""

    @property
    def keyspace(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def table_id(self) -> str | None: ...
    @property
    def table_version(self) -> str | None: ...
    @property
    def epoch(self) -> Epoch | None: ...


@dataclass(frozen=True, slots=True)
class CountedVersion:
    """A version of a table: when it counts and may be named (``end`` None: as long as its table), what it is."""

    since: Micros
    end: Micros | None
    id: str
    version: str
    epoch: Epoch
    shape: TableShape


@dataclass(frozen=True, slots=True)
class CountedLifetime:
    """A table's versions, ascending; it takes no writes from ``until`` on."""

    versions: tuple[CountedVersion, ...]
    until: Micros | None = None


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """What counts when. ``settled``, ``forgotten``: as in the state. ``lifetimes``: by name; ``leeways``: (leeway,
    until) of the past, ascending. ``since``: for writes appended from then on nothing but the newest counts.
    """

    settled: Micros = 0
    forgotten: Micros = 0
    lifetimes: Mapping[str, tuple[CountedLifetime, ...]] = field(default_factory=dict)
    leeways: tuple[tuple[Micros, Micros], ...] = ()
    since: Micros = 0

    @property
    def newest_since(self) -> Micros:
        """The newest tables and the newest leeway judge writes appended from then on that name nothing."""
        return max(self.since, self.forgotten)

    def is_newest(self, write: NamedVersion, now: Micros) -> bool:
        """True if they judge a write that was appended at ``now``."""
        names_nothing = write.table_id is None and write.table_version is None and write.epoch is None
        return names_nothing and now >= self.newest_since


def history_of(state: ClusterState, before: tuple[ClusterState, SchemaHistory] | None = None) -> SchemaHistory:
    """What the state keeps of what counted before, and the names of all that counts now. ``before``: the history of
    another state; what it says of tables that are the same objects is not worked out again.
    """
    other, known = before or (state, SchemaHistory())
    lifetimes: dict[str, tuple[CountedLifetime, ...]] = {}
    for name, table in in_order(state.tables):
        if name not in state.table_lives:
            is_known = other.tables.get(name) is table and name not in other.table_lives and name in known.lifetimes
            lifetimes[name] = known.lifetimes[name] if is_known else (_newest(table),)
    past: dict[str, tuple[CountedLifetime, ...]] = {}
    for name, kept in in_order(state.table_lives):
        is_known = other.table_lives.get(name) is kept and name in known.lifetimes
        past[name] = known.lifetimes[name] if is_known else tuple(map(_counted_lifetime, kept))
    assert lifetimes.keys().isdisjoint(past), "what is known of a table's past says what counts now, too"
    leeways = tuple((one.leeway, one.until) for one in state.settled.leeways)
    ends = [until for _, until in leeways]
    for found in past.values():
        ends += [end for lifetime in found for end in (lifetime.versions[-1].since, lifetime.until or 0)]
    return SchemaHistory(state.settled.until, state.settled.forgotten, lifetimes | past, leeways, max(ends, default=0))


def resettled(history: SchemaHistory, state: ClusterState) -> SchemaHistory:
    """The history of a state that differs by what is settled alone; what is forgotten changes nothing else here."""
    leeways = tuple((one.leeway, one.until) for one in state.settled.leeways)
    return replace(history, settled=state.settled.until, forgotten=state.settled.forgotten, leeways=leeways)


def _newest(table: Table) -> CountedLifetime:
    return CountedLifetime((_version(TableVersion(table, 0)),))


def _counted_lifetime(lifetime: TableLifetime) -> CountedLifetime:
    return CountedLifetime(tuple(map(_version, lifetime.versions)), lifetime.until)


def _version(one: TableVersion) -> CountedVersion:
    table = one.table
    return CountedVersion(one.since, one.end, table.id, table.version, table.changed, shape_of_table(table))


def version_at(history: SchemaHistory, write: NamedVersion, now: Micros) -> CountedVersion | str:
    """The version of a table that reads a write appended at ``now``, or the code of the rule that refuses it."""
    for lifetime in _lifetimes_of(history, write):
        if lifetime.versions[0].since <= now:
            break
    else:
        return UNKNOWN_TABLE
    if lifetime.until is not None and now >= lifetime.until:
        return UNKNOWN_TABLE
    if write.table_id not in (None, lifetime.versions[0].id):
        return UNKNOWN_TABLE
    counting = [version for version in lifetime.versions if version.since <= now]
    if not history.settled or (write.table_version is None and write.epoch is None):
        return counting[-1]
    if write.table_version is not None:
        named = [version for version in counting if version.version == write.table_version]
    else:
        assert write.epoch is not None, "it is named"
        named = [version for version in counting if version.epoch <= write.epoch]
    if not named or ((end := named[-1].end) is not None and now >= end):
        return UNKNOWN_VERSION
    return named[-1]


def _lifetimes_of(history: SchemaHistory, write: NamedVersion) -> Sequence[CountedLifetime]:
    """The tables that had the name, the last one first."""
    return history.lifetimes.get(f"{write.keyspace}.{write.table}", ())[::-1]


def newest_of(history: SchemaHistory, name: str) -> CountedVersion | None:
    """The newest version of the table that has the name, if one has."""
    last = history.lifetimes[name][-1]
    return last.versions[-1] if last.until is None else None


def widest_leeway(state: ClusterState) -> Micros:
    """The greatest leeway that counts for any write that is still judged."""
    return max([setting(state, "cdc_leeway_us"), *(one.leeway for one in state.settled.leeways)])


def leeway_for(history: SchemaHistory, newest: Micros, now: Micros) -> Micros:
    """The leeway for writes appended at ``now``; ``newest``: the one that is set."""
    return next((leeway for leeway, until in history.leeways if now < until), newest)


def used_by(timestamps: Iterable[Micros], now: Micros, leeway: Micros) -> Micros:
    """The greatest time that the verdict depends on of a write of these timestamps that was appended at ``now``.

    ``leeway``: for that time. A timestamp beyond it is refused whatever comes.
    """
    greatest = now
    for found in timestamps:
        if greatest < found <= now + leeway:
            greatest = found
    return greatest


def is_settled(history: SchemaHistory, used: Micros) -> bool:
    """True if no later entry can change a verdict that depends on times up to ``used``."""
    return history.settled == 0 or used < history.settled


# ------------------------------------------------------------------------------------------------------- entries


def raised(state: ClusterState, horizon: Micros) -> Settled:
    """What the state promises once a writer's horizon is raised: it is in use from the first ``SettleVerdicts`` on."""
    settled = state.settled
    return replace(settled, until=horizon) if 0 < settled.until < horizon else settled


def with_leeway(state: ClusterState) -> Settled:
    """What the state keeps once its leeway is another one."""
    settled, before = state.settled, setting(state, "cdc_leeway_us")
    if settled.until == 0 or (settled.leeways and settled.leeways[-1].until == settled.until):
        return settled  # nobody has judged yet, or what was in between counted for no write
    return replace(settled, leeways=(*settled.leeways, PastLeeway(before, settled.until)))


def lowered_to(state: ClusterState, until: Micros, epoch: Epoch) -> Settled:
    """What the state keeps once entry ``epoch`` has taken its settled time back to ``until``, above what is forgotten.

    Leeways that were to end above it end there; of several the first one, for the others counted for no write.
    """
    before = state.settled
    kept = tuple(one for one in before.leeways if one.until < until)
    cut = tuple(replace(one, until=until) for one in before.leeways[len(kept) :][:1])
    return replace(before, until=until, leeways=(*kept, *cut), lowered=epoch)
