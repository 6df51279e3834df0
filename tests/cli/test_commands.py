"""The command line without a broker: the selected cluster, refusals, and the modules that small commands import."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.live import Live
from typer.testing import CliRunner

from ringlog import __version__
from ringlog.cli.data.rows import rows_command
from ringlog.cli.main import COMMANDS, app, with_options_last
from ringlog.cli.node.operation import ListProgress, _print
from ringlog.cli.shared.connection import SafeConsole, resolve
from ringlog.operator.answers import answer_json
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult
from ringlog.runtime.context import ClusterContext, store_cluster
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
    """The setup of a user without stored clusters."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # the fixture restores the variable after the command
        monkeypatch.delenv(name)


def run(*words: str, typed: str = "") -> tuple[int, str, str]:
    """Return (exit status, standard output, standard error)."""
    ended = CliRunner().invoke(app, list(words), input=typed)
    return ended.exit_code, ended.stdout, ended.stderr


# -------------------------------------------------------------------------------------------- which cluster


def test_given_options_override_stored_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    store_cluster(ClusterContext("old:9092", "old", "redis://old"))
    assert resolve(None, None) == ClusterContext("old:9092", "old", "redis://old")
    assert resolve("new:9092", None) == ClusterContext("new:9092", "old", "")
    assert resolve("new:9092", "new") == ClusterContext("new:9092", "new", "")
    monkeypatch.setenv("RINGLOG_REDIS_URL", "redis://new")
    assert resolve(None, "new").redis == "redis://new"


def test_without_a_cluster_the_error_names_a_command() -> None:
    status, out, err = run("status")
    assert (status, out) == (1, "")
    assert err.startswith("no_broker: ")
    assert "ringlog stack up" in err
    with pytest.raises(typer.Exit):
        resolve("somewhere:9092", None)


def test_options_of_the_connection_may_precede_the_command(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=b:1")
    assert run("--kafka-config", str(config), "status")[2].startswith("no_cluster: ")
    words, before = ["list", "x"], ["--cluster=a"]
    node = typer.main.get_command(app).get_command(None, "node")  # type: ignore[attr-defined]
    for moved in (["--bootstrap", "b"], ["--bootstrap=b"]):
        assert with_options_last(node, [*moved, *words], before) == ["list", "--cluster=a", *moved, "x"]
    assert with_options_last(node, ["list", "--cluster=b"], before) == ["list", "--cluster=a", "--cluster=b"]
    assert with_options_last(node, ["lst"], before) == ["lst"]
    assert run("--cluster", "c", "token")[::2] == run("token", "--cluster", "c")[::2]


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "typed", "prefix"),
    [
        (["cluster", "create", "c", "--bootstrap", "b:1", "--set", "history_entries=many"], "", "bad_setting: "),
        (["agent", "janitor"], "", "unknown_role: "),
        (["submit", "no json", "--bootstrap", "b:1", "--cluster", "c"], "", "bad_json: "),
        (["submit", "--bootstrap", "b:1", "--cluster", "c"], "{", "bad_json: "),
        (["table", "create", "-", "--bootstrap", "b:1", "--cluster", "c"], "[]", "bad_json: "),
        (["table", "create", "no/such/file", "--bootstrap", "b:1", "--cluster", "c"], "", "bad_json: "),
    ],
)
def test_wrong_input_is_refused_without_effects(words: list[str], typed: str, prefix: str) -> None:
    status, out, err = run(*words, typed=typed)
    assert (status, out) == (2, "")
    assert err.startswith(prefix)


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
def test_an_incomplete_command_is_refused_without_a_broker(words: list[str]) -> None:
    assert run(*words, "--bootstrap", "nowhere:1", "--cluster", "c")[:2] == (2, "")


def test_a_write_names_the_command_that_reads_it() -> None:
    assert rows_command("ks.t", ["a b"], "3:17") == "ringlog data rows --at 3:17 ks.t 'a b'"
    assert rows_command("ks.t", ["1", "-5"], "3:17") == "ringlog data rows --at 3:17 ks.t -- 1 -5"


def test_answers_as_json() -> None:
    assert answer_json(AppliedResult("r", 7)) == {"outcome": "applied", "epoch": 7, "request_id": "r"}
    assert answer_json(RejectedResult("r", "range_locked", "why", 6)) == {
        "outcome": "rejected",
        "epoch": 6,
        "code": "range_locked",
        "detail": "why",
        "request_id": "r",
        "ways_out": [],
    }
    assert answer_json(ExpiredResult("r", 3)) == {"outcome": "expired", "request_id": "r", "since_epoch": 3}


# ------------------------------------------------------------------------------------------------ the program


def test_every_command_has_help() -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert [name for name in COMMANDS if name not in out] == []
    for name in COMMANDS:
        assert run(name, "--help")[0] == 0, name


def test_small_commands_import_no_large_modules() -> None:
    """Scripts call them for each line, and a plain installation has no extras."""
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


