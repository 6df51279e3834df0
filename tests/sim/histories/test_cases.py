"""Histories by hand: faults of stores and logs, and histories that only look wrong."""

from __future__ import annotations

from random import Random

import pytest

from ringlog_testing.histories.check import check, decide
from ringlog_testing.histories.events import Op, Scalar
from ringlog_testing.histories.verdict import Linearizability, Method
from tests.sim.histories.samples import ask_anything, ask_different, ask_log, events_of, history, line, operations, run

WRONG = {
    "a stale read": "a invoke write 1|a ok write|a invoke write 2|a ok write|b invoke read|b ok read 1",
    "a lost write": "a invoke write 1|a ok write|b invoke read|b ok read null",
    "a read of what nobody wrote": "a invoke write 1|a ok write|b invoke read|b ok read 2",
    "a read of the future": "b invoke read|b ok read 1|a invoke write 1|a ok write",
    "a read that goes back": "a invoke write 1|b invoke read|b ok read 1|b invoke read|b ok read null|a ok write",
    "true is not one": "a invoke write 1|a ok write|b invoke read|b ok read true",
    "a value that comes back": "a invoke write 1|a ok write|a invoke write 2|b invoke read|b ok read 2|c invoke read|"
    "c ok read 1",
    "two see two writes in two orders": "a invoke write 1|b invoke write 2|c invoke read|c ok read 1|d invoke read|"
    "d ok read 2|c invoke read|c ok read 1",
    "a rejected write is read": "a invoke write 1|a fail write|b invoke read|b ok read 1",
    "two swaps of one value": "a invoke cas [null, 1]|b invoke cas [null, 2]|a ok cas true|b ok cas true",
    "a swap that should have been": "a invoke cas [null, 1]|a ok cas false",
    "one epoch for two": 'a invoke commit "r"|b invoke commit "s"|a ok commit 1|b ok commit 1',
    "an epoch of the past": 'a invoke commit "r"|a ok commit 5|b invoke commit "s"|b ok commit 4',
    "a barrier that sees the past": 'a invoke commit "r"|a ok commit 5|b invoke barrier|b ok barrier 4',
    "barriers that go back": "a invoke barrier|a ok barrier 5|b invoke barrier|b ok barrier 4",
    "a commit that was seen before it began": 'a invoke barrier|a ok barrier 3|b invoke commit "r"|b ok commit 3',
    "a rejection applied": 'a invoke commit "r"|a fail commit "x"|b invoke applied|b ok applied [["r", 2]]',
    "an answer that was lost": 'a invoke commit "r"|a ok commit 2|b invoke applied|b ok applied [["s", 2]]',
    "an answer at another epoch": 'a invoke commit "r"|a ok commit 2|b invoke applied|b ok applied [["r", 3]]',
    "a request applied twice": 'b invoke applied|b ok applied [["r", 2], ["r", 3]]',
    "a log that goes back": 'b invoke applied|b ok applied [["r", 3], ["s", 2]]',
    "a retry with another answer": 'a invoke commit "r"|a ok commit 2|a invoke commit "r"|a ok commit 3',
    "a retry after a rejection": 'a invoke commit "r"|a fail commit "x"|a invoke commit "r"|a ok commit 3',
    "an unknown commit before its time": 'a invoke barrier|a ok barrier 7|b invoke commit "r"|b info commit|'
    'c invoke applied|c ok applied [["r", 6], ["s", 7]]',
    "more seen than the log has": 'a invoke barrier|a ok barrier 7|c invoke applied|c ok applied [["s", 6]]',
}
RIGHT = {
    "a write under way is seen": "a invoke write 1|b invoke read|b ok read 1|a ok write",
    "a write under way is not seen": "a invoke write 1|b invoke read|b ok read null|a ok write",
    "an unknown write is seen late": "a invoke write 1|a info write|b invoke read|b ok read null|b invoke read|"
    "b ok read 1",
    "an unknown write never came": "a invoke write 1|a info write|b invoke read|b ok read null",
    "an unknown swap is seen late": "a invoke cas [null, 1]|a info cas|b invoke write 2|b ok write|b invoke write null|"
    "b ok write|b invoke read|b ok read 1",
    "a value written twice comes back": "a invoke write 1|a ok write|a invoke write 2|a ok write|b invoke write 1|"
    "b ok write|c invoke read|c ok read 1",
    "a read without an answer": "a invoke read|a info read|a invoke read|a fail read",
    "others commit, too": 'a invoke barrier|a ok barrier 5|b invoke commit "r"|b ok commit 9',
    "a commit seen while it is under way": 'b invoke commit "r"|a invoke barrier|a ok barrier 9|b ok commit 9',
    "an unknown commit in the log": 'a invoke commit "r"|a info commit|b invoke commit "s"|b ok commit 2|'
    'c invoke applied|c ok applied [["s", 2], ["r", 3]]',
    "an unknown commit not in the log": 'a invoke commit "r"|a info commit|c invoke applied|c ok applied []',
    "a retry with the same answer": 'a invoke commit "r"|a info commit|b invoke barrier|b ok barrier 2|'
    'a invoke commit "r"|a ok commit 2',
}


