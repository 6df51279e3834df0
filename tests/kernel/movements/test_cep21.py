"""The decommission example of CEP-21, step by step, on read and write placements.

A owns token 100, B 200, C 300, and the factor is 2. X, added at 150 by the bootstrap example, leaves. The proposal
shows part of the ring and writes (0, 100]. The test uses the whole ring, with a wrapping range of A. In a second
example, D at 400 leaves, and ranges at the end of the ring merge.
"""

from __future__ import annotations

from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.model.state import ClusterState, Source
from ringlog.kernel.operations.rings import walk_order
from ringlog.kernel.ownership.deltas import apply_deltas
from ringlog.kernel.ownership.placements import merge
from tests.kernel.movements.clusters import placed, simple
from tests.kernel.operations.driver import admitted, at_every_stage, driven, joining
from tests.kernel.ownership.rings import a_cluster, shown

X_IN = {(300, 100): ("A", "X"), (100, 150): ("X", "B"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}
X_BOTH = {(300, 100): ("A", "X", "B"), (100, 150): ("X", "B", "C"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}
X_OUT = {(300, 100): ("A", "B"), (100, 150): ("B", "C"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}
MERGED = {(300, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "A")}

RING = {"A": ("dc1/r1", [100]), "B": ("dc1/r1", [200]), "C": ("dc1/r1", [300]), "D": ("dc1/r1", [400])}
BEFORE = {(400, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "D"), (300, 400): ("D", "A")}
BOTH = {(400, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "D", "A"), (300, 400): ("D", "A", "B")}
READ_NEW = {(400, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "A"), (300, 400): ("A", "B")}
AFTER = {(300, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "A")}

STEPS = {
    "requested": (BEFORE, BEFORE),
    "prepared": (BEFORE, BEFORE),
    "write_both_read_old": (BEFORE, BOTH),
    "write_both_read_new": (READ_NEW, BOTH),
    "finished": (AFTER, AFTER),
}


Placements = tuple[dict[tuple[int, int], tuple[str, ...]], ...]


def placements_of(state: ClusterState) -> Placements:
    return tuple(shown(state.placements["simple:2"], group) for group in ("read", "write"))


def with_x() -> ClusterState:
    """Return the cluster after the bootstrap example."""
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}), "X", [150])
    return driven(state, operation, "finished")


def test_decommission_of_the_proposal() -> None:
    state, operation = admitted(with_x(), Leave("X"))
    assert {stage: placements_of(at) for stage, at in at_every_stage(state, operation).items()} == {
        "requested": (X_IN, X_IN),
        "prepared": (X_IN, X_IN),
        "write_both_read_old": (X_IN, X_BOTH),
        "write_both_read_new": (X_OUT, X_BOTH),
        "finished": (MERGED, MERGED),
    }
    assert state.operations[operation].plan.sources == (
        Source("simple:2", 300, 100, "X", "B"),
        Source("simple:2", 100, 150, "X", "C"),
    )


def test_the_last_entry_is_two_steps_of_the_proposal() -> None:
    """Steps 3 and 4 of the proposal: X leaves the write groups, then ranges with equal members merge."""
    state, operation = admitted(with_x(), Leave("X"))
    state = driven(state, operation, "write_both_read_new")
    plan = state.operations[operation].plan
    without = apply_deltas(state.placements, plan.finish, walk_order(state), state.epoch + 1)["simple:2"]
    assert [shown(without, group) for group in ("read", "write")] == [X_OUT, X_OUT]
    assert plan.merge_at == (150,)
    assert shown(merge(without, plan.merge_at), "write") == MERGED


def test_ranges_that_meet_at_the_end_of_the_ring_merge() -> None:
    state, operation = admitted(placed(RING, simple(2)), Leave("D"))
    assert {stage: placements_of(at) for stage, at in at_every_stage(state, operation).items()} == STEPS


def test_rows_come_from_the_leaver_and_the_directory_follows() -> None:
    state, operation = admitted(placed(RING, simple(2)), Leave("D"))
    assert state.operations[operation].plan.sources == (
        Source("simple:2", 200, 300, "D", "A"),
        Source("simple:2", 300, 400, "D", "B"),
    )
    for stage, at in at_every_stage(state, operation).items():
        gone = stage == "finished"
        assert at.nodes["D"].state == ("left" if gone else "leaving")
        assert (400 in at.token_owners) is not gone


def test_a_merged_range_has_the_later_member_epoch() -> None:
    """B is new in (300, 400] and old in (400, 100]. In the merged range it counts as a member from its later epoch."""
    state, operation = admitted(placed(RING, simple(2)), Leave("D"))
    states = at_every_stage(state, operation)
    (merged,) = [group for group in states["finished"].placements["simple:2"].ranges if group.end == 100]
    assert {replica.node: replica.since for replica in merged.write} == {
        "A": 5,
        "B": states["write_both_read_old"].epoch,
    }
    assert {replica.node: replica.since for replica in merged.read} == {
        "A": 5,
        "B": states["write_both_read_new"].epoch,
    }


# The bootstrap example of CEP-21, step by step, on read and write placements.


CEP21_BOOTSTRAP_BEFORE = {(300, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "A")}
SPLIT = {(300, 100): ("A", "B"), (100, 150): ("B", "C"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}
CEP21_BOOTSTRAP_BOTH = {
    (300, 100): ("A", "X", "B"),
    (100, 150): ("X", "B", "C"),
    (150, 200): ("B", "C"),
    (200, 300): ("C", "A"),
}
CEP21_BOOTSTRAP_AFTER = {(300, 100): ("A", "X"), (100, 150): ("X", "B"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}

CEP21_BOOTSTRAP_STEPS = {
    "requested": (CEP21_BOOTSTRAP_BEFORE, CEP21_BOOTSTRAP_BEFORE),
    "prepared": (SPLIT, SPLIT),
    "commit_cdc_generation": (SPLIT, SPLIT),
    "publish_cdc_generation": (SPLIT, SPLIT),
    "write_both_read_old": (SPLIT, CEP21_BOOTSTRAP_BOTH),
    "write_both_read_new": (CEP21_BOOTSTRAP_AFTER, CEP21_BOOTSTRAP_BOTH),
    "finished": (CEP21_BOOTSTRAP_AFTER, CEP21_BOOTSTRAP_AFTER),
}


def test_bootstrap_of_the_proposal() -> None:
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}), "X", [150])
    states = at_every_stage(state, operation)
    seen = {
        stage: tuple(shown(at.placements["simple:2"], group) for group in ("read", "write"))
        for stage, at in states.items()
    }
    assert seen == CEP21_BOOTSTRAP_STEPS


def test_rows_come_from_the_replaced_replica() -> None:
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}), "X", [150])
    assert state.operations[operation].plan.sources == (
        Source("simple:2", 300, 100, "B", "X"),
        Source("simple:2", 100, 150, "C", "X"),
    )


def test_the_directory_follows() -> None:
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}), "X", [150])
    for stage, at in at_every_stage(state, operation).items():
        ended = stage == "finished"
        assert at.nodes["X"].state == ("normal" if ended else "joining")
        assert at.nodes["X"].tokens == ((150,) if ended else ())
        assert (150 in at.token_owners) == ended
        assert bool(at.operations[operation].locks) == (not ended)
        assert at.operations[operation].stage_epoch == at.epoch
