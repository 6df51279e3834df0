"""A zone knows no datacenters: wherever the replicas of a partition are, a quorum of them all is what counts."""

from __future__ import annotations

from itertools import combinations

import pytest

from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.rebalances import TriggerRebalance
from ringlog.kernel.commands.zones import CreateZone, SetDataNodes
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.sources import quorum_sources
from ringlog.kernel.state import ClusterState
from ringlog.kernel.tablets.admission import knows_every_row
from ringlog.kernel.values import DatacenterReplication, Replication
from ringlog.operator.replication import in_zone
from ringlog.operator.zones import full_view
from tests.kernel.entries import founded
from tests.kernel.tablets.lives import normal
from tests.kernel.zones.placed import TABLE, create_table, led, on, said
from tests.kernel.zones.scenes import done, down, ids, letter, partition, shown

LAYOUTS = ("1111", "1231", "1232", "1233", "1234", "1112")
"""The datacenters of A, B, C and D."""


def spread(layout: str, replication: Replication | None = None) -> ClusterState:
    """A table on A, B and C; D is there, too."""
    names = (letter(name, datacenter=f"dc{where}") for name, where in zip("ABCD", layout, strict=True))
    state = done(normal(founded(), *names), CreateZone("z", ids("ABC"), 1, 3, scale_up=2**31 - 1))
    return done(state, CreateKeyspace("ks", replication or in_zone("z")), create_table())


def towards(state: ClusterState, letters: str) -> ClusterState:
    """The zone has these data nodes, and nobody asks for anything more."""
    state = done(state, SetDataNodes("z", ids(letters), state.epoch))
    return led(done(state, TriggerRebalance("z", state.epoch)))[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leaves", "BC")
def test_a_dead_node_holds_up_no_move_whether_it_leaves_or_stays(layout: str, leaves: str) -> None:
    """In most of the layouts it is the only replica of its datacenter."""
    goal = "ABCD".replace(leaves, "")
    state = towards(done(spread(layout), *down("C")), goal)
    assert (on(state), shown(partition(state).stable), partition(state).pending) == (goal, goal, ())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lost_majority_is_one_of_all_replicas(layout: str) -> None:
    state = towards(done(spread(layout), *down("BC")), "ABD")
    assert on(state) == "ABC", "nobody knows every row"
    row = full_view(state, state.zones["z"], said(state))["partitions"][0]
    assert row["stuck"]
    assert "B, C" in row["waits"]


def test_where_a_replication_names_datacenters_each_of_them_counts() -> None:
    each = tuple(DatacenterReplication(f"dc{number}", 1) for number in (1, 2, 3))
    state = done(spread("1231", Replication("tablets", 3, each)), *down("C"))
    assert not knows_every_row(state, TABLE, ids("ABC"))
    assert knows_every_row(done(spread("1231"), *down("C")), TABLE, ids("ABC"))


@pytest.mark.parametrize("count", range(1, 8))
def test_who_is_asked_for_rows_meets_each_quorum_that_may_have_written_them(count: int) -> None:
    state = normal(founded(), *(letter(name, datacenter=f"dc{number % 3}") for number, name in enumerate("ABCDEFG")))
    group = ids("ABCDEFG")[:count]
    for dead in (set(some) for number in range(count) for some in combinations(group, number)):
        found = set(quorum_sources(state.nodes, group, dead, as_one=True))
        assert bool(found) is (len(dead) < quorum(count)), "those who are dead may be all who know it"
        assert not found & dead
        for writers in combinations(group, quorum(count)) if found else ():
            assert found.intersection(writers), (found, writers)
