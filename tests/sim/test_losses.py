"""A checkpoint that is lost, a fence, and what the next one under the same name makes of the topics."""

from __future__ import annotations

from collections import Counter

import pytest

from ringlog.sim.mutants.plant import Mutant, planted
from ringlog.sim.mutants.recovery import MUTANTS
from ringlog.sim.run import Report, run_script
from ringlog.sim.script import Action, Script
from ringlog.sim.shape import Shape
from ringlog.sim.world import MS

SHAPE = Shape(founded=1, joining=0, factor=1, tokens=1, history=10_000, old=False)
Befalls = tuple[int, str, tuple[object, ...]]


def story(seed: int, nth: int, delay: int, *befalls: Befalls) -> Report:
    """The checkpoint goes ``delay`` ms after the ``nth`` part began, with rows on their way that get there late."""
    happens: list[Befalls] = [
        *((at, "burst", (5,)) for at in (100, 400, 2_600)),
        (50, "when", ("part", nth, 0, "late", "spark", 80, 60)),
        (50, "when", ("part", nth, delay, "wipe", "spark", 100)),
        (50, "when", ("part", nth, 300, "fence", 200, False)),
        *befalls,
    ]
    actions = [Action(number, at * MS, what, arguments) for number, (at, what, arguments) in enumerate(happens)]
    ordered = tuple(sorted(actions, key=lambda action: (action.at, action.number)))
    return run_script(Script(seed, "small", SHAPE, 6_000 * MS, ordered))


def stories(*befalls: Befalls) -> list[Report]:
    return [story(seed, 2 + seed % 4, seed, *befalls) for seed in range(1, 13)]


def test_each_row_is_there_once_whatever_was_written_before() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for report in stories():
        assert not report.rule, f"seed {report.seed}: {report.rule}: {report.detail}"
        did += report.did
    assert did["cdc", "looked up"] == did["entry", "FenceCdcWriter", "applied"] == 12


def test_the_next_driver_may_die_in_any_step() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for steps in range(1, 13):
        report = story(steps, 3, 5, (750, "mid_batch", (steps, 200)))
        assert not report.rule, f"seed {report.seed}: {report.rule}: {report.detail}"
        did += report.did
    assert did["cdc", "replayed"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_the_recovery_is_found(mutant: Mutant) -> None:
    with planted(mutant):
        assert {report.rule for report in stories()} & {"cdc_once", "cdc_fence"}
