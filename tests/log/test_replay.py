"""Replay of a long log: a replica may take any time while it makes progress; only silence ends the wait."""

from __future__ import annotations

import random
import threading

import pytest

from ringlog.client.client import Client, Logs
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot, last_snapshot
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.log.author import Author
from ringlog.log.errors import LogUnavailable, ReplicaHalted
from ringlog.log.folding import Start, follow
from ringlog.log.memory import MemoryLog
from ringlog.log.port import LogRecord, LogTail
from ringlog.log.replicas.recent import RecentEntries
from ringlog.log.replicas.replay import ProgressReporter, Replay, catch_up
from ringlog.log.replicas.replica import LogReplica
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from tests.log.test_snapshots import Cluster

ENTRIES = 10
SILENCE_S = 30.0


class SlowLog(MemoryLog):
    """A log that returns one permitted record at a time; ``given``: the number of readable records."""

    def __init__(self) -> None:
        super().__init__("c.metadata")
        self.given = 0
        self.begun = 0
        author, state = Author("me", ManualClock(), SeededDraw(b"x")), EMPTY_STATE
        for number in range(ENTRIES):
            encoded = author.entry(state, Noop() if number else InitializeCluster("c"))
            state = fold(state, encoded.entry).state
            self.append([encoded.data])

    def tail(self, from_offset: int) -> LogTail:
        self.begun += 1
        return super().tail(from_offset)

    def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
        with self._changed:
            self._changed.wait_for(lambda: self.given > position, timeout_s)
        return super().read(position, 0.0, 1) if self.given > position else ([], position)

    def give(self, more: int) -> None:
        """Permit ``more`` records."""
        with self._changed:
            self.given += more
            self._changed.notify_all()


class Hours:
    """A clock that a test advances; each record takes ``each_s``, with one check in the middle."""

    def __init__(self, log: SlowLog, replica: LogReplica, each_s: float) -> None:
        self.log, self.replica, self.each_s = log, replica, each_s
        self.now = 0.0
        self.looks = 0

    def check(self) -> None:
        """Advance by half a record; every second check returns one."""
        if self.replica.position == self.log.given:
            self.looks += 1
            self.now += self.each_s / 2
            self.log.give(1 if self.looks % 2 == 0 else 0)

    def __call__(self) -> float:
        return self.now


