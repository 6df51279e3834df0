"""Table versions: the version of a table that applies to a write, and the effect of a schema change on the versions.

``ClusterState.table_lives`` has, for each name, the successive tables of that name, and the versions of each. A version
applies from the validation watermark (*settled time*) of the state that decided it. So every write that a validator may
already have judged is older. If the watermark is lowered, versions that would apply from above it apply from the
watermark (``lowered``). Nothing is stored before a watermark is promised, nor for a table that has not changed since
then or since the last pruning. That table, as in ``ClusterState.tables``, applies from the beginning.

Invariants (``kernel.invariants.verdicts``):

- the last lifetime of a name without ``until`` is the living table of that name;
- versions and lifetimes follow each other in time;
- the newest version of a living table is the table.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table, TableLifetime, TableVersion
from ringlog.kernel.values import Micros, replace

NAMED_US: Final[Micros] = 3_600_000_000
"""How long a write may name a version after its successor applies."""
VERSIONS_MAX: Final = 1_000
"""Maximum number of versions of one table, and of dropped tables of one name; ``sizes`` bounds their bytes."""
NAMES_MAX: Final = 10_000
"""Maximum number of names with stored versions."""

TableLifetimes = Map[str, tuple[TableLifetime, ...]]


def changed(state: ClusterState, before: Table | None, after: Table | None) -> TableLifetimes | Rejected:
    """Return the lifetimes after a table is created (``before`` None), altered, or dropped (``after`` None)."""
    table = after or before
    assert table is not None, "the change adds or removes a table"
    assert before is None or before.full_name == table.full_name, "versions of a table have the same name"
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
        return Rejected(
            "too_many_versions", f"name: the state would keep too many versions of {name}, or of all tables"
        )
    if not lifetimes:
        return state.table_lives.delete(name) if known else state.table_lives
    return state.table_lives.set(name, lifetimes)


def _after(lifetime: TableLifetime, after: Table | None, now: Micros) -> tuple[TableLifetime, ...]:
    assert lifetime.versions, "a table has at least one version"
    if after is None:
        # A lifetime that starts and ends at the same time applies to no write.
        return (replace(lifetime, until=now),) if lifetime.versions[0].since < now else ()
    if lifetime.versions[-1].table.version == after.version:  # same entry: no reader saw the one before
        return (replace(lifetime, versions=(*lifetime.versions[:-1], replace(lifetime.versions[-1], table=after))),)
    last = replace(lifetime.versions[-1], end=now + NAMED_US)
    return (replace(lifetime, versions=(*lifetime.versions[:-1], last, TableVersion(after, now))),)


def pruned(lifetimes: TableLifetimes, below: Micros) -> TableLifetimes:
    """Return the lifetimes without versions that apply only to writes appended before ``below``."""
    kept = {name: found for name, known in in_order(lifetimes) if (found := _pruned(known, below))}
    return Map(kept)


def _pruned(known: tuple[TableLifetime, ...], below: Micros) -> tuple[TableLifetime, ...]:
    found = []
    for lifetime in known:
        if lifetime.until is not None and lifetime.until <= below:
            continue
        versions = tuple(one for one in lifetime.versions if one.end is None or one.end > below)
        assert versions or lifetime.until is not None, "the last version of a living table has no end"
        if lifetime.until is not None or len(versions) > 1 or versions[0].since > below:
            found.append(lifetime if versions == lifetime.versions else replace(lifetime, versions=versions))
    return tuple(found)


def lowered(lifetimes: TableLifetimes, until: Micros) -> TableLifetimes:
    """Return the lifetimes after the watermark is lowered to ``until``: later versions apply from there."""
    kept = Map({name: found for name, known in in_order(lifetimes) if (found := _lowered(known, until))})
    return lifetimes if kept == lifetimes else kept


def _lowered(known: tuple[TableLifetime, ...], until: Micros) -> tuple[TableLifetime, ...]:
    found = []
    for lifetime in known:
        end = None if lifetime.until is None else min(lifetime.until, until)
        cut = replace(lifetime, versions=_cut(lifetime.versions, until), until=end)
        # A lifetime that starts and ends at the same time applies to no write.
        if cut.until is None or cut.versions[0].since < cut.until:
            found.append(lifetime if cut == lifetime else cut)
    return tuple(found)


def _cut(versions: tuple[TableVersion, ...], until: Micros) -> tuple[TableVersion, ...]:
    latest = until + NAMED_US
    return tuple(
        replace(one, since=min(one.since, until), end=None if one.end is None else min(one.end, latest))
        for one in versions
    )
