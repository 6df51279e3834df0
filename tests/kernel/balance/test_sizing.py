"""Split and merge decisions: the cases of ScyllaDB, and the absence of oscillation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.balance.model import GIB, BalancedHost, Limits
from ringlog.kernel.balance.sizing import Sized, SizeOptions, decide_resizes
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT
from ringlog.kernel.values import replace
from tests.kernel.balance.world import host

TARGET = 5 * GIB
HOSTS = [host("h1", 2, "r1"), host("h2", 2, "r2")]
LIMITS = Limits(tablets_per_shard_least=1)


def table(count: int, average: float, **more: object) -> Sized:
    sized = int(average * TARGET * count)
    return Sized("ks.t", count, {"dc1": 2}, {}, sized, **more)  # type: ignore[arg-type]


def decided(one: Sized, limits: Limits = LIMITS) -> str:
    """Return the decision after the next round."""
    found = decide_resizes([one], HOSTS, limits)
    return found[0].decision if found else one.decision


@pytest.mark.parametrize(
    ("average", "before", "after"),
    [
        (1.5, NONE, NONE),  # case 24: 0.75 of twice the target
        (2.2, NONE, SPLIT),  # case 25: 1.1 of twice the target
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


def test_a_split_finishes_once() -> None:
    assert decided(table(2, 2.2)) == SPLIT
    assert decided(table(4, 1.1)) == NONE


def test_without_sizes_nothing_shrinks() -> None:
    assert decided(replace(table(64, 0), bytes=None)) == NONE
    assert decided(table(64, 0)) == MERGE


@pytest.mark.parametrize("decision", [SPLIT, MERGE, NONE])
def test_a_missing_size_changes_no_decision(decision: str) -> None:
    """Only the new node reports a moving tablet."""
    assert decided(table(64, 0, decision=decision, complete=False)) == decision
    assert decided(replace(table(64, 0, decision=decision), bytes=None)) == decision


def test_a_paused_table_does_not_displace_another() -> None:
    many = [table(8, 3.0, paused=True), replace(table(8, 3.0), table="ks.u")]
    assert [row.table for row in decide_resizes(many, HOSTS, replace(LIMITS, resizes_per_plan=1))] == ["ks.u"]


def test_equal_bounds_hold_for_any_size() -> None:
    """Case 30."""
    assert decided(table(4, 128, options=SizeOptions(least=4, most=4))) == NONE


def test_the_least_for_each_shard_and_the_goal() -> None:
    assert decided(table(2, 1.0), Limits()) == SPLIT, "ten for each shard"
    many = [replace(table(1024, 1.0), table=f"ks.t{n}") for n in range(4)]
    found = decide_resizes(many, HOSTS, replace(LIMITS, tablets_per_shard_goal=100))
    assert {row.decision for row in found} == {MERGE}
    assert {
        count for count, _ in final_decisions(many, HOSTS, replace(LIMITS, tablets_per_shard_goal=100)).values()
    } == {64}


def test_co_located_tables_share_the_target() -> None:
    assert decided(table(8, 1.1, tables=2)) == SPLIT


def test_at_most_ten_at_once_and_revoked_ones_first() -> None:
    many = [replace(table(8, 3.0), table=f"ks.a{n:02}") for n in range(12)]
    found = decide_resizes([*many, replace(table(8, 0.9, decision=SPLIT), table="ks.z")], HOSTS, LIMITS)
    assert len(found) == 10
    assert (found[0].table, found[0].decision) == ("ks.z", NONE)


def final_decisions(
    tables: Sequence[Sized], hosts: Sequence[BalancedHost], limits: Limits
) -> dict[str, tuple[int, set[str]]]:
    """Apply decisions until there are none. Return the count and the kinds of decisions of each table."""
    found = {one.table: one for one in tables}
    kinds: dict[str, set[str]] = {one.table: set() for one in tables}
    for _ in range(50 * len(tables) + 50):
        rows = decide_resizes(list(found.values()), hosts, limits)
        if not rows:
            return {name: (one.count, kinds[name]) for name, one in found.items()}
        for row in rows:
            found[row.table] = replace(found[row.table], decision=row.decision)
            kinds[row.table].add(row.decision)
        for name, one in found.items():
            count = {SPLIT: 2 * one.count, MERGE: -(-one.count // 2), NONE: one.count}[one.decision]
            found[name] = replace(one, count=count, decision=NONE)
    raise AssertionError({name: (one.count, kinds[name]) for name, one in found.items()})


HINTS = st.builds(
    SizeOptions,
    least=st.sampled_from((0, 0, 1, 3, 32)),
    most=st.sampled_from((0, 0, 1, 48, 128)),
    expected_bytes=st.sampled_from((0, 0, 10 * GIB, 1 << 44)),
)
SIZED = st.builds(
    Sized,
    st.just(""),
    st.one_of(st.integers(1, 300), st.sampled_from([1 << power for power in range(15)])),
    st.dictionaries(st.sampled_from(("dc1", "dc2")), st.integers(1, 3), min_size=1),
    st.sampled_from(({}, {"dc1": frozenset({"r1"})})),
    st.one_of(st.none(), st.integers(0, 1 << 44)),
    HINTS,
    st.sampled_from((NONE, NONE, SPLIT, MERGE)),
    st.integers(1, 3),
    st.booleans(),
)
WHERE = st.tuples(st.integers(1, 8), st.sampled_from(("r1", "r2")), st.sampled_from(("dc1", "dc2")))
DRAWN = st.builds(
    Limits,
    target_bytes=st.sampled_from((1 << 10, GIB, TARGET)),
    tablets_per_shard_goal=st.one_of(st.integers(1, 100), st.just(10_000)),
    tablets_per_shard_least=st.integers(1, 20),
    resizes_per_plan=st.sampled_from((1, 3, 1_000)),
    tablets_most=st.sampled_from((64, 1 << 16)),
)


@given(st.lists(SIZED, min_size=1, max_size=12), st.lists(WHERE, min_size=1, max_size=6), DRAWN)
def test_resize_decisions_end(drawn: list[Sized], where: list[tuple[int, str, str]], limits: Limits) -> None:
    """While all sizes are known, each table is only split or only merged."""
    tables = [replace(one, table=f"ks.t{number:02}") for number, one in enumerate(drawn)]
    hosts = [host(f"h{number}", *each) for number, each in enumerate(where)]
    found = final_decisions(tables, hosts, limits)
    if all(one.bytes is not None and one.complete and one.decision == NONE for one in tables):
        assert all(len(kinds) <= 1 for _, kinds in found.values()), found


def test_one_large_table_among_many_small_ones_rests() -> None:
    """The goal reduces all tables. The large table stays between both thresholds."""
    hosts = [host(f"n{number}", 2, f"r{number % 3}") for number in range(12)]
    sizes = [int(1.5 * 128 * TARGET), *[1 << 30] * 25]
    tables = [Sized(f"ks.t{number:02}", 128, {"dc1": 3}, {}, size) for number, size in enumerate(sizes)]
    assert final_decisions(tables, hosts, Limits())["ks.t00"] in ((128, set()), (64, {MERGE}))
