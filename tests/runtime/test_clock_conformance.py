"""Conformance of every clock: the system's, a manual one, and that of a simulated host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from ringlog.runtime.clock import Clock, ManualClock, SystemClock
from ringlog_sim.devices.world import SECOND, SimWorld
from ringlog_sim.replica import HostClock

PASSED_S = 0.002
YEAR_2020_US, YEAR_2200_US = 1_577_836_800_000_000, 7_258_118_400_000_000

ClockAndTime = tuple[Clock, Callable[[float], None]]
"""A clock, and a function that advances it by a number of seconds."""


def system() -> ClockAndTime:
    def wait(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return SystemClock(), wait


def manual() -> ClockAndTime:
    clock = ManualClock()
    return clock, clock.advance


def simulated() -> ClockAndTime:
    world = SimWorld(1)
    host = world.host("h")
    host.skew = -7 * SECOND
    return HostClock(world, host), lambda seconds: void(world.run(world.now + round(seconds * SECOND)))


def void(_: object) -> None:
    """Discard the result."""


@pytest.fixture(params=[system, manual, simulated], ids=lambda make: make.__name__)
def found(request: pytest.FixtureRequest) -> ClockAndTime:
    made: ClockAndTime = request.param()
    return made


def test_wall_time_is_whole_microseconds_since_1970(found: ClockAndTime) -> None:
    clock, _ = found
    assert type(clock.now_us()) is int
    assert YEAR_2020_US < clock.now_us() < YEAR_2200_US


def test_time_passes_on_both_clocks_alike(found: ClockAndTime) -> None:
    clock, wait = found
    wall, monotonic = clock.now_us(), clock.monotonic()
    wait(PASSED_S)
    passed_s, passed_us = clock.monotonic() - monotonic, clock.now_us() - wall
    # The second of two consecutive readings may be late, and an administrator may set a machine's wall clock.
    assert passed_s >= PASSED_S - 1e-6
    assert passed_s * 900_000 <= passed_us <= passed_s * 1_000_000 + 10 * SECOND


def test_monotonic_time_never_decreases(found: ClockAndTime) -> None:
    clock, wait = found
    read = []
    for _ in range(200):
        read.append(clock.monotonic())
        wait(0.000_01)
    assert all(before <= after for before, after in itertools.pairwise(read))
    assert read[0] < read[-1]


def test_a_wall_clock_that_is_set_back_does_not_change_monotonic_time() -> None:
    world = SimWorld(1)
    host = world.host("h")
    clock = HostClock(world, host)
    wall, monotonic = clock.now_us(), clock.monotonic()
    host.skew = -SECOND
    assert (clock.now_us(), clock.monotonic()) == (wall - SECOND, monotonic)


def test_a_manual_clock_moves_only_forward_when_set() -> None:
    clock = ManualClock(1_000_000)
    clock.advance(2.5)
    assert (clock.now_us(), clock.monotonic()) == (3_500_000, 3.5)
    with pytest.raises(ValueError, match="seconds=-1"):
        clock.advance(-1)
