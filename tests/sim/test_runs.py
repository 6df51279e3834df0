"""Whole simulated clusters: fixed seeds, replays, scripts, shrinking, and regressions."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import replace
from ringlog_sim.families import CHECKS, FAMILIES
from ringlog_sim.mutants import MUTANTS
from ringlog_sim.mutants.plant import bugs_of, planted
from ringlog_sim.prefix import _prefix_of, prefix_of
from ringlog_sim.runner.coverage import tables
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import ALL, PROFILES, SHARES, Script, draw_script, from_json, profile_of, to_json
from ringlog_sim.runner.search import SearchResult, reports, run_seed
from ringlog_sim.runner.shrink import NoScript, load, save, shrink
from ringlog_sim.shape import ClusterShape
from ringlog_sim.stories.table import STORIES, stories_of

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
ALLOWED = sorted((Path(__file__).parent / "allowed").glob("*.json"))
SMALL, MEDIUM = range(1, 81), range(1, 5)


def test_fixed_seeds_break_no_promise() -> None:
    found = SearchResult()
    for report in reports(SMALL, "small", jobs=1):
        found.add(report)
    assert [(r.seed, r.rule, r.detail) for r in found.failures] == []
    assert found.did["entry", "AdvanceOperation", "applied"] > 100


def test_a_search_over_all_profiles_names_the_profile_of_each_seed() -> None:
    assert set(SHARES) == set(PROFILES) >= set(STORIES), "add the new profile to the search"
    assert sum(SHARES.values()) == 100
    drawn = Counter(profile_of(seed) for seed in range(2_000))
    assert set(drawn) == set(SHARES)
    seed = next(seed for seed in range(100) if profile_of(seed) == "peers")
    report = run_seed(seed, ALL)
    assert (report.profile, report.digest) == ("peers", run_seed(seed, "peers").digest)


def test_a_search_restores_the_collector_of_its_caller() -> None:
    searching = reports(range(1, 9), "small", jobs=1)
    next(searching)
    searching.close()
    assert gc.isenabled()


@pytest.mark.parametrize("seed", MEDIUM)
def test_longer_runs_break_no_promise(seed: int) -> None:
    report = run_seed(seed, "medium")
    assert (report.rule, report.detail) == ("", "")


def test_a_seed_replays_to_the_same_digest_in_any_process() -> None:
    seeds = [3, 14, 15]
    here = [run_seed(seed).digest for seed in seeds]
    code = f"from ringlog_sim.runner.search import run_seed; print(*(run_seed(s).digest for s in {seeds}))"
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code]
        other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert other.stdout.split() == here
    assert len(set(here)) == len(seeds)


def test_a_story_reports_events_and_does_not_change_the_run() -> None:
    quiet, told = run_seed(5), run_seed(5, tracing=True)
    assert told.digest == quiet.digest
    assert any("TakeOver applied" in line for line in told.story)
    assert quiet.story == ()


def test_every_command_belongs_to_one_family() -> None:
    kinds = [kind for family in FAMILIES for kind in family.commands]
    assert sorted(kinds) == sorted(COMMANDS), "add the new command to its family (ringlog_sim.families)"
    assert all(check.__doc__ for check in CHECKS)


def test_scripts_round_trip_as_json() -> None:
    for seed in range(20):
        script = draw_script(seed, PROFILES["large"])
        assert from_json(json.loads(json.dumps(to_json(script)))) == script


@pytest.mark.parametrize("profile", [profile for profile, stories in STORIES.items() if stories])
def test_each_run_of_a_profile_has_one_of_its_stories(profile: str) -> None:
    for seed in range(20):
        numbers = {action.number for action in draw_script(seed, PROFILES[profile]).actions}
        assert numbers & {story.first for story in stories_of(profile, seed)}, seed


def test_numbers_of_stories_are_disjoint() -> None:
    """An action draws from its number, so two stories of one run must not share a number."""
    for name, profile in PROFILES.items():
        for seed in range(10):
            actions = draw_script(seed, profile).actions
            assert len({action.number for action in actions}) == len(actions), (name, seed)


@pytest.mark.parametrize("founded", [1, 3])
def test_a_prepared_log_is_a_settled_cluster(founded: int) -> None:
    prefix = prefix_of(ClusterShape(founded, 1, 2, 2, 10_000, old=False))
    state = prefix.states[-1]
    assert len(prefix.records) == state.epoch
    assert sum(node.state == "normal" for node in state.nodes.values()) == founded
    assert "ks.t" in state.tables
    placement = placement_of_keyspace(state, "ks")
    assert placement is not None
    assert all(len(group.read) == min(2, founded) for group in placement.ranges)
    _prefix_of.cache_clear()
    assert digest(prefix_of(ClusterShape(founded, 1, 2, 2, 10_000, old=False)).states[-1]) == digest(state)


def test_a_run_with_too_few_events_fails() -> None:
    script = replace(draw_script(1, PROFILES["small"]), actions=(), shape=ClusterShape(1, 0, 1, 1, 10_000, old=False))
    report = run_script(replace(script, calm=0), entries_min=50)
    assert report.rule == "too_little"


def test_shrinking_keeps_the_broken_promise_and_little_else() -> None:
    script = draw_script(7, PROFILES["medium"])
    wanted = next(action for action in script.actions if action.what == "command")

    def play(tried: Script) -> RunReport:
        rule = "planted" if wanted in tried.actions else ""
        return replace(template, rule=rule)

    template = run_seed(1)
    small = shrink(script, "planted", play)
    assert small.actions == (wanted,)
    assert small.shape.tokens == 1


def test_saved_scripts_round_trip(tmp_path: Path) -> None:
    script = draw_script(9, PROFILES["small"])
    path = save(tmp_path, replace(run_seed(9), rule="some rule", detail="why"), script)
    assert load(path) == ("some rule", script)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(NoScript):
        load(path)


def test_a_table_shows_its_empty_cells() -> None:
    empty = tables({})
    assert all(table.empty() == sum(len(counts) for _, counts in table.cells) for table in empty)
    some = tables({("entry", "Noop", "applied"): 2})
    assert some[0].empty() == empty[0].empty() - 1


def test_fixed_defects_stay_fixed() -> None:
    broken = []
    for path in REGRESSIONS:
        rule, script = load(path)
        report = run_script(script)
        if report.rule:
            broken.append(f"{path.name}: found as {rule}, now {report.rule}: {report.detail}")
    assert broken == []


@pytest.mark.parametrize("path", ALLOWED, ids=lambda path: path.stem)
def test_former_false_alarms_stay_allowed(path: Path) -> None:
    """The check had the defect, so no planted bug restores it; the file name states the valid behaviour."""
    wrongly, script = load(path)
    report = run_script(script)
    assert (report.rule, report.detail) == ("", ""), f"a check once refused this: {wrongly}"


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_a_planted_fixed_defect_is_found_again(path: Path) -> None:
    """The regression file has the name of the planted bug that restores its defect."""
    name = path.stem.partition("-")[0]
    rule, script = load(path)
    with planted(next(mutant for mutant in (*MUTANTS, *bugs_of("rare")) if mutant.name == name)):
        assert run_script(script).rule == rule
