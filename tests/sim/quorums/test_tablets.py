"""All transitions of tablets and members of small clusters, and planted bugs that must be found, one for each kind."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import ASKED, KINDS, TURNED_BACK
from ringlog_sim.mutants.plant import bugs_of, planted
from ringlog_testing.quorums import tablet_plans
from ringlog_testing.quorums.case import CaseOptions
from ringlog_testing.quorums.check import APART, KEPT, STREAMED
from ringlog_testing.quorums.description import state_of
from ringlog_testing.quorums.explore import Explorer, Findings, NotQuiet
from ringlog_testing.quorums.model import QuorumRules
from ringlog_testing.quorums.tablet_plans import begin, walks

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
    """``service``: it has as many members as a tablet has replicas."""
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


@pytest.mark.parametrize("kind", ["tablet-migration", "tablet-rebuild"])
def test_no_transition_over_two_datacenters_has_a_counterexample(kind: str) -> None:
    findings = explored(cluster(2, 6, datacenters=2), kind)
    assert (findings.counterexamples, findings.broken) == ({}, [])
    assert {len(set(history.datacenters)) for history in findings.distinct} == {2}


@pytest.mark.parametrize("name", ASKED)
def test_a_kind_goes_through_all_of_its_stages_and_back(name: str) -> None:
    state, seen = cluster(3, 4), set[str]()
    for case in tablet_plans.KINDS[KIND_OF[name]](state, OPTIONS):
        begun = begin(state, case)
        assert isinstance(begun, tuple), begun
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


def test_a_tablet_in_transition_is_no_quiet_cluster() -> None:
    state = cluster(2, 3)
    begun = begin(state, next(tablet_plans.migrations(state, OPTIONS)))
    assert isinstance(begun, tuple)
    with pytest.raises(NotQuiet, match="is in allow_write_both_read_old"):
        explored(begun[-1], "join")
