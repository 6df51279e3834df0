"""The cache keeper at work: behind a read barrier, write what changed; while nothing changes, confirm that nothing did.

It writes the difference to its last write, or everything if it does not know what is stored. A cache that does not
answer stops only this role: it waits and tries again, with everything. A cache that lost its content (FLUSHALL, a
restart) gets all of it at the next beat.

A cache that holds a later epoch is ahead of this replica, which catches up: the next barrier shows that epoch. If it
does not, the log never had it, or has it no more (it was cut, or Redis was written to by others): then that very epoch
is replaced.

The time of a confirmation is read before the barrier: the state is that of then, or younger.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.cache.port import WriteOutcome
from ringlog.cache.projection import CacheDelta, Full, Stamp, delta, full
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.effects import Barrier, FaultPoint, Newest, Steps, WallClock
from ringlog.protocol.role import Accept, CheckSuperseded
from ringlog.protocol.submission.direct import Direct

ROLE = "keeper"


@dataclass(frozen=True, slots=True)
class CacheWriter:
    """``stored``: the state whose projection the cache holds, as far as this keeper knows. ``later``: what it held that
    was later than the log before the last barrier.
    """

    stored: ClusterState | None = None
    later: Stamp | None = None


@dataclass(frozen=True, slots=True)
class NextOffset:
    """Outcome: the offset that the replica folds next; a state that is read afterwards holds everything before it."""


@dataclass(frozen=True, slots=True)
class Store:
    """Write to the cache what makes it hold ``state``, which is that of the log at ``confirmed_at``, before
    ``position``. Outcome: what became of it, None if the cache does not answer.
    """

    write: CacheDelta | Full
    state: ClusterState
    position: int
    confirmed_at: Micros


@dataclass(frozen=True, slots=True)
class StoredStamp:
    """Outcome: which state the cache holds, None if it holds none, or does not answer."""


@dataclass(frozen=True, slots=True)
class AwaitNewer:
    """Wait until there is a newer state than ``stored``, or it is time to confirm; for a pause if nobody answered.

    The driver raises as at ``CheckSuperseded``.
    """

    stored: ClusterState | None
    answered: bool


def keep(direct: Direct) -> Steps[None]:
    """Serve one term of the keeper; ends by what the driver raises."""
    writer = CacheWriter()
    yield Accept()
    while True:
        confirmed_at = yield WallClock()
        yield Barrier(direct.timeout)
        position = yield NextOffset()
        state = yield Newest()
        yield FaultPoint("caching")
        written = yield Store(next_write(writer, state), state, position, confirmed_at)
        if written is WriteOutcome.BASE_MISSING:
            written = yield Store(next_write(CacheWriter(), state), state, position, confirmed_at)
        writer = learn(state, written)
        if written is WriteOutcome.LATER_STORED:
            writer = CacheWriter(later=(yield StoredStamp()))
        yield AwaitNewer(writer.stored, written is not None)
        yield CheckSuperseded()


def next_write(writer: CacheWriter, state: ClusterState) -> CacheDelta | Full:
    """What to write for ``state``; the difference from a state to itself is empty and only confirms it."""
    if writer.stored is not None:
        return delta(writer.stored, state)
    later = writer.later
    return full(state, later if later is not None and later.epoch > state.epoch else None)


def learn(state: ClusterState, written: WriteOutcome | None) -> CacheWriter:
    """What the keeper knows after the answer to its write for ``state``.

    After ``base_missing`` (FLUSHALL, a restart, another keeper) everything is written anew. After ``later_stored`` the
    cache is ahead of this replica, which catches up in a moment; nothing is known until then either.
    """
    return CacheWriter(state if written is WriteOutcome.APPLIED else None)
