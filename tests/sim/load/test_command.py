"""``ringlog load``: its output, exit status and targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ringlog import commands
from ringlog.testing import FakeCluster
from ringlog_testing.cli.load import app
from ringlog_testing.histories.events import to_json
from ringlog_testing.load.stores import NoTarget, register_space, row_target
from tests.sim.load.test_order import events_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def written(folder: Path, text: str) -> Path:
    file = folder / "history.jsonl"
    file.write_text("".join(f"{to_json(event)}\n" for event in events_of(text)), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("a w1,a ok,b r,b =1", 0, "no violation: 2 operations"),
        ("a w1,a ok,b r,b =0", 1, "lost write of registers ks k"),
        ("a w1,a ?", 2, "nothing_checked"),
        ("a w2", 2, "bad_value"),
    ],
)
def test_a_history_is_judged_again(tmp_path: Path, text: str, status: int, said: str) -> None:
    found = run("check", written(tmp_path, text))
    assert (found.exit_code, said in found.output) == (status, True)


def test_the_witness_is_in_the_json(tmp_path: Path) -> None:
    found = json.loads(run("check", written(tmp_path, "a w1,a ok,b r,b =0"), "--json").stdout)
    assert (found["verdict"], found["kind"], found["linearizable"]) == ("violation", "lost write", "not_linearizable")
    assert [(event["line"], event["type"]) for event in found["witness"]] == [
        (1, "invoke"),
        (2, "ok"),
        (3, "invoke"),
        (4, "ok"),
    ]


def test_bad_input_is_exit_status_2(tmp_path: Path) -> None:
    file = written(tmp_path, "a r,a =0")
    assert run("run", "--table", "ks.t", "--history", file).exit_code == 2
    assert run("check", tmp_path / "none.jsonl").exit_code == 2


def test_targets_need_a_table_of_their_own() -> None:
    cluster = FakeCluster()
    cluster.add_nodes(1)
    with cluster.client("me") as client:
        client.submit(commands.create_keyspace("ks", 1))
        for name, columns, key in (
            ("good", {"id": "text", "v": "bigint"}, ["id"]),
            ("wide", {"id": "text", "c": "text", "v": "bigint"}, ["id", "c"]),
            ("other", {"id": "text", "v": "text"}, ["id"]),
            ("number", {"id": "bigint", "v": "bigint"}, ["id"]),
        ):
            client.submit(commands.create_table("ks", name, columns, partition_key=key))
        state = client.read_barrier()
    table, column = row_target(state, "ks.good")
    assert (table.full_name, column) == ("ks.good", "v")
    assert register_space(state, "ks", "") == "ks"
    for name, code in (
        ("ks.wide", "type_mismatch"),
        ("ks.other", "type_mismatch"),
        ("ks.number", "type_mismatch"),
        ("ks.none", "unknown_table"),
    ):
        with pytest.raises(NoTarget) as error:
            row_target(state, name)
        assert error.value.code == code
        assert "CREATE TABLE ks." in error.value.ways_out[0]
    with pytest.raises(NoTarget, match="nowhere"):
        register_space(state, "nowhere", "")
