"""Delay rules: their meaning, invalid rules, and the folder that shares them between processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.model.outcome import Entry, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.log.delays.control import FolderDelays
from ringlog.log.delays.rules import (
    COMMIT,
    DELAY,
    DROP,
    HOLD,
    PROPAGATION,
    HeldEntry,
    Match,
    Rule,
    rule_from_json,
    rule_to_json,
)
from ringlog.log.errors import BadRule, UnknownRule, WaitTimedOut
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from tests.waiting import at_once

ADVANCE = AdvanceOperation("join-21", "write_both_read_new")
RULE = Rule("a", DELAY, COMMIT, ("node-*", "cli"), Match("Noop", 7, submitter="bob"), seconds=1.5)


def entry(command: Command) -> Entry:
    return Author("bob", ManualClock(), SeededDraw(b"x")).entry(EMPTY_STATE, command).entry


@pytest.mark.parametrize(
    ("match", "command", "fits"),
    [
        (Match(), Noop(), True),
        (Match(kind="Noop"), Noop(), True),
        (Match(kind="Noop"), ADVANCE, False),
        (Match(stage="write_both_read_new"), ADVANCE, True),
        (Match(stage="finished"), ADVANCE, False),
        (Match(stage="finished"), Noop(), False),
        (Match(operation="join-21"), ADVANCE, True),
        (Match(operation="join-21"), CancelOperation("join-21", "why"), True),
        (Match(operation="join-22"), ADVANCE, False),
        (Match(operation="join-21", stage="write_both_read_new", submitter="b*"), ADVANCE, True),
        (Match(operation="join-21", submitter="a*"), ADVANCE, False),
        (Match(epoch=5), Noop(), True),
        (Match(epoch=6), Noop(), False),
        (Match(request_id="00000000-0000-7000-8000-000000000000"), Noop(), False),
    ],
)
def test_all_given_fields_must_match(match: Match, command: Command, fits: bool) -> None:
    assert match.fits(entry(command), lambda: 5) is fits


def test_a_record_without_an_entry_matches_only_a_rule_for_all_records() -> None:
    assert Match().fits(UnreadableEntry("torn"), lambda: None)
    assert not Match(submitter="*").fits(UnreadableEntry("torn"), lambda: None)


def test_a_rule_is_parsed_from_its_text() -> None:
    for rule in (RULE, Rule("b", HOLD), Rule("c", DROP, COMMIT, times=3, answer_only=True)):
        assert rule_from_json(rule_to_json(rule)) == rule
    assert json.loads(rule_to_json(Rule("b", HOLD))) == {
        "name": "b",
        "action": "hold",
        "where": "propagation",
        "match": {},
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "not valid JSON"),
        ("[]", "a rule must be a JSON object"),
        ('{"name": "a"}', "action is missing"),
        ('{"name": "a", "action": "burn"}', "action: 'burn' is not one of"),
        ('{"name": "../a", "action": "hold"}', "name: '../a'"),
        ('{"name": "a", "action": "drop"}', "without gaps"),
        ('{"name": "a", "action": "drop", "where": "commit", "times": -1}', "times"),
        ('{"name": "a", "action": "hold", "times": 1}', "only a drop can have times and answer_only"),
        ('{"name": "a", "action": "hold", "seconds": 1}', "seconds: 1"),
        ('{"name": "a", "action": "delay"}', "seconds: 0"),
        ('{"name": "a", "action": "delay", "seconds": NaN}', "seconds: nan"),
        ('{"name": "a", "action": "delay", "seconds": 1e99}', "seconds: 1e[+]99"),
        ('{"name": "a", "action": "delay", "seconds": true}', "seconds: True is not of type int"),
        ('{"name": "a", "action": "hold", "where": "moon"}', "where: 'moon'"),
        ('{"name": "a", "action": "hold", "colour": 1}', "colour: not a field of a rule"),
        ('{"name": "a", "action": "hold", "participants": "n1"}', "participants: 'n1' is not of type list"),
        ('{"name": "a", "action": "hold", "participants": [1]}', "each must be a pattern"),
        ('{"name": "a", "action": "hold", "match": {"kind": "Join!"}}', "kind: Join! is not a command"),
        ('{"name": "a", "action": "hold", "match": {"stage": "over"}}', "stage: over is not a stage"),
        ('{"name": "a", "action": "hold", "match": {"epoch": -1}}', "epoch: -1"),
        ('{"name": "a", "action": "hold", "match": {"epoch": "1"}}', "epoch: '1' is not of type int"),
        ('{"name": "a", "action": "hold", "match": []}', r"match: \[\] is not of type dict"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_field(text: str, names: str) -> None:
    with pytest.raises(BadRule, match=names):
        rule_from_json(text)


# -------------------------------------------------------------------------------------------------- folder


def test_a_rule_in_a_folder_applies_to_all_its_readers(tmp_path: Path) -> None:
    writer, reader = FolderDelays(tmp_path / "new"), FolderDelays(tmp_path / "new")
    assert reader.rules() == ()
    writer.put(RULE)
    assert reader.rules() == (RULE,)
    changed = Rule("a", HOLD)
    writer.put(changed)
    assert reader.rules() == (changed,)
    assert [writer.add(Rule("hold", HOLD)).name for _ in range(3)] == ["hold-1", "hold-2", "hold-3"]
    writer.release("hold-2")
    assert writer.add(Rule("hold", HOLD)).name == "hold-2"
    assert [rule.name for rule in reader.rules()] == ["a", "hold-1", "hold-2", "hold-3"]
    for name in ("hold-9", "../a", "held"):
        with pytest.raises(UnknownRule):
            writer.release(name)


def test_rules_added_concurrently_get_distinct_names(tmp_path: Path) -> None:
    names: list[str] = []
    at_once(lambda _: names.extend(FolderDelays(tmp_path).add(RULE).name for _ in range(10)), range(4))
    assert sorted(names) == sorted(f"a-{number}" for number in range(1, 41))
    assert len(FolderDelays(tmp_path).rules()) == 40


def test_an_invalid_rule_file_is_ignored_and_reported(tmp_path: Path) -> None:
    control = FolderDelays(tmp_path)
    control.put(RULE)
    (tmp_path / "torn.json").write_text('{"name": "to')
    (tmp_path / "other.json").write_text(rule_to_json(Rule("elsewhere", HOLD)))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    (tmp_path / "notes.txt").write_text("not looked at")
    assert control.rules() == (RULE,)
    assert [problem.partition(":")[0] for problem in control.problems()] == ["bytes.json", "other.json", "torn.json"]
    control.release("torn")
    assert len(control.problems()) == 2


def test_running_processes_report_held_records(tmp_path: Path) -> None:
    control = FolderDelays(tmp_path)
    held = HeldEntry("node-n1", "a", PROPAGATION, "Noop", "id", 7, 2, 1_700_000_000_000_000)
    control.report("node-n1-1", [held])
    assert FolderDelays(tmp_path).held() == (held,)
    assert control.await_held("a", "node-n1") == held
    gone = subprocess.Popen(["true"])
    gone.wait()
    os.rename(tmp_path / "held" / f"{os.getpid()}-node-n1-1.json", tmp_path / "held" / f"{gone.pid}-node-n1-1.json")
    assert control.held() == ()
    with pytest.raises(WaitTimedOut, match="rule a to hold something at node-n1"):
        control.await_held("a", "node-n1", timeout_s=0)
    control.report("node-n1-1", [held])
    control.report("node-n1-1", ())
    assert control.held() == ()
