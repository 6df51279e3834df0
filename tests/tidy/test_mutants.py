"""The page of planted bugs has each of them, as the code has it, and no other."""

from __future__ import annotations

from ringlog.cli import sim_mutants
from ringlog.sim.mutants import MUTANTS
from tests.tidy.files import ROOT

PAGE = "docs/reference/mutants.md"
HOW = f"measure a new one (ringlog sim mutants NAMES --page {PAGE})"


def test_the_page_has_each_planted_bug_with_its_bound() -> None:
    rows = [line.strip("| ").split(" | ") for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("| ")]
    shown = {(row[0], row[1], row[2], row[4]) for row in rows if len(row) == 6}
    planted = {(one.name, one.bug, one.profile, str(one.seeds)) for one in MUTANTS}
    assert planted - shown == set(), HOW
    assert {name for name, *_ in shown} - {"bug"} == {one.name for one in MUTANTS}


def test_the_page_is_as_its_command_writes_it() -> None:
    page = ROOT / PAGE
    known = [one.name for one in MUTANTS]
    assert sim_mutants._page(sim_mutants._rows([], page, known), known, None) == page.read_text()
