"""``ringlog import`` with a recorded cluster: the plan that it writes, and refused options."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.client.client import Client
from ringlog.operator.imports.mapping import FINISH, plan_of
from ringlog.operator.imports.recording import read_recording
from tests.cli.authoring import authoring, run
from tests.tidy.files import ROOT

REAL = ROOT / "tests/testdata/imports/cassandra-5.0.json"


def test_a_recorded_cluster_is_imported_rehearsed_and_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    words = ("import", "cassandra", "--recording", str(REAL), "-o", str(file))
    status, shown, _ = plain(*words)
    assert status == 0
    assert shown.endswith("has 3 nodes, 2 keyspaces, 10 statements in 2 parts\n")
    assert "left out: table shop.vectors" in shown
    status, shown, _ = plain("rehearse", str(file))
    assert (status, "rejected" in shown) == (0, False)
    with authoring(monkeypatch) as client:
        assert run("plan", "stage", "all", str(file))[0] == 2, "the plan has several parts"
        assert run("plan", "stage", "all", str(file), "--part", "3")[0] == 2
        approve(client, "nodes", file, 1)
        assert len(client.state.operations) == 3
        status, _, error = run("plan", "stage", "schema", str(file), "--part", "2")
        assert (status, error.partition(":")[0]) == (1, "replication_impossible"), "no node has joined"


def approve(client: Client, name: str, file: Path, part: int) -> None:
    assert run("plan", "stage", name, str(file), "--part", str(part))[0] == 0
    assert run("plan", "approve", name)[0] == 0
    assert name not in client.state.plans


def plain(*words: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(app, words)
    return ended.exit_code, ended.stdout, ended.stderr


def test_registered_nodes_only_join() -> None:
    recording = read_recording(REAL.read_text())
    whole, joins = plan_of(recording), plan_of(recording, registered=True)
    assert [one for one in whole.lines if one.get("command") != "RegisterNode"] == list(joins.lines)
    assert joins.lines.count(FINISH) == 1


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o644)
    output = ("-o", str(tmp_path / "plan.json"))
    for words, code in (
        (("--user", "ann"), "bad_usage"),
        (("--user", "ann", "--password-file", str(secret)), "bad_option"),
        (("--tls-key", "x"), "bad_usage"),
        (("--tls-ca", str(tmp_path / "missing")), "bad_file"),
        (("--recording", str(tmp_path / "missing")), "bad_file"),
    ):
        status, _, error = plain("import", "scylla", *words, *output)
        assert (status, error.partition(":")[0]) == (2, code), error
    status, _, error = plain("import", "scylla", "--recording", str(REAL), *output)
    assert (status, error.partition(":")[0]) == (2, "bad_source")
    assert not (tmp_path / "plan.json").exists()
