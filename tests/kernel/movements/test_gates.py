"""The acknowledgements and reports that an operation needs to continue, and the decisions of an operator."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.gates import counts_from, describe, gaining_nodes, gate, missing, stopped_by
from ringlog.kernel.values import Command, StreamReport, Witness, replace
from tests.kernel.movements.clusters import canonical_everywhere, network, placed, simple
from tests.kernel.operations.driver import SEED, admitted, advance_of, all_witnesses, applied, driven, refused, stepped

FIVE = {f"n{number}": ("dc1/r1", [100 * number]) for number in range(1, 6)}
SPARE = {"x": ("dc1/r1", ())}


def witnesses_except(state: ClusterState, *silent: str) -> list[Witness]:
    return [witness for witness in all_witnesses(state) if witness.node not in silent]


def lacking(state: ClusterState, operation: str, *silent: str) -> tuple[str, ...]:
    return missing(gate(state, state.operations[operation]), witnesses_except(state, *silent))


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_every_gaining_node_must_be_among_the_witnesses(stage: str) -> None:
    state, operation = admitted(placed(FIVE, simple(3)), Leave("n3"))
    gaining = gaining_nodes(state.operations[operation])
    assert len(gaining) == 3
    state = driven(state, operation, stage)
    for node in gaining:
        command = replace(advance_of(state, operation), witnesses=tuple(witnesses_except(state, node)))
        assert node in refused(state, command).detail


def test_streaming_ends_with_the_reports_of_all_gaining_nodes() -> None:
    state, operation = admitted(placed(FIVE, simple(3)), Leave("n3"))
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


def test_a_removed_node_does_not_count_in_the_quorum() -> None:
    state = applied(placed(FIVE, simple(3)), DeclareDown("n3", "disk"))
    state, operation = admitted(state, Remove("n3"))
    state = driven(state, operation, "write_both_read_new")
    assert lacking(state, operation, "n3") == ()
    # Two of {n1, n2, n3} are needed, and n3 does not count.
    assert "n1" in lacking(state, operation, "n3", "n1")
    needs = gate(state, state.operations[operation]).needs
    assert all("n3" not in need.members for need in needs)
    assert {need.need for need in needs} == {2}


def test_one_of_two_replicas_is_enough_after_a_death() -> None:
    state = applied(placed({**FIVE, **SPARE}, simple(2)), DeclareDown("n3", "disk"))
    state, operation = admitted(state, Replace("x", "n3"))
    state = driven(state, operation, "write_both_read_new")
    olds = [need for need in gate(state, state.operations[operation]).needs if need.group.startswith("old")]
    assert {(len(need.members), need.need) for need in olds} == {(1, 1)}


def test_a_down_node_does_not_lower_the_quorum() -> None:
    state = applied(placed({**FIVE, **SPARE}, simple(3)), DeclareDown("n2", "disk"))
    state, operation = admitted(state, Replace("x", "n3"))
    state = driven(state, operation, "write_both_read_new")
    assert lacking(state, operation, "n2") == ()
    assert "n2" in lacking(state, operation, "n2", "n4")
    ignoring, other = admitted(
        applied(placed({**FIVE, **SPARE}, simple(3)), DeclareDown("n2", "disk")), Replace("x", "n3", ("n2",))
    )
    ignoring = driven(ignoring, other, "write_both_read_new")
    assert all("n2" not in need.members for need in gate(ignoring, ignoring.operations[other]).needs)


def test_a_dead_leaving_node_is_ignored() -> None:
    state, operation = admitted(placed(FIVE, simple(2)), Leave("n3"))
    state = driven(state, operation, "write_both_read_new")
    assert "n3" in lacking(state, operation, "n3")
    state = applied(state, DeclareDown("n3", "disk"))
    assert lacking(state, operation, "n3") == ()
    assert stepped(state, operation).nodes["n3"].state == "left"


def test_each_datacenter_has_its_own_quorum() -> None:
    nodes = {f"{dc}{n}": (f"{dc}/r1", [100 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3, 4)}
    state, operation = admitted(placed(nodes, network(a=3, bb=3)), Leave("a2"))
    state = driven(state, operation, "write_both_read_new")
    needs = gate(state, state.operations[operation]).needs
    assert {need.datacenter for need in needs} == {"a", "bb"}
    assert {need.need for need in needs} == {2}
    assert lacking(state, operation, "bb1", "bb2")
    assert lacking(state, operation, "bb1") == ()


def test_a_dead_replica_needs_a_quorum_of_each_datacenter() -> None:
    nodes = {f"{dc}{n}": (f"{dc}/r1", [100 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3)}
    state = applied(placed({**nodes, "x": ("a/r1", ())}, network(a=3, bb=3)), DeclareDown("a2", "disk"))
    state, operation = admitted(state, Replace("x", "a2"))
    by_range: dict[int, set[str]] = {}
    for source in state.operations[operation].plan.sources:
        assert source.target == "x"
        by_range.setdefault(source.end, set()).add(source.source)
    assert len(by_range) == 6
    for sources in by_range.values():
        assert {node for node in sources if node.startswith("a")} == {"a1", "a3"}
        assert len({node for node in sources if node.startswith("bb")}) == 2


def test_a_setting_relaxes_the_barrier_of_prepared() -> None:
    state = applied(placed(FIVE, simple(3)), ChangeSettings((("gate_prepared", 0),)))
    state, operation = admitted(state, Leave("n3"))
    state = driven(state, operation, "prepared")
    gaining = gaining_nodes(state.operations[operation])
    others = tuple(name for name in FIVE if name not in gaining)
    command = replace(advance_of(state, operation), witnesses=tuple(witnesses_except(state, *others)))
    assert applied(state, advance_of(state, operation)).operations[operation].relaxed == ()
    assert refused(state, replace(command, witnesses=tuple(witnesses_except(state, *gaining)))).code == "gate_not_met"
    state = applied(state, command)
    assert state.operations[operation].relaxed == ("prepared",)
    later = replace(advance_of(state, operation), witnesses=tuple(witnesses_except(state, *others)))
    assert refused(state, later).code == "gate_not_met"
    assert driven(state, operation, "finished").operations[operation].relaxed == ("prepared",)


def sole_leaving_node(stage: str) -> tuple[ClusterState, str]:
    """Return a state with n9, alone in its datacenter, leaving and dead in ``stage``."""
    nodes = {**FIVE, "n8": ("dc2/r1", [10]), "n9": ("dc2/r2", [1000])}
    state, operation = admitted(placed(nodes, network(dc1=2, dc2=1)), Leave("n9"))
    state = driven(state, operation, stage)
    return applied(state, DeclareDown("n9", "disk")), operation


def test_a_dead_leaving_node_counts_as_the_only_replica() -> None:
    state, operation = sole_leaving_node("write_both_read_new")
    assert lacking(state, operation, "n9") == ("n9",)
    assert lacking(state, operation) == ()
    ended = applied(state, Assassinate("n9"))
    assert ended.operations[operation].stage == "finished"
    assert "assassinated" in ended.operations[operation].reason
    assert ended.nodes["n9"].state == "left"


def test_an_assassination_waits_for_cancels() -> None:
    state, operation = sole_leaving_node("write_both_read_old")
    assert refused(state, Assassinate("n9")).code == "wrong_node_state"
    assert "cancelled" in refused(state, Assassinate("n9")).detail
    state = applied(state, CancelOperation(operation, "it died"))
    assert applied(state, Assassinate("n9")).nodes["n9"].state == "left"


OLD, NEW, FINISHED = "write_both_read_old", "write_both_read_new", "finished"
FOUR = {f"n{number}": ("dc1/r1", (100 * number,)) for number in (1, 2, 3, 4)} | {"x": ("dc1/r1", ())}


def asked(factor: int, stage: str, command: Command | None = None) -> tuple[ClusterState, str]:
    state, operation = admitted(placed(FOUR, simple(factor)), command or Join("x", (150,), SEED))
    return driven(state, operation, stage), operation


def of(state: ClusterState, operation: str) -> Operation:
    return state.operations[operation]


def failed_tries(state: ClusterState, operation: str, node: str = "x", tries: int = 200) -> FailOperation:
    return FailOperation(operation, "rows from n2: refused", node, tries, counts_from(of(state, operation)))


def acknowledged_by(state: ClusterState, operation: str, *silent: str) -> AdvanceOperation:
    command = advance_of(state, operation)
    return replace(command, witnesses=tuple(one for one in command.witnesses if one.node not in silent))


def test_failed_tries_stop_an_operation_until_its_retry() -> None:
    state, operation = asked(2, OLD)
    stopped = applied(state, failed_tries(state, operation))
    (failure,) = stopped_by(of(stopped, operation))
    assert (failure.node, failure.tries, of(stopped, operation).stage) == ("x", 200, OLD)
    assert describe(stopped, failure) == f"x failed after 200 tries at epoch {stopped.epoch}: rows from n2: refused"
    assert stopped.placements == state.placements
    assert refused(stopped, advance_of(stopped, operation)).code == "awaits_decision"
    assert refused(stopped, failed_tries(stopped, operation)).code == "awaits_decision"

    again = applied(stopped, RetryOperation(operation, "n2 is back"))
    assert stopped_by(of(again, operation)) == ()
    assert counts_from(of(again, operation)) == again.epoch
    late = replace(failed_tries(stopped, operation), since=counts_from(of(state, operation)))
    assert refused(again, late).code == "wrong_stage", "tries before the retry"
    assert len(stopped_by(of(applied(again, failed_tries(again, operation)), operation))) == 1
    assert canonical_everywhere(driven(again, operation, FINISHED))


def test_irrelevant_failures_do_not_stop_an_operation() -> None:
    state, operation = asked(2, OLD)
    assert refused(state, failed_tries(state, operation, tries=199)).code == "bad_field"
    assert refused(state, failed_tries(state, operation, "n3")).code == "wrong_stage", "n3 gains no ranges"
    assert refused(state, failed_tries(state, operation, "nobody")).code == "unknown_node"
    late = driven(state, operation, NEW)
    assert refused(late, failed_tries(late, operation)).code == "wrong_stage", "streaming has ended"
    few = applied(state, ChangeSettings((("stream_tries_max", 3),)))
    assert stopped_by(of(applied(few, failed_tries(few, operation, tries=3)), operation))


def test_many_failing_nodes_report_a_bounded_number_of_tries() -> None:
    """Otherwise the last reports would displace the first ones, which would be sent again indefinitely."""
    nodes = {f"n{number}": ("dc1/r1", (100 * number,)) for number in range(1, 15)}
    state, operation = admitted(placed(nodes, simple(1)), AlterKeyspace("ks0", simple(2)))
    state = driven(state, operation, OLD)
    gaining = gaining_nodes(of(state, operation))
    assert len(gaining) == 14
    for name in gaining[:10]:
        state = applied(state, failed_tries(state, operation, name))
    assert len(stopped_by(of(state, operation))) == 10
    assert {refused(state, failed_tries(state, operation, name)).code for name in gaining} == {"awaits_decision"}
    state = applied(state, RetryOperation(operation, "mended"))
    assert canonical_everywhere(driven(state, operation, FINISHED))


def test_a_stopped_operation_can_be_cancelled() -> None:
    state, operation = asked(2, OLD)
    stopped = applied(state, failed_tries(state, operation))
    off = applied(stopped, CancelOperation(operation, "another day"))
    assert of(off, operation).stage == "cancelled"
    assert off.placements == placed(FOUR, simple(2)).placements


def test_an_error_past_the_point_of_no_return_waits_for_a_decision() -> None:
    state, operation = asked(2, NEW)
    stopped = applied(state, FailOperation(operation, "disk full", "n2"))
    assert refused(stopped, advance_of(stopped, operation)).code == "awaits_decision"
    assert "n2 failed at epoch" in refused(stopped, advance_of(stopped, operation)).detail
    assert canonical_everywhere(driven(applied(stopped, RetryOperation(operation, "mended")), operation, FINISHED))


def test_a_lost_node_is_ignored_past_the_point_of_no_return() -> None:
    """Of two replicas, the remaining one is in each quorum, so a late node meets it."""
    state, operation = asked(2, NEW)
    ignoring = RetryOperation(operation, "gone", ("n2",))
    assert refused(state, ignoring).code == "wrong_node_state", "the node is not declared down"
    dead = applied(state, DeclareDown("n2", "fire"))
    assert refused(dead, acknowledged_by(dead, operation, "n2")).code == "gate_not_met"
    again = applied(dead, ignoring)
    assert of(again, operation).ignored == ("n2",)
    done = applied(again, acknowledged_by(again, operation, "n2"))
    assert of(done, operation).stage == FINISHED
    assert canonical_everywhere(done)
    assert refused(again, DeclareUp("n2", "it lives")).code == "operations_in_flight"
    # The node is then removed as usual.
    state, removal = admitted(done, Remove("n2"))
    assert canonical_everywhere(driven(state, removal, FINISHED))


def test_a_cancellable_operation_ignores_no_node() -> None:
    state, operation = asked(2, OLD)
    dead = applied(state, DeclareDown("n2", "fire"))
    assert refused(dead, RetryOperation(operation, "gone", ("n2",))).code == "wrong_stage"


@pytest.mark.parametrize(("factor", "gone"), [(1, ("n2",)), (3, ("n2", "n3"))])
def test_ignoring_a_quorum_needs_consent_to_data_loss(factor: int, gone: tuple[str, ...]) -> None:
    state, operation = asked(factor, NEW)
    for name in gone:
        state = applied(state, DeclareDown(name, "fire"))
    assert refused(state, RetryOperation(operation, "gone", gone)).code == "too_few_replicas"
    again = applied(state, RetryOperation(operation, "gone", gone, admits_loss=True))
    assert "may have missed rows" in of(again, operation).reason
    done = applied(again, acknowledged_by(again, operation, *gone))
    assert of(done, operation).stage == FINISHED


def ignoring(command: str) -> tuple[ClusterState, str]:
    """Return a state with n3 leaving past the point of no return and the dead n4 ignored, both with one range."""
    if command == "leave":
        state, operation = asked(3, NEW, Leave("n3"))
        state = applied(state, DeclareDown("n4", "fire"))
        return applied(state, RetryOperation(operation, "gone", ("n4",))), operation
    state = applied(placed(FOUR, simple(3)), DeclareDown("n4", "fire"))
    state, operation = admitted(state, Replace("x", "n3", ("n4",)))
    return driven(state, operation, NEW), operation


@pytest.mark.parametrize("command", ["leave", "replace"])
def test_no_order_of_deaths_ignores_a_quorum_silently(command: str) -> None:
    """A leaving node that is down is usually ignored. In this state it counts, or only n2 would know of the step."""
    state, operation = ignoring(command)
    dead = applied(state, DeclareDown("n3", "fire"))
    rejection = refused(dead, acknowledged_by(dead, operation, "n3", "n4"))
    assert rejection.code == "gate_not_met"
    assert "n3" in rejection.detail
    assert of(applied(dead, acknowledged_by(dead, operation, "n4")), operation).stage == FINISHED, (
        "if it is still alive"
    )
    assert of(applied(dead, Assassinate("n3")), operation).stage == FINISHED
    again = RetryOperation(operation, "gone", ("n4",))
    assert refused(dead, again).code == "too_few_replicas", "as if n3 had been declared down first"
    admitted = applied(dead, replace(again, admits_loss=True))
    assert of(admitted, operation).ignored == ("n3", "n4")
    done = applied(admitted, acknowledged_by(admitted, operation, "n3", "n4"))
    assert of(done, operation).stage == FINISHED
    assert "may have missed rows" in of(done, operation).reason


def test_a_quorum_is_asked_of_each_datacenter() -> None:
    nodes = {f"{dc}{n}": (f"{dc}/r1", [100 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3)}
    state, operation = admitted(placed({**nodes, "x": ("a/r1", ())}, network(a=3, bb=1)), Join("x", (150,), SEED))
    state = driven(state, operation, NEW)
    for name in ("a1", "bb1"):
        state = applied(state, DeclareDown(name, "fire"))
    assert of(applied(state, RetryOperation(operation, "", ("a1",))), operation).ignored == ("a1",)
    # The other datacenter does not change, but the barrier also asks the group of a split range.
    assert "x" in gaining_nodes(of(state, operation))


def test_an_ended_operation_is_not_tried_again() -> None:
    state, operation = asked(2, FINISHED)
    assert refused(state, RetryOperation(operation, "why not")).code == "wrong_stage"
    assert refused(state, RetryOperation("join-999", "why not")).code == "unknown_operation"
