"""The check of a load in one pass: each rule, and agreement with the checker that does not know the order of values."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ringlog_testing.histories.check import check
from ringlog_testing.histories.events import Event, HistoryError, Op, OpValue, Type, to_json
from ringlog_testing.histories.operations import pair
from ringlog_testing.histories.verdict import Linearizability
from ringlog_testing.load.judge import LINE_BYTES_MAX, judge
from ringlog_testing.load.order import LOST_ROWS, VIOLATIONS_MAX, LoadCheck, ViolationKind

KEY = "registers ks k"
HISTORIES = 3_000


def events_of(text: str) -> list[Event]:
    """Return events of a short notation, such as ``a w1``, ``a ok``, ``b r``, ``b =1``, ``a ?``, ``a no``."""
    found: list[Event] = []
    ops: dict[str, Op] = {}
    for line, (process, word) in enumerate((one.split() for one in text.split(",")), start=1):
        kind, value = Type.INVOKE, None
        if word == "r":
            ops[process] = Op.READ
        elif word[0] == "w":
            ops[process], value = Op.WRITE, int(word[1:])
        elif word[0] == "=":
            kind, value = Type.OK, int(word[1:]) or None
        else:
            kind = {"ok": Type.OK, "?": Type.INFO, "no": Type.FAIL}[word]
        found.append(Event(line, process, kind, ops[process], KEY, value))
    return found


def checked(events: list[Event]) -> LoadCheck:
    found = LoadCheck()
    for event in events:
        found.take(event)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "a r,a =0",
        "a w1,a ok,b r,b =1",
        "a w1,b r,b =1,b r,b =1,a ok",
        "a w1,b r,b =0,a ok,b r,b =1",
        "a w1,b w2,b ok,a ok,c r,c =2",
        "a w1,a ?,b r,b =0,b r,b =1",
        "a w1,a no,b r,b =0",
        "a w1,a ?,a w2,a ok,b r,b =2",
        "a w1,b r,a ok,b =0",
        "a w1,a ok,b r,b ?",
    ],
)
def test_a_correct_history_has_no_violation(text: str) -> None:
    assert checked(events_of(text)).violations == []


@pytest.mark.parametrize(
    ("text", "kind", "lines"),
    [
        ("a w1,a ok,b r,b =0", ViolationKind.LOST, (1, 2, 3, 4)),
        ("a w1,a ok,a w2,a ok,b r,b =1", ViolationKind.LOST, (3, 4, 5, 6)),
        ("a w1,a ok,a w2,b r,b =2,c r,c =1", ViolationKind.STALE, (4, 5, 6, 7)),
        ("a w1,a ?,b r,b =1,c r,c =0", ViolationKind.STALE, (3, 4, 5, 6)),
        ("a w1,a ok,b r,b =2", ViolationKind.INVENTED, (3, 4)),
        ("b r,b =1,a w1,a ok", ViolationKind.INVENTED, (1, 2)),
        ("a w1,a no,b r,b =1", ViolationKind.INVENTED, (1, 2, 3, 4)),
        ("a w1,b r,b =1,a no", ViolationKind.INVENTED, (1, 2, 3, 4)),
    ],
)
def test_the_smallest_witness_is_named(text: str, kind: ViolationKind, lines: tuple[int, ...]) -> None:
    found = checked(events_of(text))
    assert [(one.kind, one.lines) for one in found.violations] == [(kind, lines)]


def test_a_replica_that_lacks_rows_is_a_violation_of_a_correct_answer() -> None:
    *before, read = events_of("a w1,a ok,b r,b =1")
    found = checked([*before, read._replace(note=f"{LOST_ROWS}n2; epoch 7, n1 n2")])
    assert [one.kind for one in found.violations] == [ViolationKind.LOST_ROWS]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a w1,a w2", "still_open"),
        ("a w1,a ok,a w1", "bad_value"),
        ("a w2,a ok,a w1", "bad_value"),
        ("a r,a =-1", "bad_value"),
    ],
)
def test_a_history_of_another_kind_is_refused(text: str, code: str) -> None:
    with pytest.raises(HistoryError) as error:
        checked(events_of(text))
    assert error.value.code == code


def random_history(seed: int) -> list[Event]:
    """Return a history of a register whose replica sometimes forgets, invents or returns an earlier value."""
    draw = random.Random(seed)
    events: list[Event] = []
    open_: dict[str, tuple[Op, OpValue]] = {}
    written, current = 0, 0
    for line in range(1, draw.randrange(6, 16)):
        process = f"p{draw.randrange(3)}"
        if process not in open_:
            op = draw.choice((Op.READ, Op.WRITE))
            written += op is Op.WRITE
            open_[process] = (op, written if op is Op.WRITE else None)
            events.append(Event(line, process, Type.INVOKE, op, KEY, open_[process][1]))
            continue
        op, value = open_.pop(process)
        if op is Op.WRITE:
            kind = draw.choice((Type.OK, Type.OK, Type.OK, Type.INFO, Type.FAIL))
            current = max(current, value if isinstance(value, int) and kind is not Type.FAIL else 0)
            events.append(Event(line, process, kind, op, KEY))
        else:
            answer = draw.choice((current, current, current, max(current - 1, 0), written))
            events.append(Event(line, process, Type.OK, op, KEY, answer or None))
    return events


def test_no_violation_implies_linearizability() -> None:
    """The reverse does not hold: two concurrent writes may be in the order that contradicts their timestamps."""
    counts: Counter[tuple[bool, Linearizability]] = Counter()
    for seed in range(HISTORIES):
        events = random_history(seed)
        violations = checked(events).count
        counts[violations > 0, check(pair(events)).verdict] += 1
    assert counts[False, Linearizability.NOT_LINEARIZABLE] == 0
    assert counts[False, Linearizability.LINEARIZABLE] > HISTORIES / 10
    assert counts[True, Linearizability.NOT_LINEARIZABLE] > HISTORIES / 10


# ------------------------------------------------------------------------------------------------------ files


def written(path: Path, events: list[Event], end: str = "") -> Path:
    file = path / "history.jsonl"
    file.write_text("".join(f"{to_json(event)}\n" for event in events) + end, encoding="utf-8")
    return file


def test_the_verdict_on_a_file_has_the_events_of_the_witness(tmp_path: Path) -> None:
    events = events_of("a w1,a ok,a w2,b r,b =1,a ok,b r,b =1,c r,c =1")
    found = judge(written(tmp_path, events))
    assert (found.count, found.linearizable) == (2, Linearizability.NOT_LINEARIZABLE)
    assert [event.line for event in found.witness] == [3, 6, 7, 8]
    assert not found.disagrees


def test_a_lost_last_line_and_open_operations_are_of_unknown_outcome(tmp_path: Path) -> None:
    found = judge(written(tmp_path, events_of("a w1,a ok,b r"), end='{"process":"b","ty'))
    assert (found.done, found.unknown, found.count, found.is_torn) == (1, 1, 0, True)


def test_a_large_file_is_checked_in_one_pass_only(tmp_path: Path) -> None:
    events = events_of("a w1,a ok,b r,b =0")
    found = judge(written(tmp_path, events), events_max=3)
    assert (found.count, found.linearizable) == (1, None)


@pytest.mark.parametrize("line", ["{}", "x" * (LINE_BYTES_MAX + 1), '{"process":"a"'])
def test_a_line_that_is_no_event_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(HistoryError):
        judge(written(tmp_path, events_of("a w1"), end=f"{line}\n"))


def test_violations_are_counted_but_only_the_first_are_kept() -> None:
    reads = ",".join("b r,b =0" for _ in range(2 * VIOLATIONS_MAX))
    found = checked(events_of(f"a w1,a ok,{reads}"))
    assert (found.count, len(found.violations)) == (2 * VIOLATIONS_MAX, VIOLATIONS_MAX)
