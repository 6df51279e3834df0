"""Rejected tablet moves: invalid targets, racks, limits and pending node operations. Also resized tables."""

from __future__ import annotations

import re

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, TakeOver
from ringlog.kernel.commands.placement.resizes import DecideResize, FinishResize, members, resize_session
from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.commands.topology.movements import Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import TabletMap, uniform_ends, with_settled
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.resize import merge, split
from ringlog.kernel.values import Replication, StreamReport, TabletOptions, replace
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import (
    TABLE,
    factor,
    migration,
    node_id,
    outcome,
    places,
    racks,
    refused,
    register,
    settled,
    started,
    tablet,
    witnesses,
)


@pytest.fixture(scope="module")
def start() -> ClusterState:
    return clusters.with_table(clusters.three_racks(), factor(3), 8)


def go_on(state: ClusterState) -> AdvanceOperation:
    (operation,) = in_flight(state)
    return AdvanceOperation(operation.id, "prepared", witnesses(state))


def test_invalid_targets_are_rejected(start: ClusterState) -> None:
    one = migration(start)
    assert one.from_ is not None
    assert one.to is not None
    other = places(tablet(start))[1][0]
    for bad, code in (
        (replace(one, to=Shard(one.to.node, 2)), "unknown_shard"),
        (replace(one, to=Shard(one.to.node, -1)), "bad_field"),
        (replace(one, to=Shard("nobody", 0)), "unknown_node"),
        (replace(one, to=Shard(other, 0)), "holds_replica"),
        (replace(one, from_=Shard(one.from_.node, 1 - one.from_.shard)), "not_a_replica"),
        (replace(one, kind="teleport"), "bad_field"),
        (replace(one, kind="intranode_migration"), "bad_field"),
        (replace(one, kind="repair"), "bad_field"),
        (replace(one, kind="rebuild", from_=None), "replicas_as_wanted"),
        (replace(one, kind="rebuild", to=None), "replicas_as_wanted"),
        (replace(one, kind="rebuild", from_=None, to=None), "bad_field"),
        (replace(one, to=None), "bad_field"),
        (replace(one, tablet=8), "unknown_tablet"),
        (replace(one, table="ks.x"), "unknown_table"),
    ):
        assert refused(start, MigrateTablets((bad,))) == code, bad
    assert refused(start, MigrateTablets((one, one))) == "bad_field"
    assert refused(started(start, one), MigrateTablets((one,))) == "tablet_in_transition"
    down = applied(start, DeclareDown(one.to.node, "burnt"))
    assert refused(down, MigrateTablets((one,))) == "wrong_node_state"


def test_only_the_active_balancer_moves_tablets(start: ClusterState) -> None:
    plan = MigrateTablets((migration(start),), term=1)
    assert refused(start, plan) == "plan_outdated"
    acts = applied(start, TakeOver("balancer", "balancer-1", 1))
    assert refused(acts, plan) == "applied"
    taken_over = applied(acts, TakeOver("balancer", "balancer-2", 2))
    assert refused(taken_over, plan) == "plan_outdated"
    assert refused(taken_over, replace(plan, term=0)) == "applied", "an operator requests it"


def test_moves_keep_named_racks() -> None:
    state = clusters.with_table(clusters.three_racks(), racks("r1", "r2", "r3"), 4)
    node, shard = places(tablet(state))[0]
    for rack, code in (("r1", "applied"), ("r2", "rack_pinned")):
        to = Shard(clusters.free_node(state, 0, rack), 0)
        assert refused(state, MigrateTablets((TabletMigration(TABLE, 0, "migration", Shard(node, shard), to),))) == code


def test_replicas_of_different_racks_do_not_collapse_into_one() -> None:
    state = clusters.with_table(clusters.three_racks(), factor(2), 4)
    (first, second) = places(tablet(state))
    rack = state.nodes[second[0]].rack
    to = Shard(clusters.free_node(state, 0, rack), 0)
    assert refused(state, MigrateTablets((TabletMigration(TABLE, 0, "migration", Shard(*first), to),))) == "rack_full"


def test_stream_limits_are_enforced(start: ClusterState) -> None:
    """Both tablets leave the same shard. Then the limit is one stream in total."""
    by_shard: dict[tuple[str, int], list[int]] = {}
    for index in range(8):
        by_shard.setdefault(places(tablet(start, index))[0], []).append(index)
    shared = max(by_shard.values(), key=len)
    moves = tuple(migration(start, index) for index in shared[:2])
    assert len(moves) == 2
    tight = applied(start, ChangeSettings((("tablet_stream_reads_per_shard_max", 1),)))
    assert refused(tight, MigrateTablets(moves)) == "streaming_limit"
    assert refused(applied(tight, MigrateTablets(moves[:1])), MigrateTablets(moves[1:])) == "streaming_limit"
    alone = applied(start, ChangeSettings((("tablet_streams_max", 1),)))
    assert refused(alone, MigrateTablets(moves)) == "streaming_limit"
    later = started(tight, moves[0], "write_both_read_new")
    assert refused(later, MigrateTablets(moves[1:])) == "applied", "a finished stream does not count"


