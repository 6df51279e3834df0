"""With ``--json``, standard output is always one JSON value: a result, or an error with its remedies."""

from __future__ import annotations

import json
import sys

import pytest

from ringlog.cli import main as program
from ringlog.cli.agents import format_validator
from ringlog.client.errors import SubmissionTimedOut
from ringlog.kernel.values import replace
from ringlog.log.errors import TopicMissing
from ringlog.wire.records import AgentStatus
from tests.cli.test_commands import nothing_is_known, run

__all__ = ["nothing_is_known"]

NOWHERE = ["--bootstrap", "127.0.0.1:1", "--cluster", "c"]


def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """Return (exit status, standard output, standard error) of the program."""
    monkeypatch.setattr(sys, "argv", ["ringlog", *words])
    with pytest.raises(SystemExit) as ended:
        program._main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["status"], 1, "no_broker"),
        (["node", "list", "--nope"], 2, "bad_usage"),
        (["node", "liste"], 2, "bad_usage"),
        (["nodes"], 2, "bad_usage"),
        (["--cluster", "c", "token"], 2, "bad_usage"),
        (["node", "down", "n1"], 2, "bad_usage"),
        (["node", "move", "n1"], 2, "bad_usage"),
        (["log", "--last", "many"], 2, "bad_usage"),
        (["stack", "stop-it"], 2, "bad_usage"),
        (["ddl", "/nonexistent"], 2, "bad_ddl"),
        (["node", "list", "--kafka-config", "/nonexistent", *NOWHERE], 1, "bad_kafka_config"),
    ],
)
def test_each_error_is_one_json_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], status: int, code: str
) -> None:
    ended, out, _ = ran(monkeypatch, capsys, *words, "--json")
    found = json.loads(out)
    assert (ended, found["code"]) == (status, code)
    assert set(found) == {"code", "detail", "ways_out"}
    assert found["detail"]


def test_by_default_errors_are_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ran(monkeypatch, capsys, "status")
    assert (status, out) == (1, "")
    assert err.startswith("no_broker: ")
    assert ran(monkeypatch, capsys, "node", "liste")[:2] == (2, "")
    assert run("node", "list", "--json")[0] == 1


@pytest.mark.parametrize("wrong", [["nodes", "list"], ["node", "lst"], ["--cluster=c", "node", "--bootstrap=b", "lst"]])
def test_an_unknown_command_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    found = json.loads(ran(monkeypatch, capsys, *wrong, "--json")[1])
    assert (found["code"], found["detail"].endswith(" node list`?")) == ("bad_usage", True), found


def test_errors_of_the_log_have_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    missing = TopicMissing("shop.metadata")

    def fails(**_: object) -> None:
        raise missing

    monkeypatch.setattr(program, "app", fails)
    status, out, _ = ran(monkeypatch, capsys, "status", "--json")
    assert (status, json.loads(out)) == (
        1,
        {"code": "topic_missing", "detail": missing.message, "ways_out": [missing.hint]},
    )


def test_no_answer_names_the_validator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = AgentStatus("validator", "1234567890", 3, 40, "active", 1_000_000)
    words = "the validator 12345678 of term 3 was last heard 40 s ago as active; see: ringlog agents status"
    assert format_validator(said, 41_000_000) == words
    assert "ago as stopped" in format_validator(replace(said, state="halted"), 41_000_000)
    assert format_validator(None, 0).startswith("no validator has reported")

    def fails(**_: object) -> None:
        raise SubmissionTimedOut("r", 7, 30.0, "an answer")

    monkeypatch.setattr(program, "app", fails)
    _, out, _ = ran(monkeypatch, capsys, "node", "down", "--json")
    found = json.loads(out)
    assert found["code"] == "submission_timed_out"
    assert [one for one in found["ways_out"] if "ringlog agents status" in one]
    assert [one for one in found["ways_out"] if "ringlog withdraw" in one]
