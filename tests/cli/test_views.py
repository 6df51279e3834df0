"""Formats and ``--watch`` of view commands, without a broker: the cluster is a log in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import typer
import yaml

from ringlog import commands
from ringlog.cli.node import app as node
from ringlog.cli.schema import keyspace, table
from ringlog.cli.shared import options
from ringlog.cli.shared.connection import out
from ringlog.cli.shared.options import show_view
from ringlog.cli.shared.tables import show_table
from ringlog.client.watch import MetadataWatch
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.json_errors import wants_json
from ringlog_testing.cluster.cluster import FakeCluster

VIEW = {"name": "a: b", "tokens": [1, -2], "why": None, "on": True}


def view(_: ClusterContext) -> Iterator[Any]:
    yield VIEW
    show_table(("name", "tokens", "trust"), [(VIEW["name"], "1 -2", "x" * 100)])


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 60)


def test_each_format_has_the_whole_view(capsys: pytest.CaptureFixture[str]) -> None:
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        show_view(view, "b:1", "c", False, form)  # type: ignore[arg-type]
        assert read(capsys.readouterr().out) == VIEW


def test_wide_drops_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    show_view(view, "b:1", "c", False)
    assert "not shown: tokens, trust" in capsys.readouterr().out
    show_view(view, "b:1", "c", False, "wide")
    shown = capsys.readouterr().out
    assert "not shown" not in shown
    assert "x" * 100 in shown


@pytest.mark.parametrize("words", ["--json", "-o json", "-ojson", "--output=json", "--output yaml"])
def test_errors_are_json_for_each_spelling(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ringlog", "node", "list", *words.split()])
    assert wants_json()
    monkeypatch.setattr(sys, "argv", ["ringlog", "node", "list", "-o", "wide", "--", *words.split()])
    assert not wants_json()


def test_watch_prints_again_after_each_epoch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()

    @contextmanager
    def watching(_: ClusterContext) -> Iterator[MetadataWatch]:
        with cluster.client("watch") as client:
            monkeypatch.setattr(options, "_watches", [client])
            yield client  # type: ignore[misc]

    monkeypatch.setattr(options, "_watching", watching)
    with cluster.client("author") as author, suppress(KeyboardInterrupt):
        steps: list[Callable[[], object]] = [lambda: author.submit(commands.Noop()) for _ in range(2)]

        def epochs(context: ClusterContext) -> Iterator[Any]:
            yield options.newest(context).epoch
            raise AssertionError("JSON ends a view")

        def stepping(context: ClusterContext) -> Iterator[Any]:
            yield from epochs(context)

        def acting(context: ClusterContext) -> Iterator[Any]:
            found = next(stepping(context))
            if not steps:
                raise KeyboardInterrupt
            steps.pop()()
            yield found

        show_view(acting, "b:1", "c", True, watch=True)
    printed = [int(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 2
    assert printed == sorted(set(printed))


def shown(capsys: pytest.CaptureFixture[str], command: Callable[..., None], *, as_json: bool, **given: str) -> str:
    command(bootstrap="b:1", cluster="c", as_json=as_json, output="table", watch=False, **given)
    return capsys.readouterr().out


def test_one_node_keyspace_or_table_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    cluster.add_nodes(2)
    with cluster.client() as client:
        client.submit(commands.create_keyspace("ks", 2))
        client.submit(commands.create_table("ks", "t", {"id": "int", "v": "text"}, partition_key=["id"]))
    for module in (keyspace, table, node):
        monkeypatch.setattr(module, "newest", lambda _: cluster.state)
    monkeypatch.setattr(node, "last_heard", lambda *_: LastReports())
    found = json.loads(shown(capsys, node.show_node, as_json=True, node="n1"))
    assert (found["name"], found["removal"]["code"]) == ("n1", "replication_impossible")
    assert found["ranges"] == [{"keyspace": "ks", "ranges": len(cluster.state.token_owners)}]
    assert f"removal: {found['removal']['code']}" in shown(capsys, node.show_node, as_json=False, node="n1")
    text = shown(capsys, keyspace.show_keyspace, as_json=False, name="ks")
    assert "tables: t\n" in text
    text = shown(capsys, table.show_table_command, as_json=False, full_name="ks.t")
    assert "columns: id int, v text\n" in text
    for command, given in (
        (node.show_node, {"node": "n9"}),
        (keyspace.show_keyspace, {"name": "other"}),
        (table.show_table_command, {"full_name": "ks.other"}),
    ):
        with pytest.raises(typer.Exit):
            shown(capsys, command, as_json=False, **given)
