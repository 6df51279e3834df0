"""``ringlog sim placement``: rings without a difference, and planted bugs of the placement code."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ringlog_sim.mutants import MUTANTS
from ringlog_sim.mutants.plant import Mutant, planted
from ringlog_testing.cli.placement import register
from ringlog_testing.placement.comparison import RING, shares, unsafe_groups
from ringlog_testing.placement.simulation import PlacementOptions, PlacementRun

ELSEWHERE = frozenset({"groups_not_in_walk_order"})
"""Bugs that these short runs do not find. ``ringlog sim mutants`` does."""
PLANTED = tuple(
    mutant
    for mutant in MUTANTS
    if mutant.module.startswith("ringlog.kernel.ownership") and mutant.name not in ELSEWHERE
)
SEEDS = 12
SMALL = PlacementOptions(nodes=5, tokens=2, movements=12)
VARIED = (SMALL._replace(racks=2), SMALL._replace(nodes=7, parallel=4), SMALL._replace(factor=2, datacenters=2))


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["placement", *map(str, arguments)])


def found_by(options: PlacementOptions) -> PlacementRun:
    made = PlacementRun(options)
    made.run()
    return made


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        PlacementOptions(factor=1, nodes=1, racks=1, tokens=1, movements=10),
        PlacementOptions(factor=2, nodes=4, racks=2, tokens=3, parallel=1, movements=10),
        PlacementOptions(factor=3, nodes=10, racks=3, tokens=2, parallel=6, movements=20),
        PlacementOptions(factor=2, nodes=6, racks=2, datacenters=2, movements=15),
        PlacementOptions(factor=3, nodes=5, racks=5, tokens=1, parallel=2, movements=15),
    ],
)
def test_every_state_equals_the_model(options: PlacementOptions) -> None:
    made = found_by(options)
    assert made.fault is None
    assert sum(made.counts.values()) - made.counts["cancel"] == options.movements
    assert made.states > 3 * options.movements
    assert all(worst >= 1 for worst in made.worst.values())


def test_a_run_is_a_function_of_its_options() -> None:
    states = [found_by(SMALL._replace(seed=seed)).state.state_id for seed in (1, 1, 2)]
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with planted(mutant):
        for seed in range(SEEDS):
            try:
                if found_by(VARIED[seed % 3]._replace(seed=seed)).fault is not None:
                    return
            except (AssertionError, LookupError, ValueError):  # the bug breaks an assertion of the kernel
                return
    pytest.fail(f"{mutant.name} is not found in {SEEDS} seeds")


def test_movements_overlap_and_all_kinds_occur() -> None:
    made = [found_by(SMALL._replace(seed=seed, movements=20, parallel=4)) for seed in range(3)]
    kinds = {kind for one in made for kind in one.counts}
    assert kinds >= {"join", "leave", "move", "replace", "remove", "rebuild", "alter", "cancel"}
    assert any("range_locked" in one.refusals for one in made)


def test_shares_are_those_of_the_ranges() -> None:
    made = found_by(PlacementOptions(factor=2, nodes=3, racks=1, tokens=1, movements=0))
    (simple,) = (share for share in shares(made.state) if share.key == "simple:2")
    assert simple.mean == pytest.approx(2 / 3)
    owned = sorted(
        sum(
            (g.end - g.start) % RING
            for g in made.state.placements["simple:2"].ranges
            if node in [r.node for r in g.read]
        )
        for node in made.state.nodes
    )
    assert (simple.least, simple.most) == pytest.approx((owned[0] / RING, owned[-1] / RING))
    assert list(unsafe_groups(made.state)) == []


# ---------------------------------------------------------------------------------------------------- command


def shown(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def test_the_command_reports_balance_and_movements() -> None:
    status, found = shown("--nodes", 4, "--movements", 5, "--num-tokens", 2)
    assert (status, found["fault"]) == (0, None)
    assert {row["placement"] for row in found["balance"]} >= {"network:dc1=3"} or found["movements"].get("alter")
    assert all(row["least_percent"] <= row["mean_percent"] <= row["most_percent"] for row in found["balance"])
    assert "states equal the model" in run("--nodes", 4, "--movements", 2).stdout


def test_a_difference_is_exit_status_1_with_the_entry_and_the_seed() -> None:
    with planted(next(mutant for mutant in PLANTED if mutant.seeds <= 20)):
        results = [run("--nodes", 5, "--num-tokens", 2, "--movements", 12, "--seed", seed) for seed in range(SEEDS)]
    (failed, *_) = [result for result in results if "violation after" in result.stdout]
    assert failed.exit_code == 1
    assert ", seed " in failed.stdout


def test_too_few_nodes_are_bad_input() -> None:
    result = run("--nodes", 2, "--factor", 3)
    assert result.exit_code == 2
    assert "bad_option" in result.output
