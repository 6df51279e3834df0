"""Rendezvous hashing: sizes, even shares, weights, racks, and how little moves when a node comes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.state import Node
from ringlog.kernel.zones.distribution import _log2, default_quorum, quorum_bounds, ranked, scores, split
from ringlog.kernel.zones.model import Zone

PINNED = [[139835743958, 134361871840], [127820669331, 136070778559]]


def node(number: int, rack: str = "r", capacity: int = 1) -> Node:
    return Node(f"id-{number:03}", f"n{number}", "", "dc", rack, 1, 0, "1", (), capacity, "normal", (), 1)


def zone(name: str = "z", replicas: int = 3, quorum: int = 2) -> Zone:
    return Zone(name, 25, replicas, quorum, "$..*", (), 0, 0, "strong", (), 0, 1, 0)


def moves(before: list[list[str]], after: list[list[str]]) -> list[set[str]]:
    return [set(new) - set(old) for old, new in zip(before, after, strict=True)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100), st.integers(1, 64), st.integers(1, 5))
def test_sizes(nodes: int, replicas: int, racks: int) -> None:
    least, most = quorum_bounds(replicas)
    assert least <= default_quorum(replicas) <= most
    wanted = zone(replicas=replicas, quorum=default_quorum(replicas))
    for order in ranked(wanted, [node(number, f"r{number % racks}") for number in range(nodes)], range(5)):
        assert len(order) == len(set(order)) == min(replicas, nodes)
        step = split(wanted, order)
        assert step is not None
        assert len(step.peers) == min(2 * wanted.quorum - 1, replicas, nodes)


def test_one_more_node_takes_its_share_and_nothing_else_moves() -> None:
    nodes, zones, moved = 10, 200, 0
    for number in range(zones):
        of = zone(f"z{number}")
        before = ranked(of, [node(one) for one in range(nodes)], range(25))
        after = ranked(of, [node(one) for one in range(nodes + 1)], range(25))
        for came in moves(before, after):
            assert came <= {f"id-{nodes:03}"}
            moved += len(came)
    share = moved / (zones * 25 * 3)
    assert abs(share * (nodes + 1) - 1) < 0.05, share


def test_shares_are_even_within_a_fifth() -> None:
    nodes = [node(one) for one in range(50)]
    found = Counter(one for row in ranked(zone(replicas=4), nodes, range(10_000)) for one in row)
    assert len(found) == 50
    assert all(640 <= count <= 960 for count in found.values()), found.most_common(1)


def test_a_node_of_twice_the_capacity_has_twice_as_much() -> None:
    found: Counter[str] = Counter()
    for number in range(100):
        rows = ranked(zone(f"z{number}", 1, 1), [node(one, capacity=1 + (one == 0)) for one in range(9)], range(100))
        found.update(row[0] for row in rows)
    assert abs(found["id-000"] / 10_000 - 0.2) < 0.02
    assert all(abs(count / 10_000 - 0.1) < 0.02 for name, count in found.items() if name != "id-000")


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 12), st.integers(1, 6), st.text("abc", min_size=1, max_size=4))
def test_racks_have_equal_numbers_and_one_replica_moves_at_most(
    racks: int, nodes: int, replicas: int, name: str
) -> None:
    directory = {f"id-{one:03}": node(one, f"r{one % racks}") for one in range(nodes + 1)}
    of = zone(name, replicas, default_quorum(replicas))
    rows = [list(directory.values())[:nodes], list(directory.values())]
    before, after = (ranked(of, row, range(20)) for row in rows)
    for order in before:
        used = Counter(directory[one].rack for one in order)
        sizes = Counter(one.rack for one in rows[0])
        assert all(used[one] >= min(sizes[one], max(used.values()) - 1) for one in sizes)
    assert all(came <= {f"id-{nodes:03}"} for came in moves(before, after))


@pytest.mark.parametrize("capacity", [2**20, 2**62])
def test_only_ratios_of_capacities_count(capacity: int) -> None:
    small, large = ([node(one, capacity=(one + 1) * by) for one in range(5)] for by in (1, capacity // 8))
    assert ranked(zone(), small, range(50)) == ranked(zone(), large, range(50))


def test_scores_do_not_depend_on_others() -> None:
    nodes = [node(one) for one in range(6)]
    whole = scores("z", nodes, range(30))
    assert (scores("z", nodes[2:4], [7, 9]) == whole[np.ix_([7, 9], [2, 3])]).all()
    assert (
        ranked(zone(), [replace(one, id=one.id + "x") for one in nodes], [0])[0][0]
        == ranked(zone(), nodes, [0])[0][0] + "x"
    )


def test_the_first_scores_are_what_they_were() -> None:
    """A log is folded the same by every release."""
    assert scores("z", [node(1), node(2, capacity=5)], [0, 1]).tolist() == PINNED


@given(st.integers(1, 2**53 - 1), st.integers(1, 1_000))
def test_the_logarithm_is_one(value: int, more: int) -> None:
    low, high = _log2(np.array([value, min(value + more, 2**53 - 1)], np.uint64)).tolist()
    assert abs(low / 2**32 - math.log2(value)) < 2e-6
    assert low <= high
