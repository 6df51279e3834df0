"""``--dry-run`` of commands that change the cluster: the effect, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlog import commands
from ringlog.cli.main import app
from ringlog.cli.shared import submitting
from ringlog_testing.cluster.cluster import FakeCluster
from tests.cli.test_help import commands as every_command

PLACE = ("--bootstrap", "127.0.0.1:1", "--cluster", "tests")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Return a cluster that the commands read. To submit needs a broker, which does not exist."""
    cluster = FakeCluster()
    cluster.add_nodes(2)
    with cluster.client() as client:
        client.submit(commands.create_keyspace("ks", 2))
    monkeypatch.setattr(submitting, "newest", lambda _: cluster.state)
    return cluster


def run(*words: str) -> tuple[int, dict[str, Any]]:
    ended = CliRunner().invoke(app, [*words, "--dry-run", "--json", *PLACE])
    return ended.exit_code, json.loads(ended.stdout)


def test_the_effect_names_each_changed_item_and_nothing_changes(cluster: FakeCluster) -> None:
    before = cluster.digest
    status, found = run("keyspace", "drop", "ks")
    assert status == 0
    assert found["command"] == {"command": "DropKeyspace", "name": "ks"}
    assert any(line.startswith("keyspaces ks") for line in found["effect"])
    status, found = run("node", "leave", "n1")
    assert (status, found["effect"]) == (1, None)
    assert found["rejected"]["code"] == "replication_impossible"
    status, found = run("recovery", "enter", "--operator", "ann", "--reason", "a drill")
    assert (status, found["effect"]) == (0, ["recoveries new added"])
    status, found = run("cluster", "set", "snapshot_entries=5000", "snapshot_bytes=200000000")
    assert status == 0
    assert cluster.digest == before


def test_each_command_that_submits_can_be_rehearsed() -> None:
    found = {path for path, command in every_command() if "dry_run" in {one.name for one in command.params}}
    assert {"keyspace drop", "table drop", "node leave", "node remove", "zone drop", "cluster set", "pause"} <= found
