"""The cache writer's protocol: store each change behind a read barrier, and confirm the stored state between changes.

A write contains the difference to the previous write, or the whole state if the content of the cache is unknown. An
unavailable cache stops only this role: it waits, then retries with the whole state. After a loss of its content
(FLUSHALL, a restart) the cache gets the whole state at the next beat.

A cache with a later epoch is ahead of this replica. Normally the replica catches up, and the next barrier shows that
epoch. If it does not, the log never had that epoch or lost it, or another process wrote to Redis. Then the writer
replaces exactly that epoch.

The time of a confirmation is read before the barrier. So the state is at least as new as that time.
"""

from __future__ import annotations

from ringlog.cache.port import WriteOutcome
from ringlog.cache.projection import CacheDelta, FullProjection, Stamp, delta, full_projection
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, Value
from ringlog.protocol.effects import Barrier, Effect, FaultPoint, Newest, WallClock
from ringlog.protocol.role import CheckSuperseded, StartServing
from ringlog.protocol.submission.direct import Direct

ROLE = "keeper"


class CacheWriter(Value):
    """The known content of the cache.

    ``stored``: the state whose projection it has; None: unknown. ``later``: its stamp, if that was later than the log
    before the last barrier.
    """

    stored: ClusterState | None = None
    later: Stamp | None = None


class NextOffset(Effect[int], Value):
    """Outcome: the next offset that the replica will fold. A state that is read later contains everything before it."""


class StoreView(Effect[WriteOutcome | None], Value):
    """Write to the cache, so that it contains ``state``. Outcome: the result, or None if the cache does not answer.

    ``state``: the log's state at ``confirmed_at``, before offset ``position``.
    """

    write: CacheDelta | FullProjection
    state: ClusterState
    position: int
    confirmed_at: Micros


class StoredStamp(Effect[Stamp | None], Value):
    """Outcome: the stamp of the state in the cache; None if there is none, or the cache does not answer."""


class AwaitNewer(Effect[None], Value):
    """Wait for a state newer than ``stored``, or for the next confirmation. Without an answer from the cache, pause.

    The driver raises as for ``CheckSuperseded``.
    """

    stored: ClusterState | None
    answered: bool


async def maintain_cache(direct: Direct) -> None:
    """Serve one term of the cache writer. Only an exception of the driver ends it."""
    writer = CacheWriter()
    await StartServing()
    while True:
        confirmed_at = await WallClock()
        await Barrier(direct.timeout)
        position = await NextOffset()
        state = await Newest()
        await FaultPoint("caching")
        written = await StoreView(next_write(writer, state), state, position, confirmed_at)
        # The cache has another state than the base of the difference, or none. Write the whole state at once.
        if written is WriteOutcome.BASE_MISSING:
            written = await StoreView(next_write(CacheWriter(), state), state, position, confirmed_at)
        writer = after_write(state, written)
        if written is WriteOutcome.LATER_STORED:
            writer = CacheWriter(later=await StoredStamp())
        await AwaitNewer(writer.stored, written is not None)
        await CheckSuperseded()


def next_write(writer: CacheWriter, state: ClusterState) -> CacheDelta | FullProjection:
    """Return the write for ``state``. The difference from a state to itself is empty, and only confirms it."""
    if writer.stored is not None:
        return delta(writer.stored, state)
    later = writer.later
    return full_projection(state, later if later is not None and later.epoch > state.epoch else None)


def after_write(state: ClusterState, written: WriteOutcome | None) -> CacheWriter:
    """Return the writer after the result of its write for ``state``.

    After ``base_missing`` (FLUSHALL, a restart, another instance) the next write has the whole state. After
    ``later_stored`` the cache is ahead of this replica, so its content is unknown until the replica has caught up.
    """
    return CacheWriter(state if written is WriteOutcome.APPLIED else None)
