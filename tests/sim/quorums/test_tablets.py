"""All tablet transitions and membership changes of the metadata service on small clusters, and planted bugs."""

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
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import ASKED, KINDS, TURNED_BACK
from ringlog.kernel.values import Command
from ringlog_sim.mutants.plant import bugs_of, planted
from ringlog_testing.quorums import tablet_plans
from ringlog_testing.quorums.case import Case, CaseOptions
from ringlog_testing.quorums.check import APART, KEPT, NEIGHBOURS, STREAMED
from ringlog_testing.quorums.description import state_of
from ringlog_testing.quorums.explore import Explorer, Findings, NotQuiet
from ringlog_testing.quorums.model import MEMBERS_MAX, QuorumRules
from ringlog_testing.quorums.plans import KINDS as OPERATIONS
from ringlog_testing.quorums.tablet_plans import begin, walks
from ringlog_testing.quorums.walk import AWAITS_SERVICE, AWAITS_TABLETS, WalkWorld, drive

TABLETS: dict[str, Any] = {"strategy": "tablets", "factor": 2}
PLACED: dict[str, Any] = {"strategy": "zone", "zone": "z"}
OPTIONS = CaseOptions()
KIND_OF = {
    "migration": "tablet-migration",
    "intranode_migration": "tablet-intranode",
    "rebuild": "tablet-rebuild",
    "rebuild_v2": "tablet-rebuild-v2",
    "repair": "tablet-repair",
}


@cache
def cluster(factor: int, nodes: int, zone: bool = False, datacenters: int = 1, service: bool = False) -> ClusterState:
    """Return a cluster; with ``service``, the service has as many members as a tablet has replicas."""
    replication = {**PLACED} if zone else {**TABLETS, "factor": factor}
    if datacenters > 1:
        share = {f"dc{number + 1}": factor for number in range(datacenters)}
        replication = {"strategy": "tablets", "datacenters": share}
    return state_of(
        {
            "nodes": [
                {
                    "name": "ABCDEFGH"[number],
                    "tokens": [100 * number],
                    "shards": 2,
                    "datacenter": f"dc{number % datacenters + 1}",
                }
                for number in range(nodes)
            ],
            "zones": [{"zone": "z", "partitions": 1, "replicas": factor}] if zone else [],
            **({"service": {"size": factor}} if service else {}),
            "keyspaces": [{"name": "ks", "replication": replication}],
        }
    )


def explored(state: ClusterState, kind: str) -> Findings:
    return Explorer(QuorumRules()).plans(state, kind, OPTIONS)


def test_every_kind_of_transition_has_plans_or_is_named() -> None:
    assert KIND_OF.keys() == set(ASKED)
    assert {*KIND_OF.values(), "tablet-resize", "zone", "service"} == tablet_plans.KINDS.keys()
    named = "; ".join(tablet_plans.NOT_COVERED)
    assert all(kind in named for kind in set(KINDS) - set(ASKED))


