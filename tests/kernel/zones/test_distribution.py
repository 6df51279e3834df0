"""Rendezvous hashing: sizes, even shares, weights, racks, and the few moves after a new node."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.zones import CreateZone, SetDataNodes
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.zones import Zone
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.sources import quorum_sources
from ringlog.kernel.tablets.mutual_exclusion import knows_every_row
from ringlog.kernel.values import DatacenterReplication, Replication, replace
from ringlog.kernel.zones import distribution
from ringlog.kernel.zones.distribution import _log2, default_quorum, quorum_bounds, ranked, scores, split
from ringlog.operator.intents.replication import in_zone
from ringlog.operator.views.zones import full_view
from tests.kernel.entries import founded
from tests.kernel.tablets.clusters import normal
from tests.kernel.zones.states import done, down, ids, letter, partition, shown
from tests.kernel.zones.zone_keyspaces import TABLE, create_table, node_reports, on, run_to_idle

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


def defined(of: Zone, nodes: list[Node], numbers: range) -> list[list[str]]:
    """Return ``ranked`` by its definition: one replica after the other, with full sorting."""
    found = []
    for row in np.argsort(scores(of.name, nodes, numbers), axis=1, kind="stable").tolist():
        left, used = [nodes[place] for place in row], Counter[str]()
        chosen: list[str] = []
        while left and len(chosen) < of.replicas:
            best = min(left, key=lambda one: used[one.rack])
            left.remove(best)
            used[best.rack] += 1
            chosen.append(best.id)
        found.append(chosen)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([1, 1, 2, 7, 2**62])), min_size=1, max_size=24),
    st.integers(1, 9),
    st.integers(1, 40),
    st.sampled_from([1, 50, 1 << 17]),
)
def test_ranks_by_blocks_are_right(made: list[tuple[int, int]], replicas: int, partitions: int, cells: int) -> None:
    """This holds for all racks, weights and block sizes."""
    nodes = [node(number, f"r{rack}", capacity) for number, (rack, capacity) in enumerate(made)]
    of = zone(replicas=replicas)
    with mock.patch.object(distribution, "_BLOCK_CELLS", cells):
        assert ranked(of, nodes, range(partitions)) == defined(of, nodes, range(partitions))


def test_equal_scores_are_ordered_by_place() -> None:
    nodes = [replace(node(1, f"r{rack}"), id=f"id-{number}") for number, rack in enumerate((1, 1, 2, 2, 3))]
    for replicas in range(1, 6):
        assert ranked(zone(replicas=replicas), nodes, range(9)) == defined(zone(replicas=replicas), nodes, range(9))


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
def test_racks_have_equal_numbers_and_one_replica_moves(racks: int, nodes: int, replicas: int, name: str) -> None:
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


def test_scores_are_fixed() -> None:
    """Each release must apply a log in the same way."""
    assert scores("z", [node(1), node(2, capacity=5)], [0, 1]).tolist() == PINNED


@given(st.integers(1, 2**53 - 1), st.integers(1, 1_000))
def test_the_logarithm_is_correct(value: int, more: int) -> None:
    low, high = _log2(np.array([value, min(value + more, 2**53 - 1)], np.uint64)).tolist()
    assert abs(low / 2**32 - math.log2(value)) < 2e-6
    assert low <= high


# A zone ignores datacenters: a quorum of all replicas of a partition counts.


LAYOUTS = ("1111", "1231", "1232", "1233", "1234", "1112")
"""The datacenters of A, B, C and D."""


def spread(layout: str, replication: Replication | None = None) -> ClusterState:
    """Return a table on A, B and C, with a further node D."""
    names = (letter(name, datacenter=f"dc{where}") for name, where in zip("ABCD", layout, strict=True))
    state = done(normal(founded(), *names), CreateZone("z", ids("ABC"), 1, 3, scale_up=2**31 - 1))
    return done(state, CreateKeyspace("ks", replication or in_zone("z")), create_table())


def towards(state: ClusterState, letters: str) -> ClusterState:
    """Set the data nodes of the zone, and apply commands until none is proposed."""
    state = done(state, SetDataNodes("z", ids(letters), state.epoch))
    return run_to_idle(done(state, TriggerRebalance("z", state.epoch)))[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leaves", "BC")
def test_a_dead_node_does_not_block_a_move(layout: str, leaves: str) -> None:
    """In most layouts it is the only replica of its datacenter."""
    goal = "ABCD".replace(leaves, "")
    state = towards(done(spread(layout), *down("C")), goal)
    assert (on(state), shown(partition(state).stable), partition(state).pending) == (goal, goal, ())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lost_majority_is_one_of_all_replicas(layout: str) -> None:
    state = towards(done(spread(layout), *down("BC")), "ABD")
    assert on(state) == "ABC", "no node has all rows"
    row = full_view(state, state.zones["z"], node_reports(state))["partitions"][0]
    assert row["stuck"]
    assert "B, C" in row["waits"]


def test_each_named_datacenter_counts() -> None:
    each = tuple(DatacenterReplication(f"dc{number}", 1) for number in (1, 2, 3))
    state = done(spread("1231", Replication("tablets", 3, each)), *down("C"))
    assert not knows_every_row(state, TABLE, ids("ABC"))
    assert knows_every_row(done(spread("1231"), *down("C")), TABLE, ids("ABC"))


@pytest.mark.parametrize("count", range(1, 8))
def test_row_sources_intersect_each_write_quorum(count: int) -> None:
    state = normal(founded(), *(letter(name, datacenter=f"dc{number % 3}") for number, name in enumerate("ABCDEFG")))
    group = ids("ABCDEFG")[:count]
    for dead in (set(some) for number in range(count) for some in combinations(group, number)):
        found = set(quorum_sources(state.nodes, group, dead, as_one=True))
        assert bool(found) is (len(dead) < quorum(count)), "the dead nodes may be the only ones with the rows"
        assert not found & dead
        for writers in combinations(group, quorum(count)) if found else ():
            assert found.intersection(writers), (found, writers)
