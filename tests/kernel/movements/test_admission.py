"""Admission rules and the nodes that rejections name: locks, composition, possible replication, dead nodes,
priorities.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from immutables import Map

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode, UnregisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.movements import admission
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Replication
from tests.kernel.movements.clusters import ENTIRE, canonical_everywhere, network, placed, simple
from tests.kernel.operations.driver import SEED, admitted, advance_of, applied, at_every_stage, driven, refused, stepped

EIGHT = {f"n{number}": ("dc1/r1", [100 * number]) for number in range(1, 9)}
IDLE = {"x": ("dc1/r1", ()), "y": ("dc1/r1", ()), "other": ("dc1/r2", ())}
QUIET = placed({**EIGHT, **IDLE}, simple(2))

CONFLICT = {
    "n0": ("dc1/r1", [40]),
    "n1": ("dc1/r0", [200]),
    "n2": ("dc1/r1", [310]),
    "n3": ("dc1/r0", [590]),
    "n4": ("dc1/r0", [950]),
    "n5": ("dc1/r0", [100]),
}
"""Two operations without a common lock that do not compose."""


def finished(state: ClusterState, operations: Iterable[str]) -> ClusterState:
    for operation in operations:
        state = driven(state, operation, "finished")
    return state


def test_disjoint_ranges_move_concurrently() -> None:
    state, first = admitted(QUIET, Join("x", (150,), SEED))
    state, second = admitted(state, Leave("n6"))
    assert [operation.id for operation in in_flight(state)] == [first, second]
    while flying := in_flight(state):
        for operation in flying:
            state = stepped(state, operation.id)
    assert canonical_everywhere(state)


def test_an_overlap_is_refused_and_names_the_holder() -> None:
    state, first = admitted(QUIET, Leave("n6"))
    rejection = refused(state, Leave("n7"))
    assert rejection.code == "range_locked"
    assert first in rejection.detail
    assert "n6" in rejection.detail


def test_a_node_has_one_operation_at_a_time() -> None:
    state, first = admitted(placed({**EIGHT, **IDLE}), Rebuild("n1"))
    assert first in refused(state, Leave("n1")).detail


def test_plans_without_common_locks_may_not_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    state, first = admitted(placed(CONFLICT, network(dc1=3)), Move("n0", (180,), SEED))
    second = Move("n2", (820,), SEED)
    rejection = refused(state, second)
    assert rejection.code == "plans_conflict"
    assert first in rejection.detail
    monkeypatch.setattr(admission, "refused_composition", lambda *_: None)
    both, other = admitted(state, second)
    assert not canonical_everywhere(finished(both, [first, other]))
    monkeypatch.undo()
    later, other = admitted(finished(state, [first]), second)
    assert canonical_everywhere(finished(later, [other]))


def test_two_nodes_may_not_both_leave() -> None:
    """Their ranges are disjoint, because each datacenter has its own. But only one of three nodes may leave."""
    nodes = {f"n{number}": ("dc1/r1", [100 * number]) for number in (1, 2, 3)}
    state, first = admitted(placed(nodes, simple(2)), Leave("n1"))
    rejection = refused(state, Leave("n2"))
    assert rejection.code in ("range_locked", "replication_impossible")
    assert first in rejection.detail


def test_replication_must_stay_possible_after_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join that may still be cancelled does not make a leave possible."""
    nodes = {"n1": ("dc1/r1", [100]), "n2": ("dc1/r1", [500]), "x": ("dc1/r1", ())}
    state, _ = admitted(placed(nodes, simple(2)), Join("x", (300,), SEED))
    monkeypatch.setattr(admission, "_locked", lambda *_: None)
    assert refused(state, Leave("n1")).code == "replication_impossible"