# Watching operations: a watcher of an idle cluster gets a notice, and sees the next operation.


def views(**stages: str) -> list[dict[str, Any]]:
    return [{"id": name, "stage": stage} for name, stage in stages.items()]


def test_a_requested_join_is_awaited() -> None:
    progress = ListProgress(awaits_start=True, shows_ended=False)
    assert progress.shown(views(old="finished", a="prepared")) == views(a="prepared"), "see --all"
    assert progress.shown(views(old="finished", a="finished")) == views(a="finished"), "it ended during the watch"
    ended = views(a="finished")
    assert progress.has_changed(ended)
    assert not progress.has_ended(ended)
    assert [progress.awaits_first_operation() for _ in range(2)] == [True, False], "it is reported once"
    assert not progress.has_changed(ended)
    begun = ended + views(b="prepared")
    assert progress.has_changed(begun)
    assert not progress.has_ended(begun)
    done = views(a="finished", b="finished")
    assert progress.has_changed(done)
    assert progress.has_ended(done)


def test_on_a_terminal_a_watched_table_replaces_the_last_one() -> None:
    console = SafeConsole(file=io.StringIO(), force_terminal=True, width=80)
    with Live(console=console, auto_refresh=False) as live:
        for stage in ("prepared", "finished"):
            view = views(join=stage)[0] | {"node": "n1", "stages": [{"epoch": 1, "at": 0}], "reason": ""}
            _print([view], "", False, live)
    before, _, after = console.file.getvalue().partition("\x1b[1A")
    assert ("prepared" in before, "finished" in before, "finished" in after) == (True, False, True)


def test_a_short_operation_is_reported() -> None:
    progress = ListProgress(awaits_start=True)
    progress.has_changed([])
    assert not progress.has_ended([])
    progress.has_changed(views(b="cancelled"))
    assert progress.has_ended(views(b="cancelled"))


def test_a_watch_prints_no_notice_during_an_operation() -> None:
    progress = ListProgress(awaits_start=True)
    progress.has_changed(views(a="prepared"))
    assert not progress.awaits_first_operation()
    alone = ListProgress(awaits_start=False)
    alone.has_changed(views(a="finished"))
    assert alone.has_ended(views(a="finished"))


# ``token``, ``stream-id`` and ``shard``, one output line per input line, with values from ScyllaDB's drivers and
# documentation.


FACTS = ROOT / "tests" / "testdata"


def facts(name: str) -> list[list[str]]:
    """Return the fields of every line that is not a comment."""
    lines = (FACTS / name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def answers(command: str, typed: list[str]) -> tuple[list[str], int]:
    ended = CliRunner().invoke(app, [command], input="".join(f"{line}\n" for line in typed))
    return ended.stdout.splitlines(), ended.exit_code


def test_tokens() -> None:
    known = facts("tokens.txt")
    assert len(known) > 60
    keys = ["" if key == "-" else key for key, *_ in known]
    assert "" in keys
    assert answers("token", keys) == ([token for _, token, *_ in known], 0)


def test_stream_ids() -> None:
    known = facts("stream_ids.txt")
    found, status = answers("stream-id", [row[0].upper() for row in known])
    assert status == 0
    for (stream, token, index, *_), line in zip(known, found, strict=True):
        fields = json.loads(line)
        low = int(stream[16:], 16)
        assert fields == {"token": int(token), "random": low >> 26, "index": int(index), "version": 1}


def test_shards() -> None:
    head, *rows = facts("shards.txt")
    pairs = [column.replace("n", "").replace("k", "").split(",") for column in head[1:]]
    typed = [f"{row[0]} {shards} {ignored}" for row in rows for shards, ignored in pairs]
    assert len(typed) >= 72
    assert answers("shard", typed) == ([shard for row in rows for shard in row[1:]], 0)


@pytest.mark.parametrize(
    ("command", "bad"),
    [
        ("token", ["zz", "0", "é", "\x00"]),
        ("stream-id", ["", "00", "7ffe0c687fcce86e0783343730000002", "x" * 32]),
        ("shard", ["", "1 2", "1 0 12", "1 4 64", "9223372036854775808 4 12", "1 2 3 4", "1.5 2 3"]),
    ],
)
def test_a_bad_line_gets_its_error_in_place(command: str, bad: list[str]) -> None:
    good = {"token": "6b6579", "stream-id": "7ffe0c687fcce86e0783343730000001", "shard": "0 3 12"}[command]
    found, status = answers(command, [*bad, good])
    assert status == 2
    assert [line.startswith("invalid: ") for line in found] == [True] * len(bad) + [False]
    assert found[-1:] == answers(command, [good])[0]


def test_invalid_text_and_other_line_ends() -> None:
    ended = CliRunner().invoke(app, ["token"], input=b"\xff\xfe\n6b6579\r\n61")
    assert ended.stdout.splitlines()[1:] == ["-6847573755651342660", "-8839064797231613815"]
    assert ended.exit_code == 2
