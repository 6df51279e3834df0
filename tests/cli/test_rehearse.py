"""The rehearsal beyond its transcripts: arbitrary lines, and a start from the log of a live cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ringlog.cli import json_commands as rehearse
from ringlog.cli.main import app
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, OutcomeKind, UnknownCommand
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.registry import CODES, COMMANDS
from ringlog.kernel.values import Command, Replication, replace
from ringlog.log.author import Author
from ringlog.operator.errors import Refused
from ringlog.operator.intents.json_commands import from_json
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import encode_entry
from tests.cli.transcripts import REWRITE, Transcript, read, transcripts
from tests.tidy.files import ROOT

LINE_CODES = {"bad_json", "unknown_command", "unknown_field", "missing_field", "bad_field"}


def run(typed: str | bytes, *arguments: str) -> tuple[list[dict[str, Any]], int]:
    """Return (answers, exit status)."""
    ended = CliRunner().invoke(app, ["rehearse", *arguments], input=typed)
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.exit_code


# ------------------------------------------------------------------------------------------------------ any line

WORDS = st.sampled_from(
    [
        *COMMANDS,
        *("command", "show", "do", "operation", "keyspace", "token", "at", "seconds", "name", "node", "tokens"),
        *("writer", "generation", "replication", "columns", "step", "finish", "advance_clock", "stream", "placements"),
        *("A", "B", "ks", "join-3", "spark"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
VERBS = st.sampled_from(
    [
        *({"command": kind} for kind in COMMANDS),
        {"show": "placements"},
        {"show": "stream"},
        {"do": "step"},
        {"do": "finish"},
        {"do": "advance_clock"},
    ]
)
OBJECTS = st.builds(lambda verb, fields: json.dumps(fields | verb), VERBS, st.dictionaries(WORDS, VALUES, max_size=4))
ANY_LINE = OBJECTS | st.builds(json.dumps, VALUES) | st.text() | st.just("[" * 100_000)


@given(st.lists(ANY_LINE, max_size=6))
@settings(deadline=None, max_examples=150)
def test_every_line_has_an_answer_and_refusals_change_nothing(lines: list[str]) -> None:
    rehearsal = Rehearsal()
    for text in ('{"command": "RegisterNode", "name": "A"}', '{"command": "Join", "node": "A", "tokens": [0]}'):
        assert rehearsal.line(text, 1)["outcome"] == "applied"
    for number, text in enumerate(lines, start=1):
        before = rehearsal.state
        answer = rehearsal.line(text, number)
        assert json.loads(json.dumps(answer)) == answer
        match answer.get("outcome"):
            case "invalid":
                assert set(answer) == {"outcome", "line", "code", "detail"}
                assert answer["code"] in LINE_CODES
                assert rehearsal.state is before
            case "rejected":
                assert set(answer) == {"outcome", "epoch", "code", "detail"}
                assert answer["code"] in CODES
                assert answer["code"] != "broken_rule"
                assert rehearsal.state is before
            case "applied":
                assert answer["epoch"] == before.epoch + 1 == rehearsal.state.epoch
            case outcome:
                assert outcome is None


def test_a_rehearsed_command_has_a_sender() -> None:
    rehearsal = Rehearsal()
    lines = (
        {"command": "CreatePrincipal", "name": "root", "role": "admin", "as": "root"},
        {"command": "CreatePrincipal", "name": "shop", "role": "operator", "keyspaces": ["ks"], "as": "root"},
        {"command": "DropKeyspace", "name": "ks", "as": "shop"},
        {"command": "Noop", "as": "stranger"},
        {"command": "Noop"},
    )
    answers = [rehearsal.line(json.dumps(line), 1) for line in lines]
    assert [one.get("code", one["outcome"]) for one in answers] == [
        *("applied", "applied", "not_authorized"),
        *("not_authenticated", "applied"),
    ]
    assert answers[2]["detail"] == "DropKeyspace: shop needs the role admin"
    shown = rehearsal.line('{"show": "principals"}', 1)["principals"]
    assert [one["name"] for one in shown] == ["root", "shop"]
    assert rehearsal.line('{"command": "Noop", "as": 7}', 1)["code"] == "bad_field"


def test_invalid_text_and_separators_inside_lines() -> None:
    plan = b'{"command": "Noop"}\r\n\xff\xfe\n\n{"command": "TakeOver", "role": "x", "instance": "a\xe2\x80\xa8b"}\n'
    answers, status = run(plan)
    assert [answer["outcome"] for answer in answers] == ["applied", "invalid", "rejected"]
    assert answers[1]["line"] == 2
    assert answers[2]["code"] == "bad_field"
    assert status == 2


def test_a_plan_in_a_file_and_a_missing_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"command": "Noop"}')
    assert run("", str(plan)) == ([{"outcome": "applied", "epoch": 2}], 0)
    assert run('{"command": "Noop"}', "-") == ([{"outcome": "applied", "epoch": 2}], 0)
    ended = CliRunner().invoke(app, ["rehearse", str(tmp_path / "none")])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("bad_file: ")


# --------------------------------------------------------------------------------------------------------- --from


class Log:
    """The records of a small cluster in the format of ``ringlog log --dump``."""

    def __init__(self) -> None:
        self.author = Author("test", ManualClock(1_800_000_000_000_000), SeededDraw(b"log"))
        self.state: ClusterState = EMPTY_STATE
        self.records: list[bytes] = []

    def append(self, command: Command) -> None:
        encoded = self.author.entry(self.state, command)
        self.records.append(encoded.data)
        folded = fold(self.state, encoded.entry)
        assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
        self.state = folded.state

    def json(self, **fields: Any) -> Command:
        command = from_json(self.state, fields, SeededDraw(str(fields).encode()))
        assert not hasattr(command, "code"), command
        return command  # type: ignore[return-value]

    def dump(self, path: Path) -> str:
        lines = [json.dumps({"offset": offset, "data": data.hex()}) for offset, data in enumerate(self.records)]
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.append(InitializeCluster("orders"))
    log.append(log.json(command="RegisterNode", name="A"))
    log.append(log.json(command="Join", node="A", tokens=[0]))
    return log


def test_a_plan_starts_at_the_state_of_a_live_cluster(log: Log, tmp_path: Path) -> None:
    path = log.dump(tmp_path / "log")
    before = Path(path).read_bytes()
    typed = (
        '{"show": "operations"}\n{"command": "RegisterNode", "name": "A"}\n{"do": "finish"}\n'
        '{"command": "CreateKeyspace", "name": "ks", "replication": {"strategy": "simple", "factor": 1}}\n'
        '{"show": "cdc"}\n'
    )
    answers, status = run(typed, "--from", path)
    assert status == 0
    assert [view["id"] for view in answers[0]["operations"]] == ["join-3"]
    assert answers[1]["code"] == "duplicate_name"
    assert answers[2]["stages"][-1] == "finished"
    assert answers[3] == {"outcome": "applied", "epoch": answers[2]["epoch"] + 1}
    started = answers[4]["generations"][0]["timestamp"]
    assert started > 1_800_000_000_000_000, "the manual clock starts at the cluster's time"
    assert Path(path).read_bytes() == before


def test_variables_select_the_live_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables override the cluster in use; a typed name overrides both."""
    asked: list[tuple[str, str]] = []

    def past(context: ClusterContext) -> NoReturn:
        asked.append((context.bootstrap, context.cluster))
        raise Refused("not_founded", "nothing is looked at here")

    monkeypatch.setattr(rehearse, "past_of", past)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RINGLOG_BOOTSTRAP_SERVERS", "theirs:9092")
    monkeypatch.setenv("RINGLOG_CLUSTER", "shop")
    for source in ("live", "live:other"):
        assert CliRunner().invoke(app, ["rehearse", "--from", source], input="").exit_code == 1
    assert asked == [("theirs:9092", "shop"), ("theirs:9092", "other")]


