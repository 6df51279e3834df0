"""The CDC pipeline in the simulator: drivers that die, are replaced or lose their checkpoint, and planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from ringlog_sim.checks.cdc.judge import window
from ringlog_sim.devices.world import MS, SECOND
from ringlog_sim.mutants import MUTANTS
from ringlog_sim.mutants.plant import planted
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import PROFILES, Action, Script, draw_script
from ringlog_sim.shape import ClusterShape

SHAPE = ClusterShape(founded=1, joining=1, factor=1, tokens=2, history=10_000, old=False)


def story(seed: int, *befalls: tuple[int, str, tuple[object, ...]]) -> RunReport:
    """Run a script: a second node joins under load, plus events of (milliseconds, action, arguments)."""
    happens = [
        (100, "burst", (4,)),
        (400, "start", ("n2",)),
        *((at, "burst", (3,)) for at in (700, 1_500, 2_500, 4_000, 5_500)),
        *befalls,
    ]
    return play(seed, happens, 11 * SECOND)


def play(seed: int, happens: Sequence[tuple[int, str, tuple[object, ...]]], calm: int) -> RunReport:
    """Run a script of (milliseconds, action, arguments); ``calm`` is in microseconds."""
    actions = [Action(number, at * MS, what, arguments) for number, (at, what, arguments) in enumerate(happens)]
    ordered = tuple(sorted(actions, key=lambda action: (action.at, action.number)))
    return run_script(Script(seed, "small", SHAPE, calm, ordered))


def failure_of(report: RunReport) -> str:
    """Return the message of a failing run."""
    return f"seed {report.seed}: {report.rule}: {report.detail}"


def test_a_generation_switches_and_closes_under_load() -> None:
    report = story(1)
    assert not report.rule, failure_of(report)
    assert report.did["entry", "CloseCdcGeneration", "applied"] == 1
    assert report.did["cdc", "closing"] == 1
    assert report.did["consumer", "generation"] >= 2


def test_writes_are_held_while_a_generation_switches() -> None:
    """After a pause the lease has expired and is extended late; writes wait, and the switch happens meanwhile."""
    did: Counter[tuple[str, ...]] = Counter()
    for seed in range(1, 4):
        happens = [(100, "burst", (3,)), (9_800, "slow", ("spark", 200, 1_500)), (9_900, "start", ("n2",))]
        happens += [(at, "burst", (3,)) for at in (10_000, 10_300, 10_700, 11_500)]
        report = play(seed, happens, 14 * SECOND)
        assert not report.rule, failure_of(report)
        did += report.did
    assert did["cdc", "held"]
    assert did["entry", "CloseCdcGeneration", "applied"]


def test_a_driver_that_dies_in_any_step_is_replayed() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for steps in range(2, 9):
        report = story(steps, (1_450, "mid_batch", (steps, 500)))
        assert not report.rule, failure_of(report)
        did += report.did
    assert did["cdc", "replayed"] >= 2


def test_a_suspended_driver_returns_with_a_running_successor() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for seed, at in ((1, 1_520), (2, 1_560), (3, 2_600)):
        report = story(seed, (at, "second_writer", (2_000,)))
        assert not report.rule, failure_of(report)
        did += report.did
    assert did["cdc", "writer_replaced"] + did["cdc", "plan_chain_moved"] + did["cdc", "query_failed"] >= 3
    assert did["entry", "RegisterCdcWriter", "applied"] >= 6


def test_a_lost_checkpoint_stops_the_job() -> None:
    report = story(1, (3_000, "wipe", ("spark", 500)))
    assert not report.rule, failure_of(report)
    assert report.did["cdc", "checkpoint_lost"] == 1
    assert report.did["entry", "RegisterCdcWriter", "applied"] == 1


def test_a_replay_is_the_same_run() -> None:
    befalls = ((1_450, "mid_batch", (4, 500)), (2_600, "second_writer", (1_500,)))
    assert story(5, *befalls).digest == story(5, *befalls).digest


QUICK = (
    "zombie_promises",
    "close_ignores_writers",
    "close_without_positions",
    "lowering_forgets_plans",
    "timestamps_not_held",
    "slots_sorted",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with planted(mutant):
        rules = (run_script(draw_script(seed, PROFILES["small"])).rule for seed in range(1, 81))
        assert next((rule for rule in rules if rule.startswith("cdc_")), "")


@pytest.mark.parametrize(
    ("now", "timestamp", "reason"),
    [
        (150, 99, "no_generation"),
        (150, 100, ""),
        (150, 155, ""),
        (150, 156, "timestamp_in_future"),
        (198, 200, ""),
        (203, 198, "timestamp_too_old"),
        (203, 199, ""),
        (205, 199, "timestamp_too_old"),
        (205, 200, ""),
    ],
)
def test_the_window_matches_scylladb(now: int, timestamp: int, reason: str) -> None:
    """Generations start at 100 and 200 s, with a window of 5 s."""
    assert window(timestamp, now, 5, (100, 200), lambda _: 5) == reason
