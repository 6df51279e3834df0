"""First allocation: spread over racks, nodes, shards, for any shape of cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.placement.tablets import RevertTablets, TabletRevert
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.stages import KINDS
from ringlog.kernel.values import DatacenterReplication, Replication, TabletOptions
from tests.kernel.entries import applied
from tests.kernel.tablets import lives
from tests.kernel.tablets.lives import TABLE, factor, places, racks


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 4))
def test_equal_racks_share_equally(rack_count: int, per_rack: int, shards: int, count: int, replicas: int) -> None:
    nodes = [
        lives.register(1 + rack * per_rack + number, f"r{rack}", shards=shards)
        for rack in range(rack_count)
        for number in range(per_rack)
    ]
    replicas = min(replicas, len(nodes))
    state = lives.with_table(lives.cluster(*nodes), factor(replicas), count)
    by_node: Counter[str] = Counter()
    by_shard: Counter[tuple[str, int]] = Counter()
    for tablet in state.tablets[TABLE]:
        assert len({node for node, _ in places(tablet)}) == replicas
        in_rack = Counter(state.nodes[node].rack for node, _ in places(tablet))
        assert max(in_rack.values()) - min((*in_rack.values(), replicas // rack_count)) <= 1
        by_node.update(node for node, _ in places(tablet))
        by_shard.update(places(tablet))
    loads = [by_node[one.id] for one in nodes]
    assert max(loads) - min(loads) <= 2
    for one in nodes:
        on_shards = [by_shard[one.id, shard] for shard in range(shards)]
        assert max(on_shards) - min(on_shards) <= 1
    assert violations(state) == ()


def test_a_list_of_racks_has_one_replica_in_each() -> None:
    state = lives.with_table(lives.three_racks(), racks("r1", "r3"), 16)
    for tablet in state.tablets[TABLE]:
        assert sorted(state.nodes[node].rack for node, _ in places(tablet)) == ["r1", "r3"]


def test_each_datacenter_has_its_own_replicas() -> None:
    nodes = [lives.register(number, f"r{number % 2}", f"dc{number % 3 // 2 + 1}") for number in range(1, 9)]
    wanted = Replication("tablets", 3, (DatacenterReplication("dc1", 2), DatacenterReplication("dc2", 1)))
    state = lives.with_table(lives.cluster(*nodes), wanted, 16)
    for tablet in state.tablets[TABLE]:
        found = Counter(state.nodes[node].datacenter for node, _ in places(tablet))
        assert found == {"dc1": 2, "dc2": 1}


def test_a_second_table_goes_where_the_first_is_not() -> None:
    """Three tablets of one replica lie on three of six nodes, the next three on the others."""
    state = lives.with_table(lives.three_racks(), factor(1), 3)
    state = applied(state, lives.create_table("u", TabletOptions(3), 2))
    held = Counter(node for table in (TABLE, "ks.u") for one in state.tablets[table] for node, _ in places(one))
    assert set(held.values()) == {1}
    assert len(held) == 6


def with_another(state: ClusterState) -> Counter[str]:
    """A second table is made while a tablet of the first is on its way: how many tablets each node has afterwards."""
    state = lives.settled(applied(state, lives.create_table("u", TabletOptions(6), 2)))
    return Counter(node for table in (TABLE, "ks.u") for one in state.tablets[table] for node, _ in places(one))


@pytest.mark.parametrize("stage", KINDS["migration"].stages)
def test_what_is_on_its_way_counts_where_it_will_be(stage: str) -> None:
    """Each of six nodes has a tablet, and will have two; one gives its tablet to its neighbour meanwhile."""
    state = lives.with_table(lives.three_racks(), factor(1), 6)
    held = with_another(lives.begun(state, lives.migration(state), stage))
    assert [held[node] for node in state.nodes] == [2] * 6


@pytest.mark.parametrize("stage", ["allow_write_both_read_old", "write_both_read_old", "streaming"])
def test_what_turns_back_counts_where_it_was(stage: str) -> None:
    state = lives.with_table(lives.three_racks(), factor(1), 6)
    state = lives.begun(state, lives.migration(state), stage)
    held = with_another(applied(state, RevertTablets((TabletRevert(TABLE, 0, "lost its disk"),))))
    assert [held[node] for node in state.nodes] == [2] * 6


def test_who_leaves_or_is_down_gets_no_tablets() -> None:
    state = lives.three_racks()
    down = lives.node_id(1)
    state = lives.with_table(applied(state, DeclareDown(down, "burnt"), Leave(lives.node_id(2))), factor(2), 8)
    holders = {node for one in state.tablets[TABLE] for node, _ in places(one)}
    assert holders.isdisjoint({down, lives.node_id(2)})


def test_the_number_of_tablets_follows_the_shards() -> None:
    """Six nodes of two shards, three replicas, ten on each shard: 40, rounded up to a power of two."""
    state = applied(lives.three_racks(), CreateKeyspace("ks", factor(3)), lives.create_table())
    assert state.tablets[TABLE].count == 64
