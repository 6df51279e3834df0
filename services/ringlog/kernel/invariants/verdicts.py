"""Invariants of what counts for earlier writes: the settled time, versions of tables, leeways."""

from __future__ import annotations

from itertools import pairwise

from ringlog.kernel.invariants.shape import Details, invariant, news
from ringlog.kernel.state import ClusterState, TableLife


@invariant(
    "a settled time sinks by an operator's word only, and is above what writers may have used and what is forgotten",
    "settled",
    "writers",
)
def settled(state: ClusterState, known: ClusterState) -> Details:
    """Once there is one."""
    now, before = state.settled, known.settled
    is_lowered = now.lowered > before.lowered
    if (now.until < before.until and not is_lowered) or now.forgotten < before.forgotten:
        yield f"{now.until} was {before.until}, and {now.forgotten} forgotten was {before.forgotten}"
    if now.forgotten > now.until:
        yield f"what counted before {now.forgotten} is forgotten, and only {now.until} is settled"
    for name, writer in news(state.writers, known.writers if now is before else type(state.writers)()):
        if 0 < now.until < writer.horizon:
            yield f"{name} may judge up to {writer.horizon}, and only {now.until} is settled"
    times = [one.until for one in now.leeways]
    if times != sorted(set(times)) or any(not now.forgotten < time <= now.until for time in times):
        yield f"leeways ended at {times}, settled is {now.until}"


@invariant(
    "versions of tables count one after the other, the last one of a living table is the table",
    "table_lives",
    "tables",
    "settled",
)
def table_lives(state: ClusterState, known: ClusterState) -> Details:
    """Each name of which something is kept."""
    for name, lives in news(state.table_lives, known.table_lives):
        times = [time for life in lives for time in _times(life)]
        if times != sorted(times) or (times and times[-1] > state.settled.until):
            yield f"{name} changed at {times}, settled is {state.settled.until}"
        for life in lives:
            ids = {version.table.id for version in life.versions}
            if len(ids) != 1 or any(one.end is None for one in life.versions[:-1]) or life.versions[-1].end is not None:
                yield f"{name} has a life of {sorted(ids)} whose versions do not follow each other"
        if any(life.until is None for life in lives[:-1]) or not lives:
            yield f"{name} has two living tables, or none was kept"
    for name, lives in state.table_lives.items():
        table = state.tables.get(name)
        if (
            lives
            and lives[-1].until is None
            and (table is None or lives[-1].versions[-1].table.version != table.version)
        ):
            yield f"the newest version of {name} is not the table"
        if lives and lives[-1].until is not None and table is not None:
            yield f"{name} is dropped, and there is a table"


def _times(life: TableLife) -> list[int]:
    """Times at which something began or ended, in the order in which they must be."""
    for one, other in pairwise(life.versions):
        assert one.since <= other.since
    return [version.since for version in life.versions] + ([] if life.until is None else [life.until])


INVARIANTS = (settled, table_lives)
