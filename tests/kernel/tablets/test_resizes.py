"""Tables that are cut anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.resizes import DecideResize, FinishResize, members, resize_session
from ringlog.kernel.commands.placement.tablets import Shard, TabletMigration
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import TabletMap, uniform_ends, with_settled
from ringlog.kernel.tablets.resize import merge, split
from ringlog.kernel.values import StreamReport
from tests.kernel.entries import applied
from tests.kernel.tablets import lives
from tests.kernel.tablets.lives import TABLE, begun, migration, places, refused, settled, tablet, witnesses


@pytest.fixture(scope="module")
def start() -> ClusterState:
    return lives.with_table(lives.three_racks(), lives.factor(3), 6)


def finish(state: ClusterState, sequence: int = 1) -> FinishResize:
    own = resize_session(TABLE, sequence)
    ready = tuple(StreamReport(node, own, 0, "00") for node in members(state.tablets[TABLE]))
    return FinishResize(TABLE, sequence, witnesses(state), ready)


def test_a_split_cuts_each_tablet_in_its_middle(start: ClusterState) -> None:
    state = applied(start, DecideResize(TABLE, "split", 1))
    assert state.tablets[TABLE].count == 6
    state = applied(state, finish(state))
    assert state.tablets[TABLE].count == 12
    for index in range(6):
        old, low, high = tablet(start, index), tablet(state, 2 * index), tablet(state, 2 * index + 1)
        assert (low.start if index else high.end, high.end) == (old.start if index else old.end, old.end)
        assert low.replicas == high.replicas == old.replicas
        assert low.changed == high.changed == old.changed
    assert (state.tablets[TABLE].resize, state.tablets[TABLE].sequence) == (None, 1)
    assert violations(state) == ()


@pytest.mark.parametrize("count", [1, 2, 8, 256])
def test_halves_of_equal_tablets_are_equal(count: int) -> None:
    state = lives.with_table(lives.three_racks(), lives.factor(3), count)
    assert split(state.tablets[TABLE], 9).ends == uniform_ends(2 * count)


def test_a_merge_undoes_a_split(start: ClusterState) -> None:
    once = split(start.tablets[TABLE], 9)
    back = merge(once, 9)
    assert (back.ends, list(back)) == (start.tablets[TABLE].ends, list(start.tablets[TABLE]))


def test_an_odd_tablet_stays_alone() -> None:
    state = lives.with_table(lives.cluster(lives.register(1)), lives.factor(1), 5)
    merged = merge(on_one_shard(state.tablets[TABLE]), 9)
    assert merged.count == 3
    assert merged.ends == tuple(state.tablets[TABLE].ends[index] for index in (1, 3, 4))


def on_one_shard(tablets: TabletMap) -> TabletMap:
    return with_settled(tablets, {one.index: (tuple(replace(r, shard=0) for r in one.replicas), 3) for one in tablets})


def test_siblings_that_are_apart_are_not_merged(start: ClusterState) -> None:
    state = applied(start, DecideResize(TABLE, "merge", 1))
    assert refused(state, finish(state)) == "not_ready"


def test_siblings_that_came_together_are_merged() -> None:
    state = lives.with_table(lives.cluster(lives.register(1), lives.register(2)), lives.factor(1), 2)
    state = applied(state, DecideResize(TABLE, "merge", 1))
    source, target = places(tablet(state, 1))[0], places(tablet(state, 0))[0]
    state = settled(begun(state, TabletMigration(TABLE, 1, "migration", Shard(*source), Shard(*target))), 1)
    since = tablet(state, 1).replicas[0].since
    state = applied(state, finish(state))
    assert state.tablets[TABLE].count == 1
    assert tablet(state).replicas[0].since == since, "of a part of it, it is no member for longer"
    assert violations(state) == ()


def test_who_is_not_ready_is_waited_for_the_dead_too(start: ClusterState) -> None:
    state = applied(start, DecideResize(TABLE, "split", 1))
    command = finish(state)
    node = members(state.tablets[TABLE])[0]
    assert refused(state, replace(command, reports=command.reports[1:])) == "not_ready"
    assert refused(state, replace(command, witnesses=witnesses(state, node))) == "gate_not_met"
    old = replace(command, reports=tuple(replace(one, operation=resize_session(TABLE, 7)) for one in command.reports))
    assert refused(state, old) == "bad_field"
    dead = applied(state, DeclareDown(node, "burnt"))
    assert refused(dead, finish(dead)) == "gate_not_met"


def test_nothing_is_cut_that_moves(start: ClusterState) -> None:
    state = begun(applied(start, DecideResize(TABLE, "split", 1)), migration(start))
    assert refused(state, finish(state)) == "tablet_in_transition"
    assert refused(settled(state), finish(settled(state))) == "applied"


def test_a_decision_has_the_next_number(start: ClusterState) -> None:
    assert refused(start, DecideResize(TABLE, "split", 2)) == "stale_sequence"
    assert refused(start, DecideResize(TABLE, "none", 1)) == "resize_bounds"
    assert refused(start, DecideResize(TABLE, "shrink", 1)) == "bad_field"
    assert refused(start, FinishResize(TABLE, 1)) == "no_resize"
    state = applied(start, DecideResize(TABLE, "split", 1), DecideResize(TABLE, "none", 2))
    assert state.tablets[TABLE].resize is None
    assert refused(state, finish(state)) == "no_resize"
    state = applied(state, DecideResize(TABLE, "merge", 3))
    assert refused(state, finish(state, 1)) == "no_resize"


def test_a_table_is_cut_within_bounds(start: ClusterState) -> None:
    tight = applied(start, ChangeSettings((("tablets_per_table_max", 11),)))
    assert refused(tight, DecideResize(TABLE, "split", 1)) == "resize_bounds"
    single = lives.with_table(lives.three_racks(), lives.factor(3), 1)
    assert refused(single, DecideResize(TABLE, "merge", 1)) == "resize_bounds"
