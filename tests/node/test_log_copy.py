"""A member's copy of the log: synced entries survive, it starts with the newest snapshot, and it has one history."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.service import AddServiceMember
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, TruncateLog
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import Epoch, OperationId, replace
from ringlog.log.archive.copies import end_of
from ringlog.log.errors import CopyDamaged, LogForked, LogTruncated
from ringlog.log.folding import BEGINNING, Start
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.node.log.log_copy import COPY, CopyFile, CopyState, copy_of_member, read_copy_state, reopen_copy
from ringlog.node.log.member_copy import EVIDENCE, CopyGatedRegisters, MemberCopy, open_copy
from ringlog.wire.records import StoredSnapshot
from tests.kernel.commands.test_service import ONE, of
from tests.log.test_snapshots import Cluster

LONG_S = 60.0


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(3), 40)
    return made


@pytest.fixture
def copy(tmp_path: Path, cluster: Cluster) -> Iterator[CopyFile]:
    """Return a copy of the whole log."""
    with closing(open_copy(tmp_path / COPY, cluster.log, cluster.start_finder())) as made:
        filled(made, cluster)
        yield made


def filled(copy: CopyFile, cluster: Cluster) -> None:
    assert copy.append(cluster.log.read(copy.state.next, 0, 100_000)[0]) == cluster.state.epoch


def confirmed(cluster: Cluster) -> StoredSnapshot:
    """Return a snapshot that the log confirms."""
    head = cluster.store("publisher")
    said = head.epoch, head.state_id, head.position, head.digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")))
    return head


def folded(folder: Path) -> str:
    return digest(end_of(copy_of_member(folder)).at.state)


def test_a_copy_replays_to_the_log_from_the_newest_snapshot(tmp_path: Path, cluster: Cluster, copy: CopyFile) -> None:
    assert copy.state.base == BEGINNING
    assert folded(tmp_path) == digest(cluster.state)
    cluster.apply(TakeSnapshot())  # the snapshot is not confirmed
    heads = [confirmed(cluster) for _ in range(3)]
    filled(copy, cluster)
    cluster.apply(*[Noop()] * 5)
    filled(copy, cluster)
    kept = copy_of_member(tmp_path)
    assert (kept.start.state.epoch, kept.begin) == (heads[-1].epoch, heads[-1].position - 1)
    assert list(kept.records()) == cluster.log.read(kept.begin, 0, 100_000)[0]
    assert folded(tmp_path) == digest(cluster.state)
    copy.close()
    again = reopen_copy(tmp_path / COPY)
    assert again is not None
    assert again.state.at == Start(cluster.state, cluster.log.end_offset())
    again.close()


def test_a_torn_end_is_cut_and_read_again(tmp_path: Path, cluster: Cluster, copy: CopyFile) -> None:
    path = tmp_path / COPY
    before, synced = copy.state.at, path.stat().st_size
    cluster.apply(Noop(), Noop())
    filled(copy, cluster)
    copy.close()
    data = path.read_bytes()
    for size in range(synced, len(data), 37):
        path.write_bytes(data[:size])
        assert read_copy_state(path).at.position >= before.position
    with closing(open_copy(path, cluster.log, cluster.start_finder())) as again:
        filled(again, cluster)
    assert folded(tmp_path) == digest(cluster.state)


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_damaged_copy_is_rejected_and_kept(
    tmp_path: Path, cluster: Cluster, copy: CopyFile, with_snapshot: bool
) -> None:
    if with_snapshot:
        confirmed(cluster)
    for _ in range(3):
        cluster.apply(Noop())
        filled(copy, cluster)
    copy.close()
    path = tmp_path / COPY
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CopyDamaged):
        copy_of_member(tmp_path)
    with closing(open_copy(path, cluster.log, cluster.start_finder())) as anew:
        filled(anew, cluster)
    assert path.with_suffix(EVIDENCE).read_bytes() == data
    assert folded(tmp_path) == digest(cluster.state)


def test_a_copy_of_a_snapshot_alone_is_compared_with_the_record_before_it(tmp_path: Path, cluster: Cluster) -> None:
    cluster.apply(Noop())
    base = Start(cluster.state, cluster.log.end_offset())
    cluster.apply(Noop(), Noop())
    records = cluster.log.read(base.position - 1, 0, 100)[0]
    for first, is_it in ((replace(records[0], data=records[1].data), False), (records[0], True)):
        with closing(CopyFile(tmp_path / COPY, CopyState(cluster.log.identity(), base), ())) as copy:
            if is_it:
                assert copy.append([first, *records[1:]]) == cluster.state.epoch
            else:
                with pytest.raises(LogForked, match="snapshot of the member's copy"):
                    copy.append([first, *records[1:]])


def test_a_log_with_another_history_never_replaces_the_copy(tmp_path: Path, cluster: Cluster, copy: CopyFile) -> None:
    copy.close()
    path = tmp_path / COPY
    data, end = path.read_bytes(), cluster.log.end_offset()
    cluster.log.truncate(end - 3)
    with pytest.raises(LogTruncated, match="ringlog recover"):
        open_copy(path, cluster.log, cluster.start_finder())
    cluster.log.append([b"other"] * 5)
    with closing(open_copy(path, cluster.log, cluster.start_finder())) as again, pytest.raises(LogForked):
        again.append(cluster.log.read(again.state.next, 0, 100)[0])
    cluster.log.delete_before(cluster.log.end_offset())
    with pytest.raises(LogTruncated):
        open_copy(path, cluster.log, cluster.start_finder())
    assert read_copy_state(path).at.position == end
    assert len(path.read_bytes()) == len(data)


def test_a_copy_restarts_if_the_log_starts_later(tmp_path: Path, cluster: Cluster, copy: CopyFile) -> None:
    copy.close()
    head = confirmed(cluster)
    cluster.apply(TruncateLog(head.epoch))
    cluster.log.delete_before(head.position - 1)
    with closing(open_copy(tmp_path / COPY, cluster.log, cluster.start_finder())) as anew:
        filled(anew, cluster)
    assert copy_of_member(tmp_path).start.state.epoch == head.epoch
    assert folded(tmp_path) == digest(cluster.state)


class Registers:
    def acknowledgeable(self) -> Epoch:
        return 1_000_000

    def received(self, operation: OperationId) -> bool:
        return bool(operation)


class From(StartPointFinder):
    """A reader that starts with a given state."""

    def __init__(self, start: Start) -> None:
        super().__init__(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        self._start = start

    def start(self, *_: object) -> Start:
        return self._start


def test_a_member_acknowledges_the_epoch_of_its_copy(tmp_path: Path) -> None:
    world = Cluster(state=replace(of(2), name="c"))
    world.apply(Noop())
    start, news, stopping = Start(world.state, 1), threading.Event(), threading.Event()
    with LogReplica(world.log, start=start) as replica:
        copy = MemberCopy(tmp_path / COPY, ONE, replica, From(start), 1, news, stopping)
        side = CopyGatedRegisters(Registers(), copy, lambda: replica.read_barrier(LONG_S))
        assert (side.acknowledgeable(), side.received("x")) == (1_000_000, True)
        world.apply(AddServiceMember(ONE))
        assert side.acknowledgeable() == 1, "the previous acknowledgement"
        thread = threading.Thread(target=copy.run)
        thread.start()
        try:
            assert news.wait(LONG_S)
            assert side.acknowledgeable() == world.state.epoch
            assert (tmp_path / COPY).exists()
        finally:
            stopping.set()
            thread.join(LONG_S)
    assert not thread.is_alive()
