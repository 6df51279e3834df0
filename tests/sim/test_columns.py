"""Columns that are dropped, renamed and made anew on the simulated world."""

from __future__ import annotations

from ringlog.sim.respelling import PROFILE
from ringlog.sim.search import SearchResult, reports


def test_seeds_break_no_promise_and_exercise_all_of_it() -> None:
    found = SearchResult()
    for report in reports(range(1, 13), PROFILE, jobs=1):
        found.add(report)
    assert [(r.seed, r.rule, r.detail) for r in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "columns"}
    assert min(did[what] for what in ("seen on a node", "seen in the CDC log", "dropped")) > 10
