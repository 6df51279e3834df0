"""A lost checkpoint, a fence, and the recovery by the next checkpoint under the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from ringlog_sim.devices.world import MS
from ringlog_sim.mutants.plant import Mutant, bugs_of, planted
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import Action, Script
from ringlog_sim.shape import ClusterShape

SHAPE = ClusterShape(founded=1, joining=0, factor=1, tokens=1, history=10_000, old=False)
Befalls = tuple[int, str, tuple[object, ...]]


def story(seed: int, nth: int, delay: int, *befalls: Befalls) -> RunReport:
    """Run a script that deletes the checkpoint ``delay`` ms after the start of part ``nth``, with late rows in
    flight.
    """
    happens: list[Befalls] = [
        *((at, "burst", (5,)) for at in (100, 400, 2_600)),
        (50, "when", ("part", nth, 0, "late", "spark", 80, 60)),
        (50, "when", ("part", nth, delay, "wipe", "spark", 100)),
        (50, "when", ("part", nth, 300, "fence", 200, False)),
        *befalls,
    ]
    return play(seed, happens)


def play(seed: int, happens: list[Befalls], shape: ClusterShape = SHAPE, calm: int = 6_000) -> RunReport:
    """Run a script of (milliseconds, action, arguments)."""
    actions = [Action(number, at * MS, what, arguments) for number, (at, what, arguments) in enumerate(happens)]
    ordered = tuple(sorted(actions, key=lambda action: (action.at, action.number)))
    return run_script(Script(seed, "small", shape, calm * MS, ordered))


def images_switched(seed: int) -> RunReport:
    """Run a script: a table loses its images before its writes are decided again."""
    nth = 4 + seed % 5
    happens: list[Befalls] = [
        (0, "images", ("create", "i")),
        *((at, "imaged_burst", (5,)) for at in (200, 400, 600, 3_500)),
        (50, "when", ("imaged", nth, seed % 7, "wipe", "spark", 100)),
        (50, "when", ("imaged", nth, 100, "images", "off", "i")),
        (50, "when", ("imaged", nth, 300, "fence", 900, False)),
    ]
    return play(seed, happens)


def test_a_half_written_write_is_completed_with_other_images() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for seed in range(1, 13):
        report = images_switched(seed)
        assert not report.rule, f"seed {report.seed}: {report.rule}: {report.detail}"
        did += report.did
    assert did["cdc", "looked up"] > 9


def cut_off(seed: int, steps: int) -> RunReport:
    """Run a script: a driver dies in a part before a generation starts, is fenced, and returns after the close."""
    committed: list[Befalls] = [
        (0, "when", ("CommitCdcGeneration", 1, delay, *what))
        for delay, what in (
            (1_900, ("burst", 6)),
            (1_930, ("mid_batch", steps, 9_000)),
            (5_000, ("fence", 1_500, True)),
            (9_000, ("burst", 2)),
        )
    ]
    happens = [(100, "burst", (4,)), (400, "start", ("n2",)), (2_600, "burst", (6,)), *committed]
    return play(seed, happens, ClusterShape(1, 1, 1, 2, 10_000, old=False), 14_000)


def test_a_fenced_checkpoint_stops_the_job() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for seed, steps in ((2, 10), (4, 4), (5, 4), (6, 10)):
        report = cut_off(seed, steps)
        assert not report.rule, f"seed {report.seed}: {report.rule}: {report.detail}"
        did += report.did
    assert did["cdc", "checkpoint_cut_off"] == 4


def stories(most: int = 12) -> Iterator[RunReport]:
    return (story(seed, 2 + seed % 4, seed) for seed in range(1, most + 1))


def test_each_row_exists_once_after_a_loss() -> None:
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


def silenced() -> Iterator[RunReport]:
    """Run a script per seed: a table has no log for a while, and has one again when a checkpoint is lost."""
    for seed in range(1, 13):
        happens: list[Befalls] = [
            (0, "images", ("create", "i")),
            (100, "images", ("silent", "i")),
            (150, "imaged_burst", (6,)),
            (600, "images", ("switch", "i")),
            *((at, "imaged_burst", (5,)) for at in (700, 900, 1_100, 4_000)),
            (650, "when", ("imaged", 2 + seed % 4, seed % 7, "wipe", "spark", 100)),
            (650, "when", ("imaged", 2 + seed % 4, 300, "fence", 900, False)),
        ]
        yield play(seed, happens)


def test_skipped_writes_stay_skipped() -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for report in silenced():
        assert not report.rule, f"seed {report.seed}: {report.rule}: {report.detail}"
        did += report.did
    assert did["cdc", "looked up"] > 9
    assert did["cdc", "said what is decided"]


@pytest.mark.parametrize("mutant", bugs_of("recovery"), ids=lambda mutant: mutant.name)
def test_a_bug_in_the_recovery_is_found(mutant: Mutant) -> None:
    with planted(mutant):
        assert next((report.rule for report in stories(24) if report.rule), "") in {"cdc_once", "cdc_fence"}
