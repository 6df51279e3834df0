"""The cache writer archives and truncates: never above the permitted position, and no record that a process still
needs.
"""

from __future__ import annotations

import random
import threading
from contextlib import closing
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ringlog.agents.maintenance.snapshots import RESTS_MAX, AwaitSnapshotWork, SnapshotSteps, SnapshotThread, SubmitOnce
from ringlog.agents.maintenance.truncation import LogEnds
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, RecordArchive, TruncateLog, is_known
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import confirmed_snapshots
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.log.archive.archive import Archive
from ringlog.log.archive.locations import ArchiveLocation, open_location
from ringlog.log.errors import ArchiveForged, ArchiveGap, LogError, LogUnavailable, SnapshotIncomplete
from ringlog.log.memory import MemoryKeyed
from ringlog.log.replicas.replay import catch_up
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.protocol.effects import Newest
from ringlog.runtime.clock import ManualClock
from ringlog.wire.records import StoredSnapshot
from tests.log.test_snapshots import Cluster, confirmation
from tests.waiting import until


class World:
    """A cluster with one confirmed snapshot, and the cache writer's bounds of the log."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster()
        self.cluster.live(random.Random(4), 30)
        self.folder = folder
        self.store: ArchiveLocation | None = None
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


def test_only_the_ordered_part_is_deleted(world: World) -> None:
    made = world.archived()
    assert (made.epoch, made.position) == (world.head.epoch, world.head.position)
    ends, log = world.ends(), world.cluster.log
    ends.truncate(world.cluster.state)
    assert log.begin_offset() == 0, "no truncation is ordered"
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
    with LogReplica(log, start_finder=world.cluster.start_finder()) as replica:
        assert digest(replica.read_barrier()) == digest(world.cluster.state)


def test_the_archive_grows_behind_a_log_that_was_truncated(world: World) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.ends().truncate(world.cluster.state)
    world.stored()
    made = world.archived()
    assert made.epoch == world.cluster.taken[-1].state.epoch
    assert [head.first for head in Archive(world.folder).segments()] == [1, world.head.epoch + 1]


def test_an_archive_in_a_store_permits_truncation_like_one_in_a_folder(world: World) -> None:
    world.store = open_location("memory://truncated")
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    (segment,) = Archive(world.store).segments()
    MemoryFileSystem().rm_file(f"/truncated/{segment.name}")
    world.refused(ArchiveGap)
    world.archived()
    world.ends().truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.head.position - 1


def test_truncation_without_a_configured_archive_works(world: World) -> None:
    assert world.extended(world.ends(archive=False)) is None
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.ends(archive=False).truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.head.position - 1


def test_nothing_is_deleted_without_an_initial_snapshot(world: World) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    kept, world.cluster.records = world.cluster.records, MemoryKeyed()
    world.refused(SnapshotIncomplete)
    world.cluster.records = kept
    disputed = confirmation(world.head, "publisher")
    SnapshotTopic(kept).confirm(type(disputed)(**{**_fields(disputed), "digest": "0" * 64}))
    world.refused(SnapshotIncomplete)


def test_nothing_is_deleted_with_only_later_snapshots(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    ends = world.ends(archive=False)
    world.cluster.store("publisher")
    world.cluster.records.delete_before(world.cluster.records.end_offset() - 3)
    world.refused(SnapshotIncomplete, ends)


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__slots__}  # type: ignore[attr-defined]


def test_unarchived_records_are_not_deleted(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.refused(ArchiveGap)
    world.archived()
    (path,) = world.folder.iterdir()
    path.unlink()
    world.refused(ArchiveGap)


def test_nothing_is_deleted_if_the_log_names_another_archive(world: World, tmp_path: Path) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.folder = tmp_path / "other"
    ends = world.ends()
    world.cluster.log.gap()
    world.stored()
    assert world.extended(ends) is not None, "one segment up to this position, where the first archive has two"
    world.refused(ArchiveForged, ends)


def test_records_needed_by_the_publisher_are_not_deleted(world: World) -> None:
    world.archived()
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.published = world.head.epoch
    world.refused(LogUnavailable)
    world.published += 1
    world.ends().truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.head.position - 1


def test_a_superseded_cache_writer_deletes_nothing(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    world.acts = False
    world.ends(archive=False).truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == 0


def steps_of(world: World, role: str = "keeper") -> SnapshotSteps:
    cluster = world.cluster
    topic = SnapshotTopic(cluster.records)
    return SnapshotSteps(role, lambda: topic, cluster.log.identity, lambda: 7_000_000, lambda: role, world.ends())


class Driven:
    """The steps of the cache writer, one pause after the other; ``submits``: the log applies its requests."""

    def __init__(self, world: World, *, submits: bool = True) -> None:
        self.world, self.submits = world, submits
        self.steps = steps_of(world)
        self._doing = self.steps.run()
        self._effect: object = self._doing.send(None)
        assert self.steps.resume(world.cluster.state, None)

    def rest(self) -> None:
        """Run until the cache writer waits for work again."""
        self._effect = self._doing.send(None)
        while not isinstance(self._effect, AwaitSnapshotWork):
            if isinstance(self._effect, SubmitOnce) and self.submits:
                self.world.cluster.apply(self._effect.command)
            self._effect = self._doing.send(self.world.cluster.state if isinstance(self._effect, Newest) else None)

    def pauses_until_attempt(self) -> int:
        """Return the number of pauses until the next failed attempt at the archive."""
        tries = self.tries
        for rests in range(1, 2 * RESTS_MAX):
            self.rest()
            if self.tries > tries:
                return rests
        raise AssertionError("it is not tried again")

    @property
    def tries(self) -> int:
        behind = self.steps._behind
        return 0 if behind is None else behind.tries


def test_an_unavailable_location_is_retried_with_bounded_growing_pauses(world: World) -> None:
    world.folder.write_text("a file is where the folder was")
    keeper = Driven(world)
    assert keeper.steps.is_due
    assert [keeper.pauses_until_attempt() for _ in range(9)] == [1, 1, 2, 4, 8, 16, 32, 64, 64]
    assert not keeper.steps.is_due, "otherwise the next attempt has no pause"
    said = keeper.steps.waits
    assert f"epochs up to {world.head.epoch} since 1970-01-01T00:00:07+00:00: archive_unavailable" in said
    world.folder.unlink()
    while keeper.steps.waits:
        keeper.rest()
    assert world.cluster.state.log_bounds["archived"].epoch == world.head.epoch
    assert not keeper.steps.has_unfinished_work


def test_a_new_snapshot_is_archived_at_once_and_failures_are_retried(world: World) -> None:
    world.folder.write_text("a file is where the folder was")
    keeper = Driven(world)
    for _ in range(12):
        keeper.rest()
    taken = world.cluster.state
    world.cluster.apply(TakeSnapshot())
    kept, world.cluster.records.put = world.cluster.records.put, refuses  # type: ignore[method-assign, assignment]
    assert keeper.steps.folded(taken, world.cluster.state, world.cluster.log.end_offset() - 1)
    keeper.rest()
    assert f"epochs up to {world.head.epoch} since" in keeper.steps.waits, (
        "a snapshot that cannot be stored is not archived"
    )
    world.cluster.records.put = kept  # type: ignore[method-assign]
    world.folder.unlink()
    taken = world.cluster.state
    world.cluster.apply(TakeSnapshot())
    assert keeper.steps.folded(taken, world.cluster.state, world.cluster.log.end_offset() - 1)
    marked = world.cluster.state.epoch
    keeper.rest()
    assert world.cluster.state.log_bounds["archived"].epoch == marked
    assert not keeper.steps.has_unfinished_work


def test_the_log_finally_records_the_archive(world: World) -> None:
    keeper = Driven(world, submits=False)
    keeper.rest()
    assert "the log does not record the archive" in keeper.steps.waits
    keeper.submits = True
    keeper.rest()
    assert world.cluster.state.log_bounds["archived"].epoch == world.head.epoch
    assert not keeper.steps.waits
    assert [head.last for head in Archive(world.folder).segments()] == [world.head.epoch], "the entry exists already"


def refuses(key: str, data: bytes | None) -> int:
    raise LogUnavailable(f"{key} is not taken: {data is None}")


# --------------------------------------------------------------------------------------------------- in threads


def archived_up_to(state: ClusterState) -> int:
    bound = state.log_bounds.get("archived")
    return 0 if bound is None else bound.epoch


class Threads:
    """Threads of agents on one cluster; the log applies their requests."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replicas: list[LogReplica] = []
        self.threads: list[SnapshotThread] = []
        self.one_at_a_time = threading.Lock()

    def act(self, role: str, ends: LogEnds | None = None) -> LogReplica:
        cluster = self.world.cluster
        replica = LogReplica(cluster.log, start_finder=cluster.start_finder()).start()
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
        replica.subscribe(
            lambda before, after, _item, _outcome, offset: thread.folded(before, after, offset), replica.halt_on_defect
        )
        thread.resume(replica.state, None)
        self.replicas.append(replica)
        self.threads.append(thread)
        return replica

    def submit(self, replica: LogReplica, command: Command) -> None:
        with self.one_at_a_time:
            if not is_known(replica.state, command):
                self.world.cluster.apply(command)

    def apply(self, command: Command) -> None:
        """Append in order with the requests of the threads, since an overtaken entry is stale."""
        with self.one_at_a_time:
            self.world.cluster.apply(command)

    def close(self) -> None:
        for thread in self.threads:
            thread.stop()
        for replica in self.replicas:
            replica.stop()


