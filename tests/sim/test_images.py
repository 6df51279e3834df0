"""Tables with images in the simulator: drivers die, pause or are replaced; tasks are late; tables are recreated."""

from __future__ import annotations

from collections import Counter

import pytest

from ringlog_sim.devices.world import MS
from ringlog_sim.mutants.plant import Mutant, bugs_of, planted
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import Action, Script
from ringlog_sim.shape import ClusterShape
from ringlog_sim.stories.moments import HERE

SHAPE = ClusterShape(founded=1, joining=0, factor=1, tokens=1, history=10_000, old=False)
BURSTS = (300, 500, 700, 900, 1_300, 1_600, 2_000, 2_700, 3_000)
Befalls = tuple[int, str, tuple[object, ...]]

OFF_AND_ON: tuple[Befalls, ...] = ((800, "images", ("off", "i")), (1_100, "images", ("switch", "i")))
STOOD_STILL: tuple[Befalls, ...] = ((880, "when", ("part", 1, 0, "second_writer", 1_800)),)
REPLACED_TWICE: tuple[Befalls, ...] = (
    (600, "when", ("states", 1, 0, "when", "imaged", 1, 0, "second_writer", 70)),
    (600, "when", ("states", 1, 60, "imaged_burst", 5)),
    (600, "when", ("states", 1, 0, "crash", HERE, 100)),
)
LATE: tuple[Befalls, ...] = tuple((at, "straggle", (delay,)) for at, delay in ((300, 45), (500, 60), (900, 75)))
CRASHED: tuple[Befalls, ...] = tuple((at, "when", ("states", 2, 0, "crash", HERE, 100)) for at in (300, 900, 1_600))
REMADE: tuple[Befalls, ...] = ((1_000, "images", ("anew", "i")),)
NARROWED: tuple[Befalls, ...] = ((1_000, "images", ("narrow", "i")),)


def story(seed: int, *befalls: Befalls, tables: str = "i", made: str = "create") -> RunReport:
    """Run a script with writes to few rows of tables with images, plus events of (milliseconds, action,
    arguments).
    """
    happens = [
        *((0, "images", (made, table)) for table in tables),
        *((at, "imaged_burst", (4,)) for at in BURSTS),
        *befalls,
    ]
    actions = [Action(number, at * MS, what, arguments) for number, (at, what, arguments) in enumerate(happens)]
    ordered = tuple(sorted(actions, key=lambda action: (action.at, action.number)))
    return run_script(Script(seed, "small", SHAPE, 6_000 * MS, ordered))


@pytest.mark.parametrize(
    ("befalls", "happened"),
    [
        (OFF_AND_ON, "decided anew"),
        (STOOD_STILL + OFF_AND_ON, "images_taken"),
        (REPLACED_TWICE, "images_taken"),
        (LATE, "late task images_taken"),
        (CRASHED, "replayed"),
        (REMADE, "decided anew"),
        (NARROWED, "decided anew"),
    ],
    ids=["switched", "stood still", "replaced twice", "late tasks", "crashed", "made anew", "other columns"],
)
def test_images_match_the_earlier_writes(befalls: tuple[Befalls, ...], happened: str) -> None:
    did: Counter[tuple[str, ...]] = Counter()
    for seed in (1, 2, 3):
        report = story(seed, *befalls)
        assert not report.rule, f"seed {seed}: {report.rule}: {report.detail}"
        did += report.did
    assert did["cdc", happened]
    assert did["cdc", "image"] > 20


PLANTED = {
    "states_not_taken_back": CRASHED,
    "states_from_anywhere": LATE,
    "states_of_any_writer": REPLACED_TWICE,
    "undo_forgotten_early": CRASHED,
    "refused_writes_count": (),
    "images_of_a_namesake": REMADE,
    "states_outlast_a_pause": OFF_AND_ON,
    "folder_of_any_writer": STOOD_STILL + OFF_AND_ON[1:],
    "images_as_planned": NARROWED,
}


@pytest.mark.parametrize("mutant", bugs_of("images"), ids=lambda mutant: mutant.name)
def test_a_planted_state_bug_is_found(mutant: Mutant) -> None:
    befalls, tables = PLANTED[mutant.name], "ij" if mutant.name == "states_outlast_a_pause" else "i"
    with planted(mutant):
        made = "bare" if mutant.name == "folder_of_any_writer" else "create"
        rules = (story(seed, *befalls, tables=tables, made=made).rule for seed in range(1, 7))
        assert next((rule for rule in rules if rule), "") in {"cdc_images", "cdc_rows", "liveness"}
