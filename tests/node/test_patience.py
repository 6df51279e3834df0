"""A node that finds no broker waits and says so; one that finds a broker without its log does not wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from ringlog.client.errors import NotFounded
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.node import patience
from ringlog.node.patience import Patience, reached


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "RETRY_S", 0.01)
    monkeypatch.setattr(patience, "MISSING_S", 0.05)


def begin(*fails: Exception) -> str | None:
    """A start that fails in these ways, one after the other, and then succeeds."""
    left = iter(fails)

    def step(_: Callable[[], None]) -> str:
        for error in left:
            raise error
        return "begun"

    return reached(step, threading.Event())


def test_a_wait_is_one_line_and_its_end_another() -> None:
    fails = iter([LogUnavailable("no answer")] * 20)

    def step() -> str:
        for error in fails:
            raise error
        return "found"

    with capture_logs() as lines:
        assert Patience("the log", threading.Event()).until_answered(step) == "found"
    assert [line["event"] for line in lines] == ["broker_away", "broker_answers_again"]
    assert lines[0]["waits_for"] == "the log"


def test_a_start_outlives_an_outage_after_which_the_topic_is_unknown_for_a_moment() -> None:
    assert begin(LogUnavailable("no answer"), TopicMissing("c.metadata")) == "begun"


def test_a_log_that_was_never_there_ends_the_start_at_once() -> None:
    with pytest.raises(TopicMissing):
        begin(TopicMissing("c.metadata"))


def test_a_log_that_stays_missing_after_an_outage_ends_the_start() -> None:
    with pytest.raises(TopicMissing):
        begin(LogUnavailable("no answer"), *[TopicMissing("c.metadata")] * 1_000)


def test_other_errors_pass() -> None:
    with pytest.raises(NotFounded):
        begin(LogUnavailable("no answer"), NotFounded("c.metadata"))


def test_a_node_that_waits_for_its_first_broker_can_be_stopped() -> None:
    stopping = threading.Event()

    def step() -> None:
        stopping.set()
        raise LogUnavailable("no answer")

    assert Patience("the log", stopping).until_answered(step) is None


def test_a_step_that_gets_on_can_be_stopped_and_says_nothing_of_a_broker() -> None:
    stopping = threading.Event()

    def step(look: Callable[[], None]) -> str:
        look()
        stopping.set()
        look()
        return "too late"

    with capture_logs() as lines:
        assert reached(step, stopping) is None
    assert lines == []
