"""The stages of transitions, compared with a second copy of the stage table of ScyllaDB's topology coordinator."""

from __future__ import annotations

import pytest

from ringlog.kernel.model.tablet_map import Tablet, TabletReplica, Transition
from ringlog.kernel.tablets import stages
from ringlog.kernel.tablets.stages import KINDS, SETTLED, STAGES, next_stage

TABLE = {
    "allow_write_both_read_old": ("prev", "prev", "revert_migration"),
    "write_both_read_old": ("prev", "both", "cleanup_target"),
    "rebuild_repair": ("prev", "both", "cleanup_target"),
    "streaming": ("prev", "both", "cleanup_target"),
    "write_both_read_new": ("next", "both", "write_both_read_old_fallback_cleanup"),
    "use_new": ("next", "next", ""),
    "cleanup": ("next", "next", ""),
    "end_migration": ("next", "next", ""),
    "write_both_read_old_fallback_cleanup": ("prev", "both", ""),
    "cleanup_target": ("prev", "prev", ""),
    "revert_migration": ("prev", "prev", ""),
    "repair": ("prev", "prev", "end_repair"),
    "end_repair": ("prev", "prev", ""),
    "salvage": ("prev", "both", ""),
    "salvaged": ("next", "both", ""),
    "end_salvage": ("next", "next", ""),
}

OLD = (TabletReplica("a", 0, 1), TabletReplica("b", 0, 1))
NEW = (TabletReplica("c", 2, 0), TabletReplica("b", 0, 1))


def in_stage(kind: str, stage: str) -> Tablet:
    return Tablet(0, -1, 1, OLD, 1, Transition(0, kind, stage, 3, 2, NEW))


def test_the_table_of_stages() -> None:
    assert {row.name: (row.reads.value, row.writes.value, row.back) for row in STAGES.values()} == TABLE


def test_readers_and_writers_by_stage() -> None:
    sides = {"prev": {"a", "b"}, "next": {"c", "b"}, "both": {"a", "b", "c"}}
    for name, (reads, writes, _) in TABLE.items():
        tablet = in_stage("migration", name)
        assert {one.node for one in stages.readers(tablet)} == sides[reads]
        assert {one.node for one in stages.writers(tablet)} == sides[writes]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("migration", "allow_write_both_read_old write_both_read_old streaming write_both_read_new use_new cleanup"),
        ("rebuild_v2", "allow_write_both_read_old write_both_read_old rebuild_repair streaming write_both_read_new"),
        ("repair", "repair end_repair settled"),
    ],
)
def test_stages_follow_each_other(kind: str, names: str) -> None:
    wanted = names.split()
    stage, walked = KINDS[kind].stages[0], [KINDS[kind].stages[0]]
    while stage != wanted[-1]:
        transition = in_stage(kind, stage).transition
        assert transition is not None
        stage = next_stage(transition)
        walked.append(stage)
    assert walked == wanted


def test_all_kinds_revert_alike() -> None:
    for kind in KINDS:
        for stage, then in (
            ("write_both_read_old_fallback_cleanup", "cleanup_target"),
            ("cleanup_target", "revert_migration"),
            ("revert_migration", SETTLED),
        ):
            assert next_stage(Transition(0, kind, stage, 3, 2, NEW)) == then


def test_leaving_and_pending_replicas() -> None:
    tablet = in_stage("migration", "streaming")
    assert (stages.leaving(tablet), stages.pending(tablet)) == (OLD[0], NEW[0])
    within = Tablet(0, -1, 1, OLD, 1, Transition(0, "intranode_migration", "streaming", 3, 2, (OLD[0], NEW[0])))
    assert stages.pending(within) == NEW[0]


def test_a_session_ends_with_its_stage() -> None:
    for stage, row in STAGES.items():
        transition = Transition(4, "migration", stage, 3, 2, NEW)
        assert stages.session("ks.t", 4, transition) == ("ks.t/4@3" if row.work.value else "")
