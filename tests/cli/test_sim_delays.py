"""``ringlog sim hold|delay|drop|release|rules`` with a folder of rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.log.delays.control import FolderDelays
from ringlog.log.delays.rules import COMMIT, DELAY, DROP, HOLD, PROPAGATION, HeldEntry, Match, Rule


def ringlog(folder: Path | None, *words: str) -> Any:
    environment = {"RINGLOG_DELAYS": str(folder) if folder else ""}
    return CliRunner().invoke(app, ["sim", *words], env=environment)


def test_commands_write_their_rules(tmp_path: Path) -> None:
    for words in (
        ("hold", "--stage", "write_both_read_new", "--to", "node-n1", "--to", "node-n2"),
        ("hold", "--commit", "--epoch", "7", "--name", "mine"),
        ("delay", "2.5", "--operation", "join-4", "--submitter", "coordinator*"),
        ("drop", "--kind", "TakeOver", "--times", "2", "--answer-only", "--to", "publisher", "--request", "x"),
    ):
        assert ringlog(tmp_path, *words).exit_code == 0, words
    assert FolderDelays(tmp_path).rules() == (
        Rule("delay-1", DELAY, PROPAGATION, match=Match(operation="join-4", submitter="coordinator*"), seconds=2.5),
        Rule("drop-1", DROP, COMMIT, ("publisher",), Match("TakeOver", request_id="x"), times=2, answer_only=True),
        Rule("hold-1", HOLD, PROPAGATION, ("node-n1", "node-n2"), Match(stage="write_both_read_new")),
        Rule("mine", HOLD, COMMIT, match=Match(epoch=7)),
    )
    released = ringlog(tmp_path, "release", "mine", "hold-1", "--json")
    assert json.loads(released.stdout) == {"released": ["mine", "hold-1"]}
    assert [rule.name for rule in FolderDelays(tmp_path).rules()] == ["delay-1", "drop-1"]
    assert ringlog(tmp_path, "release", "--all").stdout == "released: delay-1, drop-1\n"
    assert FolderDelays(tmp_path).rules() == ()


def test_rules_are_shown_with_held_records(tmp_path: Path) -> None:
    control = FolderDelays(tmp_path)
    control.put(Rule("r1", DELAY, COMMIT, ("node-[ab]",), Match("Noop"), seconds=3))
    held = HeldEntry("node-a", "r1", COMMIT, "Noop", "id", None, 1, 1_700_000_000_000_000)
    for reader in ("x", "y"):
        control.report(reader, [held])
    (tmp_path / "torn.json").write_text("{")
    found = json.loads(ringlog(tmp_path, "rules", "--json").stdout)
    assert [rule["name"] for rule in found["rules"]] == ["r1"]
    assert found["held"][0]["participant"] == "node-a"
    assert found["problems"][0].startswith("torn.json")
    shown = ringlog(tmp_path, "rules").stdout
    for words in ("delay commit 3 s", "node-[ab]", "kind Noop", "node-a: Noop, 1 behind it, since 22:13:20.000 UTC"):
        assert shown.count(words) == 1
    assert "ignored rule: torn.json" in shown
    for reader in ("x", "y"):
        control.report(reader, ())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("hold", "--stage", "over"), 2, "bad_rule: stage: over is not a stage"),
        (("drop", "--name", "a b"), 2, "bad_rule: name: 'a b'"),
        (("release",), 2, "no_rule: name the rules"),
        (("release", "x", "--all"), 2, "no_rule: name the rules"),
    ],
)
def test_invalid_rules_are_refused(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    answer = ringlog(tmp_path, *words)
    assert answer.exit_code == code
    assert says in answer.stderr
    assert FolderDelays(tmp_path).rules() == ()


def test_without_a_folder_commands_are_refused() -> None:
    answer = ringlog(None, "rules")
    assert answer.exit_code == 2
    assert "no_delays" in answer.stderr


def test_a_missing_rule_cannot_be_released(tmp_path: Path) -> None:
    answer = ringlog(tmp_path, "release", "gone")
    assert answer.exception is not None
    assert getattr(answer.exception, "code", "") == "unknown_rule"
