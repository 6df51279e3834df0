"""What the cache keeper writes: the difference to its last write, or everything if it does not know what is stored."""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.cache.port import Written
from ringlog.cache.projection import Delta, Full, delta, full
from ringlog.kernel.state import ClusterState

ROLE = "keeper"


@dataclass(frozen=True, slots=True)
class Keeper:
    """``known``: the state whose projection the cache holds, as far as this keeper knows."""

    known: ClusterState | None = None


def next_write(keeper: Keeper, state: ClusterState) -> Delta | Full:
    """What to write for ``state``; the difference from a state to itself is empty and only confirms it."""
    return full(state) if keeper.known is None else delta(keeper.known, state)


def learn(state: ClusterState, written: Written) -> Keeper:
    """What the keeper knows after the answer to its write for ``state``.

    After ``base_missing`` (FLUSHALL, a restart, another keeper) everything is written anew. After ``later_stored`` the
    cache is ahead of this replica, which catches up in a moment; nothing is known until then either.
    """
    return Keeper(state if written is Written.APPLIED else None)
