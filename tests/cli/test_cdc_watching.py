"""Lines of ``ringlog cdc tail`` and ``apply`` about their lag and a silent broker."""

from __future__ import annotations

import json

import pytest

from ringlog.cli.cdc.watching import ReaderReport, Watched
from ringlog.log.kafka.lag import Lag, LagView

AWAY = LagView(Lag(5, 2.0, 2), 2, "no answer")


def report(*, as_json: bool, tells: bool) -> ReaderReport:
    found = ReaderReport("broker:9092", lambda: 7, as_json=as_json, tells=tells, every_s=0)
    for view in (LagView(Lag(5, 61.0, 2)), AWAY, AWAY, LagView(Lag(0, 0.0, 9))):
        found.observe(view)
    return found


def test_a_silent_broker_is_named_once_and_again_when_it_answers(capsys: pytest.CaptureFixture[str]) -> None:
    report(as_json=True, tells=False)
    out, err = capsys.readouterr()
    away, back = map(json.loads, err.splitlines())
    assert away == {"event": "broker_away", "broker": "broker:9092", "since": 2, "why": "no answer"}
    assert back == {"event": "broker_answers_again", "broker": "broker:9092", "since": 2}
    assert out == "", "standard output has changes only"


def test_a_command_without_other_output_tells_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    report(as_json=True, tells=True)
    first = json.loads(capsys.readouterr().err.splitlines()[0])
    assert first == {"event": "behind", "changes": 7, "behind": 5, "behind_seconds": 61.0}


def test_a_silent_broker_makes_a_reader_unready() -> None:
    for view, is_ready in ((LagView(), True), (AWAY, False)):
        health, _ = Watched(lambda: iter(()), lambda view=view: view).health()  # type: ignore[misc]
        assert (health.is_ready, health.why) == (is_ready, view.why)
