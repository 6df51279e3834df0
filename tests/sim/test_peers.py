"""Nodes that learn of the log from each other while the broker is away from them, and peers that lie."""

from __future__ import annotations

from ringlog.sim.hearsay import LIES
from ringlog.sim.script import PROFILES, draw_script
from ringlog.sim.search import SearchResult, reports

SEEDS = range(1, 19)


def test_nodes_learn_from_each_other_and_nobody_serves_it() -> None:
    found = SearchResult()
    for report in reports(SEEDS, "peers", jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    heard = {key[1] for key in found.did if key[0] == "peers"}
    assert heard >= {"entries", "refuted", "bad_entries", "foreign_cluster"}, "in more seeds there is more"


def test_each_run_of_the_profile_has_nodes_that_ask_and_lies_of_all_kinds_come() -> None:
    scripts = [draw_script(seed, PROFILES["peers"]) for seed in range(60)]
    assert all(any(action.what == "ask_peers" for action in script.actions) for script in scripts)
    lies = {action.arguments[1] for script in scripts for action in script.actions if action.what == "lies"}
    assert lies == set(LIES)
