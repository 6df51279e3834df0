"""``ringlog sim quorums``: its output and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Outcome, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import Command, Replication, replace
from ringlog.log.author import Author
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog_testing.cli.quorums import register
from ringlog_testing.quorums.description import Numbers, PlacementKind, described, state_of
from ringlog_testing.quorums.plans import KINDS as OPERATIONS
from ringlog_testing.quorums.tablet_plans import KINDS as TABLET_KINDS
from ringlog_testing.quorums.tablet_plans import NOT_COVERED
from ringlog_testing.quorums.walk import WalkWorld, drive

NODE = RegisterNode("A", "00000000-0000-4000-8000-000000000000", "a:1", "dc1", "r1", 1, 12, "1", (), 1)

SWAP = {
    "title": "A gives way to X",
    "views": [
        {"name": "before", "read": ["A", "B", "C"], "write": ["A", "B", "C"]},
        {"name": "both", "read": ["A", "B", "C"], "write": ["A", "B", "C", "X"]},
        {"name": "new", "read": ["B", "C", "X"], "write": ["A", "B", "C", "X"]},
        {"name": "after", "read": ["B", "C", "X"], "write": ["B", "C", "X"]},
    ],
    "streams": {"X": ["A"]},
}


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["quorums", *map(str, arguments)])


def answer(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def written(folder: Path, value: object) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps(value), "utf-8")
    return path


def test_the_default_is_a_small_regular_cluster() -> None:
    status, found = answer()
    assert (status, found["sound"], found["not_covered"]) == (0, True, [*NOT_COVERED])
    counts = {
        one["operation"]: (one["plans"], one["refused"], one["unpromised"], one["ranges"])
        for one in found["operations"]
    }
    assert counts == {
        "join": (4, 0, 0, 12),
        "leave": (4, 0, 0, 12),
        "move": (32, 0, 0, 36),  # each node: four more tokens, or four others; ownership may stay equal
        "replace": (20, 12, 0, 60),  # two dead nodes may be in one group of three
        "remove": (4, 12, 0, 12),
        "assassinate": (4, 0, 4, 0),
        "rebuild": (8, 0, 4, 12),
        "alter": (9, 0, 0, 33),
    }
    shown = run().stdout
    assert "no counterexample" in shown
    assert "assassinate: 4 of 4 plans admit loss" in shown


def test_a_counterexample_has_a_table_and_an_explanation() -> None:
    weak = ("--operations", "join", "--rule", "gate:write_both_read_new=off")
    result = run(*weak)
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["rules", "weakened:", "gate:write_both_read_new=off"] in lines
    nodes = [line for line in lines if line and line[0] in ("n1", "n2", "n3", "n4", "X") and "dc1" in line]
    assert len(nodes) == 4
    assert "needs no acknowledgement" in result.stdout
    status, found = answer(*weak)
    (example,) = found["operations"][0]["counterexamples"]
    assert (status, example["times"], example["gate"]) == (1, 12, "write_both_read_new")
    assert not set(example["read"]["quorum"]) & set(example["write"]["quorum"])


def test_a_cluster_in_a_file(tmp_path: Path) -> None:
    nodes = [{"name": name, "tokens": [100 * number]} for number, name in enumerate("ABC")]
    nodes.append({"name": "D", "tokens": [900], "datacenter": "dc2", "rack": "r9"})
    keyspaces = [{"name": f"k{f}", "replication": {"strategy": "simple", "factor": f}} for f in (1, 3)]
    path = written(tmp_path, {"nodes": nodes, "keyspaces": keyspaces})
    status, found = answer(path, "--operations", "join,leave")
    assert (status, [one["plans"] for one in found["operations"]]) == (0, [8, 4])


def test_a_cluster_with_ring_tablet_and_zone_keyspaces(tmp_path: Path) -> None:
    nodes = [{"name": name, "tokens": [100 * number]} for number, name in enumerate("ABC")]
    settings = {
        "kr": {"strategy": "simple", "factor": 2},
        "kt": {"strategy": "tablets", "factor": 2},
        "kz": {"strategy": "zone", "zone": "z"},
    }
    keyspaces = [{"name": name, "replication": setting} for name, setting in settings.items()]
    zones = [{"zone": "z", "partitions": 1, "replicas": 2}]
    path = written(tmp_path, {"nodes": nodes, "zones": zones, "service": {"size": 2}, "keyspaces": keyspaces})
    status, found = answer(path)
    kinds = {one["operation"]: one for one in found["operations"]}
    assert (status, found["sound"]) == (0, True)
    assert kinds.keys() == {*OPERATIONS, *TABLET_KINDS}
    assert all(kinds[kind]["ranges"] for kind in ("join", "tablet-migration", "tablet-rebuild", "zone", "service"))
    assert (kinds["leave"]["plans"], kinds["leave"]["waiting"]) == (3, 0)
    path = written(tmp_path, {"nodes": nodes, "zones": zones, "keyspaces": keyspaces[-1:]})
    shown = run(path, "--operations", "remove").stdout
    assert "they wait for tablets that cannot move: too few nodes are up" in shown


def test_a_defect_of_the_tool_is_not_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr("ringlog_testing.quorums.explore.check", broken)
    result = run("--operations", "join")
    assert result.exit_code == 3
    assert "not_explored" in result.output


def test_a_history_by_hand(tmp_path: Path) -> None:
    path = written(tmp_path, {"histories": [SWAP]})
    assert run(path).exit_code == 0
    without_streams = {key: value for key, value in SWAP.items() if key != "streams"}
    status, found = answer(written(tmp_path, {"histories": [without_streams]}))
    assert (status, found["operations"][0]["counterexamples"][0]["kind"]) == (1, "streamed")
    assert found["operations"][0]["counterexamples"][0]["plan"] == "A gives way to X"


class IdentityRecord(WalkWorld):
    """A world that keeps the bytes of its log in the format of ``ringlog log --dump``."""

    def __init__(self) -> None:
        super().__init__(EMPTY_STATE)
        self.author = Author("test", ManualClock(), SeededDraw(b"log"))
        self.lines: list[str] = []

    def apply(self, command: Command) -> Outcome:
        encoded = self.author.entry(self.state, command)
        folded = fold(self.state, encoded.entry)
        assert folded.outcome.kind is OutcomeKind.APPLIED
        self.state = folded.state
        self.lines.append(json.dumps({"offset": len(self.lines), "data": encoded.data.hex()}))
        return folded.outcome


def test_the_state_of_a_log(tmp_path: Path) -> None:
    world, path = IdentityRecord(), tmp_path / "dump.jsonl"

    def dumped() -> Path:
        path.write_text("\n".join(world.lines), "ascii")
        return path

    world.apply(InitializeCluster("test"))
    assert answer("--from", dumped())[1]["operations"][0]["plans"] == 0  # no position for a join
    for number in (1, 2, 3):
        world.apply(replace(NODE, name=f"A{number}", id=NODE.id[:-1] + str(number), address=f"a{number}:1"))
        assert drive(world, Join(NODE.id[:-1] + str(number), (number, -number), bytes(16)))[1] is None
    world.apply(CreateKeyspace("ks", Replication("simple", 2)))
    status, found = answer("--from", dumped())
    join = found["operations"][0]
    # There is no free token between 1 and 2, or between the equivalent pairs.
    assert (status, join["plans"], join["ranges"] > 0, join["faults"]) == (0, 2, True, [])
    world.apply(replace(NODE, name="B", id=NODE.id[:-1] + "4", address="b:1"))
    world.apply(Join(NODE.id[:-1] + "4", (900,), bytes(16)))
    in_flight = run("--from", dumped())
    assert (in_flight.exit_code, in_flight.stderr.split(":")[0]) == (2, "operations_in_flight")
    assert run("--from", tmp_path / "none").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--rule", "R9=off"), "bad_rule"),
        (("--rule", "R1=perhaps"), "bad_rule"),
        (("--rule", "gate:finished=off"), "bad_rule"),
        (("--operations", "dance"), "unknown_operation"),
        (("--nodes", 3, "--factor", 4), "replication_impossible"),
        (("--nodes", 65), "bad_field"),
        (("--new-tokens", 9, "--tokens", 8), "too_many_plans"),
        (("nowhere.json",), "bad_file"),
        (("nowhere.json", "--nodes", 3), "bad_usage"),
    ],
)
def test_bad_input_is_reported_with_a_code(arguments: tuple[object, ...], code: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{code}: ")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[", "bad_json"),
        ("[]", "bad_json"),
        ("{}", "bad_field"),
        ('{"nodes": [], "keyspaces": []}', "bad_field"),
        ('{"nodes": [], "keyspaces": [], "x": 1}', "unknown_field"),
        ('{"nodes": [], "keyspaces": [], "service": 3}', "bad_field"),
        ('{"histories": []}', "bad_field"),
    ],
)
def test_a_bad_file_is_reported_with_a_code(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    result = run(path)
    assert (result.exit_code, result.stderr.split(":")[0]) == (2, code)


@pytest.mark.parametrize(
    ("placement", "kind", "keyspaces"),
    [("ring", "join", {"ks"}), ("tablets", "tablet-migration", {"kt"}), ("zone", "zone", {"kz"})],
)
def test_a_regular_cluster_has_the_chosen_placements(placement: str, kind: str, keyspaces: set[str]) -> None:
    numbers = Numbers(nodes=3, factor=2, placement=PlacementKind(placement))
    assert set(state_of(described(numbers)).keyspaces) == keyspaces
    status, shown = answer("--nodes", 3, "--factor", 2, "--placement", placement, "--operations", kind)
    assert (status, [one["operation"] for one in shown["operations"]]) == (0, [kind])
    assert shown["operations"][0]["plans"] > 0
    assert shown["operations"][0]["ranges"] > 0


def test_a_cluster_with_all_placements_tries_operations_of_a_node_with_tablets() -> None:
    state = state_of(described(Numbers(nodes=4, factor=2, placement=PlacementKind.ALL)))
    assert set(state.keyspaces) == {"ks", "kt", "kz"}
    status, shown = answer("--nodes", 4, "--factor", 2, "--placement", "tablets", "--operations", "leave")
    assert status == 0
    assert shown["operations"][0]["plans"] == 4
    assert shown["operations"][0]["entries"] > 4 * 5
