"""The command line before it reaches a broker: which cluster is meant, what is refused, what small commands load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ringlog import __version__
from ringlog.cli.connection import resolve
from ringlog.cli.main import COMMANDS, app
from ringlog.client.results import AppliedResult, ExpiredResult, RejectedResult
from ringlog.operator.answers import answer_json
from ringlog.runtime.context import ClusterContext, remember
from tests.tidy.files import ROOT

VARIABLES = (
    "RINGLOG_BOOTSTRAP_SERVERS",
    "RINGLOG_CLUSTER",
    "RINGLOG_DATA_DIR",
    "RINGLOG_KAFKA_CONFIG",
    "RINGLOG_REDIS_URL",
    "RINGLOG_STACK_DATA",
    "RINGLOG_TRUST_CONFIG",
)


@pytest.fixture(autouse=True)
def nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has never used Ringlog."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back, whatever a command makes of it
        monkeypatch.delenv(name)


def run(*words: str, typed: str = "") -> tuple[int, str, str]:
    """(exit status, standard output, standard error)."""
    ended = CliRunner().invoke(app, list(words), input=typed)
    return ended.exit_code, ended.stdout, ended.stderr


# -------------------------------------------------------------------------------------------- which cluster


def test_what_is_given_goes_before_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(ClusterContext("old:9092", "old", "redis://old"))
    assert resolve(None, None) == ClusterContext("old:9092", "old", "redis://old")
    assert resolve("new:9092", None) == ClusterContext("new:9092", "old", "")
    assert resolve("new:9092", "new") == ClusterContext("new:9092", "new", "")
    monkeypatch.setenv("RINGLOG_REDIS_URL", "redis://new")
    assert resolve(None, "new").redis == "redis://new"


def test_nothing_known_says_what_to_type() -> None:
    status, out, err = run("status")
    assert (status, out) == (1, "")
    assert err.startswith("no_broker: ")
    assert "ringlog stack up" in err
    with pytest.raises(typer.Exit):
        resolve("somewhere:9092", None)


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "typed", "begins"),
    [
        (["cluster", "found", "c", "--bootstrap", "b:1", "--set", "history_entries=many"], "", "bad_setting: "),
        (["agent", "janitor"], "", "unknown_role: "),
        (["submit", "no json", "--bootstrap", "b:1", "--cluster", "c"], "", "bad_json: "),
        (["submit", "--bootstrap", "b:1", "--cluster", "c"], "{", "bad_json: "),
        (["table", "create", "-", "--bootstrap", "b:1", "--cluster", "c"], "[]", "bad_json: "),
        (["table", "create", "no/such/file", "--bootstrap", "b:1", "--cluster", "c"], "", "bad_json: "),
    ],
)
def test_wrong_input_is_refused_before_anything_is_done(words: list[str], typed: str, begins: str) -> None:
    status, out, err = run(*words, typed=typed)
    assert (status, out) == (2, "")
    assert err.startswith(begins)


@pytest.mark.parametrize("words", [["nonsense"], ["stack", "nonsense"], ["status", "--nonsense"], ["agent"]])
def test_wrong_usage(words: list[str]) -> None:
    assert run(*words)[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ["keyspace", "create", "k"],
        ["keyspace", "create", "k", "--replication", "dc1"],
        ["keyspace", "create", "k", "--factor", "3", "--replication", "dc1=3"],
        ["keyspace", "alter", "k", "--factor", "1", "--replication", "entire"],
        ["node", "move", "n1"],
        ["node", "move", "n1", "--token", "1", "--num-tokens", "2"],
        ["node", "replace", "n1"],
        ["node", "down", "n1"],
        ["operation", "fail", "join-1"],
    ],
)
def test_half_a_command_is_refused_before_a_broker_is_asked(words: list[str]) -> None:
    assert run(*words, "--bootstrap", "nowhere:1", "--cluster", "c")[:2] == (2, "")


def test_answers_as_json() -> None:
    assert answer_json(AppliedResult("r", 7)) == {"outcome": "applied", "epoch": 7, "request_id": "r"}
    assert answer_json(RejectedResult("r", "range_locked", "why", 6)) == {
        "outcome": "rejected",
        "epoch": 6,
        "code": "range_locked",
        "detail": "why",
        "request_id": "r",
    }
    assert answer_json(ExpiredResult("r", 3)) == {"outcome": "expired", "request_id": "r", "since_epoch": 3}


# ------------------------------------------------------------------------------------------------ the program


def test_every_command_can_be_loaded_and_helps() -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert [name for name in COMMANDS if name not in out] == []
    for name in COMMANDS:
        assert run(name, "--help")[0] == 0, name


def test_small_commands_load_nothing_large() -> None:
    """They are called in scripts, line by line, and a plain installation has none of the extras."""
    code = (
        "import sys; from ringlog.cli.main import main; sys.argv = ['ringlog', 'token']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end\n"
        "print(sorted({'confluent_kafka', 'fastapi', 'faust', 'redis', 'pyspark', 'pandas'} & sys.modules.keys()))\n"
    )
    sources = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))
    environment = {**os.environ, "PYTHONPATH": sources}
    ended = subprocess.run(
        [sys.executable, "-c", code], input="61\n", env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines() == ["-8839064797231613815", "[]"], ended.stderr


def test_the_version() -> None:
    assert run("--version")[:2] == (0, f"ringlog {__version__}\n")
