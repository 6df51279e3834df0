"""Zones in simulated clusters: groups come and go under the rebalancer, which dies, too; and it comes to an end."""

from __future__ import annotations

from collections import Counter

from ringlog.sim.rebalancing import PROFILE
from ringlog.sim.search import run_seed

RUNS = 8


def test_the_profile_of_zones_meets_what_it_is_about() -> None:
    """Moves that end, are cancelled, begin anew; rebalancers that are taken over; and nothing that checks object to."""
    did: Counter[tuple[str, ...]] = Counter()
    for seed in range(1, RUNS + 1):
        report = run_seed(seed, PROFILE)
        assert not report.rule, (seed, report.rule, report.detail)
        did += report.did
    assert did["action", "with_role"] == RUNS
    kinds = ("CreateZone", "AlterZone", "SetDataNodes", "TriggerRebalance", "SwitchStable", "CancelRebalance")
    for kind in (*kinds, "FinishCancel", "TakeOver"):
        assert did["entry", kind, "applied"], kind
