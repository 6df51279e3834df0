"""Every kind of operation on clusters with racks, datacenters and all strategies, and planted planner defects."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology import movements
from ringlog.kernel.model.state import ClusterState, Plan
from ringlog.kernel.operations import sources
from ringlog.kernel.operations.plan import plan_rebuild
from ringlog.kernel.values import Replication, replace
from ringlog_testing.quorums import walk
from ringlog_testing.quorums.case import CaseOptions
from ringlog_testing.quorums.check import APART, KEPT, NEIGHBOURS, STREAMED
from ringlog_testing.quorums.description import state_of
from ringlog_testing.quorums.explore import Explorer, Findings
from ringlog_testing.quorums.model import QuorumRules
from ringlog_testing.quorums.plans import KINDS, settings
from ringlog_testing.quorums.timeline import histories
from ringlog_testing.quorums.walk import WalkWorld, drive, readers_of

SIMPLE = {"strategy": "simple", "factor": 3}
ENTIRE = {"strategy": "entire"}

CLUSTERS = {
    "racks": ("dc1/r1 dc1/r2 dc1/r3 dc1/r1 dc1/r2", ({"strategy": "network", "datacenters": {"dc1": 3}}, ENTIRE)),
    "datacenters": (
        "dc1/r1 dc2/r1 dc1/r2 dc2/r2 dc1/r1",
        ({"strategy": "network", "datacenters": {"dc1": 2, "dc2": 1}},),
    ),
    "rack lists": ("dc1/r1 dc1/r2 dc1/r1 dc1/r2", ({"strategy": "network", "datacenters": {"dc1": ["r1", "r2"]}},)),
    "beside datacenters": ("dc1/r1 dc2/r1 dc1/r1 dc2/r1 dc1/r1", (SIMPLE,)),
    "several at once": ("dc1/r1 " * 5, (SIMPLE,)),
    "five replicas": ("dc1/r1 " * 6, ({"strategy": "simple", "factor": 5},)),
}


@cache
def quiet(name: str) -> ClusterState:
    places, replications = CLUSTERS[name]
    nodes = [
        {"name": f"n{number}", "tokens": [100 * number], "datacenter": place[:3], "rack": place[4:]}
        for number, place in enumerate(places.split(), start=1)
    ]
    keyspaces = [{"name": f"k{number}", "replication": one} for number, one in enumerate(replications)]
    return state_of({"nodes": nodes, "keyspaces": keyspaces})


def explored(name: str, kind: str, rules: QuorumRules | None = None) -> Findings:
    return Explorer(rules or QuorumRules()).plans(quiet(name), kind, CaseOptions())


def kinds(findings: Findings) -> set[str]:
    return {kind for kind, _ in findings.counterexamples}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "several at once"])
def test_no_kind_of_operation_has_a_counterexample(name: str, kind: str) -> None:
    findings = explored(name, kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert findings.plans + findings.refused == len(list(KINDS[kind](quiet(name), CaseOptions())))
    assert (findings.ranges == 0) == (findings.plans == findings.unpromised)


@pytest.mark.parametrize(
    ("name", "kind", "plans", "refused"),
    [
        ("racks", "leave", 5, 0),
        ("racks", "replace", 34, 16),  # two dead nodes of a group of three are too many
        ("datacenters", "leave", 5, 0),
        ("datacenters", "remove", 4, 21),  # the only replica of a datacenter has no other node with its rows
        ("rack lists", "alter", 11, 0),
    ],
)
def test_all_requests_to_the_cluster(name: str, kind: str, plans: int, refused: int) -> None:
    findings = explored(name, kind)
    assert (findings.plans, findings.refused) == (plans, refused)


def test_settings_include_all_that_the_nodes_support() -> None:
    found = list(settings(quiet("rack lists")))
    assert len(set(found)) == len(found)
    assert [one.factor for one in found if one.strategy == "simple"] == [1, 2, 3, 4]
    local = [one.datacenters[0] for one in found if one.strategy == "network"]
    assert [one.factor for one in local if not one.racks] == [1, 2, 3, 4]
    assert [one.racks for one in local if one.racks] == [("r1",), ("r2",), ("r1", "r2")]
    assert [one.strategy for one in found][-1] == "entire"
    two = [one for one in settings(quiet("datacenters")) if one.strategy == "network"]
    assert {tuple(local.datacenter for local in one.datacenters) for one in two} == {("dc1",), ("dc2",), ("dc1", "dc2")}


def test_readers_are_counted_without_the_kernel() -> None:
    state = quiet("datacenters")
    for replication in settings(state):
        expected = 5 if replication.strategy == "entire" else replication.factor
        assert readers_of(replication, state) == expected


def test_a_change_without_group_changes_completes_at_once() -> None:
    state = quiet("rack lists")
    one_each = next(
        one for one in settings(state) if one.strategy == "network" and one.factor == 2 and not one.datacenters[0].racks
    )
    steps, fault = drive(WalkWorld(state), AlterKeyspace("k0", one_each))
    assert (fault, [step.operation for step in steps], list(histories(steps))) == (None, [None, None], [])


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        (QuorumRules(write="majority"), NEIGHBOURS),
        (QuorumRules(gate="union"), APART),
        (QuorumRules(stream="off"), KEPT),
        (QuorumRules(gates_off=("write_both_read_old",)), APART),
        (QuorumRules(gates_off=("write_both_read_new",)), APART),
        (QuorumRules(step="off"), NEIGHBOURS),
    ],
)
def test_several_replicas_at_once_need_every_rule(rules: QuorumRules, kind: str) -> None:
    """For joins alone, a majority of all writers, or of all nodes at a barrier, would suffice."""
    assert kind in kinds(explored("several at once", "alter", rules))


# ------------------------------------------------------------------------------------------- planted defects


def test_a_smaller_group_without_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer replicas at once lose writes; a node that leaves EntireStrategy prepares the loss."""
    quiet("racks"), quiet("five replicas")
    monkeypatch.setattr(sources, "_surer", lambda *_: set())
    assert kinds(explored("five replicas", "alter")) == {STREAMED, KEPT}
    assert kinds(explored("racks", "leave")) == {KEPT}
    assert kinds(explored("racks", "remove")) == {KEPT}
    assert kinds(explored("five replicas", "leave")) == set()


def test_a_dead_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted planner uses one survivor instead of a quorum of them."""
    quiet("five replicas")
    real = sources.quorum_sources
    monkeypatch.setattr(sources, "quorum_sources", lambda *arguments: real(*arguments)[:1])
    assert kinds(explored("five replicas", "replace")) == {STREAMED, KEPT}


def test_a_rebuild_from_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet("five replicas")

    def careless(state: ClusterState, *rest: Any) -> Plan:
        plan = plan_rebuild(state, *rest)
        first = {source.end: source for source in reversed(plan.sources)}
        return replace(plan, sources=tuple(first[end] for end in sorted(first)))

    monkeypatch.setattr(movements, "plan_rebuild", careless)
    assert kinds(explored("five replicas", "rebuild")) == {KEPT}


def test_an_alteration_that_leaves_its_own_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    state = quiet("rack lists")
    real = walk.replications_in_use
    monkeypatch.setattr(
        walk, "replications_in_use", lambda found: real(found)[:0] if found is not state else real(found)
    )
    steps, _ = drive(WalkWorld(state), AlterKeyspace("k0", Replication("simple", 3)))
    assert [one.rule for one in walk.faults(steps)] == ["canonical without operations"]