@pytest.mark.parametrize(
    ("setting", "node"), [(simple(8), "n1"), (network(dc1=8), "n2"), (network(dc1=("r1", "r9")), "rare"), (ENTIRE, "")]
)
def test_the_replication_stays_possible(setting: Replication, node: str) -> None:
    nodes = {**EIGHT, "rare": ("dc1/r9", [50])} if node == "rare" else dict(EIGHT)
    state = placed(nodes, setting)
    if node:
        rejection = refused(state, Leave(node))
        assert rejection.code == "replication_impossible"
    else:
        for name in list(nodes)[:-1]:
            state, operation = admitted(state, Leave(name))
            state = driven(state, operation, "finished")
        assert refused(state, Leave("n8")).code == "replication_impossible"


def test_operations_above_the_limit_wait_by_priority() -> None:
    state = placed({**EIGHT, **IDLE})
    state = applied(state, ChangeSettings((("operations_concurrent_max", 1), ("operations_admitted_max", 3))))
    state, leave = admitted(state, Leave("n6"))
    state, join = admitted(state, Join("x", (150,), SEED))
    rejection = refused(state, AdvanceOperation(leave, "prepared"))
    assert rejection.code == "waits_its_turn"
    assert join in rejection.detail
    state = stepped(state, join)
    assert refused(state, AdvanceOperation(leave, "prepared")).code == "waits_its_turn"
    state, third = admitted(state, Leave("n3"))
    assert refused(state, Leave("n1")).code == "too_many_operations"
    state = driven(driven(state, join, "finished"), leave, "finished")
    assert canonical_everywhere(driven(state, third, "finished"))


# Nodes


def test_replacements_stay_in_the_rack() -> None:
    assert refused(QUIET, Replace("other", "n1")).code == "different_rack"
    assert refused(QUIET, Replace("n2", "n1")).code == "wrong_node_state"
    assert refused(QUIET, Replace("x", "y")).code == "wrong_node_state"


def test_a_leaving_node_cannot_be_replaced() -> None:
    """The first example of CEP-21 for a rejection."""
    state, operation = admitted(QUIET, Leave("n1"))
    while state.operations[operation].stage != "finished":
        assert refused(state, Replace("x", "n1")).code == "wrong_node_state"
        state = stepped(state, operation)
    assert refused(state, Replace("x", "n1")).code == "wrong_node_state"
    back = applied(admitted(QUIET, Leave("n1"))[0], CancelOperation(operation, "replace it"))
    assert admitted(back, Replace("x", "n1"))


def test_the_same_address_may_be_used_by_a_replacement() -> None:
    again = RegisterNode("new", "00000000-0000-4000-8000-00000000000f", "n1.test:7000", "dc1", "r1", 2, 12, "1", (), 1)
    assert refused(QUIET, again).code == "duplicate_address"
    down = applied(QUIET, DeclareDown("n1", "disk"))
    state = applied(down, again)
    assert refused(state, Join(again.id, (150,), SEED)).code == "duplicate_address"
    assert refused(state, DeclareUp("n1", "")).code == "duplicate_address"
    state, operation = admitted(state, Replace(again.id, "n1"))
    state = driven(state, operation, "finished")
    assert (state.nodes["n1"].state, state.nodes[again.id].tokens) == ("left", (100,))
    assert canonical_everywhere(state)


def test_only_the_dead_are_removed_or_ignored() -> None:
    assert refused(QUIET, Remove("n1")).code == "wrong_node_state"
    assert refused(QUIET, Assassinate("n1")).code == "wrong_node_state"
    down = applied(QUIET, DeclareDown("n1", "disk"))
    assert refused(down, DeclareDown("n1", "again")).code == "wrong_node_state"
    assert refused(down, Remove("n1", ("n2",))).code == "wrong_node_state"
    assert refused(down, Remove("n1", ("n1",))).code == "bad_field"
    gaining = applied(down, DeclareDown("n3", "disk"))
    assert refused(gaining, Remove("n1", ("n3",))).code == "bad_field"
    state, operation = admitted(down, Remove("n1"))
    assert refused(state, DeclareUp("n1", "")).code == "operations_in_flight"
    state = driven(state, operation, "finished")
    assert refused(state, DeclareUp("n1", "")).code == "wrong_node_state"


