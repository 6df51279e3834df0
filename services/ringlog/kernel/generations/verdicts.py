"""The verdict on a write: every validator reaches the same one at any time. This module has the rule and its condition.

The verdict is a function of the write, its append time and the log. The state's validation watermark (*settled time*)
guarantees this: an entry changes no verdict on a write appended below the watermark of the state that decides the
entry.

- A reader judges a write once it has folded a watermark above all times that the write uses (``is_settled``). These are
  its append time, and each of its timestamps that is not rejected as future.
- Changes of an entry apply to writes appended from the watermark on (``schema.table_versions``, leeways). A generation
  starts at its own timestamp, which is not below the watermark.
- The name and the append time select the table. The table's id and version in the write must fit: a write may name a
  version, or the last version as of an epoch. A version may be named from its start until an hour after its end.
- A table or version that does not apply at the append time has one code, whether it is future, past or unknown.
- After a node has read a write and before it judges it, the node folds the whole log. So a write that is judged by a
  state before an entry was appended before that entry.

A writer's horizon raises the watermark, because a writer that routes below a horizon also judges there (``raised``). An
operator may revert promises of wrong clocks (``lowered_to``). ``tests.kernel.verdicts`` explores the protocol: without
any of these parts two readers disagree, or a write stops them. If no watermark was ever promised, the newest state
judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from ringlog.kernel.generations.statements import TableShape, shape_of_table
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import PastLeeway, Settled, Table, TableLifetime, TableVersion
from ringlog.kernel.values import Epoch, Micros, Value, field, replace

UNKNOWN_TABLE: Final = "unknown_table"
UNKNOWN_VERSION: Final = "unknown_version"
FORGOTTEN: Final = "verdict_forgotten"
LEEWAYS_MAX: Final = 1_000


class NamedVersion(Protocol):
    """The table, version and epoch that a write names; None: not named."""

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


class CountedVersion(Value):
    """A version of a table, and the times to apply and to name it (``end`` None: as long as its table)."""

    since: Micros
    end: Micros | None
    id: str
    version: str
    epoch: Epoch
    shape: TableShape


class CountedLifetime(Value):
    """A table's versions, ascending. Writes appended from ``until`` on are not accepted."""

    versions: tuple[CountedVersion, ...]
    until: Micros | None = None


class SchemaHistory(Value):
    """Table versions and leeways by time. ``settled``, ``forgotten``: as in the state.

    ``lifetimes``: by name. ``leeways``: past ones as (leeway, until), ascending. ``since``: only the newest versions
    and leeway apply to writes appended from then on.
    """

    settled: Micros = 0
    forgotten: Micros = 0
    lifetimes: Mapping[str, tuple[CountedLifetime, ...]] = field(default_factory=dict)
    leeways: tuple[tuple[Micros, Micros], ...] = ()
    since: Micros = 0

    @property
    def newest_since(self) -> Micros:
        """Return the first append time that only the newest tables and leeway judge, if a write names no version."""
        return max(self.since, self.forgotten)

    def is_newest(self, write: NamedVersion, now: Micros) -> bool:
        """Return True if the newest tables and leeway judge a write appended at ``now``."""
        names_nothing = write.table_id is None and write.table_version is None and write.epoch is None
        return names_nothing and now >= self.newest_since


def history_of(state: ClusterState, before: tuple[ClusterState, SchemaHistory] | None = None) -> SchemaHistory:
    """Return the table versions and leeways of a state, including the current ones.

    ``before``: another state and its history, whose results are reused for tables that are the same objects.
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
    assert lifetimes.keys().isdisjoint(past), "the past versions of a table include the current one"
    leeways = tuple((one.leeway, one.until) for one in state.settled.leeways)
    ends = [until for _, until in leeways]
    for found in past.values():
        ends += [end for lifetime in found for end in (lifetime.versions[-1].since, lifetime.until or 0)]
    return SchemaHistory(state.settled.until, state.settled.forgotten, lifetimes | past, leeways, max(ends, default=0))


def with_watermark(history: SchemaHistory, state: ClusterState) -> SchemaHistory:
    """Return the history after a change of the watermark alone. Pruning changes nothing else here."""
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
    """Return the table version that reads a write appended at ``now``, or the code of the rule that rejects it."""
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
        assert write.epoch is not None, "the write names an epoch"
        named = [version for version in counting if version.epoch <= write.epoch]
    if not named or ((end := named[-1].end) is not None and now >= end):
        return UNKNOWN_VERSION
    return named[-1]


def _lifetimes_of(history: SchemaHistory, write: NamedVersion) -> Sequence[CountedLifetime]:
    """Return the tables that had the name, the last one first."""
    return history.lifetimes.get(f"{write.keyspace}.{write.table}", ())[::-1]


def newest_of(history: SchemaHistory, name: str) -> CountedVersion | None:
    """Return the newest version of the living table of that name, or None."""
    last = history.lifetimes[name][-1]
    return last.versions[-1] if last.until is None else None


def widest_leeway(state: ClusterState) -> Micros:
    """Return the greatest leeway that applies to any write that may still be judged."""
    return max([setting(state, "cdc_leeway_us"), *(one.leeway for one in state.settled.leeways)])


def leeway_for(history: SchemaHistory, newest: Micros, now: Micros) -> Micros:
    """Return the leeway for writes appended at ``now``; ``newest``: the current setting."""
    return next((leeway for leeway, until in history.leeways if now < until), newest)


def used_by(timestamps: Iterable[Micros], now: Micros, leeway: Micros) -> Micros:
    """Return the greatest time that the verdict on a write appended at ``now`` depends on.

    ``leeway``: the one for that time. A timestamp above it is always rejected.
    """
    greatest = now
    for found in timestamps:
        if greatest < found <= now + leeway:
            greatest = found
    return greatest


def is_settled(history: SchemaHistory, used: Micros) -> bool:
    """Return True if no later entry can change a verdict that depends on times up to ``used``."""
    return history.settled == 0 or used < history.settled


# ------------------------------------------------------------------------------------------------------- entries


def with_lease(state: ClusterState, horizon: Micros) -> Settled:
    """Return the promise after a writer's horizon rises. It is in use from the first ``SettleVerdicts`` on."""
    settled = state.settled
    return replace(settled, until=horizon) if 0 < settled.until < horizon else settled


def with_leeway(state: ClusterState) -> Settled:
    """Return the promise after the leeway setting changes."""
    settled, before = state.settled, setting(state, "cdc_leeway_us")
    if settled.until == 0 or (settled.leeways and settled.leeways[-1].until == settled.until):
        return settled  # no verdict yet, or the value in between applied to no write
    assert not settled.leeways or settled.leeways[-1].until < settled.until, "latenesses end in ascending order"
    return replace(settled, leeways=(*settled.leeways, PastLeeway(before, settled.until)))


def lowered_to(state: ClusterState, until: Micros, epoch: Epoch) -> Settled:
    """Return the promise after entry ``epoch`` lowers the watermark to ``until``, which is above ``forgotten``.

    Leeways that would end above it end there. Of several only the first stays; the others applied to no write.
    """
    before = state.settled
    assert before.forgotten < until < before.until, "versions after the lowered watermark are still stored"
    kept = tuple(one for one in before.leeways if one.until < until)
    cut = tuple(replace(one, until=until) for one in before.leeways[len(kept) :][:1])
    return replace(before, until=until, leeways=(*kept, *cut), lowered=epoch)
