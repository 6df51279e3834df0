"""Invariants of past versions: the settled time, versions of tables, leeways."""

from __future__ import annotations

from itertools import pairwise

from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import TableLifetime
from ringlog.kernel.values import Micros


@invariant(
    "only an operator lowers the validation watermark; write leases and pruned versions are below it",
    "settled",
    "writers",
)
def settled(state: ClusterState, known: ClusterState) -> Details:
    """Check the settled time, once there is one."""
    now, before = state.settled, known.settled
    is_lowered = now.lowered > before.lowered
    if (now.until < before.until and not is_lowered) or now.forgotten < before.forgotten:
        yield f"watermark {before.until} became {now.until}, pruned until {before.forgotten} became {now.forgotten}"
    if now.forgotten > now.until:
        yield f"versions before {now.forgotten} are pruned, but the validation watermark is {now.until}"
    for name, writer in changed_items(state.writers, known.writers if now is before else type(state.writers)()):
        if 0 < now.until < writer.horizon:
            yield f"{name} may validate up to {writer.horizon}, but the validation watermark is {now.until}"
    times = [one.until for one in now.leeways]
    if times != sorted(set(times)) or any(not now.forgotten < time <= now.until for time in times):
        yield f"values of the allowed lateness ended at {times}, the validation watermark is {now.until}"


@invariant(
    "versions of a table apply one after the other, and the last one of an existing table is the table",
    "table_lives",
    "tables",
    "settled",
)
def table_lives(state: ClusterState, known: ClusterState) -> Details:
    """Check each name with stored versions."""
    for name, lifetimes in changed_items(state.table_lives, known.table_lives):
        times = [time for lifetime in lifetimes for time in _times(lifetime)]
        if times != sorted(times) or (times and times[-1] > state.settled.until):
            yield f"{name} changed at {times}, the validation watermark is {state.settled.until}"
        for lifetime in lifetimes:
            ids = {version.table.id for version in lifetime.versions}
            if (
                len(ids) != 1
                or any(one.end is None for one in lifetime.versions[:-1])
                or lifetime.versions[-1].end is not None
            ):
                yield f"{name} has versions of {sorted(ids)} that do not follow each other"
        if any(lifetime.until is None for lifetime in lifetimes[:-1]) or not lifetimes:
            yield f"{name} has two current tables, or no version"
    for name, lifetimes in state.table_lives.items():
        table = state.tables.get(name)
        if (
            lifetimes
            and lifetimes[-1].until is None
            and (table is None or lifetimes[-1].versions[-1].table.version != table.version)
        ):
            yield f"the newest version of {name} is not the table"
        if lifetimes and lifetimes[-1].until is not None and table is not None:
            yield f"{name} exists, but its last version is dropped"


def _times(lifetime: TableLifetime) -> list[int]:
    """Return the start and end times in their required order."""
    for one, other in pairwise(lifetime.versions):
        assert one.since <= other.since
    return [version.since for version in lifetime.versions] + ([] if lifetime.until is None else [lifetime.until])


@invariant(
    "validated writes keep their table version until it is pruned",
    "table_lives",
    "tables",
    "settled",
)
def past_versions(state: ClusterState, known: ClusterState) -> Details:
    """Check each name whose tables changed, for writes below both settled times that are not forgotten."""
    low, high = state.settled.forgotten, min(state.settled.until, known.settled.until)
    if low >= high or (state.table_lives is known.table_lives and state.tables is known.tables):
        return
    names = {name for name, _ in changed_items(state.table_lives, known.table_lives)}
    names |= {name for name, _ in changed_items(state.tables, known.tables)}
    names |= {name for name in known.table_lives if name not in state.table_lives}
    names |= {name for name in known.tables if name not in state.tables}
    for name in sorted(names):
        if _counting(state, name, low, high) != _counting(known, name, low, high):
            yield f"{name} had other versions for writes appended between {low} and {high}"


def _counting(state: ClusterState, name: str, low: Micros, high: Micros) -> list[tuple[object, ...]]:
    """Return the tables of a name, with the append times from ``low`` to ``high`` for their rules and their names."""
    table, lifetimes = state.tables.get(name), state.table_lives.get(name, ())
    found = [(table, low, high, high)] if table is not None and not lifetimes else []
    for lifetime in lifetimes:
        until = high if lifetime.until is None else min(lifetime.until, high)
        starts = [one.since for one in lifetime.versions[1:]]
        for version, following in zip(lifetime.versions, [*starts, until], strict=True):
            since, end = max(version.since, low), until if version.end is None else min(version.end, until)
            found.append((version.table, since, max(since, min(following, until)), end))
    return [
        (each.id, each.columns, each.partition_key, each.clustering_key, each.stored, since, until, end)
        for each, since, until, end in found
        if since < end
    ]


INVARIANTS = (settled, table_lives, past_versions)
