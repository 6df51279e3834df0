"""The keeper archives and deletes: never above what the log allows, and nothing that somebody may still need."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ringlog.agents.snapshots import SnapshotSteps, SnapshotThread
from ringlog.agents.truncation import LogEnds
from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.commands.snapshots import TakeSnapshot
from ringlog.kernel.commands.truncation import ConfirmSnapshot, RecordArchive, TruncateLog, is_known
from ringlog.kernel.encoding import digest
from ringlog.kernel.log_ends import confirmed_snapshots
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.log.archive import Archive
from ringlog.log.archive_places import ArchivePlace, place_of
from ringlog.log.beginning import SnapshotTopic
from ringlog.log.errors import ArchiveForged, ArchiveGap, LogError, LogUnavailable, SnapshotIncomplete
from ringlog.log.memory import MemoryKeyed
from ringlog.log.replay import catch_up
from ringlog.log.replica import LogReplica
from ringlog.runtime.clock import ManualClock
from ringlog.wire.records import StoredSnapshot
from tests.log.test_snapshots import Cluster, confirmation


class World:
    """A cluster with one confirmed snapshot, and its keeper's ends of the log."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster()
        self.cluster.live(random.Random(4), 30)
        self.folder = folder
        self.store: ArchivePlace | None = None
        self.published = 10_000
        self.acts = True
        self.head = self.stored()

    def stored(self) -> StoredSnapshot:
        head = self.cluster.store("publisher")
        said = head.epoch, head.state_id, head.position, head.digest
        self.cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), Noop())
        return head

    def ends(self, archive: bool = True) -> LogEnds:
        cluster = self.cluster
        return LogEnds(
            cluster.log,
            lambda: SnapshotTopic(cluster.records),
            cluster.log.delete_before,
            Archive(self.store or self.folder) if archive else None,
            lambda: self.published,
            lambda: self.acts,
        )

    def extended(self, ends: LogEnds) -> RecordArchive | None:
        newest = self.cluster.taken[-1].state
        return ends.archive(newest.epoch, lambda: digest(newest))

    def archived(self) -> RecordArchive:
        made = self.extended(self.ends())
        assert made is not None
        self.cluster.apply(made)
        return made

    def refused(self, kind: type[LogError], ends: LogEnds | None = None) -> None:
        before = self.cluster.log.begin_offset()
        with pytest.raises(kind):
            (ends or self.ends()).truncate(self.cluster.state)
        assert self.cluster.log.begin_offset() == before


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "archive")


def test_what_was_ordered_goes_and_nothing_else(world: World) -> None:
    made = world.archived()
    assert (made.epoch, made.position) == (world.head.epoch, world.head.position)
    ends, log = world.ends(), world.cluster.log
    ends.truncate(world.cluster.state)
    assert log.begin_offset() == 0, "nobody has ordered anything"
    world.cluster.apply(TruncateLog(world.head.epoch))
    for _ in range(2):
        ends.truncate(world.cluster.state)
        assert log.begin_offset() == world.head.position - 1
    second = world.stored()
    world.archived()
    ends.truncate(world.cluster.state)
    assert log.begin_offset() == world.head.position - 1
    world.cluster.apply(TruncateLog(second.epoch))
    ends.truncate(world.cluster.state)
    assert log.begin_offset() == second.position - 1
    with LogReplica(log, beginning=world.cluster.beginning()) as replica:
        assert digest(replica.read_barrier()) == digest(world.cluster.state)


def test_the_archive_grows_behind_a_log_that_was_truncated(world: World) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.ends().truncate(world.cluster.state)
    world.stored()
    made = world.archived()
    assert made.epoch == world.cluster.taken[-1].state.epoch
    assert [head.first for head in Archive(world.folder).segments()] == [1, world.head.epoch + 1]


def test_an_archive_in_a_store_lets_go_of_the_log_as_one_in_a_folder_does(world: World) -> None:
    world.store = place_of("memory://truncated")
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    (segment,) = Archive(world.store).segments()
    MemoryFileSystem().rm_file(f"/truncated/{segment.name}")
    world.refused(ArchiveGap)
    world.archived()
    world.ends().truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.head.position - 1


def test_who_has_no_archive_needs_none(world: World) -> None:
    assert world.extended(world.ends(archive=False)) is None
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.ends(archive=False).truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.head.position - 1


def test_nothing_goes_without_a_snapshot_to_begin_with(world: World) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    kept, world.cluster.records = world.cluster.records, MemoryKeyed()
    world.refused(SnapshotIncomplete)
    world.cluster.records = kept
    disputed = confirmation(world.head, "coordinator")
    SnapshotTopic(kept).confirm(type(disputed)(**{**_fields(disputed), "digest": "0" * 64}))
    world.refused(SnapshotIncomplete)