@pytest.mark.parametrize("kind", tablet_plans.KINDS)
@pytest.mark.parametrize(("factor", "nodes"), [(1, 2), (2, 3), (3, 4)])
def test_no_transition_of_these_clusters_has_a_counterexample(kind: str, factor: int, nodes: int) -> None:
    findings = explored(cluster(factor, nodes, zone=kind == "zone", service=kind == "service"), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert findings.plans
    assert findings.ranges


@pytest.mark.parametrize("kind", ["leave", "remove", "replace"])
@pytest.mark.parametrize(("factor", "nodes"), [(2, 3), (3, 4)])
def test_no_node_that_loses_the_tablets_of_a_zone_has_a_counterexample(kind: str, factor: int, nodes: int) -> None:
    """Only plans with a second dead node wait: a partition then has no live majority, or no other node."""
    state = cluster(factor, nodes, zone=True)
    findings = explored(state, kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert findings.ranges
    waiting = [case.title for case in OPERATIONS[kind](state, OPTIONS) if awaits_tablets(state, case)]
    assert len(waiting) == findings.waiting.total() < findings.plans + len(waiting)
    assert [title for title in waiting if "ignoring the dead" not in title] == []


def awaits_tablets(state: ClusterState, case: Case) -> bool:
    world = WalkWorld(state)
    for command in case.ground:
        world.apply(command)
    fault = drive(world, case.request)[1]
    return fault is not None and fault.code == AWAITS_TABLETS


@pytest.mark.parametrize("kind", ["tablet-migration", "tablet-rebuild"])
def test_no_transition_over_two_datacenters_has_a_counterexample(kind: str) -> None:
    findings = explored(cluster(2, 6, datacenters=2), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert {len(set(history.datacenters)) for history in findings.distinct} == {2}


@pytest.mark.parametrize("name", ASKED)
def test_each_kind_passes_all_stages_and_reverts(name: str) -> None:
    state, seen = cluster(3, 4), set[str]()
    for case in tablet_plans.KINDS[KIND_OF[name]](state, OPTIONS):
        begun = begin(state, case)
        assert isinstance(begun, tuple), "begun"
        for walk in walks(begun, case):
            seen |= {one.stage for after in walk.states for _, one in transitions(after)}
    assert seen >= set(KINDS[name].stages)
    assert seen >= set(TURNED_BACK) or not KINDS[name].exchanges or KINDS[name].within_node


FOUND = {
    "gates_of_tablets_open": ("tablet-migration", 3, APART),
    "settles_as_meant": ("tablet-intranode", 3, "cancel"),
    "rebuilt_from_one": ("tablet-rebuild", 3, STREAMED),
    "rebuilt_from_nobody": ("tablet-rebuild-v2", 3, STREAMED),
    "repair_without_end": ("tablet-repair", 3, "cancel"),
    "half_without_a_replica": ("tablet-resize", 3, KEPT),
    "shrinks_without_rows": ("zone", 3, KEPT),
    "leaver_counts": ("service", 3, KEPT),
}


@pytest.mark.parametrize("mutant", bugs_of("quorums"), ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Any) -> None:
    kind, factor, rule = FOUND[mutant.name]
    state = cluster(factor, factor + 1, zone=kind == "zone", service=kind == "service")
    with planted(mutant):
        findings = explored(state, kind)
    assert rule in {*(kind for kind, _ in findings.counterexamples), *(one.fault.rule for one in findings.broken)}


def test_a_planted_bug_is_found_while_a_node_of_a_zone_leaves() -> None:
    (bug,) = (one for one in bugs_of("quorums") if one.name == "gates_of_tablets_open")
    with planted(bug):
        assert APART in {kind for kind, _ in explored(cluster(3, 4, zone=True), "leave").counterexamples}


def test_a_migrating_tablet_is_refused() -> None:
    state = cluster(2, 3)
    begun = begin(state, next(tablet_plans.migrations(state, OPTIONS)))
    assert isinstance(begun, tuple)
    with pytest.raises(NotQuiet, match="is in allow_write_both_read_old"):
        explored(begun[-1], "join")


SERVICE = tablet_plans.SERVICE


@cache
def with_members(members: int, nodes: int) -> ClusterState:
    return state_of(
        {
            "nodes": [{"name": "ABCDEFGHIJKLM"[number], "tokens": [100 * number]} for number in range(nodes)],
            **({"service": {"size": members}} if members else {}),
            "keyspaces": [{"name": "ks", "replication": {"strategy": "simple", "factor": 2}}],
        }
    )


def explored_service(state: ClusterState, kind: str = SERVICE, **rules: Any) -> Findings:
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
    findings = explored_service(with_members(members, members + 1))
    assert (findings.counterexamples, findings.broken) == ({}, [])
    more, fewer = members + 1, members - 1
    seen = list(views(findings))
    assert [("before", members, members), ("joining", members, more), ("after", more, more)] in seen
    if fewer:
        assert [("before", members, members), ("leaving", fewer, members), ("after", fewer, fewer)] in seen
    called_off = [("before", members, members), ("joining", members, more), ("after", members, members)]
    assert called_off in seen, "a joining node is removed, or dies"


@pytest.mark.parametrize("kind", ["leave", "replace", "remove"])
def test_operations_of_members_have_no_counterexample(kind: str) -> None:
    findings = explored_service(with_members(3, 4), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert any("leaving" in {name for name, _, _ in seen} for seen in views(findings))


@pytest.mark.parametrize("kind", ["leave", "replace", "remove", "assassinate"])
@pytest.mark.parametrize("members", [1, 2])
def test_a_refused_operation_of_the_last_member_is_not_a_fault(kind: str, members: int) -> None:
    findings = explored_service(with_members(members, 3), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])


@pytest.mark.parametrize(("rules", "kind"), [({"gate": "off"}, KEPT), ({"write": "off"}, NEIGHBOURS)])
def test_a_weakened_rule_is_detected(rules: dict[str, str], kind: str) -> None:
    assert kind in {found for found, _ in explored_service(with_members(3, 4), **rules).counterexamples}


@pytest.mark.parametrize(("command", "stage"), [(AddServiceMember, "joining"), (RemoveServiceMember, "leaving")])
def test_a_running_change_is_followed_from_its_start(command: Any, stage: str) -> None:
    quiet = with_members(2, 4)
    members = {node.name: node.id for node in quiet.nodes.values()}
    state = after(quiet, command(members["C" if stage == "joining" else "B"]))
    cases = list(tablet_plans.KINDS[SERVICE](state, CaseOptions()))
    assert "in progress" in cases[0].title
    begun = tablet_plans.begin(state, cases[0])
    assert begun == (state,)
    findings = explored_service(state)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert findings.refused, "one member at a time"
    assert any([name for name, _, _ in seen[:2]] == ["before", stage] for seen in views(findings))
    assert "under way" not in next(iter(tablet_plans.KINDS[SERVICE](quiet, CaseOptions()))).title


def test_a_service_without_a_live_majority_waits_for_a_recovery() -> None:
    findings = explored_service(with_members(1, 2))
    assert findings.waiting == {AWAITS_SERVICE: 1}, "the only member is dead"
    lost = after(with_members(3, 4), *(DeclareDown(node, "tried") for node in read_group(with_members(3, 4))[:2]))
    findings = explored_service(lost)
    assert findings.waiting[AWAITS_SERVICE]
    assert (findings.counterexamples, findings.broken) == ({}, [])
    with pytest.raises(NotQuiet, match="a recovery"):
        explored_service(after(lost, EnterRecovery("tried", "ops")))


def test_a_coordinator_without_steps_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    state, real = with_members(3, 4), WalkWorld.apply

    def without_steps(world: WalkWorld, command: Command) -> Any:
        return real(world, AdvanceService("nobody", "gone") if isinstance(command, AdvanceService) else command)

    monkeypatch.setattr(WalkWorld, "apply", without_steps)
    assert "ends" in {one.fault.rule for one in explored_service(state).broken}


def test_zero_or_too_many_members_have_no_plans() -> None:
    assert SERVICE not in tablet_plans.kinds_in(with_members(0, 2))
    assert SERVICE in tablet_plans.kinds_in(with_members(1, 2))
    large = with_members(MEMBERS_MAX, MEMBERS_MAX + 1)
    assert SERVICE not in tablet_plans.kinds_in(large)
    assert "more than 11" in tablet_plans.not_covered(large)[-1]
    assert explored_service(large, "leave").ranges == explored_service(with_members(0, MEMBERS_MAX + 1), "leave").ranges