@pytest.mark.parametrize("name", WRONG)
def test_faults_are_rejected_and_explained(name: str) -> None:
    lines = events_of(WRONG[name].replace("|", "\n"))
    found = check(history(lines))
    assert found.verdict is Linearizability.NOT_LINEARIZABLE
    assert found.counterexample is not None
    assert found.counterexample.operations
    assert found.counterexample.why


@pytest.mark.parametrize("name", RIGHT)
def test_valid_histories_are_accepted(name: str) -> None:
    assert check(history(events_of(RIGHT[name].replace("|", "\n")))).verdict is Linearizability.LINEARIZABLE


def test_keys_are_checked_separately() -> None:
    lines = events_of("a invoke write 1\na ok write", "x") + events_of(WRONG["a lost write"].replace("|", "\n"), "y")
    lines += events_of(WRONG["a stale read"].replace("|", "\n"), "w")
    found = check(history(lines))
    assert [(one.key, one.decision.verdict) for one in found.keys] == [
        ("w", Linearizability.NOT_LINEARIZABLE),
        ("x", Linearizability.LINEARIZABLE),
        ("y", Linearizability.NOT_LINEARIZABLE),
    ]
    assert found.counterexample is not None
    assert (found.counterexample.key, found.counterexample.line) == ("y", 6)


def test_an_empty_history_is_linearizable() -> None:
    assert check(history([])).verdict is Linearizability.LINEARIZABLE


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("values", [ask_different, ask_anything])
def test_a_planted_loss_is_explained_in_a_few_operations(values: object, seed: int) -> None:
    ask = ask_different if values is ask_different else ask_anything
    lines = run(Random(seed), 6, 200, ask, "k")
    # All operations are complete; a value is written and acknowledged, and a read misses it.
    value: Scalar = "new"
    lines += [line("end", "invoke", "write", value), line("end", "ok", "write")]
    lines += [line("end", "invoke", "read"), line("end", "ok", "read", "never")]
    found = check(history(lines)).counterexample
    assert found is not None
    assert found.line == len(lines)
    assert found.is_least
    if values is ask_different:
        assert [(one.op, one.answer) for one in found.operations] == [(Op.READ, "never")]


@pytest.mark.parametrize("seed", range(8))
def test_a_planted_stale_read_is_explained_by_its_values(seed: int) -> None:
    lines = run(Random(seed), 6, 200, ask_different, "k")
    for value in ("old", "new"):
        lines += [line("end", "invoke", "write", value), line("end", "ok", "write")]
    lines += [line("end", "invoke", "read"), line("end", "ok", "read", "old")]
    found = check(history(lines)).counterexample
    assert found is not None
    assert found.is_least
    assert len(found.operations) <= 3
    assert found.operations[-1].answer == "old"


@pytest.mark.parametrize("seed", range(8))
def test_a_planted_split_brain_gives_one_epoch_twice(seed: int) -> None:
    lines = run(Random(seed), 6, 100, ask_log, "k")
    epochs = [one["value"] for one in lines if one["type"] == "ok" and one["op"] == "commit"]
    lines += [line("end", "invoke", "commit", "late"), line("end", "ok", "commit", Random(seed).choice(epochs))]
    found = check(history(lines)).counterexample
    assert found is not None
    assert found.line == len(lines)
    assert len(found.operations) == 2


def test_beyond_the_limit_the_result_is_undecided() -> None:
    lines = [line(f"p{number}", "invoke", "cas", [number % 7, number % 5]) for number in range(14)]
    lines += events_of("r invoke write 0\nr ok write\nr invoke read\nr ok read 3\nr invoke read\nr ok read 0")
    method, decision = decide(operations(lines), limit=3)
    assert (method, decision.verdict) == (Method.SEARCH, Linearizability.UNDECIDED)
    assert check(history(lines), limit=3).verdict is Linearizability.UNDECIDED
