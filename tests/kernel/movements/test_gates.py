"""Who must have acknowledged and reported before an operation goes on, when several gain and some are dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import gaining_nodes, gate, missing
from ringlog.kernel.values import StreamReport, Witness
from tests.kernel.movements.clusters import network, placed, simple
from tests.kernel.operations.drive import advance_of, applied, begun, driven, everyone, refused, stepped

FIVE = {f"n{number}": ("dc1/r1", [100 * number]) for number in range(1, 6)}
SPARE = {"x": ("dc1/r1", ())}


def told(state: ClusterState, *silent: str) -> list[Witness]:
    return [witness for witness in everyone(state) if witness.node not in silent]


def lacking(state: ClusterState, operation: str, *silent: str) -> tuple[str, ...]:
    return missing(gate(state, state.operations[operation]), told(state, *silent))


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_every_gaining_node_must_be_among_the_witnesses(stage: str) -> None:
    state, operation = begun(placed(FIVE, simple(3)), Leave("n3"))
    gaining = gaining_nodes(state.operations[operation])
    assert len(gaining) == 3
    state = driven(state, operation, stage)
    for node in gaining:
        command = replace(advance_of(state, operation), witnesses=tuple(told(state, node)))
        assert node in refused(state, command).detail


def test_streaming_ends_with_the_reports_of_all_gaining_nodes() -> None:
    state, operation = begun(placed(FIVE, simple(3)), Leave("n3"))
    state = driven(state, operation, "write_both_read_old")
    command = advance_of(state, operation)
    for silent in command.reports:
        some = tuple(report for report in command.reports if report is not silent)
        rejection = refused(state, replace(command, reports=some))
        assert rejection.code == "gate_not_met"
        assert silent.node in rejection.detail
    stranger = StreamReport("n3", operation, 1, "00")
    assert refused(state, replace(command, reports=(*command.reports, stranger))).code == "bad_field"
    assert len(applied(state, command).operations[operation].reports) == 3


def test_a_removed_node_is_no_witness_and_the_others_need_a_quorum_of_the_full_group() -> None:
    state = applied(placed(FIVE, simple(3)), DeclareDown("n3", "disk"))
    state, operation = begun(state, Remove("n3"))
    state = driven(state, operation, "write_both_read_new")
    assert lacking(state, operation, "n3") == ()
    # Of {n1, n2, n3} two are needed, and n3 cannot be one of them.
    assert "n1" in lacking(state, operation, "n3", "n1")
    needs = gate(state, state.operations[operation]).needs
    assert all("n3" not in need.members for need in needs)
    assert {need.need for need in needs} == {2}


def test_of_two_replicas_the_survivor_is_enough() -> None:
    state = applied(placed({**FIVE, **SPARE}, simple(2)), DeclareDown("n3", "disk"))
    state, operation = begun(state, Replace("x", "n3"))
    state = driven(state, operation, "write_both_read_new")
    olds = [need for need in gate(state, state.operations[operation]).needs if need.group.startswith("old")]
    assert {(len(need.members), need.need) for need in olds} == {(1, 1)}


def test_declared_down_alone_lowers_no_need() -> None:
    state = applied(placed({**FIVE, **SPARE}, simple(3)), DeclareDown("n2", "disk"))
    state, operation = begun(state, Replace("x", "n3"))
    state = driven(state, operation, "write_both_read_new")
    assert lacking(state, operation, "n2") == ()
    assert "n2" in lacking(state, operation, "n2", "n4")
    ignoring, other = begun(
        applied(placed({**FIVE, **SPARE}, simple(3)), DeclareDown("n2", "disk")), Replace("x", "n3", ("n2",))
    )
    ignoring = driven(ignoring, other, "write_both_read_new")
    assert all("n2" not in need.members for need in gate(ignoring, ignoring.operations[other]).needs)


def test_who_dies_while_it_leaves_is_not_waited_for() -> None:
    state, operation = begun(placed(FIVE, simple(2)), Leave("n3"))
    state = driven(state, operation, "write_both_read_new")
    assert "n3" in lacking(state, operation, "n3")
    state = applied(state, DeclareDown("n3", "disk"))
    assert lacking(state, operation, "n3") == ()
    assert stepped(state, operation).nodes["n3"].state == "left"


def test_each_datacenter_has_its_own_quorum() -> None:
    nodes = {f"{dc}{n}": (f"{dc}/r1", [100 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3, 4)}
    state, operation = begun(placed(nodes, network(a=3, bb=3)), Leave("a2"))
    state = driven(state, operation, "write_both_read_new")
    needs = gate(state, state.operations[operation]).needs
    assert {need.datacenter for need in needs} == {"a", "bb"}
    assert {need.need for need in needs} == {2}
    assert lacking(state, operation, "bb1", "bb2")
    assert lacking(state, operation, "bb1") == ()


def test_a_dead_replica_is_made_up_for_by_a_quorum_of_each_datacenter() -> None:
    nodes = {f"{dc}{n}": (f"{dc}/r1", [100 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3)}
    state = applied(placed({**nodes, "x": ("a/r1", ())}, network(a=3, bb=3)), DeclareDown("a2", "disk"))
    state, operation = begun(state, Replace("x", "a2"))
    by_range: dict[int, set[str]] = {}
    for source in state.operations[operation].plan.sources:
        assert source.target == "x"
        by_range.setdefault(source.end, set()).add(source.source)
    assert len(by_range) == 6
    for sources in by_range.values():
        assert {node for node in sources if node.startswith("a")} == {"a1", "a3"}
        assert len({node for node in sources if node.startswith("bb")}) == 2


def test_a_setting_lets_prepared_go_when_the_gaining_nodes_know_and_the_operation_says_so_for_ever() -> None:
    state = applied(placed(FIVE, simple(3)), ChangeSettings((("gate_prepared", 0),)))
    state, operation = begun(state, Leave("n3"))
    state = driven(state, operation, "prepared")
    gaining = gaining_nodes(state.operations[operation])
    others = tuple(name for name in FIVE if name not in gaining)
    command = replace(advance_of(state, operation), witnesses=tuple(told(state, *others)))
    assert applied(state, advance_of(state, operation)).operations[operation].relaxed == ()
    assert refused(state, replace(command, witnesses=tuple(told(state, *gaining)))).code == "gate_not_met"
    state = applied(state, command)
    assert state.operations[operation].relaxed == ("prepared",)
    later = replace(advance_of(state, operation), witnesses=tuple(told(state, *others)))
    assert refused(state, later).code == "gate_not_met"
    assert driven(state, operation, "finished").operations[operation].relaxed == ("prepared",)


def lonely(stage: str) -> tuple[ClusterState, str]:
    """n9 leaves, alone in its datacenter, and dies in ``stage``."""
    nodes = {**FIVE, "n8": ("dc2/r1", [10]), "n9": ("dc2/r2", [1000])}
    state, operation = begun(placed(nodes, network(dc1=2, dc2=1)), Leave("n9"))
    state = driven(state, operation, stage)
    return applied(state, DeclareDown("n9", "disk")), operation


def test_who_leaves_and_dies_is_asked_after_all_where_nobody_else_knows() -> None:
    state, operation = lonely("write_both_read_new")
    assert lacking(state, operation, "n9") == ("n9",)
    assert lacking(state, operation) == ()
    ended = applied(state, Assassinate("n9"))
    assert ended.operations[operation].stage == "finished"
    assert "assassinated" in ended.operations[operation].reason
    assert ended.nodes["n9"].state == "left"


def test_an_assassination_waits_for_the_cancel_of_what_can_be_cancelled() -> None:
    state, operation = lonely("write_both_read_old")
    assert refused(state, Assassinate("n9")).code == "wrong_node_state"
    assert "cancelled" in refused(state, Assassinate("n9")).detail
    state = applied(state, CancelOperation(operation, "it died"))
    assert applied(state, Assassinate("n9")).nodes["n9"].state == "left"
