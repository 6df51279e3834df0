"""Which version of a table counts for which writes: what the state keeps of it, and how a schema change adds to it.

``ClusterState.table_lives`` has, for each name, the tables that had it, in their order, and of each its versions. A
version counts from the settled time of the state on which it was decided, so every write that anybody may have judged
is older. Where the settled time is lowered, what was to count from above it counts from there (``lowered``).
Nothing is kept before a settled time is promised, nor of a table that has not changed since then, or since
what was is forgotten: such a table has counted from the beginning, as ``ClusterState.tables`` has it.

Invariants (``kernel.invariants.verdicts``): the last life of a name is the living table of that name, if one of them
has no ``until``; versions and lives follow each other in time; the newest version of a living table is the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from immutables import Map

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table, TableLifetime, TableVersion
from ringlog.kernel.values import Micros

NAMED_US: Final[Micros] = 3_600_000_000
"""How long a write may name a version after another one follows it."""
VERSIONS_MAX: Final = 1_000
"""Versions of one table that are kept, and dropped tables of one name; ``sizes`` bounds their bytes."""
NAMES_MAX: Final = 10_000
"""Names of which anything is kept."""

TableLifetimes = Map[str, tuple[TableLifetime, ...]]


def changed(state: ClusterState, before: Table | None, after: Table | None) -> TableLifetimes | Rejected:
    """The lives once a table is made (``before`` None), altered, or dropped (``after`` None)."""
    table = after or before
    assert table is not None, "something changes"
    now, name = state.settled.until, table.full_name
    if now == 0:
        return state.table_lives
    known = state.table_lives.get(name, ())
    if before is None:
        assert after is not None
        lifetimes = (*known, TableLifetime((TableVersion(after, now),)))
    else:
        lifetime = known[-1] if known else TableLifetime((TableVersion(before, 0),))
        lifetimes = (*known[:-1], *_after(lifetime, after, now))
    too_many = len(lifetimes) > VERSIONS_MAX or any(
        len(lifetime.versions) > VERSIONS_MAX for lifetime in lifetimes[-1:]
    )
    if too_many or (known == () and len(state.table_lives) >= NAMES_MAX):
        return Rejected("too_many_versions", f"name: of {name}, or of tables in all, more would be kept than may be")
    if not lifetimes:
        return state.table_lives.delete(name) if known else state.table_lives
    return state.table_lives.set(name, lifetimes)


def _after(lifetime: TableLifetime, after: Table | None, now: Micros) -> tuple[TableLifetime, ...]:
    if after is None:
        # What began at this very time counts for no write at all.
        return (replace(lifetime, until=now),) if lifetime.versions[0].since < now else ()
    if lifetime.versions[-1].table.version == after.version:  # of the same entry: nobody ever saw the one before
        return (replace(lifetime, versions=(*lifetime.versions[:-1], replace(lifetime.versions[-1], table=after))),)
    last = replace(lifetime.versions[-1], end=now + NAMED_US)
    return (replace(lifetime, versions=(*lifetime.versions[:-1], last, TableVersion(after, now))),)


def pruned(lifetimes: TableLifetimes, below: Micros) -> TableLifetimes:
    """The lives without what can count for no write appended at ``below`` or later."""
    kept = {name: found for name, known in in_order(lifetimes) if (found := _pruned(known, below))}
    return Map(kept)


def _pruned(known: tuple[TableLifetime, ...], below: Micros) -> tuple[TableLifetime, ...]:
    found = []
    for lifetime in known:
        if lifetime.until is not None and lifetime.until <= below:
            continue
        versions = tuple(one for one in lifetime.versions if one.end is None or one.end > below)
        if lifetime.until is not None or len(versions) > 1 or versions[0].since > below:
            found.append(lifetime if versions == lifetime.versions else replace(lifetime, versions=versions))
    return tuple(found)


def lowered(lifetimes: TableLifetimes, until: Micros) -> TableLifetimes:
    """The lives once ``until`` is the settled time: what was to count from above it counts from there."""
    kept = Map({name: found for name, known in in_order(lifetimes) if (found := _lowered(known, until))})
    return lifetimes if kept == lifetimes else kept


def _lowered(known: tuple[TableLifetime, ...], until: Micros) -> tuple[TableLifetime, ...]:
    found = []
    for lifetime in known:
        end = None if lifetime.until is None else min(lifetime.until, until)
        cut = replace(lifetime, versions=_cut(lifetime.versions, until), until=end)
        # What begins and ends at this very time counts for no write at all.
        if cut.until is None or cut.versions[0].since < cut.until:
            found.append(lifetime if cut == lifetime else cut)
    return tuple(found)


def _cut(versions: tuple[TableVersion, ...], until: Micros) -> tuple[TableVersion, ...]:
    latest = until + NAMED_US
    return tuple(
        replace(one, since=min(one.since, until), end=None if one.end is None else min(one.end, latest))
        for one in versions
    )
