"""The broker watch of an agent: its messages about missing topics, and its log lines during an outage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from ringlog.agents.exits import CRASHED, HALTED, End, end_of
from ringlog.agents.monitoring.outage import Outage
from ringlog.log.errors import LogUnavailable
from ringlog.log.replicas import topic_watch as watch_module
from ringlog.log.replicas.replica import MISSING_S
from ringlog.log.replicas.topic_watch import LostTopic, TopicWatch
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.logs import WARNING_INTERVAL_S

NOBODY = "127.0.0.1:1"
METADATA, REQUESTS = "c.metadata", "c.requests"
IDS: Mapping[str, str | None] = {METADATA: "a", REQUESTS: "b"}
UP = dict(IDS)


class Scripted(TopicWatch):
    """A check with scripted topics; None: no broker answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.there: Mapping[str, str | None] | None = UP
        super().__init__(NOBODY, {METADATA: "a", REQUESTS: "b"}, lambda _: None, clock=lambda: self.now)

    def _ids_now(self) -> Mapping[str, str | None]:
        if self.there is None:
            raise LogUnavailable("no answer")
        return self.there

    def at(self, seconds: float, there: Mapping[str, str | None] | None) -> End | None:
        self.now, self.there = seconds, there
        lost = self.check()
        return None if lost is None else end_of(lost, "c")


@pytest.mark.parametrize(("topic", "code"), [(METADATA, HALTED), (REQUESTS, CRASHED)])
def test_a_topic_that_stays_missing_stops_the_agent(topic: str, code: int) -> None:
    watch = Scripted()
    assert watch.at(0, UP) is None
    assert watch.at(1, UP | {topic: None}) is None
    assert watch.at(MISSING_S, UP | {topic: None}) is None
    end = watch.at(1 + MISSING_S, UP | {topic: None})
    assert end is not None
    assert end.code == code
    assert end.detail.startswith(f"topic_missing: topic {topic} was deleted (")


@pytest.mark.parametrize(("topic", "code"), [(METADATA, HALTED), (REQUESTS, CRASHED)])
def test_another_id_seen_twice_stops_the_agent(topic: str, code: int) -> None:
    watch = Scripted()
    assert watch.at(0, UP | {topic: "z"}) is None
    end = watch.at(0.1, UP | {topic: "z"})
    assert end is not None
    assert end.code == code
    assert end.detail.startswith(f"log_replaced: topic {topic} was deleted and created again")


@pytest.mark.parametrize("between", [None, UP])
def test_a_silent_broker_and_one_with_the_topic_restart_the_wait(between: Mapping[str, str | None]) -> None:
    watch, gone = Scripted(), UP | {METADATA: None}
    assert watch.at(0, gone) is None
    assert watch.at(MISSING_S, between) is None
    assert watch.at(MISSING_S + 1, gone) is None
    assert watch.at(2 * MISSING_S, gone) is None
    assert watch.at(2 * MISSING_S + 1, gone) is not None


def test_the_log_counts_before_any_other_topic() -> None:
    watch, gone = Scripted(), {METADATA: None, REQUESTS: None}
    assert watch.at(0, gone) is None
    end = watch.at(MISSING_S, gone)
    assert end is not None
    assert end.code == HALTED


def test_a_crash_that_no_topic_explains_has_no_verdict() -> None:
    watch = Scripted()
    assert watch.check_until_certain() is None
    watch.there = None
    assert watch.check_until_certain() is None


def test_a_verdict_waits_until_it_is_certain() -> None:
    watch = Scripted()
    watch.there = UP | {METADATA: "z"}
    assert watch.check_until_certain() == LostTopic(METADATA, "a", "z")


def complain(outage: Outage, times: int, name: str = "aiokafka.conn") -> None:
    for number in range(times):
        outage.handle(logging.LogRecord(name, logging.ERROR, __file__, 1, "no broker %d", (number,), None))


def test_an_outage_is_two_lines() -> None:
    woken: list[bool] = []
    outage = Outage(NOBODY, lambda: woken.append(True))
    with capture_logs() as lines:
        complain(outage, 500)
        outage.record_failure("no answer")
        outage.record_answer()
        outage.record_answer()
    assert [line["event"] for line in lines] == ["broker_away", "broker_answers_again"]
    assert lines[0]["why"] == "no broker 0"
    assert lines[1]["passed_over"] == 500
    assert woken


def test_the_next_outage_is_logged_again_and_other_errors_always() -> None:
    clock = ManualClock()
    outage = Outage(NOBODY, now=clock.monotonic)
    with capture_logs() as lines:
        complain(outage, 2)
        complain(outage, 2, "mode.worker")
        outage.record_answer()
        clock.advance(WARNING_INTERVAL_S)
        complain(outage, 1)
    events = [line["event"] for line in lines]
    assert events == ["broker_away", "worker", "worker", "broker_answers_again", "broker_away"]


def test_one_dead_broker_of_several_logs_two_lines_a_minute() -> None:
    clock = ManualClock()
    outage = Outage(NOBODY, now=clock.monotonic)
    minutes = 3
    with capture_logs() as lines:
        for _ in range(minutes * int(WARNING_INTERVAL_S)):
            complain(outage, 5)
            outage.record_answer()
            clock.advance(1)
    assert [line["event"] for line in lines] == ["broker_away", "broker_answers_again"] * minutes
    assert lines[2]["since_the_last"] == 5 * (int(WARNING_INTERVAL_S) - 1) + 1, "complaints without a line of their own"


def test_an_outage_that_outlasts_the_minute_is_logged() -> None:
    clock = ManualClock()
    outage = Outage(NOBODY, now=clock.monotonic)
    with capture_logs() as lines:
        complain(outage, 1)
        outage.record_answer()
        clock.advance(1)
        for _ in range(int(WARNING_INTERVAL_S)):
            outage.record_failure("no answer")
            assert "has not answered for" in outage.shown
            clock.advance(1)
        outage.record_answer()
    assert [line["event"] for line in lines] == ["broker_away", "broker_answers_again"] * 2
    assert lines[2]["why"] == "no answer"
    assert lines[3]["away_s"] == WARNING_INTERVAL_S


def test_an_agent_that_reported_its_end_logs_no_library_errors() -> None:
    outage = Outage(NOBODY)
    outage.drop_records()
    with capture_logs() as lines:
        complain(outage, 1)
        complain(outage, 1, "mode.worker")
    assert lines == []


def test_a_busy_machine_causes_one_warning_a_minute() -> None:
    clock = ManualClock()
    outage = Outage(NOBODY, now=clock.monotonic)
    late = "[^--AIOKafkaConsumerThread]: Thread keepalive is not responding..."
    with capture_logs() as lines:
        for _ in range(3 * int(WARNING_INTERVAL_S)):
            outage.handle(logging.LogRecord("faust.transport.drivers", logging.ERROR, __file__, 1, late, (), None))
            clock.advance(1)
    assert [(line["event"], line["log_level"]) for line in lines] == [("worker_thread_late", "warning")] * 3
    assert lines[-1]["so_far"] == 2 * int(WARNING_INTERVAL_S) + 1


def test_repeated_checks_share_one_client_and_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(watch_module, "admin_client", lambda servers: made.append(servers) or object())
    monkeypatch.setattr(watch_module, "topic_ids", lambda _, names, __: asked.append(names) or UP)
    watch = TopicWatch(NOBODY, {METADATA: "a", REQUESTS: "b"}, lambda _: None)
    assert [watch.check() for _ in range(20)] == [None] * 20
    assert made == [NOBODY]
    assert asked == [[METADATA, REQUESTS]] * 20
