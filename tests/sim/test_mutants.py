"""Planted bugs: each still applies, is taken back without a trace, and a sample is found within its bound."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime

import pytest

from ringlog.kernel import fold
from ringlog.sim.mutants import MUTANTS, PARTS
from ringlog.sim.mutants.measure import measure
from ringlog.sim.mutants.plant import DoesNotApply, Mutant, planted
from ringlog.sim.mutants.reading import FOLDER, bugs_of, read_bugs

SAMPLE = 5
QUICK = 60
"""Only bugs that are found this soon are in the sample of every change; the whole table is measured by a command."""
COSTLY = frozenset({"seen_is_a_fate"})
"""Nor those whose seeds take long: what never comes to rest is run to the end of the simulator's patience (minutes)."""


def test_every_file_of_planted_bugs_is_read_and_says_what_it_is_about() -> None:
    """Those of a part are in the table; the others, beside it, are found by a script or by the explorer."""
    files = {path.stem for path in FOLDER.glob("*.diff")}
    assert files - set(PARTS) == {"rare", "explored"}
    for part in sorted(files):
        assert bugs_of(part)
        assert (FOLDER / f"{part}.diff").read_text(encoding="utf-8").startswith("# ")


def test_a_bug_is_written_as_a_difference() -> None:
    found = read_bugs(
        "# about\n\none: a bug: of sorts\na.b, 20\n-     if x:\n-\n+ pass\n\ntwo: b\nc, 3, rows\n- x\n+\n"
    )
    assert found == (
        Mutant("one", "a.b", "    if x:\n", "pass", "a bug: of sorts", 20),
        Mutant("two", "c", "x", "", "b", 3, "rows"),
    )


@pytest.mark.parametrize(
    "text",
    ["one: x", "one: x\na.b, many\n- x\n+ y", "one: x\na.b, 1\n- x", "one\na.b, 1\n- x\n+ y", "o: x\na, 1\n+ y\n- x"],
)
def test_what_is_no_planted_bug_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no planted bug"):
        read_bugs(text)


def test_there_are_enough_and_their_names_differ() -> None:
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.name for mutant in MUTANTS} >= COSTLY


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_applies(mutant: Mutant) -> None:
    with planted(mutant):
        pass


def test_a_bug_is_there_while_it_is_planted_and_not_afterwards() -> None:
    tail = "\n\n\ndef _on_the_chain"
    bug = Mutant("always_foreign", "ringlog.kernel.fold", "return None" + tail, "return 7" + tail, "", 1)
    before = fold._off_the_chain.__code__
    with planted(bug):
        assert fold._off_the_chain.__code__ is not before
    assert fold._off_the_chain.__code__ is before


def test_a_bug_that_changes_nothing_is_refused() -> None:
    for old, new in (("no such text", "x"), ('"""The fold: one record', '"""the fold: one record')):
        with pytest.raises(DoesNotApply), planted(Mutant("nothing", "ringlog.kernel.fold", old, new, "", 1)):
            pass


def _sample() -> list[Mutant]:
    """Others each day, the same all day."""
    day = datetime.now(UTC).date().isoformat()
    quick = [mutant for mutant in MUTANTS if mutant.seeds <= QUICK and mutant.name not in COSTLY]
    return sorted(quick, key=lambda mutant: zlib.crc32(f"{day}/{mutant.name}".encode()))[:SAMPLE]


@pytest.mark.parametrize("mutant", _sample(), ids=lambda mutant: mutant.name)
def test_a_sample_is_found(mutant: Mutant) -> None:
    found = measure(mutant)
    assert found.found is not None, f"{mutant.bug}: not found within {mutant.seeds} seeds"
