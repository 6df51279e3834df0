"""A truncated log: readers start behind the deleted part or report the remedy, and every cut is detected."""

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
    """Confirm the snapshot in the log, which permits the deletion before its entry, and return that offset."""
    said = head.epoch, head.state_id, head.position, head.digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), TruncateLog(head.epoch))
    return head.position - 1


class Late(StartPointFinder):
    """A snapshot finder that finds none at first; then the broker is unavailable ``away`` times."""

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
    """The records of another log, whose oldest records disappear when a reader starts with them."""

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
    """A log that counts its identity checks."""

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


def test_a_replica_starts_behind_the_deleted_part(cluster: Cluster) -> None:
    begin = ordered(cluster, cluster.store("publisher"))
    log = Watched(cluster.log)
    log.delete_before(begin)
    with LogReplica(log, start_finder=cluster.start_finder(), watch_s=WATCH_S) as replica:
        assert digest(replica.read_barrier()) == digest(cluster.state)
        log.await_looks(5)
        assert replica.halted is None


def test_a_reader_at_the_end_survives_a_truncation(cluster: Cluster) -> None:
    begin = ordered(cluster, cluster.store("publisher"))
    log = Watched(cluster.log)
    with LogReplica(log, watch_s=WATCH_S) as replica:
        replica.read_barrier()
        log.delete_before(begin)
        log.await_looks(5)
        log.append([cluster.author.entry(cluster.state, Noop()).data])
        assert replica.read_barrier().epoch == cluster.state.epoch + 1
        assert replica.halted is None


def test_a_reader_without_a_snapshot_reports_the_remedy(cluster: Cluster) -> None:
    cluster.log.delete_before(ordered(cluster, cluster.store()))
    for start_finder in (cluster.start_finder(), None):
        with pytest.raises(LogTruncated, match="restore the topic; see `ringlog snapshot list`"):
            LogReplica(cluster.log, start_finder=start_finder).start()
        with pytest.raises(LogTruncated, match="no snapshot covers that offset"):
            cluster_id_of_log(cluster.log, start_finder=start_finder)


def test_the_cluster_is_known_without_its_initial_entry(cluster: Cluster) -> None:
    assert cluster_id_of_log(cluster.log) == cluster.state.cluster_id
    cluster.log.delete_before(ordered(cluster, cluster.store("publisher")))
    assert cluster_id_of_log(cluster.log, start_finder=cluster.start_finder()) == cluster.state.cluster_id


@pytest.mark.parametrize("before", [True, False])
def test_an_unordered_deletion_halts_even_with_a_snapshot(cluster: Cluster, before: bool) -> None:
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
def test_an_overtaken_replica_restarts(cluster: Cluster, away: int) -> None:
    head = cluster.store("publisher")
    ordered(cluster, head)
    log = Going(cluster.log, head.position - 1)
    with LogReplica(log, start_finder=Late(cluster, away)) as replica:
        assert digest(replica.read_barrier()) == digest(cluster.state)
        assert sum(replica.counts.values()) == log.end_offset() - head.position


def test_a_replica_with_followers_needs_a_restart(cluster: Cluster) -> None:
    head = cluster.store("publisher")
    ordered(cluster, head)
    replica = LogReplica(Going(cluster.log, head.position - 1), start_finder=Late(cluster))
    replica.subscribe(lambda *_: None)
    with replica, raises_code(ReplicaHalted, "log_passed"):
        replica.read_barrier()
