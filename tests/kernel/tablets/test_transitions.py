"""The stages of a tablet's transitions with the rejections in each, and the documented examples."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.placement.tablets import (
    AdvanceTablets,
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletAdvance,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.groups import group_of, moving_of, serving, streams_of
from ringlog.kernel.tablets.stages import KINDS, STAGES
from ringlog.kernel.values import replace
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import TABLE, migration, places, refused, settled, started, step, tablet, witnesses


@pytest.fixture(scope="module")
def start() -> ClusterState:
    return clusters.with_table(clusters.three_racks(), clusters.factor(3), 8)


def revert(index: int = 0) -> RevertTablets:
    return RevertTablets((TabletRevert(TABLE, index, "lost its disk"),))


def test_a_migration_replaces_the_old_replica(start: ClusterState) -> None:
    one = migration(start)
    assert one.from_ is not None
    assert one.to is not None
    state = settled(started(start, one))
    before, after = tablet(start), tablet(state)
    assert places(after) == [(one.to.node, one.to.shard), *places(before)[1:]]
    assert after.replicas[1:] == before.replicas[1:]
    assert start.epoch < after.replicas[0].since < after.changed <= state.epoch
    assert [tablet(state, index) for index in range(1, 8)] == [tablet(start, index) for index in range(1, 8)]


def test_readers_and_writers_of_each_stage(start: ClusterState) -> None:
    one = migration(start)
    assert one.from_ is not None
    assert one.to is not None
    old, new = one.from_.node, one.to.node
    rest = {node for node, _ in places(tablet(start))} - {old}
    state, walked = started(start, one), []
    while (found := tablet(state)).transition is not None:
        group, row = group_of(found), STAGES[found.transition.stage]
        walked.append(row.name)
        sides = {"prev": rest | {old}, "next": rest | {new}, "both": rest | {old, new}}
        assert {member.node for member in group.read} == sides[row.reads.value]
        assert {member.node for member in group.write} == sides[row.writes.value]
        moving = moving_of(TABLE, found)
        assert [(m.entering, m.leaving) for m in moving] == ([((new,), (old,))] if row.writes.value == "both" else [])
        state = applied(state, step(state))
    assert tuple(walked) == KINDS["migration"].stages


@pytest.mark.parametrize("stage", KINDS["migration"].stages)
def test_each_stage_needs_its_acknowledgements(start: ClusterState, stage: str) -> None:
    one = migration(start)
    assert one.to is not None
    state = started(start, one, stage)
    command = step(state)
    gated = stage not in ("cleanup", "end_migration")
    assert refused(state, replace(command, witnesses=())) == ("gate_not_met" if gated else "applied")
    if stage in ("allow_write_both_read_old", "write_both_read_old", "streaming"):
        assert refused(state, replace(command, witnesses=witnesses(state, one.to.node))) == "gate_not_met"
    if command.tablets[0].reports:
        silent = replace(command, tablets=(replace(command.tablets[0], reports=()),))
        assert refused(state, silent) == "gate_not_met"
    late = tuple(replace(witness, drained=state.epoch - 1) for witness in command.witnesses)
    assert refused(state, replace(command, witnesses=late)) == ("gate_not_met" if gated else "applied")
    assert refused(state, command) == "applied"


def test_a_report_of_another_session_is_ignored(start: ClusterState) -> None:
    """The tablet streamed, was reverted, and streams again."""
    one = migration(start)
    first = started(start, one, "streaming")
    late = step(first).tablets[0].reports
    again = started(settled(applied(first, revert())), one, "streaming")
    command = step(again)
    assert refused(again, replace(command, tablets=(replace(command.tablets[0], reports=late),))) == "bad_field"
    assert refused(again, command) == "applied"


@pytest.mark.parametrize("stage", ["allow_write_both_read_old", "write_both_read_old", "streaming"])
def test_a_reverted_tablet_is_unchanged(start: ClusterState, stage: str) -> None:
    one = migration(start)
    state = started(start, one, stage)
    state = applied(state, revert())
    found = tablet(state).transition
    assert found is not None
    assert (found.stage, found.reason) == (STAGES[stage].back, "lost its disk")
    state = settled(state)
    assert tablet(state).replicas == tablet(start).replicas
    assert state.tablets[TABLE].held[: len(start.tablets[TABLE].held)] == start.tablets[TABLE].held


def test_reads_revert_only_with_a_dead_node(start: ClusterState) -> None:
    one = migration(start)
    assert one.to is not None
    state = started(start, one, "write_both_read_new")
    assert refused(state, revert()) == "past_point_of_no_return"
    state = applied(state, DeclareDown(one.to.node, "burnt"), revert())
    found = tablet(state).transition
    assert found is not None
    assert found.stage == "write_both_read_old_fallback_cleanup"
    state = settled(state)
    assert tablet(state).replicas == tablet(start).replicas


@pytest.mark.parametrize("stage", ["use_new", "cleanup", "end_migration"])
def test_a_revert_after_the_switch_of_reads_is_rejected(start: ClusterState, stage: str) -> None:
    state = started(start, migration(start), stage)
    assert refused(state, revert()) == "past_point_of_no_return"


@pytest.mark.parametrize("stage", ["use_new", "cleanup", "end_migration"])
def test_a_dead_leaving_replica_is_ignored(start: ClusterState, stage: str) -> None:
    one = migration(start)
    assert one.from_ is not None
    state = started(start, one, stage)
    state = settled(applied(state, DeclareDown(one.from_.node, "burnt")))
    assert one.from_.node not in [node for node, _ in places(tablet(state))]


def test_an_intranode_migration_changes_only_the_shard(start: ClusterState) -> None:
    node, shard = places(tablet(start))[0]
    one = TabletMigration(TABLE, 0, "intranode_migration", Shard(node, shard), Shard(node, 1 - shard))
    state = started(start, one, "write_both_read_new")
    assert [member.node for member in group_of(tablet(state)).write] == [n for n, _ in places(tablet(start))]
    assert moving_of(TABLE, tablet(state)) == ()
    assert refused(applied(state, DeclareDown(node, "burnt")), revert()) == "past_point_of_no_return"
    state = settled(state)
    assert places(tablet(state))[0] == (node, 1 - shard)
    assert tablet(state).replicas[0].since == tablet(start).replicas[0].since


@pytest.mark.parametrize("kind", ["rebuild", "rebuild_v2"])
def test_a_lost_replica_is_rebuilt(start: ClusterState, kind: str) -> None:
    one = replace(migration(start), kind=kind)
    assert one.from_ is not None
    assert one.to is not None
    assert refused(start, MigrateTablets((one,))) == "wrong_node_state"
    dead = applied(start, DeclareDown(one.from_.node, "burnt"))
    assert refused(dead, MigrateTablets((replace(one, kind="migration"),))) == "wrong_node_state"
    state = settled(started(dead, one))
    assert places(tablet(state))[0] == (one.to.node, one.to.shard)


def test_too_few_survivors_cannot_rebuild(start: ClusterState) -> None:
    one = replace(migration(start), kind="rebuild")
    dead = start
    for node, _ in places(tablet(start))[:2]:
        dead = applied(dead, DeclareDown(node, "burnt"))
    assert refused(dead, MigrateTablets((one,))) == "too_few_replicas"


@pytest.mark.parametrize("lost", [2, 3])
def test_a_rebuild_ignores_departed_nodes(start: ClusterState, lost: int) -> None:
    """The remaining replicas merge. Without any, the new replica starts empty."""
    one = replace(migration(start), kind="rebuild")
    assert one.to is not None
    state, there = start, [node for node, _ in places(tablet(start))]
    state = applied(state, *(DeclareDown(node, "burnt") for node in there[:lost]), Assassinate(there[0]))
    assert refused(state, MigrateTablets((one,))) == "too_few_replicas", "the others may return"
    state = applied(state, *(Assassinate(node) for node in there[1:lost]))
    state = started(state, one, "streaming")
    expected = [(node, one.to.node) for node in there[lost:] or [one.to.node]]
    assert list(streams_of(tablet(state), state.nodes, anywhere=True)) == expected
    assert places(tablet(settled(state)))[0] == (one.to.node, one.to.shard)


def test_a_repair_ends_settled_and_a_failed_one_says_why(start: ClusterState) -> None:
    one = TabletMigration(TABLE, 3, "repair")
    state = started(start, one)
    assert tablet(settled(state, 3), 3) == tablet(start, 3)
    failed = applied(state, revert(3))
    found = tablet(failed, 3).transition
    assert found is not None
    assert (found.stage, found.reason) == ("end_repair", "lost its disk")
    assert tablet(settled(failed, 3), 3) == tablet(start, 3)


def test_one_entry_advances_many_tablets_independently(start: ClusterState) -> None:
    state = applied(start, MigrateTablets((migration(start, 0), migration(start, 1, 1))))
    state = applied(state, step(state, 1))
    stages = [found.stage for found in (tablet(state, i).transition for i in (0, 1)) if found is not None]
    assert stages == ["allow_write_both_read_old", "write_both_read_old"]
    both = tuple(TabletAdvance(TABLE, i, to) for i, to in ((0, "write_both_read_old"), (1, "streaming")))
    state = applied(state, AdvanceTablets(both, witnesses(state)))
    stages = [found.stage for found in (tablet(state, i).transition for i in (0, 1)) if found is not None]
    assert stages == ["write_both_read_old", "streaming"]


def test_a_refused_tablet_refuses_the_entry(start: ClusterState) -> None:
    state = started(start, migration(start))
    good = step(state).tablets[0]
    for bad, code in (
        (TabletAdvance(TABLE, 1, "streaming"), "not_in_transition"),
        (TabletAdvance(TABLE, 99, "streaming"), "unknown_tablet"),
        (TabletAdvance("ks.other", 0, "streaming"), "unknown_table"),
        (good, "bad_field"),
    ):
        assert refused(state, AdvanceTablets((good, bad), witnesses(state))) == code
    assert refused(state, AdvanceTablets((replace(good, to="streaming"),), witnesses(state))) == "wrong_stage"
    assert refused(state, AdvanceTablets((), witnesses(state))) == "bad_field"


def test_a_settled_tablet_is_found(start: ClusterState) -> None:
    state = settled(started(start, migration(start)))
    for one in state.tablets[TABLE]:
        assert serving(state, "ks", "t", one.end) == (group_of(one), ())
    assert len({group_of(one).changed for one in state.tablets[TABLE]}) == 2, "one tablet has moved"
