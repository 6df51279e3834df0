"""Moments and scenarios: an armed event happens at its n-th moment, at the right place and time, never after the
faults.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ringlog_sim.devices.world import MS, SECOND, Chance, SimWorld
from ringlog_sim.runner.script import FIRST_OF_SCENARIO, FIRST_REPLACEMENT, PROFILES, draw_script, from_json, to_json
from ringlog_sim.runner.search import run_seed
from ringlog_sim.simulation import Simulation
from ringlog_sim.stories.moments import DAWDLE, HERE, Moments
from ringlog_sim.stories.rarities import RARITIES, rarity
from ringlog_sim.stories.scenarios import PROFILE, SCENARIOS, Scenario, ScenarioSetting, choose

SETTING = ScenarioSetting(SECOND, "n3", ("n1", "n2"))

SELDOM = ("FenceCdcWriter", "RetryOperation", "Remove", "Assassinate", "DropTable")
ENOUGH = 7
"""The number of runs per rarity."""


class Stage:
    """A process on n1 that passes the moment ``here`` repeatedly, with its events and resume times."""

    def __init__(self, times: int) -> None:
        self.world = SimWorld(1)
        self.sim = Simulation(self.world, "cluster", ())
        self.moments: Moments = self.sim.moments
        self.moments.happen = lambda _, what, arguments: self.happened.append((self.world.now, what, arguments))
        self.happened: list[tuple[int, str, tuple[Any, ...]]] = []
        self.went_on: list[int] = []
        self._times = times
        self.world.spawn(self.world.host("n1"), "actor", self._act())

    def _act(self) -> Any:
        for _ in range(self._times):
            yield 10 * MS
            yield from self.moments.at("here", self.world.host("n1"))
            self.went_on.append(self.world.now)

    def play(self) -> None:
        self.world.run(SECOND)


def test_the_nth_moment_occurs_once() -> None:
    stage = Stage(4)
    stage.moments.arm(1, "here", 2, 0, "pause", HERE, 5)
    stage.moments.arm(2, "here@n2", 1, 0, "pause", "elsewhere", 5)
    stage.moments.arm(3, "here@n1", 3, 0, "crash", HERE, 7)
    stage.play()
    assert [(what, arguments) for _, what, arguments in stage.happened] == [("pause", ("n1", 5)), ("crash", ("n1", 7))]
    assert [at // MS for at, _, _ in stage.happened] == [20, 30]


def test_a_delayed_process_does_not_block_others() -> None:
    stage = Stage(1)
    stage.moments.arm(1, "here", 1, 50, "burst", 3)
    stage.play()
    assert stage.went_on == [10 * MS]
    assert stage.happened == [(60 * MS, "burst", (3,))]


def test_a_process_is_slow_alone() -> None:
    stage = Stage(1)
    stage.moments.arm(1, "here", 1, 0, DAWDLE, 300)
    stage.play()
    assert (stage.went_on, stage.happened) == ([310 * MS], [])


def test_no_event_happens_after_the_faults() -> None:
    stage = Stage(2)
    stage.moments.arm(1, "here", 1, 50, "burst", 3)
    stage.moments.arm(2, "here", 2, 0, "burst", 4)
    stage.world.run(15 * MS)
    stage.moments.disarm()
    stage.play()
    assert stage.happened == []


@pytest.mark.parametrize("scenario", [*SCENARIOS, *RARITIES], ids=lambda scenario: scenario.draw.__name__)
def test_a_seed_always_draws_the_same_scenario(scenario: Scenario) -> None:
    one, other = (scenario.draw(Chance(7, "scenario"), SETTING) for _ in range(2))
    assert one == other
    assert one
    assert all(at >= 0 for at, _, _ in one)


def test_every_scenario_occurs_with_its_cluster() -> None:
    drawn = set()
    for seed in range(1, 400):
        chosen = choose(Chance(seed, "scenario/small"))
        if chosen is None:
            continue
        drawn.add(chosen.draw.__name__)
        script = draw_script(seed, PROFILES["small"])
        assert not chosen.joins or script.shape.joining
        assert not chosen.founded or script.shape.founded in chosen.founded
        assert not chosen.factors or script.shape.factor in chosen.factors
        assert from_json(to_json(script)) == script
    assert drawn == {scenario.draw.__name__ for scenario in SCENARIOS}


def test_each_run_of_a_profile_has_a_scenario_or_a_rarity() -> None:
    for seed in range(1, 60):
        script = draw_script(seed, PROFILES[PROFILE])
        assert any(FIRST_OF_SCENARIO <= action.number < FIRST_REPLACEMENT for action in script.actions), seed


def test_every_rarity_occurs_and_applies() -> None:
    drawn: Counter[str] = Counter()
    applied: Counter[str] = Counter()
    for seed in range(1, 1_000):
        chosen = None if choose(Chance(seed, "scenario/small")) else rarity(Chance(seed, "rarity/small"))
        if chosen is None or drawn[chosen.draw.__name__] == ENOUGH:
            continue
        drawn[chosen.draw.__name__] += 1
        report = run_seed(seed, "small")
        assert report.rule == "", (seed, report.rule, report.detail)
        applied.update({kind: report.did["entry", kind, "applied"] for kind in SELDOM})
    assert set(drawn) == {one.draw.__name__ for one in RARITIES}
    assert all(applied[kind] for kind in SELDOM), applied
