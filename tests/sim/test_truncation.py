"""Snapshots, the archive and truncations on the simulated world."""

from __future__ import annotations

from collections import Counter

import pytest

from ringlog_sim.devices.at_once import PlaceAtOnce
from ringlog_sim.devices.world import MS
from ringlog_sim.runner.run import run_script
from ringlog_sim.runner.script import PROFILES, Action, Script, draw_script
from ringlog_sim.runner.search import SearchResult, reports
from ringlog_sim.shape import ClusterShape
from ringlog_sim.stories.truncation import PROFILE

SHAPE = ClusterShape(founded=1, joining=0, factor=1, tokens=1, history=10_000, old=False)


def test_seeds_break_no_promise_and_exercise_all_of_it() -> None:
    found = SearchResult()
    for report in reports(range(1, 26), PROFILE, jobs=1):
        found.add(report)
    assert [(r.seed, r.rule, r.detail) for r in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "snapshots"}
    assert did.keys() >= {"stored", "confirmed", "disputed", "archived", "truncated", "begun with", "passed", "by size"}
    assert did["truncated"] > 10
    assert did["archive_unavailable"] > 5
    assert did["begun with"] > 100


def test_each_run_of_the_profile_has_snapshots_and_truncations() -> None:
    for seed in range(20):
        drawn = {action.what for action in draw_script(seed, PROFILES[PROFILE]).actions}
        assert drawn >= {"snapshot", "truncate"}, seed


def test_agents_may_die_in_any_write_of_a_snapshot_and_a_truncation() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for writes in range(1, 17):
        happens: list[tuple[int, str, tuple[object, ...]]] = [
            (0, "archive", ()),
            (400, "dies", (writes,)),
            *((at, "snapshot", ()) for at in (500, 1_500, 2_500, 9_000)),
            *((at, "truncate", (1,)) for at in (1_400, 3_500, 10_500)),
        ]
        actions = tuple(Action(number, at * MS, what, rest) for number, (at, what, rest) in enumerate(happens))
        ordered = tuple(sorted(actions, key=lambda action: action.at))
        report = run_script(Script(writes, "small", SHAPE, 12_000 * MS, ordered))
        assert not report.rule, f"{writes}: {report.rule}: {report.detail}"
        did += report.did
    assert did["besides", "power cut"] >= 15
    assert did["snapshots", "truncated"] >= 16


@pytest.mark.parametrize("refused", [PlaceAtOnce.ALL, PlaceAtOnce.WRITES])
def test_a_snapshot_is_archived_when_the_archive_returns(refused: str) -> None:
    """The log has no known archive by then, so the command itself is accepted; no other snapshot follows."""
    happens: list[tuple[int, str, tuple[object, ...]]] = [
        (0, "archive", ()),
        (0, "archive_refuses", (refused, 8_000)),
        (1_000, "snapshot", ()),
        (3_000, "truncate", (1,)),
    ]
    did = _run(happens, 14_000)
    assert did["entry", "TakeSnapshot", "applied"] == did["entry", "TruncateLog", "applied"] == 1
    assert did["snapshots", "archive_unavailable"] >= 3
    assert did["snapshots", "archived"] == did["snapshots", "truncated"] == 1


def _run(happens: list[tuple[int, str, tuple[object, ...]]], calm: int) -> Counter[tuple[str, ...]]:
    actions = tuple(Action(number, at * MS, what, rest) for number, (at, what, rest) in enumerate(happens))
    report = run_script(Script(1, "small", SHAPE, calm * MS, actions))
    assert not report.rule, f"{report.rule}: {report.detail}"
    return Counter(report.did)
