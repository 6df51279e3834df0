"""Retries at the start of a node: it waits for a missing broker and fails if the broker has no log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from ringlog.client.errors import ClusterNotCreated
from ringlog.client.participant import retry as retry
from ringlog.client.participant.retry import BrokerRetry, retry_until_answered
from ringlog.client.participant.stream_attempts import AGAIN_MOST_S, AGAIN_S, StreamAttempts, reportable_counts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import FailOperation, RetryOperation
from ringlog.kernel.operations.gates import counts_from
from ringlog.log.errors import LoginRefused, LogUnavailable, TopicMissing
from ringlog.log.kafka import diagnosis
from tests.kernel.movements.clusters import placed, simple
from tests.kernel.operations.driver import SEED, admitted, applied, driven


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_S", 0.01)
    monkeypatch.setattr(retry, "MISSING_S", 0.05)


def begin(*fails: Exception) -> str | None:
    """Return a start that raises these errors in order and then succeeds."""
    left = iter(fails)

    def step(_: Callable[[], None]) -> str:
        for error in left:
            raise error
        return "begun"

    return retry_until_answered(step, threading.Event())


def test_a_wait_is_one_line_and_its_end_another() -> None:
    fails = iter([LogUnavailable("no answer")] * 20)

    def step() -> str:
        for error in fails:
            raise error
        return "found"

    with capture_logs() as lines:
        assert BrokerRetry("the log", threading.Event()).until_answered(step) == "found"
    assert [line["event"] for line in lines] == ["broker_away", "broker_answers_again"]
    assert lines[0]["waits_for"] == "the log"


def test_a_wait_repeats_its_reason_and_stops_at_a_refused_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REPEAT_S", 0.01)
    reasons = iter(["no route", "no route"])

    def step(_: Callable[[], None]) -> None:
        raise LogUnavailable("no answer")

    def diagnose() -> str:
        for why in reasons:
            return why
        raise LoginRefused("wrong password")

    with capture_logs() as lines, pytest.raises(LoginRefused):
        retry_until_answered(step, threading.Event(), diagnose)
    assert [line["why"] for line in lines] == ["no answer; no route"] * 2


@pytest.mark.parametrize(("text", "is_refused"), [("invalid credentials", True), ("Local: Timed out", False)])
def test_a_refused_login_differs_from_a_broken_connection(
    text: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, options: dict[str, Any]) -> None:
            error = KafkaError(KafkaError._AUTHENTICATION, f"SASL authentication error: {text}")
            self.poll = lambda _: options["error_cb"](error)

        def list_topics(self, timeout: float) -> None:
            raise KafkaException(f"nothing came in {timeout} s")

        def close(self) -> None: ...

    monkeypatch.setattr(diagnosis, "Consumer", Failing)
    with pytest.raises(LoginRefused) if is_refused else nullcontext():
        assert text in diagnosis.reject_refused_login("a:1")


def test_a_start_outlives_an_outage_after_which_the_topic_is_unknown_for_a_moment() -> None:
    assert begin(LogUnavailable("no answer"), TopicMissing("c.metadata")) == "begun"


def test_a_missing_log_stops_the_start_at_once() -> None:
    with pytest.raises(TopicMissing):
        begin(TopicMissing("c.metadata"))


def test_a_log_missing_after_an_outage_stops_the_start() -> None:
    with pytest.raises(TopicMissing):
        begin(LogUnavailable("no answer"), *[TopicMissing("c.metadata")] * 1_000)


def test_other_errors_pass() -> None:
    with pytest.raises(ClusterNotCreated):
        begin(LogUnavailable("no answer"), ClusterNotCreated("c.metadata"))


def test_a_node_waiting_for_its_first_broker_can_be_stopped() -> None:
    stopping = threading.Event()

    def step() -> None:
        stopping.set()
        raise LogUnavailable("no answer")

    assert BrokerRetry("the log", stopping).until_answered(step) is None


def test_a_running_step_can_be_stopped_without_a_broker_message() -> None:
    stopping = threading.Event()

    def step(look: Callable[[], None]) -> str:
        look()
        stopping.set()
        look()
        return "too late"

    with capture_logs() as lines:
        assert retry_until_answered(step, stopping) is None
    assert lines == []


# Failed attempts: counted for the current operation, reported when new, bounded in number.


TWO = {"n1": ("dc1/r1", (100,)), "n2": ("dc1/r1", (200,)), "x": ("dc1/r1", ())}


def test_stream_retries_are_bounded_and_restart_after_a_decision() -> None:
    state = applied(placed(TWO, simple(1)), ChangeSettings((("stream_tries_max", 3),)))
    state, operation = admitted(state, Join("x", (150,), SEED))
    state = driven(state, operation, "write_both_read_old")
    tries = StreamAttempts()
    waits = []
    while tries.may_try("stream", operation, state):
        waits.append(tries.record_failure("stream", operation, "n2", state, f"refused {len(waits)}", 7 + len(waits)))
    assert waits == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    (failed_tries,) = tries.failed_tries()
    since = counts_from(state.operations[operation])
    assert (failed_tries.operation, failed_tries.source, failed_tries.count, failed_tries.since, failed_tries.at) == (
        operation,
        "n2",
        3,
        since,
        7,
    )
    assert failed_tries.reason == "refused 2"

    state = applied(state, FailOperation(operation, failed_tries.reason, "x", failed_tries.count, failed_tries.since))
    assert not tries.may_try("stream", operation, state)
    state = applied(state, RetryOperation(operation, "n2 is back"))
    assert tries.may_try("stream", operation, state)
    tries.record_failure("stream", operation, "n2", state, "refused again", 99)
    (failed_tries,) = tries.failed_tries()
    assert (failed_tries.count, failed_tries.since, failed_tries.at) == (1, state.epoch, 99)
    tries.forget("stream")
    assert tries.failed_tries() == ()


def test_stream_retries_of_a_session_are_bounded() -> None:
    state = applied(placed(TWO, simple(1)), ChangeSettings((("stream_tries_max", 2),)))
    tries, session = StreamAttempts(), "ks.t/0@9"
    for _ in range(2):
        assert tries.may_try("stream", session, state)
        tries.record_failure("stream", session, "n2", state, "away", 0)
    assert not tries.may_try("stream", session, state)
    assert tries.may_try("that of the next session", "ks.t/0@12", state)


def test_reports_are_few_and_include_the_last_one() -> None:
    state = placed(TWO, simple(1))
    tries, news = StreamAttempts(), set()
    for _ in range(200):
        assert tries.record_failure("stream", "join-1", "n2", state, "away", 0) <= AGAIN_MOST_S
        news.add(reportable_counts(tries.failed_tries(), 200))
    assert len(news) == 9
    assert len(reportable_counts(tries.failed_tries(), 200)) == 2


def test_the_most_retried_streams_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator must decide about these streams next. A report of all streams might exceed the record size of the
    topic.
    """
    monkeypatch.setattr("ringlog.client.participant.stream_attempts.TRIES_REPORTED_MAX", 2)
    state, tries = placed(TWO, simple(1)), StreamAttempts()
    for number in range(4):
        for _ in range(1 + number % 3):
            tries.record_failure(number, f"ks.t/{number}@9", "n2", state, "away", 0)
    assert [(one.operation, one.count) for one in tries.failed_tries()] == [("ks.t/1@9", 2), ("ks.t/2@9", 3)]
