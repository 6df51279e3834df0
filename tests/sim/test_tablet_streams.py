"""A table in tablets with a CDC log and writes during a split, a merge and a join; with planted bugs."""

from __future__ import annotations

import pytest

from ringlog_sim.devices.world import SECOND
from ringlog_sim.mutants.plant import Mutant, planted
from ringlog_sim.runner.run import RunReport
from tests.sim.test_cdc import failure_of, play

RULES, DECISION = "ringlog.kernel.commands.cdc.generations", "ringlog_cdc.definition.decision"
COORDINATOR = "ringlog.protocol.coordinator.core"
BUGS = (
    Mutant(
        "tablets_as_before",
        f"{RULES}:decide_commit_cdc_generation",
        "tables_in_tablets(state)",
        "state.generations[-1].tables if state.generations else ()",
        "the generation that a split began has the streams of the tablets before it",
        3,
    ),
    Mutant(
        "rows_of_tablets_in_the_ring",
        f"{DECISION}:decide",
        "table.stream_of(generation, token, table_id)",
        'table.stream_of(generation, token, "")',
        "the rows of a table in tablets go to the streams of the ring",
        3,
    ),
)
FOUND = {"tablets_as_before": "cdc_tablets", "rows_of_tablets_in_the_ring": "cdc_generation"}


def story(seed: int) -> RunReport:
    """Run a script: two tablets become four, a node joins, four become two."""
    happens: list[tuple[int, str, tuple[object, ...]]] = [
        (100, "burst", (2,)),
        (150, "logged_tablets", (1, 2)),
        *((at, "tablet_burst", (4,)) for at in (1_500, 2_400, 2_900, 3_400, 4_500, 5_500, 7_000, 8_000)),
        (2_500, "resize", ("split", 1)),
        (4_000, "start", ("n2",)),
        (9_000, "resize", ("merge", 2)),
        *((at, "tablet_burst", (4,)) for at in (9_100, 10_000, 11_500, 13_000)),
    ]
    return play(seed, happens, 16 * SECOND)


@pytest.mark.parametrize("seed", range(3))
def test_rows_follow_the_streams_of_their_tablets_in_splits_and_merges(seed: int) -> None:
    report = story(seed)
    assert not report.rule, failure_of(report)
    assert report.did["entry", "FinishResize", "applied"] == 2
    assert report.did["entry", "RequestCdcGeneration", "applied"] >= 2
    assert report.did["entry", "CommitCdcGeneration", "applied"] >= 3


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Mutant) -> None:
    with planted(bug):
        found = {story(seed).rule for seed in range(bug.seeds)}
    assert FOUND[bug.name] in found


def test_without_the_coordinators_request_streams_stay() -> None:
    """The planted bug drops the request for the generation; the streams stay, and the story above reports it."""
    bug = Mutant(
        "nobody_asks",
        f"{COORDINATOR}:_request_for_tablets",
        "to_prepare(state) is None and not fits_tablets(state)",
        "not state.epoch",
        "a split begins no generation",
        1,
    )
    with planted(bug):
        assert story(0).did["entry", "RequestCdcGeneration", "applied"] == 0