def test_a_pending_operation_blocks_new_migrations(start: ClusterState) -> None:
    state = clusters.joining(started(start, migration(start)), 8)
    assert refused(state, MigrateTablets((migration(state, 1),))) == "operations_in_flight"
    assert refused(state, go_on(state)) == "awaits_tablets"
    state = settled(state)
    state = applied(state, go_on(state))
    assert refused(state, MigrateTablets((migration(state, 1),))) == "operations_in_flight"
    assert violations(state) == ()


def drained(state: ClusterState, node: str, kind: str = "migration", to: str = "") -> ClusterState:
    """Move each tablet of a node to another node."""
    for index in range(state.tablets[TABLE].count):
        for source in places(tablet(state, index)):
            if source[0] == node:
                there = to or clusters.free_node(state, index, state.nodes[node].rack)
                state = settled(
                    started(state, TabletMigration(TABLE, index, kind, Shard(*source), Shard(there, 0))), index
                )
    return state


def test_a_leaving_node_is_drained_first(start: ClusterState) -> None:
    node = places(tablet(start))[0][0]
    state = applied(start, Leave(node))
    assert refused(state, go_on(state)) == "awaits_tablets"
    back = TabletMigration(TABLE, 1, "migration", Shard(*places(tablet(state, 1))[0]), Shard(node, 0))
    assert refused(state, MigrateTablets((back,))) in ("wrong_node_state", "holds_replica")
    state = drained(state, node)
    assert refused(state, go_on(state)) == "applied"


def test_tablets_of_a_removed_node_are_rebuilt_first(start: ClusterState) -> None:
    node = places(tablet(start))[0][0]
    state = applied(start, DeclareDown(node, "burnt"), Remove(node))
    state = drained(state, node, "rebuild")
    assert refused(state, go_on(state)) == "applied"


def test_a_replacing_node_gets_the_tablets(start: ClusterState) -> None:
    node = places(tablet(start))[0][0]
    state = applied(start, register(9, start.nodes[node].rack), Replace(node_id(9), node))
    (operation,) = in_flight(state)
    assert refused(state, CancelOperation(operation.id, "")) == "applied"
    state = drained(state, node, to=node_id(9))
    assert refused(state, CancelOperation(operation.id, "")) == "past_point_of_no_return"
    assert refused(state, go_on(state)) == "applied"
    assert violations(state) == ()


def test_a_drain_does_not_delay_other_operations(start: ClusterState) -> None:
    """With room for one operation, a join overtakes the leave that waits for tablets."""
    state = applied(start, ChangeSettings((("operations_concurrent_max", 1),)), Leave(places(tablet(start))[0][0]))
    state = clusters.joining(state, 8)
    join = next(one for one in in_flight(state) if one.kind == "join")
    assert refused(state, AdvanceOperation(join.id, "prepared", witnesses(state))) == "applied"


@pytest.mark.parametrize("by", ["rack", "count"])
def test_a_drain_that_cannot_succeed_names_table_and_rack(by: str) -> None:
    nodes = [register(number, f"r{number}") for number in (1, 2, 3)]
    state = clusters.with_table(clusters.cluster(*nodes), racks("r1", "r2", "r3") if by == "rack" else factor(3), 4)
    found = outcome(state, Leave(node_id(3)))
    assert found.code == "drain_impossible"
    assert "ks.t" in found.detail
    assert "r3" in found.detail
    down = applied(state, DeclareDown(node_id(3), "burnt"))
    assert refused(down, Remove(node_id(3))) == "drain_impossible"
    assert refused(applied(down, register(4, "r3")), Replace(node_id(4), node_id(3))) == "applied"


def test_more_and_fewer_replicas_follow_the_keyspace(start: ClusterState) -> None:
    state = applied(start, AlterKeyspace("ks", factor(4)))
    more = TabletMigration(TABLE, 0, "rebuild", None, Shard(clusters.free_node(state), 1))
    state = settled(started(state, more))
    assert len(tablet(state).replicas) == 4
    again = replace(more, to=Shard(clusters.free_node(state), 0))
    assert refused(state, MigrateTablets((again,))) == "replicas_as_wanted"
    state = applied(state, AlterKeyspace("ks", factor(3)))
    fewer = TabletMigration(TABLE, 0, "rebuild", Shard(*places(tablet(state))[3]), None)
    state = settled(started(state, fewer))
    assert places(tablet(state)) == places(tablet(start))
    assert (
        refused(state, MigrateTablets((replace(fewer, from_=Shard(*places(tablet(state))[0])),)))
        == "replicas_as_wanted"
    )


