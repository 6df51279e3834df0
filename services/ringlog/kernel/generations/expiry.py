"""How long the rows of a generation are kept, decided from the log alone.

A row lives as long as its table's CDC option ``ttl`` said when it was written, counted from when it was written; 0 is
for ever. All rows of a generation are written when it closes, at ``closed_at`` by the clock of the close's author.
So its last row is gone when the greatest ``ttl`` that any table had while the generation took rows has passed since
then: ``expires_at``.

Tables change meanwhile: a table is dropped, its log is turned off, its ``ttl`` is lowered, and what was written before
lives on as long as it was promised. ``past_ttls`` of the state remembers what is over, as a staircase: an entry is
kept only while no other one is both longer and later, and goes when every generation that it can matter to has
expired. A table's options are those of the epoch at which a row was planned, which is not before the commit of the
generation that it lies in; so an entry matters to the generations that were committed before it ended. What tables
promise today counts for every generation: more than is needed where a table is younger, never less.

Both times are in entries, so every reader comes to the same answer. Those who wrote them looked at clocks, as a
process that deletes rows by their age does: one that is wrong makes a generation be kept so much longer or shorter. No
row is routed anywhere by them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringlog.kernel.model.state import ClusterState, Generation, PastTtl, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import SECOND_US, Epoch, Micros


def past_ttls(known: Sequence[PastTtl], before: Table, after: Table | None, epoch: Epoch) -> tuple[PastTtl, ...]:
    """``known`` and, if the log of ``before`` ends with ``epoch`` or promises something else then, what it promised."""
    if not before.cdc.enabled:
        return tuple(known)
    if after is not None and after.cdc.enabled and after.cdc.ttl == before.cdc.ttl:
        return tuple(known)
    return _staircase((*known, PastTtl(before.cdc.ttl, epoch)))


def _staircase(entries: Sequence[PastTtl]) -> tuple[PastTtl, ...]:
    """The entries without those that another one outlasts in both respects; the latest first."""
    kept: list[PastTtl] = []
    for entry in sorted(entries, key=lambda entry: (-entry.until, not _is_for_ever(entry), -entry.ttl)):
        if not kept or _outlasts(entry, kept[-1]):
            kept.append(entry)
    return tuple(kept)


def _is_for_ever(entry: PastTtl) -> bool:
    return entry.ttl == 0


def _outlasts(entry: PastTtl, other: PastTtl) -> bool:
    return not _is_for_ever(other) and (_is_for_ever(entry) or entry.ttl > other.ttl)


def has_log(state: ClusterState, generation: Generation) -> bool:
    """True if a table kept a CDC log at any epoch since the generation was committed, so that rows may lie in it."""
    now = any(table.cdc.enabled for _, table in in_order(state.tables))
    return now or any(entry.until > generation.committed for entry in state.past_ttls)


def retention(state: ClusterState, generation: Generation) -> int | None:
    """For how many seconds after its close the last row of a generation is kept; None: for ever."""
    ttls = [table.cdc.ttl for _, table in in_order(state.tables) if table.cdc.enabled]
    ttls += [entry.ttl for entry in state.past_ttls if entry.until > generation.committed]
    return None if 0 in ttls else max(ttls, default=0)


def log_retention(state: ClusterState) -> int | None:
    """For how many seconds the topic of the CDC log must keep a row from its append on, whichever table and generation
    it is of; None: for ever.
    """
    # What matters to the oldest matters most: a past promise counts for the generations committed before it ended.
    oldest = next((found for found in state.generations if found.expired is None), None)
    if oldest is not None:
        return retention(state, oldest)
    ttls = [table.cdc.ttl for _, table in in_order(state.tables) if table.cdc.enabled]
    return None if 0 in ttls else max(ttls, default=0)


def expires_at(state: ClusterState, generation: Generation, following: Generation) -> Micros | None:
    """When no row of a closed generation is kept any more, microseconds; None: never. ``following``: the next one."""
    seconds = retention(state, generation)
    if seconds is None:
        return None
    return max(generation.closed_at, following.timestamp) + seconds * SECOND_US


def still_needed(known: Sequence[PastTtl], generations: Sequence[Generation]) -> tuple[PastTtl, ...]:
    """The entries that matter to a generation that has not expired, or to one that is still to come."""
    oldest = next((found.committed for found in generations if found.expired is None), None)
    return tuple(entry for entry in known if oldest is not None and entry.until > oldest)