def test_nothing_goes_if_only_later_snapshots_are_there(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    ends = world.ends(archive=False)
    world.cluster.store("publisher")
    world.cluster.records.delete_before(world.cluster.records.end_offset() - 3)
    world.refused(SnapshotIncomplete, ends)


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__slots__}  # type: ignore[attr-defined]


def test_nothing_goes_that_the_archive_lacks(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.refused(ArchiveGap)
    world.archived()
    (path,) = world.folder.iterdir()
    path.unlink()
    world.refused(ArchiveGap)


def test_nothing_goes_if_the_log_knows_of_another_archive(world: World, tmp_path: Path) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.folder = tmp_path / "other"
    ends = world.ends()
    world.cluster.log.gap()
    world.stored()
    assert world.extended(ends) is not None, "one segment up to here, where the first has two"
    world.refused(ArchiveForged, ends)


def test_nothing_goes_that_the_publisher_needs(world: World) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.published = world.head.epoch
    world.refused(LogUnavailable)
    world.published += 1
    world.ends().truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.head.position - 1


def test_who_was_superseded_deletes_nothing(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.acts = False
    world.ends(archive=False).truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == 0


# --------------------------------------------------------------------------------------------------- in threads


def archived_up_to(state: ClusterState) -> int:
    bound = state.log_bounds.get("archived")
    return 0 if bound is None else bound.epoch


class Threads:
    """Agents' threads on one cluster; what they submit is applied."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replicas: list[LogReplica] = []
        self.threads: list[SnapshotThread] = []
        self.one_at_a_time = threading.Lock()

    def act(self, role: str, ends: LogEnds | None = None) -> LogReplica:
        cluster = self.world.cluster
        replica = LogReplica(cluster.log, beginning=cluster.beginning()).start()
        catch_up(replica)
        steps = SnapshotSteps(
            role,
            lambda: SnapshotTopic(cluster.records),
            lambda: replica.identity,
            ManualClock().now_us,
            lambda: f"{role}-{cluster.log.end_offset()}",
            ends,
        )
        thread = SnapshotThread(role, steps, lambda: replica.state, lambda command: self.submit(replica, command), 0.01)
        replica.subscribe(lambda before, after, _item, _outcome, offset: thread.folded(before, after, offset))
        thread.acts(replica.state, None)
        self.replicas.append(replica)
        self.threads.append(thread)
        return replica

    def submit(self, replica: LogReplica, command: Command) -> None:
        with self.one_at_a_time:
            if not is_known(replica.state, command):
                self.world.cluster.apply(command)

    def apply(self, command: Command) -> None:
        """What the threads submit follows this, or this follows it: an entry that another one passed would be stale."""
        with self.one_at_a_time:
            self.world.cluster.apply(command)

    def close(self) -> None:
        for thread in self.threads:
            thread.stop()
        for replica in self.replicas:
            replica.stop()


def test_threads_confirm_archive_and_delete(world: World) -> None:
    threads = Threads(world)
    try:
        keeper = threads.act("keeper", world.ends())
        threads.act("publisher")
        threads.apply(TakeSnapshot())
        marked = world.cluster.taken[-1].state.epoch
        keeper.wait_for(lambda state: confirmed_snapshots(state)[1:] or None, 60, "a confirmation")
        keeper.wait_for(lambda state: archived_up_to(state) == marked or None, 60, "an archive")
        catch_up(keeper)
        world.published = 0
        threads.apply(TruncateLog(marked))
        catch_up(keeper)
        assert world.cluster.log.begin_offset() == 0
        world.published = 10_000
        _await(world, world.cluster.taken[-1].position - 1)
    finally:
        threads.close()


def test_who_takes_over_archives_what_was_confirmed(world: World) -> None:
    """The keeper before it died when the snapshot was confirmed, and not yet archived."""
    threads = Threads(world)
    try:
        keeper = threads.act("keeper", world.ends())
        archived = keeper.wait_for(lambda state: state.log_bounds.get("archived"), 60, "an archive")
        assert (archived.epoch, archived.position) == (world.head.epoch, world.head.position)
        end = world.cluster.log.end_offset()
        catch_up(keeper)
        assert world.ends().behind(keeper.state) is None
        assert world.ends(archive=False).behind(keeper.state) is None
        assert end == world.cluster.log.end_offset(), "nothing more is to do"
    finally:
        threads.close()


def test_who_takes_over_does_what_was_left(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    threads = Threads(world)
    try:
        threads.act("keeper", world.ends(archive=False))
        _await(world, world.head.position - 1)
    finally:
        threads.close()


def _await(world: World, begin: int) -> None:
    log = world.cluster.log
    with log._changed:
        assert log._changed.wait_for(lambda: log.begin_offset() == begin, 60)
