"""The acceptance window: the documented cases, the edges, an independent implementation, and the vectorized version."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringlog.kernel.generations.acceptance import (
    VERDICTS,
    AcceptedWrite,
    RefusedWrite,
    accept,
    accept_many,
    append_time_us,
)

TABLE = Path(__file__).parents[2] / "testdata" / "acceptance.txt"
ROWS = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
LEEWAY = 5_000_000


def micros(seconds: str) -> int:
    return int(Decimal(seconds) * 1_000_000)


@pytest.mark.parametrize(("now", "timestamp", "verdict"), ROWS)
def test_worked_cases(now: str, timestamp: str, verdict: str) -> None:
    found = accept(micros(timestamp), micros(now), (micros("100"), micros("200")), LEEWAY)
    assert found == (AcceptedWrite("AB".index(verdict)) if verdict in "AB" else RefusedWrite(verdict))


def test_before_any_generation() -> None:
    assert accept(5, 5, (), LEEWAY) == RefusedWrite("no_generation")
    codes, generation = accept_many(np.array([5, 5_000_006]), 5, (), LEEWAY)
    assert [VERDICTS[code] for code in codes] == ["no_generation", "timestamp_in_future"]
    assert generation.tolist() == [-1, -1]


def reading(timestamp: int, now: int, starts: tuple[int, ...], leeway: int) -> str | int:
    """Return the decision by the documented rule, generation by generation."""
    ends = dict(enumerate(starts[1:]))
    operating = [g for g, start in enumerate(starts) if start <= timestamp and timestamp < ends.get(g, timestamp + 1)]
    if timestamp > now + leeway:
        return "timestamp_in_future"
    if not operating:
        return "no_generation"
    (mine,) = operating
    if timestamp > now - leeway:
        return mine
    then = [g for g, start in enumerate(starts) if start <= now - leeway]
    if not then or timestamp < starts[then[-1]]:
        return "timestamp_too_old"
    return mine if ends.get(then[-1], now + 1) > now else "timestamp_too_old"


small = st.integers(-3, 40)


@given(
    st.lists(st.tuples(small, small), max_size=30),
    st.sets(st.integers(0, 35), max_size=5).map(lambda found: tuple(sorted(found))),
    st.integers(0, 8),
)
@example([(2, 10), (3, 10), (12, 10), (13, 10)], (3, 9), 2)
def test_both_versions_follow_the_description(
    writes: list[tuple[int, int]], starts: tuple[int, ...], leeway: int
) -> None:
    expected = [reading(timestamp, now, starts, leeway) for timestamp, now in writes]
    scalar = [accept(timestamp, now, starts, leeway) for timestamp, now in writes]
    assert [found.generation if isinstance(found, AcceptedWrite) else found.code for found in scalar] == expected
    timestamps = np.array([timestamp for timestamp, _ in writes], dtype=np.int64)
    codes, generation = accept_many(timestamps, np.array([now for _, now in writes], dtype=np.int64), starts, leeway)
    assert (codes.dtype, generation.dtype) == (np.int8, np.int32)
    found = [int(g) if code == 0 else VERDICTS[code] for code, g in zip(codes, generation, strict=True)]
    assert found == expected
    assert all(g == -1 for code, g in zip(codes, generation, strict=True) if code != 0)


@given(
    st.lists(st.tuples(small, small), max_size=30),
    st.dictionaries(st.integers(0, 35), st.integers(0, 8), max_size=5).map(lambda found: tuple(sorted(found.items()))),
    st.integers(0, 8),
)
@example([(14, 20), (15, 20), (19, 20)], ((10, 2), (16, 5)), 9)
def test_writes_after_a_switch_use_its_allowed_lateness(
    writes: list[tuple[int, int]], generations: tuple[tuple[int, int], ...], leeway: int
) -> None:
    """The switch that ended its generation alone decides about a write."""
    starts, reaches = (tuple(part) for part in zip(*generations, strict=True)) if generations else ((), ())
    found = [accept(timestamp, now, starts, leeway, reaches) for timestamp, now in writes]
    for (timestamp, now), verdict in zip(writes, found, strict=True):
        followed = next(((start, reach) for start, reach in generations if start > timestamp), None)
        alone = (min(starts, default=99), followed[0]) if followed and timestamp >= starts[0] else starts[:1]
        expected = accept(timestamp, now, alone, followed[1] if followed else leeway)
        if timestamp > now + leeway:
            assert verdict == RefusedWrite("timestamp_in_future")
        elif timestamp <= now:
            assert type(verdict) is type(expected)
            assert getattr(verdict, "code", "") == getattr(expected, "code", "")
    timestamps, times = (np.array([pair[part] for pair in writes], dtype=np.int64) for part in (0, 1))
    codes, numbers = accept_many(timestamps, times, starts, leeway, reaches)
    many = [
        AcceptedWrite(int(g)) if code == 0 else RefusedWrite(VERDICTS[code])
        for code, g in zip(codes, numbers, strict=True)
    ]
    assert many == found


def test_each_timestamp_gets_a_decision() -> None:
    extremes = [-(2**63), -1, 0, 2**62, 2**63 - 1]
    now = 1_700_000_000_000_000
    codes, _ = accept_many(np.array(extremes, dtype=np.int64), now, (now - 10,), LEEWAY)
    scalar = [accept(timestamp, now, (now - 10,), LEEWAY) for timestamp in extremes]
    assert [RefusedWrite(VERDICTS[code]) for code in codes] == scalar


def test_a_shared_time_equals_a_time_for_each_write() -> None:
    timestamps = np.arange(0, 50, dtype=np.int64)
    for_all = accept_many(timestamps, 30, (5, 28), 6)
    for_each = accept_many(timestamps, np.full(50, 30, dtype=np.int64), (5, 28), 6)
    assert [part.tolist() for part in for_all] == [part.tolist() for part in for_each]


@given(st.sets(st.integers(0, 35), max_size=5).map(sorted), small, small, st.integers(0, 8))
@example([3, 9], 10, 9, 2)
@example([3, 9], 10, 11, 2)
def test_the_documented_window_is_accepted(starts: list[int], now: int, timestamp: int, leeway: int) -> None:
    """The documented window is [T, now + lateness), with T the start of the current generation.

    The implementation also accepts the upper bound and the time before T down to the lateness.
    """
    operating = [start for start in starts if start <= now]
    found = accept(timestamp, now, starts, leeway)
    taken = bool(operating) and operating[-1] <= timestamp < now + leeway
    if taken:
        assert found == AcceptedWrite(max(place for place, start in enumerate(starts) if start <= timestamp))
    elif isinstance(found, AcceptedWrite):
        assert timestamp == now + leeway or not operating or now - leeway < timestamp < operating[-1]


def test_broker_timestamps_are_milliseconds() -> None:
    assert append_time_us(1_700_000_000_123) == 1_700_000_000_123_000
