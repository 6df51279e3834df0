"""The retention of a generation's rows, decided from the log alone.

A row lives for its table's CDC option ``ttl`` at the time of the write, counted from the write; 0 means forever. All
rows of a generation are written when it closes, at ``closed_at`` by the clock of the close's author. So its last row is
gone after the greatest ``ttl`` of any table while the generation accepted rows, counted from the close
(``expires_at``).

Tables change meanwhile: a table is dropped, its log is disabled, its ``ttl`` is lowered. Older rows keep their promised
TTL. ``past_ttls`` of the state records ended promises as a staircase. An entry is kept only while no other one is both
longer and later, and is removed when every generation that it can affect has expired. The options at the planning of a
row apply to it, and a row is planned after the commit of its generation. So an entry affects the generations that were
committed before it ended. Current options of tables affect every generation: for a younger table that is longer than
needed, never shorter.

Both times are in entries, so every reader computes the same result. Their authors used clocks, as does a process that
deletes rows by age. A wrong clock lengthens or shortens the retention by its error, but never affects the routing of
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ringlog.kernel.model.state import ClusterState, Generation, PastTtl, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import SECOND_US, Epoch, Micros


def past_ttls(known: Sequence[PastTtl], before: Table, after: Table | None, epoch: Epoch) -> tuple[PastTtl, ...]:
    """Return ``known``, with the old promise added if ``epoch`` ends the log of ``before`` or changes its TTL."""
    if not before.cdc.enabled:
        return tuple(known)
    if after is not None and after.cdc.enabled and after.cdc.ttl == before.cdc.ttl:
        return tuple(known)
    return _staircase((*known, PastTtl(before.cdc.ttl, epoch)))


def _staircase(entries: Sequence[PastTtl]) -> tuple[PastTtl, ...]:
    """Return the entries that no other one outlasts in both respects; the latest first."""
    kept: list[PastTtl] = []
    for entry in sorted(entries, key=lambda entry: (-entry.until, not _is_for_ever(entry), -entry.ttl)):
        if not kept or _outlasts(entry, kept[-1]):
            kept.append(entry)
    assert all(later.until > earlier.until and _outlasts(earlier, later) for later, earlier in pairwise(kept)), (
        "longer TTLs ended earlier"
    )
    return tuple(kept)


def _is_for_ever(entry: PastTtl) -> bool:
    return entry.ttl == 0


def _outlasts(entry: PastTtl, other: PastTtl) -> bool:
    return not _is_for_ever(other) and (_is_for_ever(entry) or entry.ttl > other.ttl)


def has_log(state: ClusterState, generation: Generation) -> bool:
    """Return True if a table kept a CDC log at any epoch since the generation's commit, so that it may have rows."""
    now = any(table.cdc.enabled for _, table in in_order(state.tables))
    return now or any(entry.until > generation.committed for entry in state.past_ttls)


def retention(state: ClusterState, generation: Generation) -> int | None:
    """Return how many seconds after its close the last row of a generation is kept; None: forever."""
    ttls = [table.cdc.ttl for _, table in in_order(state.tables) if table.cdc.enabled]
    ttls += [entry.ttl for entry in state.past_ttls if entry.until > generation.committed]
    return None if 0 in ttls else max(ttls, default=0)


def log_retention(state: ClusterState) -> int | None:
    """Return how many seconds after its append the CDC topic must keep any row; None: forever."""
    # The oldest generation has the longest retention: a past promise applies to generations committed before it ended.
    oldest = next((found for found in state.generations if found.expired is None), None)
    if oldest is not None:
        return retention(state, oldest)
    ttls = [table.cdc.ttl for _, table in in_order(state.tables) if table.cdc.enabled]
    return None if 0 in ttls else max(ttls, default=0)


def expires_at(state: ClusterState, generation: Generation, following: Generation) -> Micros | None:
    """Return the expiry of a closed generation's last row in microseconds; None: never.

    ``following``: the next generation. The retention counts from its timestamp if the close is earlier.
    """
    assert generation.closed is not None, "only a closed generation expires"
    seconds = retention(state, generation)
    if seconds is None:
        return None
    return max(generation.closed_at, following.timestamp) + seconds * SECOND_US


def still_needed(known: Sequence[PastTtl], generations: Sequence[Generation]) -> tuple[PastTtl, ...]:
    """Return the entries that affect a generation that has not expired, or a future one."""
    oldest = next((found.committed for found in generations if found.expired is None), None)
    return tuple(entry for entry in known if oldest is not None and entry.until > oldest)
