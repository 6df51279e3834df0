"""All plans of small clusters under the production rules, and planted defects that the check must find."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from ringlog.kernel.commands.topology import movements
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.model.state import ClusterState, Deltas, Operation, Plan
from ringlog.kernel.operations import kinds as known
from ringlog.kernel.operations.plan import plan_movement
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.values import replace
from ringlog_testing.quorums import timeline, walk
from ringlog_testing.quorums.check import APART, KEPT, NEIGHBOURS, STREAMED
from ringlog_testing.quorums.description import BadDescription, Numbers, described, state_of
from ringlog_testing.quorums.explore import PLANS_MAX, Explorer, Findings, NotQuiet, TooMuch
from ringlog_testing.quorums.model import QuorumRules, demanded
from ringlog_testing.quorums.plans import KINDS, CaseOptions, unknown_here
from ringlog_testing.quorums.walk import WalkWorld, drive

CLUSTERS = [
    Numbers(nodes=1, factor=1),
    Numbers(nodes=2, factor=2),
    Numbers(nodes=3, factor=2, tokens=2, racks=3),
    Numbers(nodes=4),
    Numbers(nodes=4, datacenters=2),
    Numbers(nodes=5, factor=4, datacenters=2),
    Numbers(nodes=6, factor=5, datacenters=3),
]


@cache
def quiet(numbers: Numbers) -> ClusterState:
    return state_of(described(numbers))


def explored(numbers: Numbers, rules: QuorumRules | None = None, **options: int) -> Findings:
    return Explorer(rules or QuorumRules()).plans(quiet(numbers), "join", CaseOptions(**options))


def kinds(findings: Findings) -> set[str]:
    return {kind for kind, _ in findings.counterexamples}


def test_every_kind_of_operation_has_plans() -> None:
    """A new kind of the kernel needs its cases in ``KINDS``; then all tests here cover it."""
    assert KINDS.keys() == known.KINDS.keys()
    assert unknown_here() == ()


@pytest.mark.parametrize("numbers", CLUSTERS)
def test_no_plan_of_these_clusters_has_a_counterexample(numbers: Numbers) -> None:
    findings = explored(numbers)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    # Each plan: one entry per stage, the generation's data, commit and publication; a cancel at all stages except the
    # last.
    assert findings.plans == numbers.nodes * numbers.tokens * min(numbers.nodes, numbers.racks * numbers.datacenters)
    assert findings.entries > 9 * findings.plans
    assert findings.cancels == findings.entries - findings.plans
    assert findings.ranges > 0
    assert findings.pairs > 0


def test_several_tokens_in_every_choice_of_ranges() -> None:
    findings = explored(Numbers(nodes=3, factor=2), new_tokens=3)
    assert findings.plans == 10  # three tokens in three ranges, and a range may contain more than one
    assert (findings.counterexamples, findings.broken) == ({}, [])
    cases = list(KINDS["join"](quiet(Numbers(nodes=3, factor=2)), CaseOptions(3)))
    assert len({case.request for case in cases}) == 10


@pytest.mark.parametrize(
    ("numbers", "rules", "kind"),
    [
        (Numbers(nodes=4), QuorumRules(write="off"), NEIGHBOURS),
        (Numbers(nodes=4), QuorumRules(recheck="off"), APART),
        (Numbers(nodes=4), QuorumRules(stream="off"), STREAMED),
        (Numbers(nodes=4), QuorumRules(gate="off"), APART),
        (Numbers(nodes=5, factor=4, datacenters=2), QuorumRules(gate="union"), APART),
        (Numbers(nodes=4), QuorumRules(gates_off=("write_both_read_old",)), APART),
        (Numbers(nodes=4), QuorumRules(gates_off=("write_both_read_new",)), APART),
        (Numbers(nodes=4), QuorumRules(step="off"), NEIGHBOURS),
    ],
)
def test_a_weakened_rule_is_detected(numbers: Numbers, rules: QuorumRules, kind: str) -> None:
    assert kind in kinds(explored(numbers, rules))


def test_the_gate_of_prepared_exceeds_safety_by_one() -> None:
    assert explored(Numbers(nodes=4), QuorumRules(gates_off=("prepared",))).counterexamples == {}


# ------------------------------------------------------------------------------------------- planted defects


def planning(monkeypatch: pytest.MonkeyPatch, change: Callable[[Plan], Plan]) -> None:
    def planned(state: ClusterState, operation: Operation) -> Plan:
        return change(plan_movement(state, operation))

    monkeypatch.setattr(movements, "plan_movement", planned)


def test_reading_from_the_new_owner_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted plan swaps readers in the first step: neighbours do not intersect, and too many nodes read
    too early.
    """
    quiet(Numbers(nodes=4))
    planning(
        monkeypatch,
        lambda plan: replace(plan, start=replace(plan.middle, write_added=plan.start.write_added), middle=Deltas()),
    )
    assert NEIGHBOURS in kinds(explored(Numbers(nodes=4)))


