"""Checks on movements, barriers, quorums and rows: their models are right, and each check finds its bug."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.generations.acceptance import AcceptedWrite, accept
from ringlog.kernel.values import DatacenterReplication, Replication
from ringlog_sim.checks.cdc.accepted import _acceptable
from ringlog_sim.checks.cdc.judge import window
from ringlog_sim.checks.ring.gates import Acknowledgements
from ringlog_sim.checks.ring.quorums import Quorums, _distinct, smallest_quorums
from ringlog_sim.mutants import MUTANTS
from ringlog_sim.mutants.plant import planted
from ringlog_sim.runner import run
from ringlog_sim.runner.search import run_seed
from ringlog_testing.placement.layout import NO_RANGE, SeenRange, covering, holds, replicas, walk

SEEDS = 300
"""The first few seeds usually find a planted bug of this list; a higher number deserves an investigation."""

FOUND_BY = {
    "gate_ignores_datacenter": "gate",
    "gate_of_last_stage_missing": "gate",
    "coordinator_vouches": "gate",
    "reads_from_new_too_early": "placement",
    "split_on_the_wrong_side": "placement",
    "locks_not_taken": "locks",
    "streams_from_any_replica": "stages",
    "publication_not_awaited": "stages",
    "ack_before_adopted": "served_below_ack",
    "ack_before_disk": "ack",
    "rows_stay_after_loss": "rows",
    "report_counts_parts": "rows",
    "window_ignored_by_nodes": "rows",
}


def first_broken(name: str) -> str:
    """Return the first rule that the planted bug breaks; empty if no seed breaks one."""
    with planted(next(mutant for mutant in MUTANTS if mutant.name == name)):
        for seed in range(1, SEEDS + 1):
            report = run_seed(seed, "small")
            if report.rule not in ("", "too_little"):
                return report.rule
    return ""


@pytest.mark.parametrize("name", sorted(FOUND_BY))
def test_a_planted_bug_is_found_by_its_check(name: str) -> None:
    assert first_broken(name) == FOUND_BY[name]


@pytest.mark.parametrize("name", ["gate_of_last_stage_missing", "gate_one_epoch_early"])
def test_quorum_intersection_alone_finds_a_missing_gate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHECKS", (Acknowledgements, Quorums))
    assert first_broken(name) == "quorums"


def test_the_walk_takes_distinct_owners_clockwise_over_the_end_of_the_ring() -> None:
    owners = {-10: "a", 0: "b", 5: "b", 20: "c"}
    assert walk(owners, 5) == ["b", "c", "a"]
    assert walk(owners, 6) == ["c", "a", "b"]
    assert walk(owners, 21) == ["a", "b", "c"]
    assert walk({}, 0) == []


def test_strategies_choose_nodes_of_the_walk() -> None:
    owners = {-10: "a", 0: "b", 5: "b", 20: "c", 30: "d"}
    places = {"a": ("dc1", "r1"), "b": ("dc1", "r1"), "c": ("dc2", "r1"), "d": ("dc1", "r2")}
    assert replicas(Replication("simple", 2), owners, places, 5) == ("b", "c")
    assert replicas(Replication("entire", 0), owners, places, 5) == ("b", "c", "d", "a")
    spread = Replication("network", 2, (DatacenterReplication("dc1", 2),))
    assert replicas(spread, owners, places, -10) == ("a", "d")
    both = Replication("network", 4, (DatacenterReplication("dc1", 3), DatacenterReplication("dc2", 1)))
    assert replicas(both, owners, places, 30) == ("d", "a", "b", "c")
    listed = Replication("network", 1, (DatacenterReplication("dc1", 1, ("r2",)),))
    assert replicas(listed, owners, places, -10) == ("d",)


def test_ranges_are_open_below_and_wrap() -> None:
    assert holds(0, 5, 5)
    assert not holds(0, 5, 0)
    assert holds(5, 0, 6)
    assert holds(5, 0, -1)
    assert not holds(5, 0, 3)
    assert holds(7, 7, 7)
    assert covering((0, 5), 6) == 0
    assert covering((0, 5), 1) == 5


def test_a_returning_replica_is_a_new_member() -> None:
    first = NO_RANGE.next(("a", "b"), ("a", "b"), 3)
    assert first == SeenRange({"a": 3, "b": 3}, {"a": 3, "b": 3}, 3)
    without = first.next(("b",), ("b",), 5)
    again = without.next(("a", "b"), ("a", "b"), 8)
    assert again == SeenRange({"a": 8, "b": 3}, {"a": 8, "b": 3}, 8)
    assert again.next(("a", "b"), ("a", "b"), 9) is again


def test_a_write_needs_both_groups_at_its_epoch() -> None:
    groups = _distinct(("a", "b", "c"), ("b", "c", "x"), ("a", "b", "c", "x"))
    assert groups == (("a", "b", "c"), ("b", "c", "x"))
    assert set(smallest_quorums(groups, frozenset("abcx"))) == {frozenset("bc"), frozenset("abx"), frozenset("acx")}
    assert smallest_quorums(groups, frozenset("ab")) == ()
    assert smallest_quorums((("a", "b"),), frozenset("ab")) == (frozenset("ab"),)


@settings(max_examples=200, deadline=None)
@given(
    timestamp=st.integers(0, 40),
    now=st.integers(0, 40),
    starts=st.dictionaries(st.integers(0, 40), st.integers(0, 8), max_size=4),
    leeway=st.integers(0, 8),
)
def test_the_acceptance_model_matches_the_kernel(timestamp: int, now: int, starts: dict[int, int], leeway: int) -> None:
    ascending = tuple(sorted(starts))
    reaches = tuple(starts[start] for start in ascending)
    verdict = accept(timestamp, now, ascending, leeway, reaches)
    assert _acceptable(timestamp, now, ascending, reaches, leeway) == isinstance(verdict, AcceptedWrite)
    assert window(timestamp, now, leeway, ascending, starts.__getitem__) == getattr(verdict, "code", "")
