"""Planted bugs: each applies, is removed without a trace, and a sample is found within its bound."""

from __future__ import annotations

import ast
import sys
import zlib
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ringlog.kernel import fold
from ringlog_sim.mutants import MUTANTS, PARTS
from ringlog_sim.mutants.plant import FOLDER, DoesNotApply, Mutant, bugs_of, changed_tree, measure, planted, read_bugs

FOLD = "ringlog.kernel.fold"
ALL = (*MUTANTS, *bugs_of("rare"), *bugs_of("explored"), *bugs_of("stories"), *bugs_of("quorums"))
SAMPLE = 5
QUICK = 60
"""The sample of each change has only bugs with at most this bound; a command measures the whole table."""
COSTLY = frozenset({"seen_is_a_fate"})
"""Bugs with slow seeds are excluded: a run that never settles takes minutes until the simulator's limit."""


def test_every_file_of_planted_bugs_is_read_and_documented() -> None:
    """Bugs of a part are in the table; a script, the explorer or a named test finds the others."""
    files = {path.stem for path in FOLDER.glob("*.diff")}
    assert files - set(PARTS) == {"rare", "explored", "stories", "quorums"}
    for part in sorted(files):
        assert bugs_of(part)
        assert (FOLDER / f"{part}.diff").read_text(encoding="utf-8").startswith("# ")


def test_a_bug_is_written_as_a_difference() -> None:
    found = read_bugs(
        "# about\n\none: a bug: of sorts\na.b:c.d, 20\n- x = 1\n-\n+ pass\n\ntwo: b\nc:d, 3, rows\n- x\n+\n"
    )
    assert found == (
        Mutant("one", "a.b:c.d", "x = 1\n", "pass", "a bug: of sorts", 20),
        Mutant("two", "c:d", "x", "", "b", 3, "rows"),
    )
    assert [one.module for one in found] == ["a.b", "c"]


@pytest.mark.parametrize(
    "text",
    [
        "one: x",
        "one: x\na:b, many\n- x\n+ y",
        "one: x\na:b, 1\n- x",
        "one\na:b, 1\n- x\n+ y",
        "o: x\na:b, 1\n+ y\n- x",
        "one: x\na.b, 1\n- x\n+ y",
    ],
)
def test_invalid_planted_bugs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no planted bug"):
        read_bugs(text)


def test_there_are_enough_bugs_with_unique_names() -> None:
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.name for mutant in MUTANTS} >= COSTLY


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_mutant_still_applies(mutant: Mutant) -> None:
    with planted(mutant):
        pass


def test_each_rare_bug_has_a_script_that_finds_it() -> None:
    saved = {path.stem.partition("-")[0] for path in (Path(__file__).parent / "regressions").glob("*.json")}
    assert {mutant.name for mutant in bugs_of("rare")} <= saved


def test_a_bug_exists_only_while_planted() -> None:
    bug = Mutant("always_foreign", f"{FOLD}:_off_the_chain", "return None", "return 7", "", 1)
    before = fold._off_the_chain.__code__
    with planted(bug):
        assert fold._off_the_chain.__code__ is not before
    assert fold._off_the_chain.__code__ is before


SOURCE = """
class Room:
    def within(self):
        if self.left <= 0:  # over
            return f(
                'a', "b",
            )
        return f("a", "b")

    async def within_too(self):
        def inner(x=f(2)):
            x = 1
            y = [f(2), f(3)]
        return inner
"""


def _as(old: str, new: str, target: str = "m:Room.within") -> str:
    return ast.unparse(changed_tree(Mutant("a_bug", target, old, new, "", 1), SOURCE))


