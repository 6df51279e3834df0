"""The end of a role's worker, on a log in memory and without a broker for its status."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ringlog.agents.exits import CRASHED, End
from ringlog.agents.roles.controller import ControllerThread
from ringlog.agents.roles.role import FollowingThread, RoleThread
from ringlog.agents.status import ReportSchedule, newest, view
from ringlog.client.creation.creation import found
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.records import AgentStatus
from tests.kernel.entries import node as register

NOBODY = "127.0.0.1:1"
DEADLINE_S = 60.0


class Sender(RoleThread):
    """Prepares until the test permits it, then sends a record and waits for the answer."""

    role = "sender"

    def __init__(self, log: MemoryLog, folder: Path) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.why = ""
        self.ends: list[End] = []
        super().__init__(
            ProcessSettings(bootstrap_servers=NOBODY, cluster="c", data_dir=folder), lambda _: None, self.ends.append
        )
        self.producer.close(0.1)
        self.producer = AckedProducer(NOBODY, "sender", 0.3)
        self.replica = LogReplica(log)
        self.author = DirectAuthor(log, self.replica, "sender")

    def work(self) -> None:
        self.began.set()
        assert self.go_on.wait(DEADLINE_S)
        try:
            self.producer.send("c.topic", b"", partition=0).result(DEADLINE_S)
        except LogUnavailable as error:
            self.why = error.message
        self.check_active()

    def handled_epoch(self) -> int:
        return 0


def test_stop_returns_when_the_preparing_work_has_ended(tmp_path: Path) -> None:
    log = MemoryLog()
    with LogReplica(log) as replica:
        found(log, replica, "c")
    worker = Sender(log, tmp_path)
    worker.start()
    assert worker.began.wait(DEADLINE_S)
    looked = worker.seen()
    assert (looked.term, looked.is_active, looked.handled, looked.alarm) == (1, False, 0, "")
    assert looked.log.epoch >= 2
    assert looked.log.behind is not None
    stopper = threading.Thread(target=worker.stop, daemon=True)
    stopper.start()
    worker._threads[1].join(DEADLINE_S)
    worker.go_on.set()
    stopper.join(DEADLINE_S)
    assert not stopper.is_alive()
    assert "not acknowledged" in worker.why
    assert worker.ends == []


class Left(Sender):
    """A role that finds no broker within its retry limit."""

    def work(self) -> None:
        raise LogUnavailable("c.left: Coordinator is not available", "check that the broker is up") from ValueError(
            "NOT_COORDINATOR"
        )


def test_a_long_broker_failure_gives_a_readable_message(tmp_path: Path) -> None:
    log = MemoryLog()
    with LogReplica(log) as replica:
        found(log, replica, "c")
    worker = Left(log, tmp_path)
    with capture_logs() as lines:
        worker.start()
        worker._threads[0].join(DEADLINE_S)
        worker.stop()
    (failed,) = [line for line in lines if line["event"] == "role_failed"]
    assert failed == {
        "event": "role_failed",
        "log_level": "error",
        "role": "sender",
        "code": "log_unavailable",
        "why": str(LogUnavailable("c.left: Coordinator is not available", "check that the broker is up")),
    }
    assert [(end.code, end.detail) for end in worker.ends] == [(CRASHED, f"log_unavailable: {failed['why']}")]


class Asking(ControllerThread):
    """A role without work that asks the validator."""

    role = "asking"

    def run_protocol(self) -> None:
        """Do nothing."""


def test_a_role_that_asks_the_validator_sleeps_through_unchanged_epochs(tmp_path: Path) -> None:
    log = MemoryLog()
    settings = ProcessSettings(bootstrap_servers=NOBODY, cluster="c", data_dir=tmp_path)
    asking = Asking(settings, lambda _: None, lambda _: None)
    follower = Follower(settings, lambda _: None, lambda _: None)
    for worker in (asking, follower):
        worker.producer.close(0.1)
    with LogReplica(log) as replica:
        found(log, replica, "c")
        author = DirectAuthor(log, replica, "tester")
        before = replica.read_barrier()
        author.submit(Noop())
        between = replica.read_barrier()
        author.submit(register(1))
        after = replica.read_barrier()
    assert [worker.wakes_role(before, between) for worker in (asking, follower)] == [False, True]
    assert [worker.wakes_role(between, after) for worker in (asking, follower)] == [True, True]
    assert asking.wakes_role(before, after)


class Follower(FollowingThread):
    """A role without work that follows the log."""

    role = "follower"

    def work(self) -> None:
        raise AssertionError("it is not started")

    def handled_epoch(self) -> int:
        return 0


def test_faust_commits_the_position_of_the_role(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    settings = ProcessSettings(bootstrap_servers=NOBODY, cluster="c", data_dir=tmp_path)
    worker = Follower(settings, acknowledged.append, lambda _: None)
    worker.producer.close(0.1)
    assert not worker.add_record(0, b"an entry")
    assert not worker._inbox
    for position in (0, 3, 3, 2, 7):
        worker.passed(position)
    assert acknowledged == [2, 6]


# The status of a role comes from the newest term, or from an instance that takes over. The last status is displayed.


def status(term: int) -> AgentStatus:
    return AgentStatus("validator", f"instance-{term}", term, 1, "active", 1)


@pytest.mark.parametrize(("last", "said", "believed"), [(5, 5, 5), (5, 6, 6), (5, 4, 5), (5, 0, 0), (0, 3, 3)])
def test_the_status_of_a_replaced_instance_is_ignored(last: int, said: int, believed: int) -> None:
    assert newest(status(last), status(said)) == status(believed)


def test_the_first_status_counts() -> None:
    assert newest(None, status(3)) == status(3)


@pytest.mark.parametrize(
    ("state", "why", "epoch", "age_s", "readiness"),
    [
        ("active", "", 10, 1, "caught up"),
        ("active", "", 7, 1, "3 epochs behind"),
        ("active", "", 10, 6, "silent for 6 s"),
        ("active", "", 7, 6, "3 epochs behind, silent for 6 s"),
        ("starting", "", 0, 600, "starting, 10 epochs behind, silent for 600 s"),
        ("halted", "", 10, 600, "stopped"),
        ("halted", "log_truncated: …", 10, 600, "halted: log_truncated"),
        ("halted", "not started: log_replaced: …", 7, 600, "halted: log_replaced, 3 epochs behind"),
        ("halted", "the replica halted before offset 7: log_gap: …", 10, 600, "halted: log_gap"),
        ("halted", "for no reason that has a code", 10, 600, "halted"),
    ],
)
def test_the_cause_of_a_lagging_agent_is_shown(state: str, why: str, epoch: int, age_s: int, readiness: str) -> None:
    said = AgentStatus("keeper", "one", 1, epoch, state, 0, (), why)
    assert view(said, 10, age_s * 1_000_000).readiness == readiness


# The schedule of an agent's status reports.


def test_a_changed_status_is_reported_at_once_and_an_unchanged_one_each_second() -> None:
    reporting = ReportSchedule()
    assert reporting.is_due(5, "starting", 0.1)
    assert reporting.is_due(5, "active", 0.1)
    assert [reporting.is_due(5, "active", 0.25) for _ in range(8)] == [False, False, False, True] * 2


def test_a_series_of_epochs_is_reported_once_a_second_and_the_last_one_soon() -> None:
    reporting = ReportSchedule()
    assert reporting.is_due(1, "active", 0.1)
    reported = [reporting.is_due(epoch, "active", 0.25) for epoch in range(2, 10)]
    assert reported == [False, False, False, True] * 2
    assert not reporting.is_due(10, "active", 0.25)
    assert reporting.is_due(10, "active", 0.25), "it is the last one for now"
    assert not reporting.is_due(10, "active", 0.25)
