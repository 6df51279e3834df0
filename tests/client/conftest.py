"""A founded cluster on three logs in memory, and a client on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlog.client.client import Client, Logs
from ringlog.client.creation.creation import found
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from tests.log.faulty import FaultyLog


@pytest.fixture
def metadata() -> FaultyLog:
    """The metadata log, of a cluster that remembers 100 entries."""
    log = FaultyLog(MemoryLog("tests.metadata"))
    with LogReplica(log) as replica:
        found(log, replica, "tests", {"history_entries": 100})
    log.appends.clear()
    return log


@pytest.fixture
def requests_log() -> FaultyLog:
    """The requests."""
    return FaultyLog(MemoryLog("tests.requests"))


@pytest.fixture
def results_log() -> MemoryLog:
    """The results."""
    return MemoryLog("tests.results")


@pytest.fixture
def logs(metadata: FaultyLog, requests_log: FaultyLog, results_log: MemoryLog) -> Logs:
    """All three."""
    return Logs(metadata, requests_log, results_log)


@pytest.fixture
def client(logs: Logs) -> Iterator[Client]:
    """A started client that sends again quickly."""
    with Client("", "tests", "tester", logs=logs, resend_s=0.05) as client:
        yield client