def test_records_without_effect_are_skipped(log: Log, tmp_path: Path) -> None:
    late = log.author.entry(EMPTY_STATE, InitializeCluster("orders")).data
    log.records += [b"no envelope", log.records[1], late]
    log.append(Noop())
    answers, _ = run('{"command": "Noop"}', "--from", log.dump(tmp_path / "log"))
    assert answers == [{"outcome": "applied", "epoch": 5}]


def test_a_log_of_a_later_release_is_refused(log: Log, tmp_path: Path) -> None:
    entry: Entry = log.author.entry(log.state, Noop()).entry
    later = replace(entry, kind="Teleport", command=UnknownCommand("Teleport", 1))
    log.records.append(encode_entry(later, b""))
    ended = CliRunner().invoke(app, ["rehearse", "--from", log.dump(tmp_path / "log")], input='{"command": "Noop"}')
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("replica_halted: offset 3: unknown_command: ")


@pytest.mark.parametrize("content", ["", "no dump\n", '{"offset": 0}\n', "[1]\n", '{"offset": 0, "data": "zz"}\n'])
def test_an_invalid_dump_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_text(content)
    ended = CliRunner().invoke(app, ["rehearse", "--from", str(path)], input='{"command": "Noop"}')
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.split(":")[0] in ("bad_dump", "not_founded")


def test_the_first_keyspace_of_a_plan_comes_from_the_log(log: Log, tmp_path: Path) -> None:
    """A rehearsal may contradict the log only after a change by the plan."""
    keyspace = CreateKeyspace("ks", Replication("simple", 1))
    refused = fold(log.state, log.author.entry(log.state, keyspace).entry)
    answers, _ = run(
        '{"command": "CreateKeyspace", "name": "ks", "replication": {"strategy": "simple", "factor": 1}}',
        "--from",
        log.dump(tmp_path / "log"),
    )
    assert answers[0]["code"] == refused.outcome.code == "replication_impossible"


# Stories as text: the command must answer each transcript exactly.


SOURCES = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))


def rehearse_in_a_process(typed: bytes, hash_seed: str, *arguments: str) -> tuple[bytes, int]:
    """Return (answers, exit status) of the command in a separate process."""
    environment = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "ringlog.cli", "rehearse", *arguments]
    ended = subprocess.run(command, input=typed, env=environment, capture_output=True, check=False, timeout=120)
    assert ended.stderr == b"", ended.stderr.decode()
    return ended.stdout, ended.returncode


def typed(transcript: Transcript) -> str:
    return "".join(f"{line}\n" for line in transcript.inputs)


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    transcript = read(path)
    ended = CliRunner().invoke(app, ["rehearse"], input=typed(transcript))
    found = transcript.with_answers(ended.stdout.splitlines(), ended.exit_code)
    if REWRITE:
        path.write_text(found, encoding="utf-8")
    assert found == transcript.text


def test_output_is_independent_of_hash_seeds(tmp_path: Path) -> None:
    """One plan with all transcripts: many operations, tables and writers in one state."""
    whole = "".join(typed(read(path)) for path in transcripts()).encode()
    plan = tmp_path / "plan"
    plan.write_bytes(whole)
    first, status = rehearse_in_a_process(whole, "1")
    assert rehearse_in_a_process(b"", "2", str(plan)) == (first, status)
    assert first.count(b"\n") == sum(1 for line in whole.splitlines() if line.strip())
    assert status == 2, "one of the transcripts types bad lines"
