"""A relaxed reader: it reads rare records at once, pauses in a dense stream, and resumes for a waiting caller."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from ringlog.client.client import Client, Logs
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.log.kafka.adapter import reader_config, without_prefetch
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas import replica as replicas
from ringlog.log.replicas.poll_policy import (
    BACKLOG_RECORDS,
    BATCH_PAUSES,
    BATCH_RECORDS,
    PAUSE_US,
    POLLS_MAX,
    PollBudget,
    PollPolicy,
)
from ringlog.log.replicas.replay import catch_up
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import AppliedResult
from tests.client.mini_validator import MiniValidator
from tests.log.faulty_log import FaultyLog

DEADLINE_S = 60.0
HOUR = 3_600_000_000


def test_rare_records_are_read_at_once() -> None:
    budget = PollBudget()
    assert not any(budget.pause_after(number * PAUSE_US) for number in range(1_000))


def test_operation_steps_are_read_at_once_and_streams_in_batches() -> None:
    budget, now, count = PollBudget(), 0, 0
    assert not any(budget.pause_after(0) for _ in range(POLLS_MAX))
    while now < 100 * PAUSE_US:
        now += budget.pause_after(now)
        count += 1
    assert 99 <= count <= 101
    later = now + (POLLS_MAX + 1) * PAUSE_US
    assert not any(budget.pause_after(later) for _ in range(POLLS_MAX)), "the reader has its full budget again"


def test_a_dense_stream_is_read_less_often() -> None:
    budget, now, dense = PollBudget(), 0, []
    for _ in range(100):
        dense.append(budget.pause_after(now, BATCH_RECORDS))
        now += dense[-1]
    assert dense[-50:] == [BATCH_PAUSES * PAUSE_US] * 50
    assert budget.pause_after(now, BATCH_RECORDS - 1) == PAUSE_US


def test_a_lagging_reader_does_not_pause() -> None:
    budget = PollBudget()
    assert not any(budget.pause_after(0, BACKLOG_RECORDS) for _ in range(10_000))
    assert not any(budget.pause_after(0) for _ in range(POLLS_MAX)), "the reader has its full budget"


@pytest.mark.parametrize("records", [1, BATCH_RECORDS])
def test_a_skipped_pause_is_not_made_up(records: int) -> None:
    budget = PollBudget()
    assert max(budget.pause_after(0, records) for _ in range(10_000)) == PAUSE_US * (
        BATCH_PAUSES if records == BATCH_RECORDS else 1
    )


def test_a_paused_reader_resumes_for_a_waiting_caller() -> None:
    policy = PollPolicy(is_relaxed=True)
    reader = threading.Thread(target=policy.pause, args=(PollBudget(0, HOUR), [b"a record"]), daemon=True)
    reader.start()
    with policy.urgent():
        reader.join(DEADLINE_S)
    assert not reader.is_alive()
    with policy.urgent(), policy.urgent():
        pass
    assert not policy._wake.is_set(), "no caller waits"


def test_only_a_relaxed_reader_with_records_pauses() -> None:
    PollPolicy(is_relaxed=True).pause(PollBudget(0, HOUR), [])
    PollPolicy().pause(PollBudget(0, HOUR), [b"a record"])


@pytest.fixture
def paused_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a relaxed replica that pauses for an hour after each read."""
    monkeypatch.setattr(replicas, "PollBudget", partial(PollBudget, 0, HOUR))


@pytest.mark.usefixtures("paused_replica")
def test_a_decision_and_a_catch_up_end_a_pause(log: FaultyLog, replica: LogReplica) -> None:
    with LogReplica(log) as reader:
        reader.poll_policy = PollPolicy(is_relaxed=True)
        author = DirectAuthor(log, reader, "one")
        for _ in range(5):
            assert isinstance(author.submit(Noop()), AppliedResult)
        for _ in range(5):
            newer = DirectAuthor(log, replica, "two").submit(Noop())
            assert isinstance(newer, AppliedResult)
            assert catch_up(reader, silence_s=DEADLINE_S).epoch == newer.epoch
        reader.poll_policy.begin_urgent()  # To its end.


@pytest.mark.usefixtures("paused_replica")
def test_a_submission_ends_a_pause(log: FaultyLog, replica: LogReplica) -> None:
    logs = Logs(log, MemoryLog("tests.requests"), MemoryLog("tests.results"))
    with (
        LogReplica(log) as reader,
        MiniValidator(logs, "v1"),
        Client("", "tests", "tester", logs=logs, replica=reader) as client,
    ):
        reader.poll_policy = PollPolicy(is_relaxed=True)
        for _ in range(5):
            assert isinstance(client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)
        answers = client.submit_many([Noop()] * 100, timeout_s=DEADLINE_S)
        assert all(isinstance(answer, AppliedResult) for answer in answers)
        reader.poll_policy.begin_urgent()
    assert replica.state.epoch > 100


def test_the_kafka_client_of_a_relaxed_reader_fetches_nothing_ahead() -> None:
    own = reader_config("nowhere:1", "read_uncommitted")
    eased = without_prefetch(own)
    assert eased.items() - own.items() == {("queued.min.messages", 1), ("fetch.queue.backoff.ms", 5)}
    assert eased["fetch.queue.backoff.ms"] * 1_000 < PAUSE_US
