"""Three checkers on the same histories: ours, brute force, and porcupine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from ringlog.stack.artifacts import cache_root
from ringlog_testing.histories import porcupine, search
from ringlog_testing.histories.check import CONFIGURATIONS_MAX, check, decide
from ringlog_testing.histories.operations import is_register, read
from ringlog_testing.histories.verdict import Linearizability, Method
from tests.sim.histories.brute_force import is_linearizable
from tests.sim.histories.samples import (
    Line,
    ask_anything,
    ask_different,
    ask_log,
    history,
    operations,
    random_small,
    run,
    text_of,
)

SMALL = 1200
needs_go = pytest.mark.skipif(porcupine.find_go() is None, reason="porcupine is built with Go, which is not here")


def small() -> list[list[Line]]:
    """Return small random histories, each with a separate key."""
    rng = Random(20240615)
    return [random_small(rng, f"h{number}") for number in range(SMALL)]


def test_our_checker_agrees_with_brute_force() -> None:
    seen: Counter[tuple[Method, Linearizability]] = Counter()
    for lines in small():
        found = operations(lines)
        method, decision = decide(found)
        seen[method, decision.verdict] += 1
        assert (decision.verdict is Linearizability.LINEARIZABLE) == is_linearizable(found), text_of(lines)
    for method in Method:
        for verdict in (Linearizability.LINEARIZABLE, Linearizability.NOT_LINEARIZABLE):
            assert seen[method, verdict] >= 30, seen


def test_zones_and_search_agree_where_both_apply() -> None:
    rng, applied = Random(7), Counter[Linearizability]()
    for number in range(400):
        lines = run(rng, 3, 12, ask_different, "k")
        reads = [one for one in lines if one["op"] == "read" and one["type"] == "ok"]
        if reads and number % 2:
            rng.choice(reads)["value"] = rng.choice([None, *range(12)])
        found = operations(lines)
        method, decision = decide(found)
        assert method is Method.ZONES
        other = search.decide(found, CONFIGURATIONS_MAX)
        assert (decision.verdict, decision.line) == (other.verdict, other.line), text_of(lines)
        applied[decision.verdict] += 1
    assert min(applied.values()) >= 50, applied


def test_the_line_ends_the_smallest_prefix() -> None:
    checked = 0
    for lines in small()[:400]:
        found = operations(lines)
        _, decision = decide(found)
        if decision.verdict is Linearizability.NOT_LINEARIZABLE:
            checked += 1
            assert not is_linearizable(operations(lines[: decision.line])), text_of(lines)
            if decision.line > 1 and not any(one["op"] == "applied" for one in lines):
                assert is_linearizable(operations(lines[: decision.line - 1])), text_of(lines)
    assert checked >= 100


@needs_go
def test_porcupine_agrees_on_small_histories(tmp_path: Path) -> None:
    file = tmp_path / "small.jsonl"
    lines = []
    for number, one in enumerate(small()):
        lines += [{**event, "process": f"{number}-{event['process']}"} for event in one]
    file.write_text(text_of(lines))
    agree(file, least=SMALL // 4)


@needs_go
def test_porcupine_agrees_on_longer_histories(tmp_path: Path) -> None:
    file = tmp_path / "longer.jsonl"
    rng, lines = Random(99), []
    for number in range(150):
        ask = rng.choice([ask_different, ask_anything, ask_log])
        one = run(rng, 4, 40, ask, f"h{number}")
        answers = [event for event in one if event["type"] == "ok" and event["op"] in ("read", "barrier")]
        if number % 2 and answers:
            rng.choice(answers)["value"] = rng.choice(answers)["value"]
        lines += [{**event, "process": f"{number}-{event['process']}"} for event in one]
    file.write_text(text_of(lines))
    agree(file, least=25)


def agree(file: Path, least: int) -> None:
    """Assert that both checkers agree on every key, with enough valid and invalid keys."""
    ours = {one.key: one.decision.verdict for one in check(read(file)).keys}
    theirs = porcupine.ask(porcupine.build(cache_root()), file).keys
    assert ours == theirs
    counted = Counter(ours.values())
    assert set(counted) == {Linearizability.LINEARIZABLE, Linearizability.NOT_LINEARIZABLE}
    assert min(counted.values()) >= least, counted


@pytest.mark.parametrize("ask", [ask_different, ask_anything, ask_log])
def test_histories_of_a_correct_object_are_accepted(ask: object) -> None:
    for seed in range(25):
        lines = run(Random(seed), 5, 80, ask, "k")  # type: ignore[arg-type]
        found = check(history(lines))
        assert found.verdict is Linearizability.LINEARIZABLE, (seed, found.counterexample)
        assert is_register(operations(lines)) == (ask is not ask_log)