def test_threads_confirm_archive_and_delete(world: World) -> None:
    with closing(Threads(world)) as threads:
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


def test_a_take_over_archives_confirmed_snapshots(world: World) -> None:
    """The previous cache writer died after the snapshot was confirmed and before it was archived."""
    with closing(Threads(world)) as threads:
        keeper = threads.act("keeper", world.ends())
        archived = keeper.wait_for(lambda state: state.log_bounds.get("archived"), 60, "an archive")
        assert (archived.epoch, archived.position) == (world.head.epoch, world.head.position)
        end = world.cluster.log.end_offset()
        catch_up(keeper)
        assert world.ends().behind(keeper.state) is None
        assert world.ends(archive=False).behind(keeper.state) is None
        assert end == world.cluster.log.end_offset(), "no work is left"


def test_the_thread_of_the_cache_writer_retries(world: World) -> None:
    world.folder.write_text("a file is where the folder was")
    with closing(Threads(world)) as threads:
        keeper = threads.act("keeper", world.ends())
        thread = threads.threads[0]
        until(lambda: "archive_unavailable" in thread.waits, "a failed attempt")
        world.folder.unlink()
        archived = keeper.wait_for(lambda state: state.log_bounds.get("archived"), 60, "an archive")
        assert archived.epoch == world.head.epoch
        until(lambda: not thread.waits, "the agent to have no pending wait")