def test_a_replay_with_progress_has_no_deadline() -> None:
    log = SlowLog()
    told: list[Replay] = []
    with LogReplica(log) as replica:
        hours = Hours(log, replica, SILENCE_S - 1)
        state = catch_up(replica, silence_s=SILENCE_S, check=hours.check, on_progress=told.append, clock=hours)
        assert state.epoch == ENTRIES
        assert hours.now == ENTRIES * (SILENCE_S - 1)
    middle, last = told[len(told) // 2], told[-1]
    assert last.is_over
    assert (last.epoch, last.position, last.end) == (ENTRIES, ENTRIES, ENTRIES)
    assert 0 < middle.epoch < ENTRIES
    assert middle.left_s == pytest.approx((ENTRIES - middle.position) * (SILENCE_S - 1), rel=0.5)
    assert f"epoch {middle.epoch}, record {middle.position} of {ENTRIES}" in str(middle)


def test_a_short_replay_is_not_logged_and_a_long_one_is_completed() -> None:
    now, told = [0.0], list[Replay]()
    short = ProgressReporter("log", 100, 110, told.append, lambda: now[0])
    long = ProgressReporter("log", 100, 110, told.append, lambda: now[0], "for another reason")
    for position in range(101, 111):
        short.at(position, position)
    assert told == []
    for position in range(101, 111):
        now[0] += 3
        long.at(position, position)
    assert [one.position for one in told] == [101, 103, 105, 107, 109, 110]
    assert told[0].left_s == 9 * 3
    assert "reading log for another reason: epoch 101, record 101 of 110, about 27 s more" in str(told[0])
    assert "log read for another reason: epoch 110" in str(told[-1])


def test_silence_ends_the_wait_and_keeps_folded_entries() -> None:
    log = SlowLog()
    with LogReplica(log) as replica:
        log.give(4)
        replica.wait_for(lambda _: replica.position == 4, 60, "four records")
        hours = Hours(log, replica, 0.0)

        def nothing_comes() -> None:
            hours.now += SILENCE_S

        with pytest.raises(LogUnavailable, match="no record arrived for 30 s at record 4 of 10"):
            catch_up(replica, silence_s=SILENCE_S, check=nothing_comes, clock=hours)
        assert replica.state.epoch == 4
        log.give(ENTRIES)
        assert catch_up(replica).epoch == ENTRIES
        assert log.begun == 1, "the replay continued from its position"


def test_a_short_replay_logs_nothing() -> None:
    log = SlowLog()
    log.give(ENTRIES)
    told: list[Replay] = []
    with LogReplica(log) as replica:
        assert catch_up(replica, on_progress=told.append, clock=lambda: 0.0).epoch == ENTRIES
    assert told == []


def test_a_waiting_caller_learns_of_a_halt() -> None:
    log = SlowLog()
    with LogReplica(log, watch_s=0.01) as replica:
        log.give(2)
        log.replace()
        with pytest.raises(ReplicaHalted, match="log_replaced"):
            catch_up(replica)


def test_a_client_resumes_after_silence() -> None:
    log = SlowLog()
    client = Client("", "c", logs=Logs(log, MemoryLog("q"), MemoryLog("r")))
    log.give(4)
    with pytest.raises(LogUnavailable):
        client.follow(silence_s=0.0)
    log.give(ENTRIES)
    assert client.follow().state.epoch == ENTRIES
    assert log.begun == 1
    client.close()


def test_a_client_can_share_a_replica() -> None:
    log = SlowLog()
    log.give(ENTRIES)
    with LogReplica(log) as replica:
        guest = Client("", "c", logs=Logs(log, MemoryLog("q"), MemoryLog("r")), replica=replica)
        assert guest.start().replica is replica
        guest.close()
        assert log.begun == 1, "one fold serves both"
        assert replica.read_barrier().epoch == ENTRIES, "the replica remains with its owner"


def test_a_wait_for_a_replay_can_be_cancelled() -> None:
    stopping = threading.Event()

    class Stopped(Exception):
        pass

    def check() -> None:
        stopping.set()
        raise Stopped

    with LogReplica(SlowLog()) as replica, pytest.raises(Stopped):
        catch_up(replica, check=check)
    assert stopping.is_set()


# The size of the log since the newest snapshot mark, in bytes of entries, as a replica counts it.


def counted(cluster: Cluster) -> int:
    """Return the count of a replica that has read the whole log."""
    with LogReplica(cluster.log, start_finder=cluster.start_finder()) as replica:
        replica.read_barrier()
        return replica.recent.since_mark


def by_hand(cluster: Cluster) -> int:
    """Return the bytes of the records of an epoch behind the last mark."""
    records, mark = cluster.log.read(0, 0, 100_000)[0], last_snapshot(cluster.state)
    made = zip(records, follow(records), strict=True)
    return sum(len(one.data) for one, fold in made if fold.after is not fold.before and fold.after.epoch > mark)


def test_the_count_is_equal_from_the_start_or_a_snapshot() -> None:
    cluster = Cluster()
    cluster.live(random.Random(3), 20)
    for _ in range(2):
        cluster.apply(*[Noop()] * 6)
        assert counted(cluster) == by_hand(cluster) > 0
        cluster.store("publisher")
        assert counted(cluster) == by_hand(cluster)
        cluster.apply(Noop(), Noop())
        assert counted(cluster) == by_hand(cluster) > 0
    cluster.apply(TakeSnapshot())
    assert counted(cluster) == 0, "each mark counts, stored or not"
    cluster.apply(Noop())
    assert counted(cluster) == by_hand(cluster) > 0


def test_a_reader_that_restarts_with_a_snapshot_counts_from_it() -> None:
    recent = RecentEntries()
    for epoch in (1, 2, 3):
        recent.add(epoch, b"123")
    assert recent.since_mark == 9
    recent.add(10, b"12")
    assert recent.since_mark == 2
    recent.add(11, b"12", Start())
    assert recent.since_mark == 0


def test_the_state_behind_the_newest_mark_is_kept_until_it_is_taken() -> None:
    first, second = Start(position=1), Start(position=2)
    recent = RecentEntries(keeps_mark=True)
    recent.add(1, b"1", first)
    recent.add(2, b"2", second)
    recent.add(3, b"3")
    assert recent.take_mark() is second
    recent.add(4, b"4", Start(position=4))
    assert recent.take_mark() is None, "another caller gets the next mark some other way"


def test_a_mark_before_a_later_start_is_dropped() -> None:
    recent, other = RecentEntries(keeps_mark=True), RecentEntries()
    for one in (recent, other):
        one.add(1, b"1", Start())
    assert other.take_mark() is None
    recent.add(10, b"10")
    assert recent.take_mark() is None
