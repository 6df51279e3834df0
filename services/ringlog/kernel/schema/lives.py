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

from ringlog.kernel.outcome import Rejected
from ringlog.kernel.state import ClusterState, Table, TableLife, TableVersion, in_order
from ringlog.kernel.values import Micros

NAMED_US: Final[Micros] = 3_600_000_000
"""How long a write may name a version after another one follows it."""
VERSIONS_MAX: Final = 100
"""Versions of one table that are kept, and dropped tables of one name."""
NAMES_MAX: Final = 10_000
"""Names of which anything is kept."""

Lives = Map[str, tuple[TableLife, ...]]


def changed(state: ClusterState, before: Table | None, after: Table | None) -> Lives | Rejected:
    """The lives once a table is made (``before`` None), altered, or dropped (``after`` None)."""
    table = after or before
    assert table is not None, "something changes"
    now, name = state.settled.until, table.full_name
    if now == 0:
        return state.table_lives
    known = state.table_lives.get(name, ())
    if before is None:
        assert after is not None
        lives = (*known, TableLife((TableVersion(after, now),)))
    else:
        life = known[-1] if known else TableLife((TableVersion(before, 0),))
        lives = (*known[:-1], *_after(life, after, now))
    too_many = len(lives) > VERSIONS_MAX or any(len(life.versions) > VERSIONS_MAX for life in lives[-1:])
    if too_many or (known == () and len(state.table_lives) >= NAMES_MAX):
        return Rejected("too_many_versions", f"name: of {name}, or of tables in all, more would be kept than may be")
    if not lives:
        return state.table_lives.delete(name) if known else state.table_lives
    return state.table_lives.set(name, lives)


def _after(life: TableLife, after: Table | None, now: Micros) -> tuple[TableLife, ...]:
    if after is None:
        # What began at this very time counts for no write at all.
        return (replace(life, until=now),) if life.versions[0].since < now else ()
    if life.versions[-1].table.version == after.version:  # of the same entry: nobody ever saw the one before
        return (replace(life, versions=(*life.versions[:-1], replace(life.versions[-1], table=after))),)
    last = replace(life.versions[-1], end=now + NAMED_US)
    return (replace(life, versions=(*life.versions[:-1], last, TableVersion(after, now))),)


def remembered(lives: Lives, below: Micros) -> Lives:
    """The lives without what can count for no write appended at ``below`` or later."""
    kept = {name: found for name, known in in_order(lives) if (found := _remembered(known, below))}
    return Map(kept)


def _remembered(known: tuple[TableLife, ...], below: Micros) -> tuple[TableLife, ...]:
    found = []
    for life in known:
        if life.until is not None and life.until <= below:
            continue
        versions = tuple(one for one in life.versions if one.end is None or one.end > below)
        if life.until is not None or len(versions) > 1 or versions[0].since > below:
            found.append(life if versions == life.versions else replace(life, versions=versions))
    return tuple(found)


def lowered(lives: Lives, until: Micros) -> Lives:
    """The lives once ``until`` is the settled time: what was to count from above it counts from there."""
    kept = Map({name: found for name, known in in_order(lives) if (found := _lowered(known, until))})
    return lives if kept == lives else kept


def _lowered(known: tuple[TableLife, ...], until: Micros) -> tuple[TableLife, ...]:
    found = []
    for life in known:
        end = None if life.until is None else min(life.until, until)
        cut = replace(life, versions=_cut(life.versions, until), until=end)
        # What begins and ends at this very time counts for no write at all.
        if cut.until is None or cut.versions[0].since < cut.until:
            found.append(life if cut == life else cut)
    return tuple(found)


def _cut(versions: tuple[TableVersion, ...], until: Micros) -> tuple[TableVersion, ...]:
    latest = until + NAMED_US
    return tuple(
        replace(one, since=min(one.since, until), end=None if one.end is None else min(one.end, latest))
        for one in versions
    )
