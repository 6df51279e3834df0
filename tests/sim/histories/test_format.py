"""The history format: valid lines, the reader's errors for invalid ones, and truncated files."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from pathlib import Path
from random import Random

import pytest

from ringlog_testing.histories.check import check
from ringlog_testing.histories.events import HistoryError, Op, Type, parse_event, to_json
from ringlog_testing.histories.operations import read, read_bytes
from ringlog_testing.histories.recorder import FileSink, Recorder
from ringlog_testing.histories.verdict import Linearizability
from tests.sim.histories.samples import events_of, text_of
from tests.waiting import at_once

GOOD = {"process": "p", "type": "invoke", "op": "write", "key": "k", "value": 1}


def refused(text: str) -> HistoryError:
    with pytest.raises(HistoryError) as caught:
        read_bytes(text.encode())
    return caught.value


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"vlaue": 1}, "unknown_field", "vlaue"),
        ({"process": ""}, "bad_field", "process"),
        ({"process": True}, "bad_field", "process"),
        ({"key": 3}, "bad_field", "key"),
        ({"type": "done"}, "bad_field", "type"),
        ({"op": "append"}, "bad_field", "op"),
        ({"time": 1.5}, "bad_field", "time"),
        ({"note": 1}, "bad_field", "note"),
        ({"value": 1.0}, "bad_value", "value"),
        ({"value": 2**63}, "bad_value", "value"),
        ({"value": [1]}, "bad_value", "value"),
        ({"value": "\ud800"}, "bad_value", "value"),
        ({"op": "read"}, "bad_value", "value"),
        ({"op": "cas"}, "bad_value", "value"),
        ({"op": "commit"}, "bad_value", "value"),
        ({"op": "barrier"}, "bad_value", "value"),
        ({"op": "cas", "value": [1, 2, 3]}, "bad_value", "value"),
        ({"type": "ok"}, "bad_value", "value"),
        ({"type": "fail"}, "bad_value", "value"),
        ({"type": "ok", "op": "cas"}, "bad_value", "value"),
        ({"type": "ok", "op": "commit", "value": 0}, "bad_value", "value"),
        ({"type": "ok", "op": "commit", "value": True}, "bad_value", "value"),
        ({"type": "ok", "op": "barrier", "value": -1}, "bad_value", "value"),
        ({"type": "ok", "op": "applied", "value": [["r"]]}, "bad_value", "value"),
        ({"type": "ok", "op": "applied", "value": "r"}, "bad_value", "value"),
    ],
)
def test_a_line_that_breaks_a_rule_is_named(change: dict[str, object], code: str, field: str) -> None:
    error = refused("\n" + json.dumps(GOOD | change) + "\n")
    assert (error.code, error.line, error.field) == (code, 2, field)
    assert str(error).startswith(f"line 2: {field}: ")


def test_a_value_is_required_even_if_null() -> None:
    without = {name: value for name, value in GOOD.items() if name != "value"}
    assert refused(json.dumps(without) + "\n").code == "missing"
    assert parse_event(json.dumps(GOOD | {"value": None}), 1).value is None


@pytest.mark.parametrize("text", ["[]", "{", '{"process":1,"process":1}', '{"value":NaN}', "\udcff"])
def test_invalid_json_objects_are_refused(text: str) -> None:
    with pytest.raises(HistoryError) as caught:
        read_bytes(text.encode(errors="surrogateescape") + b"\n")
    assert (caught.value.code, caught.value.line) == ("not_json", 1)


@pytest.mark.parametrize(
    ("text", "code", "at"),
    [
        ("a ok write", "not_open", 1),
        ("a invoke write 1\na invoke write 2", "still_open", 2),
        ("a invoke write 1\na ok read 1", "other_operation", 2),
        ("a invoke write 1\na ok write\na invoke barrier", "mixed_key", 3),
        ("a invoke barrier\nb invoke applied\nb ok applied []\na ok barrier 3", "applied_not_last", 4),
        ('b invoke applied\nb ok applied []\na invoke commit "r"', "applied_not_last", 3),
    ],
)
def test_inconsistent_events_are_refused(text: str, code: str, at: int) -> None:
    error = refused(text_of(events_of(text)))
    assert (error.code, error.line) == (code, at)
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_an_open_operation_is_unknown_and_info_frees_its_process() -> None:
    lines = events_of("a invoke write 1\na info write\na invoke write 2\nb invoke read")
    ((_, found),) = read_bytes(text_of(lines).encode()).keys
    assert [(one.type, one.returned) for one in found] == [(Type.INFO, None)] * 3


def test_a_truncated_last_line_is_skipped_and_reported() -> None:
    whole = text_of(events_of("a invoke write 1\na ok write")).encode()
    for cut in range(1, len(whole)):
        found = read_bytes(whole[:cut])
        assert found.is_torn == (whole[:cut].rpartition(b"\n")[2] not in (b"", *whole.split(b"\n")))
    assert read_bytes(whole[:-1]) == read_bytes(whole)
    assert read_bytes(b"").keys == ()


def test_a_last_line_without_newline_is_checked() -> None:
    assert refused(text_of(events_of("a invoke write 1\na ok write"))[:-1].replace('"ok"', '"oj"')).line == 2


def test_events_round_trip(tmp_path: Path) -> None:
    lines = events_of('a invoke cas [null, "ü"]\na ok cas false\nb invoke write null\nb ok write')
    lines[0] |= {"time": 5, "note": "first", "process": 7}
    lines[1] |= {"process": 7}
    events = [parse_event(json.dumps(one), number) for number, one in enumerate(lines, start=1)]
    assert [parse_event(to_json(one), one.line) for one in events] == events
    assert events[0].process == "7"
    assert events[0].op is Op.CAS
    path = tmp_path / "h.jsonl"
    path.write_text("".join(to_json(one) + "\n" for one in events))
    assert read(path).events == 4


# Recording: several threads on one file, operations with exceptions, and invalid values.


def test_threads_and_recorders_can_share_a_file(tmp_path: Path) -> None:
    path, store, lock = tmp_path / "h.jsonl", {"k": 0}, threading.Lock()
    ticks = itertools.count()

    def use(number: int) -> None:
        rng = Random(number)
        with FileSink(path) as sink:
            recorder = Recorder(sink, lambda: next(ticks))
            for count in range(60):
                if rng.random() < 0.5:
                    with recorder.operation(number, Op.READ, "k") as call, lock:
                        call.ok(store["k"] or None)
                else:
                    with recorder.operation(number, Op.WRITE, "k", number * 1000 + count) as call:
                        with lock:
                            store["k"] = number * 1000 + count
                        call.ok()

    at_once(use, range(1, 5))
    found = read(path)
    assert found.events == 4 * 60 * 2
    assert check(found).verdict is Linearizability.LINEARIZABLE


def test_an_operation_is_unknown_by_default() -> None:
    sink: list[str] = []
    recorder = Recorder(sink)
    with pytest.raises(TimeoutError), recorder.operation("a", Op.WRITE, "k", 1):
        raise TimeoutError
    with recorder.operation("b", Op.COMMIT, "log", "r1") as call:
        call.fail("node_exists")
    with recorder.operation("c", Op.READ, "k"):
        pass
    history = read_bytes("\n".join(sink).encode())
    fates = {one.process: (one.type, one.answer) for _, found in history.keys for one in found}
    assert fates == {"a": (Type.INFO, "TimeoutError"), "b": (Type.FAIL, "node_exists"), "c": (Type.INFO, None)}


def test_an_invalid_value_is_refused_before_the_write() -> None:
    sink: list[str] = []
    with pytest.raises(HistoryError):
        Recorder(sink).invoke("a", Op.COMMIT, "log", 5)
    assert sink == []
