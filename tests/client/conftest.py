"""A new cluster on three logs in memory, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlog.client.client import Client, Logs
from ringlog.client.creation.creation import found
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from tests.log.faulty_log import FaultyLog


@pytest.fixture
def metadata() -> FaultyLog:
    """Return the metadata log of a cluster that keeps the last 100 entries."""
    log = FaultyLog(MemoryLog("tests.metadata"))
    with LogReplica(log) as replica:
        found(log, replica, "tests", {"history_entries": 100})
    log.appends.clear()
    return log


@pytest.fixture
def requests_log() -> FaultyLog:
    """Return the log of requests."""
    return FaultyLog(MemoryLog("tests.requests"))


@pytest.fixture
def results_log() -> MemoryLog:
    """Return the log of results."""
    return MemoryLog("tests.results")


@pytest.fixture
def logs(metadata: FaultyLog, requests_log: FaultyLog, results_log: MemoryLog) -> Logs:
    """Return all three logs."""
    return Logs(metadata, requests_log, results_log)


@pytest.fixture
def client(logs: Logs) -> Iterator[Client]:
    """Return a started client with short retry intervals."""
    with Client("", "tests", "tester", logs=logs, resend_s=0.05) as client:
        yield client
