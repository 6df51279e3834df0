"""Canonical layouts compared with a brute-force walk, lookup of ranges, split and merge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.ownership.placements import (
    canonical,
    group_at,
    merge,
    new_placement,
    nodes_of,
    placement_of_keyspace,
    read_ranges_of,
    replications_in_use,
    split,
)
from ringlog.kernel.ring.ranges import in_range, ranges_between
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN
from ringlog_testing.placement.layout import walk
from tests.kernel.ownership.rings import a_cluster, shown, simple, token_maps


def test_layout_of_three_nodes() -> None:
    state = a_cluster({"A": [100], "B": [200], "C": [300]})
    layout = {(300, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "A")}
    assert shown(state.placements["simple:2"], "read") == layout
    assert shown(state.placements["simple:2"], "write") == layout


def test_one_token_owns_the_whole_ring() -> None:
    state = a_cluster({"A": [7]}, factors=[1])
    placement = state.placements["simple:1"]
    assert shown(placement, "read") == {(7, 7): ("A",)}
    assert all(group_at(placement, token).end == 7 for token in (TOKEN_MIN, 6, 7, 8, TOKEN_MAX))


def test_an_empty_token_map_has_no_ranges() -> None:
    assert canonical(simple(3), {}, {}, 1) == ()


def test_fewer_nodes_than_replicas_use_all_nodes() -> None:
    state = a_cluster({"A": [1, 5], "B": [3]}, factors=[3])
    assert shown(state.placements["simple:3"], "read") == {(5, 1): ("A", "B"), (1, 3): ("B", "A"), (3, 5): ("A", "B")}


@settings(deadline=None)
@given(token_maps(), st.integers(1, 5))
def test_canonical_layout_is_the_clockwise_walk(tokens: dict[str, list[int]], factor: int) -> None:
    state = a_cluster(tokens, factors=[factor])
    placement = state.placements[f"simple:{factor}"]
    owners = dict(state.token_owners.items())
    assert placement.ends == tuple(sorted(owners))
    for position in range(-42, 43):
        group = group_at(placement, position)
        assert in_range(position, group.start, group.end)
        assert list(nodes_of(group.read)) == walk(owners, position)[:factor]
        assert group.read == group.write
        assert {replica.since for replica in group.read} == {5}


@settings(deadline=None)
@given(st.sets(st.integers(-20, 20), min_size=1, max_size=8), st.integers(-25, 25))
def test_each_token_lies_in_exactly_one_range(ends: set[int], token: int) -> None:
    ranges = ranges_between(sorted(ends))
    assert sum(in_range(token, start, end) for start, end in ranges) == 1
    assert {end for _, end in ranges} == ends


@settings(deadline=None)
@given(token_maps(), st.sets(st.integers(-45, 45), max_size=5))
def test_split_keeps_every_group_and_merge_undoes_it(tokens: dict[str, list[int]], at: set[int]) -> None:
    placement = a_cluster(tokens, factors=[2]).placements["simple:2"]
    parts = split(placement, at)
    assert parts.ends == tuple(sorted({*placement.ends, *at}))
    assert ranges_between(parts.ends) == tuple((group.start, group.end) for group in parts.ranges)
    for position in range(-46, 47):
        whole, part = group_at(placement, position), group_at(parts, position)
        assert (part.read, part.write, part.changed) == (whole.read, whole.write, whole.changed)
    assert merge(parts, at.difference(placement.ends)) == placement


def test_split_and_merge_of_a_placement_without_ranges() -> None:
    placement = new_placement(simple(1), {}, {}, 3)
    parts = split(placement, [4, -4])
    assert shown(parts, "write") == {(4, -4): (), (-4, 4): ()}
    assert merge(parts, [4, -4]) == placement


def test_merge_refuses_unequal_neighbours() -> None:
    placement = a_cluster({"A": [1], "B": [2], "C": [3]}).placements["simple:2"]
    with pytest.raises(AssertionError, match="equal neighbours"):
        merge(placement, [2])


def test_merge_keeps_the_last_served_range() -> None:
    placement = a_cluster({"A": [1]}, factors=[1]).placements["simple:1"]
    with pytest.raises(AssertionError, match="last range with members"):
        merge(placement, [1])


def test_ranges_of_a_node_and_placement_of_a_keyspace() -> None:
    state = a_cluster({"A": [100], "B": [200], "C": [300]}, factors=[1, 2])
    placement = placement_of_keyspace(state, "ks2")
    assert placement is state.placements["simple:2"]
    assert placement is not None
    assert read_ranges_of(placement, "B") == ((300, 100), (100, 200))
    assert placement_of_keyspace(state, "nowhere") is None
    assert replications_in_use(state) == (("simple:1", simple(1)), ("simple:2", simple(2)))
