"""Conformance of every source of random bits: the system's, a seeded one, and the named streams of a simulated run."""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable

import pytest

from ringlog.protocol.effects import Draw
from ringlog.runtime.draw import SeededDraw, SystemDraw, draw_uuid
from ringlog_sim.devices.world import Chance


def seeded(seed: int, name: str) -> Draw:
    return SeededDraw(f"{seed} {name}".encode())


def system(_seed: int, _name: str) -> Draw:
    return SystemDraw()


SOURCES: list[Callable[[int, str], Draw]] = [system, seeded, Chance]
REPEATABLE = [seeded, Chance]


@pytest.fixture(params=SOURCES, ids=lambda make: make.__name__)
def draw(request: pytest.FixtureRequest) -> Draw:
    made: Draw = request.param(1, "a")
    return made


@pytest.mark.parametrize("count", [0, 1, 7, 8, 16, 63, 64, 65, 1_000])
def test_a_draw_has_the_requested_length(draw: Draw, count: int) -> None:
    for _ in range(20):
        found = draw.take(count)
        assert (type(found), len(found)) == (bytes, count)


def test_a_negative_count_is_refused(draw: Draw) -> None:
    with pytest.raises(ValueError, match="negative"):
        draw.take(-1)


def test_no_draw_repeats(draw: Draw) -> None:
    found = {draw.take(16) for _ in range(2_000)}
    assert len(found) == 2_000


def test_every_bit_is_zero_and_one_equally_often(draw: Draw) -> None:
    words = [int.from_bytes(draw.take(8), "big") for _ in range(2_000)]
    assert functools.reduce(operator.or_, words) == 2**64 - 1
    assert functools.reduce(operator.and_, words) == 0
    for bit in range(64):
        # Ten standard deviations: less than once in 10^22 runs.
        assert abs(sum(word >> bit & 1 for word in words) - 1_000) < 224


def test_uuids_of_drawn_bits_are_random_ones_and_differ(draw: Draw) -> None:
    found = [uuid.UUID(draw_uuid(draw)) for _ in range(200)]
    assert {(each.version, each.variant) for each in found} == {(4, uuid.RFC_4122)}
    assert len(set(found)) == 200


@pytest.mark.parametrize("make", REPEATABLE, ids=lambda make: make.__name__)
def test_only_the_same_seed_and_name_give_the_same_bytes(make: Callable[[int, str], Draw]) -> None:
    counts = (1, 100, 0, 8, 64, 16)

    def sequence(seed: int, name: str) -> list[bytes]:
        draw = make(seed, name)
        return [draw.take(count) for count in counts]

    assert sequence(1, "a") == sequence(1, "a")
    assert sequence(1, "a")[1] != sequence(2, "a")[1] != sequence(2, "b")[1]


def test_two_system_sources_differ() -> None:
    assert SystemDraw().take(16) != SystemDraw().take(16)
