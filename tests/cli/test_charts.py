"""Commands that chart balance over time: a rehearsal, a simulated cluster, and the log of a real cluster."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from ringlog.cli.main import app
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from tests.cli.test_rehearse import Log
from tests.cli.transcripts import read, transcripts
from tests.tidy.files import ROOT

(TABLETS,) = [path for path in transcripts() if path.stem == "tablets"]
PLAN = "".join(f"{line}\n" for line in read(TABLETS).inputs)


def run(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, list(words), input=typed)


def titles(path: Path) -> set[str]:
    """Return the labels of a chart: nodes, shards, counts."""
    return {one.text or "" for one in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}title")}


def test_a_rehearsal_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "balance.svg"
    drawn = run("rehearse", "--picture", str(path), typed=PLAN)
    assert (drawn.stdout, drawn.exit_code) == (run("rehearse", typed=PLAN).stdout, 2)
    assert {"h1", "h2", "h3", "h1/0", "h3/1"} <= titles(path)


def test_the_chart_of_the_readme_is_current(tmp_path: Path) -> None:
    images = ROOT / "docs" / "images" / "charts"
    drawn = run("rehearse", "--picture", str(tmp_path / "balance.svg"), str(images / "balance.jsonl"))
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "balance.svg").read_bytes() == (images / "balance.svg").read_bytes()


def test_an_empty_chart_or_bad_path_is_refused(tmp_path: Path) -> None:
    noop = run("rehearse", "--picture", str(tmp_path / "none.svg"), typed='{"command": "Noop"}\n')
    assert (noop.exit_code, noop.stderr.split(":")[0]) == (2, "no_tablets")
    assert not list(tmp_path.iterdir())
    nowhere = run("rehearse", "--picture", str(tmp_path / "no" / "folder.svg"), typed=PLAN)
    assert (nowhere.exit_code, nowhere.stderr.split(":")[0]) == (2, "bad_file")


def test_a_run_of_the_simulator_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "balance.svg"
    words = ("sim", "run", "--profile", "tablets", "--trace", "--no-coverage", "--picture", str(path))
    ended = run(*words, "--seeds", "1")
    assert ended.exit_code == 0, ended.output
    assert {"n1", "n2", "n1/0"} <= titles(path)
    two = run(*words, "--seeds", "1..2")
    assert (two.exit_code, two.stderr.split(":")[0]) == (2, "bad_seeds")


def settle(log: Log) -> None:
    """Apply the coordinator's steps while every node acknowledges."""
    while True:
        known = CoordinatorView(log.state, acknowledgements(log.state, log.state.time), log.state.epoch, log.state.time)
        proposals = propose(known)
        if not proposals:
            return
        log.append(proposals[0].command)


@pytest.fixture(scope="module")
def log() -> Log:
    """Return a log of two nodes; one of two tablets moves between them."""
    made = Log()
    made.append(InitializeCluster("orders"))
    for number, name in enumerate("AB"):
        made.append(made.json(command="RegisterNode", name=name, shards=2))
        made.append(made.json(command="Join", node=name, tokens=[number]))
        settle(made)
    made.append(made.json(command="CreateKeyspace", name="ks", replication={"strategy": "tablets", "factor": 1}))
    columns = {"columns": {"k": "text"}, "partition_key": ["k"], "tablets": {"count": 2}}
    made.append(made.json(command="CreateTable", keyspace="ks", name="t", **columns))
    source = made.state.tablets["ks.t"].replicas(0)[0]
    target = next(node for node in made.state.nodes if node != source.node)
    move = TabletMigration("ks.t", 0, "migration", Shard(source.node, source.shard), Shard(target, 1))
    made.append(MigrateTablets((move,)))
    settle(made)
    return made


def test_a_log_is_drawn(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "balance.svg"
    ended = run("balance", "chart", str(path), "--from", log.dump(tmp_path / "log"))
    assert (ended.exit_code, ended.output) == (0, "")
    assert titles(path) == {"A", "B", "A/0", "A/1", "B/0", "B/1", "1"}


def test_an_invalid_log_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no dump\n")
    ended = run("balance", "chart", str(tmp_path / "balance.svg"), "--from", str(tmp_path / "log"))
    assert (ended.exit_code, ended.stderr.split(":")[0]) == (2, "bad_dump")