def test_tablets_and_the_ring_are_never_converted(start: ClusterState) -> None:
    assert refused(start, AlterKeyspace("ks", Replication("simple", 2))) == "conversion_impossible"
    state = applied(start, CreateKeyspace("ring", Replication("simple", 2)))
    assert refused(state, AlterKeyspace("ring", factor(2))) == "conversion_impossible"
    assert refused(state, replace(clusters.create_table("u", TabletOptions(2), 2), keyspace="ring")) == "bad_tablets"
    in_ring = applied(state, replace(clusters.create_table("u", None, 2), keyspace="ring"))
    assert refused(in_ring, MigrateTablets((TabletMigration("ring.u", 0, "repair"),))) == "no_tablets"
    assert "tablets:3" not in state.placements


def test_a_rejected_conversion_explains_the_alternative(start: ClusterState) -> None:
    state = applied(start, CreateKeyspace("ring", Replication("simple", 2)))
    state = applied(state, replace(clusters.create_table("u", None, 2), keyspace="ring"))
    cut = replace(clusters.create_table("v", TabletOptions(2), 3), keyspace="ring")
    for command, code, reason in (
        (AlterKeyspace("ring", factor(2)), "conversion_impossible", "ring has simple"),
        (AlterKeyspace("ks", Replication("simple", 2)), "conversion_impossible", "ks has tablets"),
        (AlterTable("ring", "u", tablets=TabletOptions(min_count=4)), "bad_tablets", "ring.u has no tablets"),
        (cut, "bad_tablets", "the keyspace ring has the strategy simple"),
    ):
        found = outcome(state, command)
        assert (found.code, reason in found.detail) == (code, True), found
        assert re.search("create (another|a) keyspace", found.detail), "the rejection suggests another keyspace"
        assert "copy" in found.detail


def test_a_dropped_table_drops_its_unshared_tablets(start: ClusterState) -> None:
    state = applied(start, clusters.create_table("u", TabletOptions(base="t"), 2))
    assert "ks.u" not in state.tablets
    assert refused(state, DropTable("ks", "t")) == "bad_tablets"
    assert refused(state, MigrateTablets((TabletMigration("ks.u", 0, "repair"),))) == "no_tablets"
    state = applied(state, DropTable("ks", "u"), DropTable("ks", "t"), DropKeyspace("ks"))
    assert not state.tablets
    assert violations(state) == ()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (TabletOptions(count=0), "bad_field"),
        (TabletOptions(count=65_537), "bad_field"),
        (TabletOptions(min_count=100, max_count=100), "bad_tablets"),
        (TabletOptions(min_count=65, max_count=127), "bad_tablets"),
        (TabletOptions(min_count=129, max_count=128), "bad_tablets"),
        (TabletOptions(min_count=64, max_count=128), "applied"),
        (TabletOptions(min_count=100, max_count=200), "applied"),
        (TabletOptions(count=7), "applied"),
        (TabletOptions(expected_bytes=-1), "bad_field"),
        (TabletOptions(base="nothing"), "bad_tablets"),
        (TabletOptions(count=2, base="t"), "bad_tablets"),
    ],
)
def test_options_of_a_table(start: ClusterState, options: TabletOptions, code: str) -> None:
    assert refused(start, clusters.create_table("u", options, 2)) == code


def test_hints_can_change_but_not_the_tablets(start: ClusterState) -> None:
    state = applied(start, AlterTable("ks", "t", tablets=TabletOptions(min_count=16)))
    assert state.tables[TABLE].tablets == TabletOptions(count=8, min_count=16)
    assert refused(state, AlterTable("ks", "t", tablets=TabletOptions(count=4))) == "bad_tablets"
    assert state.tablets[TABLE] is start.tablets[TABLE]


@pytest.fixture(scope="module")
def begun_with() -> ClusterState:
    return clusters.with_table(clusters.three_racks(), clusters.factor(3), 6)


def finish(state: ClusterState, sequence: int = 1) -> FinishResize:
    own = resize_session(TABLE, sequence)
    ready = tuple(StreamReport(node, own, 0, "00") for node in members(state.tablets[TABLE]))
    return FinishResize(TABLE, sequence, witnesses(state), ready)


