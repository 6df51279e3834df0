"""The worked bootstrap example of CEP-21, step by step, on read and write placements.

A owns token 100, B 200, C 300; the factor is 2; X joins at 150. The proposal shows a part of the ring and writes
(0, 100]; here the whole ring is shown, and the range of A wraps: (300, 100].
"""

from __future__ import annotations

from ringlog.kernel.state import Source
from tests.kernel.operations.drive import at_every_stage, joining
from tests.kernel.ownership.rings import a_cluster, shown

BEFORE = {(300, 100): ("A", "B"), (100, 200): ("B", "C"), (200, 300): ("C", "A")}
SPLIT = {(300, 100): ("A", "B"), (100, 150): ("B", "C"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}
BOTH = {(300, 100): ("A", "X", "B"), (100, 150): ("X", "B", "C"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}
AFTER = {(300, 100): ("A", "X"), (100, 150): ("X", "B"), (150, 200): ("B", "C"), (200, 300): ("C", "A")}

STEPS = {
    "requested": (BEFORE, BEFORE),
    "prepared": (SPLIT, SPLIT),
    "commit_cdc_generation": (SPLIT, SPLIT),
    "publish_cdc_generation": (SPLIT, SPLIT),
    "write_both_read_old": (SPLIT, BOTH),
    "write_both_read_new": (AFTER, BOTH),
    "finished": (AFTER, AFTER),
}


def test_bootstrap_of_the_proposal() -> None:
    state, operation = joining(a_cluster({"A": [100], "B": [200], "C": [300], "X": []}), "X", [150])
    states = at_every_stage(state, operation)
    seen = {
        stage: tuple(shown(at.placements["simple:2"], group) for group in ("read", "write"))
        for stage, at in states.items()
    }
    assert seen == STEPS


def test_rows_come_from_the_replica_whose_place_is_taken() -> None:
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
