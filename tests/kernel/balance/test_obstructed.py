"""Moves that the state refuses, siblings that lie apart, drains across datacenters, resizes that wait for the dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave, Remove
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.tablet_map import TabletReplica, new_map, uniform_ends
from ringlog.kernel.tablets.mutual_exclusion import tables_on
from ringlog.kernel.tablets.resize import apart
from ringlog.kernel.values import DatacenterReplication, Replication, TabletOptions
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views.tablets import resizes_view, resizing
from ringlog.protocol.balancer.balancer import REPORTED_MAX, complaints
from ringlog.protocol.coordinator.core import CoordinatorView, rejections
from tests.kernel.entries import applied
from tests.kernel.tablets.lives import (
    TABLE,
    cluster,
    create_table,
    factor,
    node_id,
    places,
    register,
    settled,
    tablet,
    with_table,
)

ROUNDS_MAX = 60


def balanced(state: ClusterState) -> ClusterState:
    """The balancer's moves are carried out until there are none."""
    for _ in range(ROUNDS_MAX):
        if not (moves := advise(state, {}).moves):
            return state
        state = applied(state, MigrateTablets(moves))
        for one in moves:
            state = settled(state, one.tablet, one.table)
    raise AssertionError("it does not end")


def laid(state: ClusterState, table: str, *groups: tuple[int, ...]) -> ClusterState:
    """The table with these tablets, each on shard 0 of the nodes with these numbers."""
    replicas = [[TabletReplica(node_id(number), 0, 1) for number in group] for group in groups]
    made = new_map(table, uniform_ends(len(groups)), replicas, state.epoch)
    return advance(state, state.epoch + 1, tablets=state.tablets.set(table, made))


def with_at_most_one_tablet(state: ClusterState) -> ClusterState:
    """The table's owner wants one tablet, so the balancer keeps a decision to merge two."""
    table = state.tables[TABLE]
    assert table.tablets is not None
    smaller = replace(table, tablets=replace(table.tablets, max_count=1))
    return advance(state, state.epoch + 1, tables=state.tables.set(TABLE, smaller))


def test_tablets_that_cannot_be_rebuilt_take_no_room_from_others() -> None:
    """Node 1 had the only replica of its datacenter of many tablets, and one of three of another table."""
    nodes = [register(number, "r1", "dc1" if number < 5 else "dc2") for number in range(1, 8)]
    local = tuple(DatacenterReplication(name, count, ()) for name, count in (("dc1", 1), ("dc2", 1)))
    state = with_table(cluster(*nodes), Replication("tablets", 2, local), 8)
    state = laid(state, TABLE, *[(1, 5)] * 8)
    three = Replication("tablets", 3, (DatacenterReplication("dc1", 3, ()),))
    other = replace(create_table("t", TabletOptions(4), number=2), keyspace="zz")
    state = applied(state, CreateKeyspace("zz", three), other)
    state = laid(state, "zz.t", *[(1, 2, 3)] * 4)
    state = balanced(applied(state, DeclareDown(node_id(1), "burnt"), Remove(node_id(1))))
    assert tables_on(state, node_id(1)) == (TABLE,)
    codes = {(row.table, row.code) for row in advise(state, {}).plan.obstacles}
    assert codes == {(TABLE, "too_few_replicas")}


def test_a_move_that_the_state_refuses_is_left_out_of_the_next_plan() -> None:
    """Two of three replicas are dead, so the third, which leaves, cannot give its tablets away."""
    state = with_table(cluster(*map(register, range(1, 8))), factor(3), 6)
    state = laid(state, TABLE, *[(1, 2, 3)] * 5, (3, 4, 5))
    state = applied(state, DeclareDown(node_id(1), "burnt"), DeclareDown(node_id(2), "burnt"), Leave(node_id(3)))
    advice = advise(state, {})
    assert [one.tablet for one in advice.moves] == [5]
    assert {row.code for row in advice.plan.obstacles} == {"too_few_replicas"}
    assert len([*complaints(state, advice, Reports())]) <= 2 * REPORTED_MAX + 2


RACKS = ["r1", "r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("even", "odd"), [((1, 2), (3, 4)), ((1, 3), (2, 4)), ((1, 4), (1, 3)), ((3, 4), (1, 2)), ((2, 1), (1, 4))]
)
@pytest.mark.parametrize("datacenters", [("dc1",) * 4, ("dc1", "dc1", "dc2", "dc2"), ("dc1", "dc2", "dc3", "dc3")])
def test_siblings_of_a_merge_meet(even: tuple[int, int], odd: tuple[int, int], datacenters: tuple[str, ...]) -> None:
    """Whatever racks and datacenters they are in, as long as the replication names none."""
    nodes = [register(number, *where) for number, where in enumerate(zip(RACKS, datacenters, strict=True), start=1)]
    state = laid(with_table(cluster(*nodes), factor(2), 2), TABLE, even, odd)
    state = with_at_most_one_tablet(state)
    state = balanced(applied(state, DecideResize(TABLE, "merge", 1)))
    assert apart(state.tablets[TABLE]) is None


def test_siblings_that_cannot_meet_are_reported() -> None:
    state = laid(with_table(cluster(*map(register, range(1, 5))), factor(1), 2), TABLE, (1,), (2,))
    state = with_at_most_one_tablet(state)
    state = applied(state, DecideResize(TABLE, "merge", 1), DeclareDown(node_id(2), "burnt"))
    told = [(one.subject, one.code) for one in complaints(state, advise(state, {}), Reports())]
    assert (TABLE, "cannot_meet") in told


def test_the_only_node_of_a_datacenter_is_drained_if_the_replication_names_none() -> None:
    nodes = [register(1), register(2), register(3, "r1", "dc2")]
    state = laid(with_table(cluster(*nodes), factor(1), 4), TABLE, (1,), (2,), (3,), (3,))
    state = balanced(applied(state, Leave(node_id(3))))
    assert tables_on(state, node_id(3)) == ()
    assert {node for number in range(4) for node, _ in places(tablet(state, number))} == {node_id(1), node_id(2)}


def test_a_resize_that_waits_for_a_dead_node_is_reported() -> None:
    state = with_table(cluster(*map(register, range(1, 5))), factor(3), 4)
    state = applied(state, DecideResize(TABLE, "split", 1))
    acks = acknowledgements(state, 0)
    assert not rejections(CoordinatorView(state, acks, state.epoch, 0))
    node = places(tablet(state))[0][0]
    state = applied(state, DeclareDown(node, "burnt"))
    acks = {other: ack for other, ack in acknowledgements(state, 0).items() if other != node}
    (told,) = rejections(CoordinatorView(state, acks, state.epoch, 0))
    assert (told.subject, told.kind, told.code) == (TABLE, "FinishResize", "gate_not_met")
    (line,) = resizing(resizes_view(state, acks))
    name = state.nodes[node].name
    assert line.startswith(f"split 1 of {TABLE} is decided and waits for witnesses: {name} must acknowledge")
