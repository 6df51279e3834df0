"""All changes of the members of a metadata service: groups, gates, and which plans there are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from ringlog.kernel.commands.cluster.service import AddServiceMember, AdvanceService, RemoveServiceMember
from ringlog.kernel.commands.control.recovery import EnterRecovery
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.service import read_group
from ringlog.kernel.values import Command
from ringlog_testing.quorums import tablet_plans
from ringlog_testing.quorums.case import CaseOptions
from ringlog_testing.quorums.check import KEPT, NEIGHBOURS
from ringlog_testing.quorums.description import state_of
from ringlog_testing.quorums.explore import Explorer, Findings, NotQuiet
from ringlog_testing.quorums.model import MEMBERS_MAX, QuorumRules
from ringlog_testing.quorums.walk import AWAITS_SERVICE, WalkWorld

SERVICE = tablet_plans.SERVICE


@cache
def cluster(members: int, nodes: int) -> ClusterState:
    return state_of(
        {
            "nodes": [{"name": "ABCDEFGHIJKLM"[number], "tokens": [100 * number]} for number in range(nodes)],
            **({"service": {"size": members}} if members else {}),
            "keyspaces": [{"name": "ks", "replication": {"strategy": "simple", "factor": 2}}],
        }
    )


def explored(state: ClusterState, kind: str = SERVICE, **rules: Any) -> Findings:
    return Explorer(QuorumRules(**rules)).plans(state, kind, CaseOptions())


def after(state: ClusterState, *commands: Command) -> ClusterState:
    world = WalkWorld(state)
    for command in commands:
        assert world.apply(command).kind is OutcomeKind.APPLIED
    return world.state


def views(findings: Findings) -> Iterator[list[tuple[str, int, int]]]:
    for history in findings.distinct:
        yield [(view.name, view.read.bit_count(), view.write.bit_count()) for view in history.views]


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5])
def test_no_change_of_members_has_a_counterexample(members: int) -> None:
    findings = explored(cluster(members, members + 1))
    assert (findings.counterexamples, findings.broken) == ({}, [])
    more, fewer = members + 1, members - 1
    seen = list(views(findings))
    assert [("before", members, members), ("joining", members, more), ("after", more, more)] in seen
    if fewer:
        assert [("before", members, members), ("leaving", fewer, members), ("after", fewer, fewer)] in seen
    called_off = [("before", members, members), ("joining", members, more), ("after", members, members)]
    assert called_off in seen, "a node that joins is removed, or dies"


@pytest.mark.parametrize("kind", ["leave", "replace", "remove"])
def test_operations_of_members_hand_over_and_have_no_counterexample(kind: str) -> None:
    findings = explored(cluster(3, 4), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert any("leaving" in {name for name, _, _ in seen} for seen in views(findings))


@pytest.mark.parametrize("kind", ["leave", "replace", "remove", "assassinate"])
@pytest.mark.parametrize("members", [1, 2])
def test_a_refused_operation_of_the_last_member_is_no_fault(kind: str, members: int) -> None:
    findings = explored(cluster(members, 3), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])


@pytest.mark.parametrize(("rules", "kind"), [({"gate": "off"}, KEPT), ({"write": "off"}, NEIGHBOURS)])
def test_a_weakened_rule_is_found_out(rules: dict[str, str], kind: str) -> None:
    assert kind in {found for found, _ in explored(cluster(3, 4), **rules).counterexamples}


@pytest.mark.parametrize(("command", "stage"), [(AddServiceMember, "joining"), (RemoveServiceMember, "leaving")])
def test_the_change_that_is_under_way_is_followed_from_before_its_first_step(command: Any, stage: str) -> None:
    quiet = cluster(2, 4)
    members = {node.name: node.id for node in quiet.nodes.values()}
    state = after(quiet, command(members["C" if stage == "joining" else "B"]))
    cases = list(tablet_plans.KINDS[SERVICE](state, CaseOptions()))
    assert "under way" in cases[0].title
    begun = tablet_plans.begin(state, cases[0])
    assert begun == (state,)
    findings = explored(state)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert findings.refused, "one member at a time"
    assert any([name for name, _, _ in seen[:2]] == ["before", stage] for seen in views(findings))
    assert "under way" not in next(iter(tablet_plans.KINDS[SERVICE](quiet, CaseOptions()))).title


def test_a_service_without_a_live_majority_waits_for_a_recovery() -> None:
    findings = explored(cluster(1, 2))
    assert findings.waiting == {AWAITS_SERVICE: 1}, "the only member is dead"
    lost = after(cluster(3, 4), *(DeclareDown(node, "tried") for node in read_group(cluster(3, 4))[:2]))
    findings = explored(lost)
    assert findings.waiting[AWAITS_SERVICE]
    assert (findings.counterexamples, findings.broken) == ({}, [])
    with pytest.raises(NotQuiet, match="a recovery"):
        explored(after(lost, EnterRecovery("tried", "ops")))


def test_a_coordinator_that_takes_no_step_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    state, real = cluster(3, 4), WalkWorld.apply

    def without_steps(world: WalkWorld, command: Command) -> Any:
        return real(world, AdvanceService("nobody", "gone") if isinstance(command, AdvanceService) else command)

    monkeypatch.setattr(WalkWorld, "apply", without_steps)
    assert "ends" in {one.fault.rule for one in explored(state).broken}


def test_a_cluster_without_members_and_one_with_too_many_have_no_plans_for_them() -> None:
    assert SERVICE not in tablet_plans.kinds_in(cluster(0, 2))
    assert SERVICE in tablet_plans.kinds_in(cluster(1, 2))
    large = cluster(MEMBERS_MAX, MEMBERS_MAX + 1)
    assert SERVICE not in tablet_plans.kinds_in(large)
    assert "more than 11" in tablet_plans.not_covered(large)[-1]
    assert explored(large, "leave").ranges == explored(cluster(0, MEMBERS_MAX + 1), "leave").ranges
