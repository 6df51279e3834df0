"""``ringlog sim check``: its output and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ringlog_testing.cli.check import register
from ringlog_testing.histories import porcupine
from ringlog_testing.histories.check import check
from ringlog_testing.histories.operations import read
from ringlog_testing.histories.porcupine import Opinion
from ringlog_testing.histories.verdict import Linearizability
from tests.sim.histories.samples import events_of, text_of
from tests.tidy.files import ROOT

STALE = "a invoke write 1\na ok write\na invoke write 2\na ok write\nb invoke read\nb ok read 1"
needs_go = pytest.mark.skipif(porcupine.find_go() is None, reason="porcupine is built with Go, which is not here")


def run(path: Path, text: str, *options: str) -> Result:
    path.write_text(text)
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["check", str(path), *options])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def test_a_linearizable_history(path: Path) -> None:
    result = run(path, text_of(events_of("a invoke write 1\na ok write")))
    assert result.exit_code == 0
    assert "linearizable: 1 operations on 1 keys" in result.stdout


def test_an_invalid_history_is_shown_minimised(path: Path) -> None:
    result = run(path, text_of(events_of(STALE)))
    assert result.exit_code == 1
    for shown in ("not linearizable", "Up to line 6, key 'k'", "write 1", "write 2", "ok 1"):
        assert shown in result.stdout


def test_the_example_of_the_guide_ends_at_line_10() -> None:
    found = check(read(ROOT / "tests/testdata/histories/stale-read.jsonl"))
    assert found.counterexample is not None
    assert (found.counterexample.key, found.counterexample.line) == ("seat-12A", 10)
    assert [(one.invoked, one.returned) for one in found.counterexample.operations] == [(1, 2), (4, 7), (9, 10)]


def test_json_has_all_fields(path: Path) -> None:
    result = run(path, text_of(events_of(STALE))[:-1], "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["verdict"] == "not_linearizable"
    assert found["ours"]["keys"] == [{"key": "k", "verdict": "not_linearizable", "method": "zones", "operations": 3}]
    assert found["counterexample"]["line"] == 6
    assert [one["invoked"] for one in found["counterexample"]["operations"]] == [1, 3, 5]


def test_a_bad_line_is_named(path: Path) -> None:
    result = run(path, text_of(events_of("a ok write")))
    assert result.exit_code == 2
    assert "not_open" in result.stderr
    assert "line 1: process" in result.stderr


def test_a_missing_file(tmp_path: Path) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "bad_file" in result.stderr


def test_undecided_is_not_success(path: Path) -> None:
    lines = events_of("a invoke cas [null, 1]\na ok cas true\na invoke cas [1, 2]\na ok cas true")
    assert run(path, text_of(lines)).exit_code == 0
    assert run(path, text_of(lines), "--limit", "1").exit_code == 2


@needs_go
def test_both_agree(path: Path) -> None:
    result = run(path, text_of(events_of(STALE)), "--checker", "both")
    assert result.exit_code == 1
    assert "porcupine: not linearizable" in result.stdout


@needs_go
def test_porcupine_alone(path: Path) -> None:
    result = run(path, text_of(events_of(STALE)), "--checker", "porcupine", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["porcupine"]["keys"] == {"k": "not_linearizable"}
    assert "ours" not in found


@pytest.mark.parametrize("checker", ["both", "porcupine"])
def test_without_go_only_ours_runs(path: Path, checker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(porcupine, "GO_HOME", tmp_path / "go")
    result = run(path, text_of(events_of(STALE)), "--checker", checker)
    assert result.exit_code == 1
    assert "porcupine did not run: no_go" in result.stderr
    assert "ours: not linearizable" in result.stdout


def test_a_crash_of_porcupine_is_not_a_result(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho nonsense\n")
    program.chmod(0o755)
    with pytest.raises(porcupine.Unavailable) as caught:
        porcupine.ask(program, path)
    assert caught.value.code == "broken"


def test_disagreement_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Opinion(Linearizability.LINEARIZABLE, {"k": Linearizability.LINEARIZABLE}, 0.0)
    monkeypatch.setattr(porcupine, "build", lambda cache: cache)
    monkeypatch.setattr(porcupine, "ask", lambda program, history: wrong)
    result = run(path, text_of(events_of(STALE)), "--checker", "both", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["disagree"] == ["k"]
    assert "checkers_disagree" in result.stderr
