"""The end of a role's worker, on a log in memory and with no broker for its status."""

from __future__ import annotations

import threading
from pathlib import Path

from structlog.testing import capture_logs

from ringlog.agents.exits import CRASHED, End
from ringlog.agents.shells.asking import AskingThread
from ringlog.agents.shells.following import FollowingThread
from ringlog.agents.shells.role import RoleThread
from ringlog.client.direct import DirectAuthor
from ringlog.client.founding import found
from ringlog.kernel.commands.cluster import Noop
from ringlog.log.errors import LogUnavailable
from ringlog.log.memory import MemoryLog
from ringlog.log.producer import AckedProducer
from ringlog.log.replica import LogReplica
from ringlog.runtime.settings import ProcessSettings
from tests.kernel.entries import node as register

NOBODY = "127.0.0.1:1"
DEADLINE_S = 60.0


class Sender(RoleThread):
    """Prepares until it may go on, then sends a record and waits for the answer."""

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
        self.look()

    def handled_epoch(self) -> int:
        return 0


def test_stop_returns_when_the_work_that_still_prepared_has_ended(tmp_path: Path) -> None:
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
    """Finds no broker for longer than it tries."""

    def work(self) -> None:
        raise LogUnavailable("c.left: Coordinator is not available", "is the broker up?") from ValueError(
            "NOT_COORDINATOR"
        )


def test_a_broker_that_fails_a_role_for_too_long_is_a_sentence(tmp_path: Path) -> None:
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
        "why": str(LogUnavailable("c.left: Coordinator is not available", "is the broker up?")),
    }
    assert [(end.code, end.detail) for end in worker.ends] == [(CRASHED, f"log_unavailable: {failed['why']}")]


class Asking(AskingThread):
    """Has nothing to do."""

    role = "asking"

    def ask(self) -> None:
        """Nothing."""


def test_who_asks_the_validator_is_not_woken_for_an_epoch_that_changes_nothing(tmp_path: Path) -> None:
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
    assert [worker.is_news(before, between) for worker in (asking, follower)] == [False, True]
    assert [worker.is_news(between, after) for worker in (asking, follower)] == [True, True]
    assert asking.is_news(before, after)


class Follower(FollowingThread):
    """Has nothing to do."""

    role = "follower"

    def work(self) -> None:
        raise AssertionError("it is not started")

    def handled_epoch(self) -> int:
        return 0


def test_faust_rests_where_the_replica_reads_and_hears_how_far_the_role_is(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    settings = ProcessSettings(bootstrap_servers=NOBODY, cluster="c", data_dir=tmp_path)
    worker = Follower(settings, acknowledged.append, lambda _: None)
    worker.producer.close(0.1)
    assert not worker.offer(0, b"an entry")
    assert not worker._inbox
    for position in (0, 3, 3, 2, 7):
        worker.passed(position)
    assert acknowledged == [2, 6]
