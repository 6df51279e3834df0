"""Replication settings as people type them, there and back."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.cli.replication import given_replication, replication_words


@pytest.mark.parametrize(
    ("setting", "replication"),
    [
        ("3", {"strategy": "simple", "factor": 3}),
        ("entire", {"strategy": "entire"}),
        ("dc1=3", {"strategy": "network", "datacenters": {"dc1": 3}}),
        ("dc1=3,dc2=r1+r2", {"strategy": "network", "datacenters": {"dc1": 3, "dc2": ["r1", "r2"]}}),
        ("dc1=r1", {"strategy": "network", "datacenters": {"dc1": ["r1"]}}),
    ],
)
def test_there_and_back(setting: str, replication: dict[str, Any]) -> None:
    assert given_replication(None, setting) == replication
    assert replication_words(replication) == setting


def test_a_number_of_replicas() -> None:
    assert given_replication(2, None) == {"strategy": "simple", "factor": 2}


@pytest.mark.parametrize(
    ("factor", "setting"),
    [(None, None), (3, "dc1=3"), (None, "dc1"), (None, "dc1="), (None, "=3"), (None, "dc1=3,dc1=2"), (None, "dc1=3,")],
)
def test_what_is_no_setting(factor: int | None, setting: str | None) -> None:
    with pytest.raises(typer.Exit) as ended:
        given_replication(factor, setting)
    assert ended.value.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["keyspace", "create", "k"],
        ["keyspace", "alter", "k", "--factor", "1", "--replication", "entire"],
        ["node", "move", "n1"],
        ["node", "move", "n1", "--token", "1", "--num-tokens", "2"],
        ["node", "replace", "n1"],
        ["node", "down", "n1"],
        ["operation", "fail", "join-1"],
    ],
)
def test_half_a_command_is_refused_before_a_broker_is_asked(words: list[str]) -> None:
    ended = CliRunner().invoke(app, [*words, "--bootstrap", "nowhere:1", "--cluster", "c"])
    assert (ended.exit_code, ended.stdout) == (2, "")
