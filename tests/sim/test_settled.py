"""Nodes and agents whose clocks are ahead settle verdicts far ahead; then the clocks are right, and that is lowered."""

from __future__ import annotations

import pytest

from ringlog.sim.mutants.plant import Mutant, planted
from ringlog.sim.run import RunReport
from ringlog.sim.shape import ClusterShape
from tests.sim.test_losses import Befalls, played

AHEAD_MS = 600_000
WRONG = ("n1", "agents-1", "agents-2")
SEEDS = (1, 2)
"""Seeds in which a node settles in time."""

UNCUT = Mutant(
    "lowered_uncut",
    "ringlog.kernel.commands.cdc_clock:decide_lower_settled_time",
    "lowered_to(state, command.until, context.epoch)",
    "type(state.settled)(command.until, 0, state.settled.leeways, context.epoch)",
    "a leeway that was to count from the time that was taken back never does",
    1,
)


def story(seed: int) -> RunReport:
    """The settled time is ten minutes ahead when a node begins to join and a setting changes."""
    happens: list[Befalls] = [
        *((at, "clock", (name, sign * AHEAD_MS)) for at, sign in ((300, 1), (2_000, -1)) for name in WRONG),
        *((at, "burst", (5,)) for at in (600, 1_000, 1_400, 4_500, 75_000)),
        (2_500, "set", ("cdc_leeway_us", 3_000_000)),
        (3_500, "start", ("n2",)),
        (5_000, "lower_settled", ()),
    ]
    return played(seed, happens, ClusterShape(1, 1, 1, 1, 10_000, False), calm=80_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_settled_time_of_the_future_is_lowered_under_load(seed: int) -> None:
    report = story(seed)
    assert not report.rule, f"{report.rule}: {report.detail}"
    assert report.did["command", "LowerSettledTime", "AppliedResult"], report.did


def test_a_planted_bug_is_found() -> None:
    with planted(UNCUT):
        assert story(SEEDS[0]).rule == "invariant_broken", UNCUT.bug
