"""Decisions to split and merge: the original's cases, and that none of them flaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.balance.model import GIB, Limits
from ringlog.kernel.balance.sizing import Hints, Sized, decide_resizes
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT
from tests.kernel.balance.world import host

TARGET = 5 * GIB
HOSTS = [host("h1", 2, "r1"), host("h2", 2, "r2")]
LIMITS = Limits(tablets_per_shard_least=1)


def table(count: int, average: float, **more: object) -> Sized:
    sized = int(average * TARGET * count)
    return Sized("ks.t", count, {"dc1": 2}, {}, sized, **more)  # type: ignore[arg-type]


def decided(one: Sized, limits: Limits = LIMITS) -> str:
    """The decision that stands afterwards."""
    found = decide_resizes([one], HOSTS, limits)
    return found[0].decision if found else one.decision


@pytest.mark.parametrize(
    ("average", "before", "after"),
    [
        (1.5, NONE, NONE),  # case 24: 0.75 of twice the target
        (2.2, NONE, SPLIT),  # case 25: 1.1 of it
        (2.0, NONE, NONE),
        (1.0, SPLIT, SPLIT),
        (0.99, SPLIT, NONE),
        (0.5, NONE, NONE),
        (0.49, NONE, MERGE),
        (1.0, MERGE, MERGE),
        (1.01, MERGE, NONE),
    ],
)
def test_thresholds_and_their_hysteresis(average: float, before: str, after: str) -> None:
    assert decided(table(8, average, decision=before)) == after


def test_a_split_is_finished_once_and_asks_for_no_other() -> None:
    assert decided(table(2, 2.2)) == SPLIT
    assert decided(table(4, 1.1)) == NONE


def test_without_sizes_nothing_shrinks() -> None:
    assert decided(replace(table(64, 0), bytes=None)) == NONE
    assert decided(table(64, 0)) == MERGE


def test_bounds_that_are_equal_hold_whatever_the_size() -> None:
    """Case 30."""
    assert decided(table(4, 128, hints=Hints(least=4, most=4))) == NONE


def test_the_least_for_each_shard_and_the_goal() -> None:
    assert decided(table(2, 1.0), Limits()) == SPLIT, "ten for each shard"
    many = [replace(table(1024, 1.0), table=f"ks.t{n}") for n in range(4)]
    found = decide_resizes(many, HOSTS, replace(LIMITS, tablets_per_shard_goal=100))
    assert {(row.decision, row.target) for row in found} == {(MERGE, 64)}


def test_co_located_tables_share_the_target() -> None:
    assert decided(table(8, 1.1, tables=2)) == SPLIT


def test_at_most_ten_at_once_and_revoked_ones_first() -> None:
    many = [replace(table(8, 3.0), table=f"ks.a{n:02}") for n in range(12)]
    found = decide_resizes([*many, replace(table(8, 0.9, decision=SPLIT), table="ks.z")], HOSTS, LIMITS)
    assert len(found) == 10
    assert (found[0].table, found[0].decision) == ("ks.z", NONE)


@given(st.integers(0, 14), st.integers(0, 1 << 46), st.integers(1, 20), st.integers(1, 200))
def test_decisions_end_and_never_turn_round(power: int, size: int, least: int, goal: int) -> None:
    """Carried out until there is none: all of one kind, at most as many as there are powers of two."""
    limits = replace(LIMITS, tablets_per_shard_least=least, tablets_per_shard_goal=goal)
    one = replace(table(1 << power, 0), bytes=size)
    kinds = []
    for _ in range(64):
        found = decide_resizes([one], HOSTS, limits)
        if not found:
            break
        kinds.append(found[0].decision)
        one = replace(one, count=one.count * 2 if kinds[-1] == SPLIT else one.count // 2)
    else:
        raise AssertionError(kinds)
    assert len(set(kinds)) <= 1
    assert len(kinds) <= 20
