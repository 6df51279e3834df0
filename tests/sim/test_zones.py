"""Zones in simulated clusters: groups come and go under the rebalancer, which dies, too; and it comes to an end."""

from __future__ import annotations

from collections import Counter

from ringlog.sim.rebalancing import PROFILE, STEPS
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


RICH = (2, 9, 11, 22, 25, 26, 29, 43, 50)
"""Seeds of which each has something that not every run has. Where the profile draws otherwise,
``ringlog sim run --profile zones --seeds N`` counts what another seed has.
"""


def test_the_runs_contain_what_the_profile_is_said_to_contain() -> None:
    """CDC rows and registers of tables that a zone places, restarts of replicas that begin and end, disks that fail
    and say so, nodes that die at each kind of entry that leads data on, and resets of partitions with data: more than
    one node survives, most survive and somebody admits a loss or nobody does, and one that nobody admits waits.
    """
    did: Counter[tuple[str, ...]] = Counter()
    for seed in RICH:
        report = run_seed(seed, PROFILE)
        assert not report.rule, (seed, report.rule, report.detail)
        did += report.did
    wanted = [("zone data", what) for what in ("steps", "registers", "cdc rows", "resets", "salvaged")]
    wanted += [("zone data", f"resets of most{how}") for how in ("", ", no loss admitted")]
    wanted += [("zone data", "stuck, no loss admitted")]
    wanted += [("zone restart", what) for what in ("begun", "over")]
    wanted += [("zone word", what) for what in ("has", "returned", "copy", "failed")]
    wanted += [("moment", step, "crash") for step in sorted(set(STEPS))]
    assert [what for what in wanted if not did[what]] == []
