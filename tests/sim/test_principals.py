"""Runs of a cluster with principals. Some are created, changed and revoked while they send requests."""

from __future__ import annotations

from ringlog_sim.devices.keys import OWN, WAYS
from ringlog_sim.families.principals import CHANGES, PROFILE
from ringlog_sim.runner.script import PROFILES, draw_script
from ringlog_sim.runner.search import SearchResult, reports

SEEDS = range(1, 41)


def test_no_request_of_another_principal_is_applied_and_no_authorized_one_is_refused() -> None:
    found = SearchResult()
    for report in reports(SEEDS, PROFILE, jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    did = found.did
    assert min(did["principals", way, "not_authenticated"] for way in (OWN, *WAYS)) > 5
    assert did["principals", OWN, "not_authorized"] > 50
    for kind in ("CreatePrincipal", "GrantRole", "RevokeRole", "RevokePrincipal", "RotatePrincipalKey"):
        assert did["entry", kind, "applied"], kind


def test_only_this_profile_has_principals_and_all_changes_occur() -> None:
    scripts = [draw_script(seed, PROFILES[PROFILE]) for seed in range(60)]
    assert all(script.shape.guarded for script in scripts)
    kinds = {action.arguments[0] for script in scripts for action in script.actions if action.what == "principal"}
    assert kinds >= set(CHANGES)
    for name in PROFILES.keys() - {PROFILE}:
        assert not any(draw_script(seed, PROFILES[name]).shape.guarded for seed in range(3)), name
