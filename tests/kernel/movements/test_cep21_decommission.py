"""The worked decommission example of CEP-21, step by step, on read and write placements.

A owns token 100, B 200, C 300, D 400; the factor is 2; D leaves. The whole ring is shown: the range of A wraps.
"""

from __future__ import annotations

from ringlog.kernel.commands.movements import Leave
from ringlog.kernel.state import Source
from tests.kernel.movements.clusters import placed, simple
from tests.kernel.operations.drive import at_every_stage, begun
from tests.kernel.ownership.rings import shown

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


def test_decommission_of_the_proposal() -> None:
    state, operation = begun(placed(RING, simple(2)), Leave("D"))
    states = at_every_stage(state, operation)
    seen = {
        stage: tuple(shown(at.placements["simple:2"], group) for group in ("read", "write"))
        for stage, at in states.items()
    }
    assert seen == STEPS


def test_rows_come_from_the_leaver_and_the_directory_follows() -> None:
    state, operation = begun(placed(RING, simple(2)), Leave("D"))
    assert state.operations[operation].plan.sources == (
        Source("simple:2", 200, 300, "D", "A"),
        Source("simple:2", 300, 400, "D", "B"),
    )
    for stage, at in at_every_stage(state, operation).items():
        gone = stage == "finished"
        assert at.nodes["D"].state == ("left" if gone else "leaving")
        assert (400 in at.token_owners) is not gone


def test_of_merged_ranges_a_replica_is_a_member_since_the_later_epoch() -> None:
    """B is new in (300, 400] and old in (400, 100]; of the whole it has been a member only since it came."""
    state, operation = begun(placed(RING, simple(2)), Leave("D"))
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
