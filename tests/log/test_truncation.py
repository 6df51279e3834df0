"""A log that begins later: readers begin behind what went, or say what to do; and no cut goes unseen."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from ringlog.client.creation.creation import cluster_id_of_log
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, TruncateLog
from ringlog.kernel.encoding.encoder import digest
from ringlog.log.errors import LogTruncated, LogUnavailable, ReplicaHalted
from ringlog.log.folding import Start
from ringlog.log.memory import MemoryLog, MemoryTail
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.wire.records import StoredSnapshot
from tests.log.test_snapshots import Cluster
from tests.refusals import raises_code

WATCH_S = 0.01
LONG_S = 60.0


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(3), 60)
    return made


def ordered(cluster: Cluster, head: StoredSnapshot) -> int:
    """The snapshot is confirmed in the log, which lets all go before its entry; where that is."""
    said = head.epoch, head.state_id, head.position, head.digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), TruncateLog(head.epoch))
    return head.position - 1


class Late(StartPointFinder):
    """Finds nothing at first; then ``away`` times the broker does not answer."""

    def __init__(self, cluster: Cluster, away: int = 0) -> None:
        self.away = away
        super().__init__(lambda: self._opened(cluster), epoch_max=0)

    def _opened(self, cluster: Cluster) -> SnapshotTopic:
        self.away -= 1
        if self.away >= 0:
            raise LogUnavailable("away")
        return SnapshotTopic(cluster.records)

    def start(self, *args: Any) -> Start:
        try:
            return super().start(*args)
        finally:
            self.epoch_max = None


class Going(MemoryLog):
    """The records of another log, of which the oldest go when a reader is about to begin with them."""

    def __init__(self, source: MemoryLog, begin: int) -> None:
        super().__init__()
        self._identity = source.identity()
        self.append([record.data for record in source.read(0, 0, 100_000)[0]])
        self.begin = begin

    def tail(self, from_offset: int) -> MemoryTail:
        if from_offset < self.begin:
            self.delete_before(self.begin)
        return super().tail(from_offset)


class Watched(MemoryLog):
    """Counts the looks at it: each begins with the topic's id."""

    def __init__(self, source: MemoryLog) -> None:
        super().__init__()
        self._identity = source.identity()
        self.append([record.data for record in source.read(0, 0, 100_000)[0]])
        self.looks = threading.Semaphore(0)

    def identity(self) -> str:
        self.looks.release()
        return super().identity()

    def await_looks(self, count: int) -> None:
        for _ in range(count):
            assert self.looks.acquire(timeout=LONG_S)


def test_a_replica_begins_behind_what_was_ordered_to_go(cluster: Cluster) -> None:
    begin = ordered(cluster, cluster.store("publisher"))
    log = Watched(cluster.log)
    log.delete_before(begin)
    with LogReplica(log, start_finder=cluster.start_finder(), watch_s=WATCH_S) as replica:
        assert digest(replica.read_barrier()) == digest(cluster.state)
        log.await_looks(5)
        assert replica.halted is None


def test_a_reader_at_the_end_goes_on_when_the_beginning_goes(cluster: Cluster) -> None:
    begin = ordered(cluster, cluster.store("publisher"))
    log = Watched(cluster.log)
    with LogReplica(log, watch_s=WATCH_S) as replica:
        replica.read_barrier()
        log.delete_before(begin)
        log.await_looks(5)
        log.append([cluster.author.entry(cluster.state, Noop()).data])
        assert replica.read_barrier().epoch == cluster.state.epoch + 1
        assert replica.halted is None


def test_one_without_a_snapshot_says_what_to_do(cluster: Cluster) -> None:
    cluster.log.delete_before(ordered(cluster, cluster.store()))
    for start_finder in (cluster.start_finder(), None):
        with pytest.raises(LogTruncated, match="restore the topic; see `ringlog snapshot list`"):
            LogReplica(cluster.log, start_finder=start_finder).start()
        with pytest.raises(LogTruncated, match="no snapshot covers that offset"):
            cluster_id_of_log(cluster.log, start_finder=start_finder)


def test_the_cluster_is_known_without_its_founding_entry(cluster: Cluster) -> None:
    assert cluster_id_of_log(cluster.log) == cluster.state.cluster_id
    cluster.log.delete_before(ordered(cluster, cluster.store("publisher")))
    assert cluster_id_of_log(cluster.log, start_finder=cluster.start_finder()) == cluster.state.cluster_id


@pytest.mark.parametrize("before", [True, False])
def test_what_nobody_ordered_halts_even_who_has_a_snapshot(cluster: Cluster, before: bool) -> None:
    ordered(cluster, cluster.store("publisher"))
    newest = cluster.store("publisher")
    if before:
        cluster.log.delete_before(newest.position - 1)
    with LogReplica(cluster.log, start_finder=cluster.start_finder(), watch_s=WATCH_S) as replica:
        if not before:
            replica.read_barrier()
            cluster.log.delete_before(newest.position - 1)
        with raises_code(ReplicaHalted, "log_truncated", match="and no entry allows that"):
            replica.wait_for(lambda _: None, LONG_S, "a halt")


@pytest.mark.parametrize("away", [0, 2])
def test_a_replica_that_is_overtaken_begins_again(cluster: Cluster, away: int) -> None:
    head = cluster.store("publisher")
    ordered(cluster, head)
    log = Going(cluster.log, head.position - 1)
    with LogReplica(log, start_finder=Late(cluster, away)) as replica:
        assert digest(replica.read_barrier()) == digest(cluster.state)
        assert sum(replica.counts.values()) == log.end_offset() - head.position


def test_who_is_followed_must_be_started_anew(cluster: Cluster) -> None:
    head = cluster.store("publisher")
    ordered(cluster, head)
    replica = LogReplica(Going(cluster.log, head.position - 1), start_finder=Late(cluster))
    replica.subscribe(lambda *_: None)
    with replica, raises_code(ReplicaHalted, "log_passed"):
        replica.read_barrier()