def test_a_take_over_completes_the_remaining_work(world: World) -> None:
    world.cluster.apply(TruncateLog(world.head.epoch))
    with closing(Threads(world)) as threads:
        threads.act("keeper", world.ends(archive=False))
        _await(world, world.head.position - 1)


def _await(world: World, begin: int) -> None:
    log = world.cluster.log
    with log._changed:
        assert log._changed.wait_for(lambda: log.begin_offset() == begin, 60)


def test_a_log_without_its_first_entry_reports_the_remedy_for_its_archive(world: World) -> None:
    """The log is in this condition after a recovery from a member's copy."""
    world.cluster.log.delete_before(world.head.position - 1)
    keeper = Driven(world)
    keeper.rest()
    assert "archive_too_late" in keeper.steps.waits
    assert "start the cache writer without RINGLOG_ARCHIVE" in keeper.steps.waits
    assert "fix the location" not in keeper.steps.waits
    assert Archive(world.folder).segments() == ()
    world.stored()
    world.cluster.apply(TruncateLog(world.cluster.taken[-1].state.epoch))
    ends = world.ends(archive=False)
    assert ends.archive(world.cluster.state.epoch, str) is None
    ends.truncate(world.cluster.state)
    assert world.cluster.log.begin_offset() == world.cluster.taken[-1].position - 1, "the remedy works"
