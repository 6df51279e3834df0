"""The format of histories: what a line may say, what the reader refuses and how it names it, torn files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from ringlog.sim.histories.events import HistoryError, Op, Type, parse_event, to_json
from ringlog.sim.histories.reader import read, read_bytes
from tests.sim.histories.making import drawn, text_of

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


def test_a_value_must_be_there_even_if_it_is_null() -> None:
    without = {name: value for name, value in GOOD.items() if name != "value"}
    assert refused(json.dumps(without) + "\n").code == "missing"
    assert parse_event(json.dumps(GOOD | {"value": None}), 1).value is None


@pytest.mark.parametrize("text", ["[]", "{", '{"process":1,"process":1}', '{"value":NaN}', "\udcff"])
def test_what_is_no_object_of_json_is_refused(text: str) -> None:
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
def test_events_that_do_not_fit_together_are_refused(text: str, code: str, at: int) -> None:
    error = refused(text_of(drawn(text)))
    assert (error.code, error.line) == (code, at)
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_what_has_no_completion_is_unknown_and_its_process_may_go_on_after_info() -> None:
    lines = drawn("a invoke write 1\na info write\na invoke write 2\nb invoke read")
    ((_, found),) = read_bytes(text_of(lines).encode()).keys
    assert [(one.type, one.returned) for one in found] == [(Type.INFO, None)] * 3


def test_half_a_line_at_the_end_is_left_out_and_said() -> None:
    whole = text_of(drawn("a invoke write 1\na ok write")).encode()
    for cut in range(1, len(whole)):
        found = read_bytes(whole[:cut])
        assert found.is_torn == (whole[:cut].rpartition(b"\n")[2] not in (b"", *whole.split(b"\n")))
    assert read_bytes(whole[:-1]) == read_bytes(whole)
    assert read_bytes(b"").keys == ()


def test_a_last_line_without_its_end_must_keep_the_rules() -> None:
    assert refused(text_of(drawn("a invoke write 1\na ok write"))[:-1].replace('"ok"', '"oj"')).line == 2


def test_events_are_written_as_they_are_read(tmp_path: Path) -> None:
    lines = drawn('a invoke cas [null, "ü"]\na ok cas false\nb invoke write null\nb ok write')
    lines[0] |= {"time": 5, "note": "first", "process": 7}
    lines[1] |= {"process": 7}
    events = [parse_event(json.dumps(one), number) for number, one in enumerate(lines, start=1)]
    assert [parse_event(to_json(one), one.line) for one in events] == events
    assert events[0].process == "7"
    assert events[0].op is Op.CAS
    path = tmp_path / "h.jsonl"
    path.write_text("".join(to_json(one) + "\n" for one in events))
    assert read(path).events == 4