def test_the_code_is_found_in_any_layout() -> None:
    """The code may be one expression, or consecutive statements."""
    same = ast.unparse(ast.parse(SOURCE))
    assert _as("self . left<=0", "True") == same.replace("self.left <= 0", "True")
    block = "if (self.left <= 0):\n  return f('a', 'b')"
    assert _as(block, "pass") == same.replace("if self.left <= 0:\n            return f('a', 'b')\n", "pass\n")
    two = _as("    x = 1\n    y = [f(2), f(3)]", "    y = 2", "m:Room.within_too.inner")
    assert two == same.replace("            x = 1\n            y = [f(2), f(3)]", "            y = 2")
    assert _as("f(3)", "4", "m:Room.within_too") == same.replace("f(3)", "4")
    assert _as("y = [f(2), f(3)]", "", "m:Room.within_too") == same.replace("\n            y = [f(2), f(3)]", "")


@pytest.mark.parametrize(
    ("old", "target", "times"),
    [
        ("f('a', 'b')", "m:Room.within", "contains the code 2 times"),
        ("return f('a', 'b')", "m:Room.within", "contains the code 2 times"),
        ("f(2)", "m:Room.within_too", "contains the code 2 times"),
        ("f(3)", "m:Room.within", "contains the code 0 times"),
        ("x", "m:Room.within_too.inner", "contains the code 0 times"),
        ("", "m:Room.within", "contains the code 0 times"),
        ("# f(3)", "m:Room.within_too", "contains the code 0 times"),
        ("f(3)", "m:Room.without", "0 functions are named"),
        ("f(3)", "m:inner", "0 functions are named"),
        ("f(3", "m:Room.within_too", "neither an expression nor statements"),
    ],
)
def test_ambiguous_or_missing_code_does_not_apply(old: str, target: str, times: str) -> None:
    with pytest.raises(DoesNotApply, match=f"a_bug: .*{times}"):
        _as(old, "pass" if old.startswith("return") else "0", target)


def test_a_bug_without_a_change_is_refused() -> None:
    for old, new in (("no_such_name", "x"), ("return None", "return None  # still")):
        with pytest.raises(DoesNotApply), planted(Mutant("nothing", f"{FOLD}:_off_the_chain", old, new, "", 1)):
            pass


CLOSURES = """
def returned(number):
    def inner():
        return 1 + number
    return inner

def called():
    def inner():
        return 1
    return inner()

class Kept:
    one = [returned(3)]
"""


def _closures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    (tmp_path / "with_closures.py").write_text(CLOSURES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "with_closures", raising=False)
    return import_module("with_closures")


def test_a_bug_in_a_returned_closure_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = _closures(monkeypatch, tmp_path)
    with pytest.raises(DoesNotApply, match=r"returned\.<locals>\.inner was created by an earlier call"):
        planted(Mutant("b", "with_closures:returned.inner", "1 + number", "2 + number", "", 1)).__enter__()
    with planted(Mutant("b", "with_closures:called.inner", "1", "2", "", 1)):
        assert module.called() == 2
    assert module.called() == 1


def test_a_failed_plant_is_reverted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = _closures(monkeypatch, tmp_path)
    before = module.called.__code__
    halves = [(module.called, module.returned.__code__), (module.called, module.Kept.one[0].__code__)]
    monkeypatch.setattr("ringlog_sim.mutants.plant._changes", lambda *_: halves)
    with pytest.raises(ValueError, match="free"), planted(Mutant("b", "with_closures:called", "1", "2", "", 1)):
        pass
    assert module.called.__code__ is before


def _sample() -> list[Mutant]:
    """Return a sample that changes each day."""
    day = datetime.now(UTC).date().isoformat()
    quick = [mutant for mutant in MUTANTS if mutant.seeds <= QUICK and mutant.name not in COSTLY]
    return sorted(quick, key=lambda mutant: zlib.crc32(f"{day}/{mutant.name}".encode()))[:SAMPLE]


@pytest.mark.parametrize("mutant", _sample(), ids=lambda mutant: mutant.name)
def test_a_sample_is_found(mutant: Mutant) -> None:
    found = measure(mutant)
    assert found.found is not None, f"{mutant.bug}: not found within {mutant.seeds} seeds"
