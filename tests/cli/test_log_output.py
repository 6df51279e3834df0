"""The forms of ``ringlog log``: lines for people, a JSON value per line, one YAML list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from ringlog.cli.metadata import log
from ringlog.client.client import Client
from ringlog.log.archive.archive import all_records
from ringlog.operator.history.log_past import Past
from tests.cli.authoring import authoring, run

REASON = "a reason that is longer than the sixty characters of a short value"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with authoring(monkeypatch) as client:

        @contextmanager
        def past_of(*_: object, **__: object) -> Iterator[Past]:
            yield Past(all_records(client.replica.log, None))

        monkeypatch.setattr(log, "past_of", past_of)
        monkeypatch.setattr(log.out, "_width", 100)
        pause = {"command": "PauseChanges", "scopes": ["balancing"], "reason": REASON}
        assert run("submit", json.dumps(pause))[0] == 0
        yield client


@pytest.mark.usefixtures("client")
def test_each_form_has_the_same_entries() -> None:
    as_json = [json.loads(line) for line in run("log", "-o", "json")[1].splitlines()]
    assert [line["entry"]["command"] for line in as_json] == ["InitializeCluster", "PauseChanges"]
    assert [json.loads(line) for line in run("log", "--json")[1].splitlines()] == as_json
    assert yaml.safe_load(run("log", "-o", "yaml")[1]) == as_json
    assert [line.split()[0] for line in run("log")[1].splitlines()] == ["1", "2"]


@pytest.mark.usefixtures("client")
def test_wide_lines_have_values_in_full() -> None:
    assert REASON not in run("log")[1].replace("\n", " ")
    assert REASON in run("log", "-o", "wide")[1]
