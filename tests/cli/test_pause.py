"""``ringlog pause`` and ``ringlog resume`` on a log in memory, and the display of pauses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ringlog.cli.cdc import repair
from ringlog.cli.shared import submitting
from ringlog.client.client import Client
from ringlog.kernel.model.modes import pause_text
from ringlog.operator.views import views
from ringlog.operator.views.words import format_pause
from tests.cli.authoring import authoring, run


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return the client of an empty cluster, for the command line."""
    with authoring(monkeypatch) as client:
        yield client


def paused(client: Client) -> list[str]:
    return [format_pause(view) for view in views.cluster(client.read_barrier())["pauses"]]


def test_a_pause_refuses_requests_until_its_end(client: Client) -> None:
    assert run("pause", "schema", "topology", "--reason", "upgrade")[0] == 0
    since = f"is paused since epoch {client.read_barrier().epoch}: upgrade"
    assert paused(client) == [f"schema {since}", f"topology {since}"]
    assert (pause_text("splits", "ks.t"), pause_text("all")) == ("splits of ks.t are paused", "all changes are paused")
    status, out, err = run("keyspace", "create", "ks", "--factor", "1")
    assert (status, out, err) == (1, "", f"changes_paused: schema {since}\n")
    status, out, _ = run("resume", "schema", "topology", "--json")
    assert (status, json.loads(out)["outcome"], paused(client)) == (0, "applied", [])
    assert run("keyspace", "create", "ks", "--factor", "1")[2].startswith("replication_impossible: ")


@pytest.mark.parametrize(
    ("words", "prefix"),
    [
        (["pause", "nothing"], "bad_field: scopes: 'nothing' is none of all, schema, "),
        (["pause", "schema", "schema"], "bad_field: scopes: "),
        (["pause", "schema", "--of", "ks"], "bad_field: of: "),
        (["pause", "balancing", "--of", "ks"], "unknown_keyspace: of: "),
        (["resume", "nothing"], "bad_field: scopes: "),
    ],
)
def test_invalid_pauses_are_refused(client: Client, words: list[str], prefix: str) -> None:
    before = client.read_barrier()
    status, out, err = run(*words)
    assert (status, out) == (1, "")
    assert err.startswith(prefix), err
    assert client.read_barrier().epoch == before.epoch


def test_a_repair_of_the_streams_names_its_cluster(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "connect", submitting.connect)
    status, out, err = run("cdc", "repair", "--no-wait")
    name = f"repair-{client.read_barrier().epoch}"
    assert (status, out.startswith(f"{name} of cluster tests: ")) == (0, True), err