def test_the_wrong_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted plan streams rows from a replica that stays."""

    def elsewhere(plan: Plan) -> Plan:
        owners = {source.source for source in plan.sources}
        return replace(plan, sources=tuple(replace(s, source=min(owners - {s.source})) for s in plan.sources))

    quiet(Numbers(nodes=4))
    planning(monkeypatch, elsewhere)
    assert kinds(explored(Numbers(nodes=4))) == {STREAMED, KEPT}


def test_a_gate_without_the_old_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = timeline.gate

    def forgetful(*arguments: Any) -> Any:
        whole = real(*arguments)
        return replace(whole, needs=tuple(need for need in whole.needs if not need.group.startswith("old")))

    monkeypatch.setattr(timeline, "gate", forgetful)
    assert kinds(explored(Numbers(nodes=4))) == {APART}


def test_a_cancel_without_merging_the_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringlog.kernel.movements import cancel

    quiet(Numbers(nodes=4))
    monkeypatch.setattr(cancel, "merge", lambda placement, tokens: placement)
    monkeypatch.setattr(cancel, "_unlocked", lambda placement, locks: placement)
    broken = explored(Numbers(nodes=4)).broken
    assert {one.fault.rule for one in broken} == {"cancel"}
    assert "placements" in broken[0].fault.detail


def test_a_finish_with_the_old_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(Numbers(nodes=4))
    planning(monkeypatch, lambda plan: replace(plan, finish=Deltas()))
    assert {one.fault.rule for one in explored(Numbers(nodes=4)).broken} == {"canonical without operations"}


def test_a_reader_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(Numbers(nodes=4))
    planning(
        monkeypatch,
        lambda plan: replace(
            plan,
            middle=replace(plan.middle, read_removed=()),
            finish=replace(plan.finish, read_removed=plan.middle.read_removed),
        ),
    )
    broken = explored(Numbers(nodes=4)).broken
    assert {(one.fault.rule, one.fault.stage) for one in broken} == {("number of readers", "write_both_read_new")}


def test_a_stuck_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(Numbers(nodes=4))
    monkeypatch.setattr(walk, "acknowledgements", lambda state, at: {})
    assert {(one.fault.rule, one.fault.stage) for one in explored(Numbers(nodes=4)).broken} == {("ends", "prepared")}


# --------------------------------------------------------------------------------------- translation and limits


@pytest.mark.parametrize("numbers", CLUSTERS)
def test_the_production_gate_matches_the_model(numbers: Numbers) -> None:
    """The gate is determined by a query per subset; the gaining node is asked too if data depend on it."""
    state = quiet(numbers)
    for case in KINDS["join"](state, CaseOptions()):
        world = WalkWorld(state)
        for command in case.ground:
            world.apply(command)
        steps, fault = drive(world, case.request)
        assert fault is None
        for placed in timeline.histories(steps):
            new = 1 << placed.names.index("X")
            for gate in placed.history.gates:
                wanted = demanded(placed.history)
                if gate.stage != "write_both_read_new":
                    wanted = tuple({told | new for told in wanted})
                everything = {told for told in wanted if not any(o & told == o != told for o in wanted)}
                assert set(gate.informed) == everything, (placed, gate)


def test_histories_cover_exactly_the_changed_ranges() -> None:
    state = quiet(Numbers(nodes=4))
    world = WalkWorld(state)
    case = next(KINDS["join"](state, CaseOptions()))
    world.apply(case.ground[0])
    steps, _ = drive(world, case.request)
    assert isinstance(case.request, Join)
    changed = set()
    for end in (*state.token_owners, *case.request.tokens):
        before, after = (group_at(s.state.placements["simple:3"], end) for s in (steps[0], steps[-1]))
        if nodes_of(before.write) != nodes_of(after.write):
            changed.add(end)
    placed = list(timeline.histories(steps))
    assert {one.end for one in placed} == changed
    assert all(
        [v.name for v in one.history.views][1:] == ["write_both_read_old", "write_both_read_new", "finished"]
        for one in placed
    )


def test_limits_and_bad_clusters_are_reported() -> None:
    with pytest.raises(TooMuch, match=f"than {PLANS_MAX}"):
        explored(Numbers(nodes=4, tokens=8), new_tokens=9)
    with pytest.raises(BadDescription, match="replicas need as many"):
        state_of(described(Numbers(nodes=2, factor=3)))
    with pytest.raises(BadDescription, match="nodes: must be between"):
        described(Numbers(nodes=0))
    keyspaces = [{"name": "ks", "replication": {"strategy": "simple", "factor": 1}}]
    with pytest.raises(BadDescription, match="belongs to A"):
        state_of({"nodes": [{"name": "A", "tokens": [1]}, {"name": "B", "tokens": [1]}], "keyspaces": keyspaces})
    world = WalkWorld(quiet(Numbers(nodes=4)))
    case = next(KINDS["join"](world.state, CaseOptions()))
    world.apply(case.ground[0])
    world.apply(case.request)
    with pytest.raises(NotQuiet, match="is in requested"):
        Explorer(QuorumRules()).plans(world.state, "join", CaseOptions())