def test_a_split_cuts_each_tablet_in_its_middle(begun_with: ClusterState) -> None:
    state = applied(begun_with, DecideResize(TABLE, "split", 1))
    assert state.tablets[TABLE].count == 6
    state = applied(state, finish(state))
    assert state.tablets[TABLE].count == 12
    for index in range(6):
        old, low, high = tablet(begun_with, index), tablet(state, 2 * index), tablet(state, 2 * index + 1)
        assert (low.start if index else high.end, high.end) == (old.start if index else old.end, old.end)
        assert low.replicas == high.replicas == old.replicas
        assert low.changed == high.changed == old.changed
    assert (state.tablets[TABLE].resize, state.tablets[TABLE].sequence) == (None, 1)
    assert violations(state) == ()


@pytest.mark.parametrize("count", [1, 2, 8, 256])
def test_halves_of_equal_tablets_are_equal(count: int) -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), count)
    assert split(state.tablets[TABLE], 9).ends == uniform_ends(2 * count)


def test_a_merge_undoes_a_split(begun_with: ClusterState) -> None:
    once = split(begun_with.tablets[TABLE], 9)
    back = merge(once, 9)
    assert (back.ends, list(back)) == (begun_with.tablets[TABLE].ends, list(begun_with.tablets[TABLE]))


def test_an_odd_tablet_stays_alone() -> None:
    state = clusters.with_table(clusters.cluster(clusters.register(1)), clusters.factor(1), 5)
    merged = merge(on_one_shard(state.tablets[TABLE]), 9)
    assert merged.count == 3
    assert merged.ends == tuple(state.tablets[TABLE].ends[index] for index in (1, 3, 4))


def on_one_shard(tablets: TabletMap) -> TabletMap:
    return with_settled(tablets, {one.index: (tuple(replace(r, shard=0) for r in one.replicas), 3) for one in tablets})


def test_separate_siblings_are_not_merged(begun_with: ClusterState) -> None:
    state = applied(begun_with, DecideResize(TABLE, "merge", 1))
    assert refused(state, finish(state)) == "not_ready"


def test_siblings_on_one_shard_are_merged() -> None:
    state = clusters.with_table(clusters.cluster(clusters.register(1), clusters.register(2)), clusters.factor(1), 2)
    state = applied(state, DecideResize(TABLE, "merge", 1))
    source, target = places(tablet(state, 1))[0], places(tablet(state, 0))[0]
    state = settled(started(state, TabletMigration(TABLE, 1, "migration", Shard(*source), Shard(*target))), 1)
    since = tablet(state, 1).replicas[0].since
    state = applied(state, finish(state))
    assert state.tablets[TABLE].count == 1
    assert tablet(state).replicas[0].since == since, "a replica of a part is not a member for longer"
    assert violations(state) == ()


def test_a_resize_waits_for_all_nodes_including_dead_ones(begun_with: ClusterState) -> None:
    state = applied(begun_with, DecideResize(TABLE, "split", 1))
    command = finish(state)
    node = members(state.tablets[TABLE])[0]
    assert refused(state, replace(command, reports=command.reports[1:])) == "not_ready"
    assert refused(state, replace(command, witnesses=witnesses(state, node))) == "gate_not_met"
    old = replace(command, reports=tuple(replace(one, operation=resize_session(TABLE, 7)) for one in command.reports))
    assert refused(state, old) == "bad_field"
    dead = applied(state, DeclareDown(node, "burnt"))
    assert refused(dead, finish(dead)) == "gate_not_met"


def test_a_moving_tablet_is_not_split(begun_with: ClusterState) -> None:
    state = started(applied(begun_with, DecideResize(TABLE, "split", 1)), migration(begun_with))
    assert refused(state, finish(state)) == "tablet_in_transition"
    assert refused(settled(state), finish(settled(state))) == "applied"


def test_a_decision_has_the_next_number(begun_with: ClusterState) -> None:
    assert refused(begun_with, DecideResize(TABLE, "split", 2)) == "stale_sequence"
    assert refused(begun_with, DecideResize(TABLE, "none", 1)) == "resize_bounds"
    assert refused(begun_with, DecideResize(TABLE, "shrink", 1)) == "bad_field"
    assert refused(begun_with, FinishResize(TABLE, 1)) == "no_resize"
    state = applied(begun_with, DecideResize(TABLE, "split", 1), DecideResize(TABLE, "none", 2))
    assert state.tablets[TABLE].resize is None
    assert refused(state, finish(state)) == "no_resize"
    state = applied(state, DecideResize(TABLE, "merge", 3))
    assert refused(state, finish(state, 1)) == "no_resize"


def test_the_tablet_count_is_bounded(begun_with: ClusterState) -> None:
    tight = applied(begun_with, ChangeSettings((("tablets_per_table_max", 11),)))
    assert refused(tight, DecideResize(TABLE, "split", 1)) == "resize_bounds"
    single = clusters.with_table(clusters.three_racks(), clusters.factor(3), 1)
    assert refused(single, DecideResize(TABLE, "merge", 1)) == "resize_bounds"
