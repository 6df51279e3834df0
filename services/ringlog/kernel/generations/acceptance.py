"""Accept or reject a write by its timestamp and find its stream: ScyllaDB's rules, scalar and for many rows at once.

*Now* is the broker's append time of the write. G is the generation that is active at ``now - leeway``; the leeway is 5
s by default.

======================================  =============================================================
timestamp                               verdict
======================================  =============================================================
above ``now + leeway``                  ``timestamp_in_future``
before the first generation             ``no_generation``
at most ``now - leeway``                accepted if G is active at it and still active at ``now``;
                                        else ``timestamp_too_old``
otherwise                               accepted
======================================  =============================================================

So a write of the last few seconds may still belong to the previous generation; an older one only to the current one.
That accepts more than ScyllaDB's first description of the window, and includes all of it (decision 130). The leeway is
a setting that may change, and ScyllaDB's rule does not say which value counts. Here a generation keeps the leeway of
its commit for writes behind its start (``reaches``). So at its end it is known how long the previous one accepts
writes, and its close stays right. Ahead of now the present setting counts.

A generation is active from its timestamp (included) to the next one's (excluded). Within it a token belongs to the
range with the first end at or above it (range 0 if there is none), and to the stream of its shard there. The ranges are
those of the ring, or the tablets of the row's table if the generation describes it.

Since *now* is data, a replay decides the same. ``accept`` is the definition, ``accept_many`` the fast one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.model.tablet_streams import described_as, ranges_of
from ringlog.kernel.ring.shards import shard_of
from ringlog.kernel.values import GenerationRange, Micros, Token, Value


def generation_at(generations: Sequence[Generation], at: Micros) -> Generation | None:
    """Return the generation (of those by ascending timestamp) that is active at ``at``; None before the first."""
    index = index_at(tuple(generation.timestamp for generation in generations), at)
    return generations[index] if index >= 0 else None


def start_of_writers(state: ClusterState) -> Micros | None:
    """Return the start of a new CDC writer: the timestamp of the oldest open generation; None if all are closed."""
    return next((generation.timestamp for generation in state.generations if generation.closed is None), None)


def index_at(timestamps: Sequence[Micros], at: Micros) -> int:
    """Return the index in ascending ``timestamps`` of the generation that is active at ``at``; -1 before the first."""
    return bisect_right(timestamps, at) - 1


def range_of(ranges: Sequence[GenerationRange], token: Token) -> int:
    """Return the index of the range (of ``ranges`` by ascending end, not empty) that holds ``token``."""
    index = bisect_left(ranges, token, key=lambda described: described.end)
    return index if index < len(ranges) else 0


def stream_of(generation: Generation, token: Token, table: str = "") -> bytes:
    """Return the 16-byte id of the stream of ``token`` in ``generation``; ``table``: id of the row's table."""
    own = described_as(generation.tables, table)
    ranges = generation.ranges if own is None else ranges_of(generation.timestamp, own)
    described = ranges[range_of(ranges, token)]
    return described.streams[shard_of(token, len(described.streams), described.ignore_msb)]


TIMESTAMP_IN_FUTURE = "timestamp_in_future"
TIMESTAMP_TOO_OLD = "timestamp_too_old"
NO_GENERATION = "no_generation"

VERDICTS = ("", TIMESTAMP_IN_FUTURE, TIMESTAMP_TOO_OLD, NO_GENERATION)
"""Numbers of ``accept_many`` to codes; 0 is accepted."""


def append_time_us(milliseconds: int) -> Micros:
    """Return the *now* of the rule for the append time of a broker's record: exactly that instant."""
    return milliseconds * 1_000


class AcceptedWrite(Value):
    """The write is accepted, into the generation of this index."""

    generation: int


class RefusedWrite(Value):
    """The write is rejected with a code of ``VERDICTS``."""

    code: str


def accept(
    timestamp: Micros,
    now: Micros,
    timestamps: Sequence[Micros],
    leeway: Micros,
    reaches: Sequence[Micros] | None = None,
) -> AcceptedWrite | RefusedWrite:
    """Return the verdict on a write; ``timestamps``: those of the committed generations, ascending. All in
    microseconds.

    ``reaches``: the leeway behind each of these starts; None: ``leeway`` behind them all.
    """
    assert reaches is None or len(reaches) == len(timestamps), "each start has an allowed lateness"
    if timestamp > now + leeway:
        return RefusedWrite(TIMESTAMP_IN_FUTURE)
    generation = index_at(timestamps, timestamp)
    if generation < 0:
        return RefusedWrite(NO_GENERATION)
    if generation < index_at(timestamps, now):
        reach = leeway if reaches is None else reaches[generation + 1]
        if timestamp <= now - reach:
            return RefusedWrite(TIMESTAMP_TOO_OLD)
    return AcceptedWrite(generation)


def accept_many(
    timestamp: NDArray[np.int64],
    now: NDArray[np.int64] | Micros,
    timestamps: Sequence[Micros],
    leeway: Micros,
    reaches: Sequence[Micros] | None = None,
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return verdicts on many writes: codes (``int8``, into ``VERDICTS``) and generation indexes (``int32``, -1:
    rejected).

    ``timestamp`` and ``now`` (an array, or one number for all) are ``int64`` microseconds.
    """
    assert reaches is None or len(reaches) == len(timestamps), "each start has an allowed lateness"
    assert np.ndim(now) == 0 or np.shape(now) == np.shape(timestamp), "each write has an append time"
    starts = np.asarray(timestamps, dtype=np.int64)
    generation: NDArray[Any] = np.searchsorted(starts, timestamp, side="right").astype(np.int32) - np.int32(1)
    current = np.searchsorted(starts, now, side="right") - 1
    # The last generation has no following start. The added element keeps the index valid; its value is never used.
    reach = leeway if reaches is None else np.asarray((*reaches, leeway), dtype=np.int64)[generation + 1]
    # Later assignments win, so the order is the reverse of that in ``accept``.
    codes = np.zeros(len(timestamp), dtype=np.int8)
    codes[(timestamp <= np.subtract(now, reach)) & (generation < current)] = VERDICTS.index(TIMESTAMP_TOO_OLD)
    codes[generation < 0] = VERDICTS.index(NO_GENERATION)
    codes[timestamp > np.add(now, leeway)] = VERDICTS.index(TIMESTAMP_IN_FUTURE)
    generation[codes != 0] = -1
    assert np.array_equal(codes == 0, generation >= 0), "a write has a generation, or the code of a rejection"
    return codes, generation