def test_too_few_survivors_permit_only_an_assassination() -> None:
    state = applied(placed(EIGHT, simple(1)), DeclareDown("n4", "disk"))
    assert refused(state, Remove("n4")).code == "too_few_replicas"
    after = applied(state, Assassinate("n4"))
    record = after.operations[f"assassinate-{after.epoch}"]
    assert record.stage == "finished"
    assert "may be lost" in record.reason
    assert "(300, 400]" in record.reason
    assert after.nodes["n4"].state == "left"
    assert canonical_everywhere(after)


def test_rebuild_streams_and_changes_no_group() -> None:
    nodes = {
        f"{dc}{number}": (f"{dc}/r{number}", [100 * number + len(dc)]) for dc in ("a", "bb") for number in (1, 2, 3)
    }
    state = placed(nodes, network(a=3, bb=3))
    begin, operation = admitted(state, Rebuild("a1", "bb"))
    assert {source.source for source in begin.operations[operation].plan.sources} <= {"bb1", "bb2", "bb3"}
    assert {source.target for source in begin.operations[operation].plan.sources} == {"a1"}
    for at in at_every_stage(begin, operation).values():
        assert at.placements == state.placements
        assert at.nodes["a1"].state == "normal"
    assert refused(state, Rebuild("a1", "nowhere")).code == "bad_field"
    alone = placed({"n": ("a/r", [1])}, simple(1))
    assert refused(alone, Rebuild("n")).code == "too_few_replicas"
    back = applied(driven(begin, operation, "streaming"), CancelOperation(operation, ""))
    assert back.nodes["a1"].state == "normal"


def test_a_rebuild_skips_ranges_that_no_other_node_has() -> None:
    """So the hint of an assassination works, also in a cluster that has a keyspace with one replica."""
    state = placed(EIGHT, simple(1), simple(3))
    begin, operation = admitted(state, Rebuild("n4"))
    assert {source.replication for source in begin.operations[operation].plan.sources} == {"simple:3"}
    assert driven(begin, operation, "finished").operations[operation].stage == "finished"
    after = applied(applied(state, DeclareDown("n4", "disk")), Assassinate("n4"))
    reason = after.operations[f"assassinate-{after.epoch}"].reason
    names = reason.partition("run `ringlog node rebuild` for ")[2].partition(";")[0].split(", ")
    assert names == ["n5", "n6", "n7"]
    for name in names:
        assert admitted(after, Rebuild(name))[0].operations


def test_the_name_of_a_removed_node_stays_taken() -> None:
    state = applied(QUIET, UnregisterNode("x"))
    assert state.nodes["x"].state == "left"
    assert refused(state, UnregisterNode("x")).code == "wrong_node_state"
    assert refused(state, Join("x", (150,), SEED)).code == "wrong_node_state"
    assert refused(state, UnregisterNode("n1")).code == "wrong_node_state"


def test_a_failure_rolls_back_or_is_recorded() -> None:
    state, operation = admitted(QUIET, Leave("n6"))
    early = applied(driven(state, operation, "write_both_read_old"), FailOperation(operation, "no room"))
    assert early.operations[operation].stage == "cancelled"
    assert early.operations[operation].failures[-1].reason == "no room"
    assert early.placements == QUIET.placements
    late = applied(driven(state, operation, "write_both_read_new"), FailOperation(operation, "no room"))
    assert late.operations[operation].stage == "write_both_read_new"
    assert [failure.epoch for failure in late.operations[operation].failures] == [late.epoch]
    assert refused(late, advance_of(late, operation)).code == "awaits_decision"
    again = applied(late, RetryOperation(operation, "there is room now"))
    assert canonical_everywhere(driven(again, operation, "finished"))


def test_operation_limit_settings_are_consistent() -> None:
    state = placed(EIGHT)
    state = ClusterState(epoch=1, settings=Map(state.settings))
    assert refused(state, ChangeSettings((("operations_concurrent_max", 9),))).code == "bad_setting"
