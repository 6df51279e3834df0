"""A reader's stored view of the log: it detects a log that was cut, extended, truncated or replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.client.creation.creation import cluster_id_of_log
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.values import asdict, replace
from ringlog.log.author import Author
from ringlog.log.errors import LogDamaged, LogReplaced, LogTruncated, ReplicaHalted
from ringlog.log.memory import MemoryLog, MemoryTail
from ringlog.log.port import LogRecord
from ringlog.log.replicas.identity import (
    ClusterIdentityStore,
    FileIdentityStore,
    IdentityRecord,
    KnownEpoch,
    Topic,
    load_record,
    save_record,
)
from ringlog.log.replicas.replica import LogReplica
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import decode_entry, encode_entry
from tests.log.exactly_once import appended, founded
from tests.node.data_world import until

WATCH_S = 0.05
HERE, THERE = "kafka-a", "kafka-b"


class World:
    """A cluster on a log in memory, and its other writers."""

    def __init__(
        self, kafka: str = HERE, seed: bytes = b"x", history: int = 1_000, log: MemoryLog | None = None
    ) -> None:
        self.log = log or MemoryLog("shop.metadata")
        self.log.kafka = kafka
        self.seed = seed
        founded(self.log, "shop", {"history_entries": history}, draw=SeededDraw(seed))
        self.cluster_id = cluster_id_of_log(self.log)

    def grow(self, entries: int, seed: bytes = b"others") -> None:
        """Append that many entries of another writer."""
        appended(self.log, entries, draw=SeededDraw(seed))

    def read(self, memory: Path | ClusterIdentityStore | None = None, **options: object) -> str:
        """Return the halt code of a reader of the whole log, or None."""
        replica = LogReplica(self.log, record=memory, watch_s=WATCH_S, **options)  # type: ignore[arg-type]
        try:
            with replica:
                replica.read_barrier(60)
                return ""
        except (ReplicaHalted, LogDamaged) as error:
            return error.code


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=["file", "records"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | ClusterIdentityStore:
    return tmp_path / "record.json" if request.param == "file" else ClusterIdentityStore(tmp_path, "shop", "validator")


# ------------------------------------------------------------------------------------------------ cut and extended logs


@pytest.mark.parametrize("grown", [4, 5, 50])
def test_a_log_cut_and_grown_again_is_another_history(
    world: World, memory: Path | ClusterIdentityStore, grown: int
) -> None:
    world.grow(8)
    assert world.read(memory) == ""
    world.log.truncate(5)
    world.grow(grown, seed=b"after the power cut")
    assert world.read(memory) == "log_forked"
    assert world.read(memory) == "log_forked", "the halt is permanent"


BRANCHES = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 12), st.integers(0, 3))


@settings(max_examples=12, deadline=None)
@given(BRANCHES)
def test_a_reader_continues_only_if_the_log_has_its_entries(branch: tuple[int, int, int, int]) -> None:
    """(entries seen, entries that the cut keeps, entries appended later, other records among them)."""
    seen, left, grown, noise = branch
    world = World()
    world.grow(seen)
    with TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        assert world.read(record) == ""
        if left < seen:
            world.log.truncate(1 + left)
        world.log.append([b"no entry"] * noise)
        world.grow(grown, seed=b"after the power cut")
        halted = world.read(record)
        # A reader that saw no lost entry continues. Another one halts: at once if the log is shorter, otherwise at the
        # epoch.
        assert bool(halted) == (left < seen)
        assert halted in ("", "log_truncated" if left + noise + grown < seen else "log_forked")


def test_another_history_is_detected_beyond_the_retained_epochs(memory: Path | ClusterIdentityStore) -> None:
    """The reader compares the state of the stored epoch when it folds it, for any length of the history."""
    world = World(history=100)
    world.grow(8)
    assert world.read(memory) == ""
    world.log.truncate(5)
    world.grow(300, seed=b"after the power cut")
    assert world.read(memory) == "log_forked"


def test_a_log_grown_by_other_records_is_another_history(world: World, memory: Path | ClusterIdentityStore) -> None:
    world.grow(8)
    assert world.read(memory) == ""
    world.log.truncate(5)
    world.log.append([b"no entry"] * 20)
    assert world.read(memory) == "log_forked"


def test_an_extended_log_is_the_same(world: World, memory: Path | ClusterIdentityStore) -> None:
    for number in range(3):
        assert world.read(memory) == ""
        world.grow(3, seed=b"%d" % number)
        world.log.append([b"no entry"])
        world.log.gap(2)
    assert world.read(memory) == ""


def test_the_halt_names_the_file_the_epoch_and_both_states(world: World, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    world.grow(8)
    assert world.read(record) == ""
    known = load_record(record)
    assert known is not None
    world.log.truncate(5)
    world.grow(10, seed=b"after the power cut")
    with LogReplica(world.log, record=record) as replica, pytest.raises(ReplicaHalted) as caught:
        replica.read_barrier()
    assert replica.state.epoch == known.epoch - 1, "the reader stops before the entry that contradicts its view"
    assert f"epoch {known.epoch} had state {known.state_id} according to {record}" in str(caught.value)


def test_views_of_other_files_are_compared_too(world: World) -> None:
    """A node's folder and its journal have separate epochs."""
    world.grow(8)
    with LogReplica(world.log) as replica:
        ids = {entry.epoch: entry.state_id for entry in replica.read_barrier().history}
    assert world.read(seen=[KnownEpoch(4, ids[4], "a node"), KnownEpoch(9, ids[9], "its journal")]) == ""
    assert world.read(seen=[KnownEpoch(4, ids[4], "a node"), KnownEpoch(9, ids[8], "its journal")]) == "log_forked"


def test_a_rewritten_entry_with_the_same_ids_is_another_history(world: World, tmp_path: Path) -> None:
    """A forger with access to the disks of the broker can keep all state ids. The chain shows the change."""
    records = ClusterIdentityStore(tmp_path, "shop", "validator")
    world.grow(5)
    assert world.read(records) == ""
    entry = decode_entry(world.log._records[3].data)
    assert isinstance(entry, Entry)
    assert isinstance(entry.command, Noop)
    forged = encode_entry(replace(entry, submitter="another author"), encode_command(entry.command)[2])
    world.log._records[3] = replace(world.log._records[3], data=forged)
    assert world.read(records) == "log_forked"


def test_an_emptied_and_recreated_log_is_another_history(world: World, tmp_path: Path) -> None:
    records = ClusterIdentityStore(tmp_path, "shop", "validator")
    assert world.read(records) == ""
    other = World(seed=b"another founder")
    other.grow(5)
    with LogReplica(other.log) as replica:
        replica.read_barrier()
    other.log._identity = world.log.identity()
    assert other.read(records) == "log_forked"


def test_a_record_without_a_state_is_made_complete(world: World, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    world.grow(3)
    save_record(record, IdentityRecord(world.log.identity(), world.log.end_offset()))
    assert world.read(record) == ""
    known = load_record(record)
    assert known is not None
    assert (known.epoch, known.cluster_id, known.kafka) == (4, world.cluster_id, HERE)


# ----------------------------------------------------------------------------------------------------- running replicas


def halt_of(replica: LogReplica) -> str:
    with pytest.raises(ReplicaHalted) as caught:
        replica.wait_for(lambda _: None, 60, "its halt")
    return caught.value.code


def test_a_running_replica_halts_when_the_log_loses_its_beginning(world: World) -> None:
    world.grow(8)
    with LogReplica(world.log, watch_s=WATCH_S) as replica:
        replica.read_barrier()
        world.log.delete_before(4)
        assert halt_of(replica) == "log_truncated"
        assert replica.halted is not None
        assert "begins at offset 4" in replica.halted.detail


class Unseen(MemoryLog):
    """A log whose running reader misses the cut: the reader slept until the log was longer than before."""

    asleep = False

    def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
        return ([], position) if self.asleep else super().read(position, min(timeout_s, 0.01), records_max)

    def cut(self, end: int, lost_by: list[bytes]) -> None:
        """Remove the records above ``end`` and append others before any read."""
        with self._changed:
            self.asleep = True
            self.truncate(end)
            self.append(lost_by)
            self.asleep = False


@pytest.mark.parametrize("noise", [0, 4])
def test_a_running_replica_that_missed_the_cut_halts(noise: int) -> None:
    """Other records fill the gap, so the new entries have epochs that the replica has not reached."""
    world = World(log=Unseen("shop.metadata"))
    log = world.log
    assert isinstance(log, Unseen)
    world.grow(8 - noise)
    log.append([b"no entry"] * noise)
    with LogReplica(log, watch_s=WATCH_S) as replica:
        replica.read_barrier()
        branch = MemoryLog("shop.metadata")
        branch.append([record.data for record in log._records[:2]])
        appended(branch, 10, draw=SeededDraw(b"after the power cut"))
        log.cut(2, [record.data for record in branch._records[2:]])
        assert halt_of(replica) == "log_forked"
        assert replica.state.epoch == 9 - noise, "the replica folded no entry of the other history"


class Watched(MemoryLog):
    """A log that records its readers and their start offsets."""

    def __init__(self) -> None:
        super().__init__("shop.metadata")
        self.looks: list[int] = []

    def tail(self, from_offset: int) -> MemoryTail:
        self.looks.append(from_offset)
        return super().tail(from_offset)


def test_entries_of_a_lying_author_halt_no_replica() -> None:
    """A replica only checks that its own newest entry is still at its offset."""
    world = World(log=Watched())
    log = world.log
    assert isinstance(log, Watched)
    world.grow(3)
    log.looks.clear()
    with LogReplica(log, watch_s=WATCH_S) as replica:
        state = replica.read_barrier()
        liar = Author("liar", ManualClock(), SeededDraw(b"liar"))
        one = liar.entry(state, Noop())
        made_up = replace(state, state_id=one.entry.state_id)
        log.append([liar.entry(made_up, Noop()).data])
        until(lambda: 3 in log.looks[1:], "a read of the newest entry")
        log.append([one.data])
        assert replica.read_barrier().epoch == state.epoch + 1
        assert replica.halted is None


# ------------------------------------------------------------------------------------------- names and clusters


def records(folder: Path) -> ClusterIdentityStore:
    return ClusterIdentityStore(folder, "shop", "validator")


def test_a_cluster_of_the_same_name_on_another_kafka_is_another_cluster(tmp_path: Path) -> None:
    """The second Kafka is another stack, or the same one after a wipe and a new cluster."""
    one, two = World(HERE, b"one"), World(THERE, b"two")
    for _ in range(2):
        assert one.read(records(tmp_path)) == ""
        assert two.read(records(tmp_path)) == ""
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(f"shop.{each.cluster_id}.validator.json" for each in (one, two))
    one.log.truncate(0)
    assert one.read(records(tmp_path)) == "log_truncated", "the file keeps both clusters"


def test_a_recreated_topic_halts_with_instructions(tmp_path: Path) -> None:
    one, two = World(HERE, b"one"), World(HERE, b"two")
    assert one.read(records(tmp_path)) == ""
    file = tmp_path / f"shop.{one.cluster_id}.validator.json"
    with pytest.raises(LogReplaced) as caught:
        LogReplica(two.log, record=records(tmp_path)).start()
    said = str(caught.value)
    assert "was deleted and created again on this Kafka" in said
    assert all(what in said for what in (str(file), one.cluster_id, one.log.identity(), two.log.identity()))
    file.unlink()
    assert two.read(records(tmp_path)) == ""


def test_a_rebuilt_log_is_accepted_only_for_its_cluster(tmp_path: Path) -> None:
    one, other, rebuilt = World(HERE, b"one"), World(THERE, b"two"), World(HERE, b"one")
    assert [world.read(records(tmp_path)) for world in (one, other)] == ["", ""]
    topic = rebuilt.log.identity()
    assert records(tmp_path).remove_outdated(one.cluster_id, one.log.identity()) == (), (
        "the file has the topic that was read"
    )
    file = tmp_path / f"shop.{one.cluster_id}.validator.json"
    assert records(tmp_path).remove_outdated(one.cluster_id, topic) == (file,)
    assert records(tmp_path).remove_outdated(one.cluster_id, topic) == ()
    assert rebuilt.read(records(tmp_path)) == ""
    other.log.truncate(0)
    assert other.read(records(tmp_path)) == "log_truncated", "the file keeps the other clusters"


def test_a_recreated_empty_topic_halts_too(tmp_path: Path) -> None:
    one, empty = World(HERE), MemoryLog("shop.metadata")
    empty.kafka = HERE
    assert one.read(records(tmp_path)) == ""
    with pytest.raises(LogReplaced):
        LogReplica(empty, record=records(tmp_path)).start()


def test_a_copy_of_the_log_on_another_kafka_halts(tmp_path: Path) -> None:
    one = World(HERE)
    assert one.read(records(tmp_path)) == ""
    one.log.replace()
    one.log.kafka = THERE
    with LogReplica(one.log, record=records(tmp_path)) as replica, pytest.raises(ReplicaHalted) as caught:
        replica.read_barrier()
    assert caught.value.code == "log_replaced"
    assert "is a copy on another Kafka" in str(caught.value)


def test_files_of_other_readers_and_clusters_are_ignored(tmp_path: Path) -> None:
    for name in ("shop.publisher.json", "shop.validator.json", "shop.x.validator.json", "other.validator.json"):
        (tmp_path / name).write_text("no record")
    assert list(records(tmp_path).known()) == []
    (tmp_path / f"shop.{World(HERE).cluster_id}.validator.json").write_text("no record")
    with pytest.raises(LogDamaged, match="does not contain a topic record"):
        list(records(tmp_path).known())


def test_a_standby_identifies_the_log_by_its_topic_alone(tmp_path: Path) -> None:
    one = World(HERE)
    assert one.read(records(tmp_path)) == ""
    records(tmp_path).check_topic(Topic(one.log.name, one.log.identity(), HERE, None))
    with pytest.raises(LogReplaced):
        records(tmp_path).check_topic(Topic(one.log.name, "another", HERE, None))
    assert [known.topic_id for known in records(tmp_path).on_kafka_cluster(HERE)] == [one.log.identity()]
    assert records(tmp_path).on_kafka_cluster(THERE) == ()


# --------------------------------------------------------------------------------------------------- the file


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "record.json"
    assert not list(tmp_path.glob("*.tmp"))


def test_the_greatest_position_is_kept(path: Path) -> None:
    more, less = IdentityRecord("t", 9, 5, "s5"), IdentityRecord("t", 4, 2, "s2")
    for recorded in (more, less):
        save_record(path, recorded)
        assert load_record(path) == more
    save_record(path, IdentityRecord("another", 1))
    assert load_record(path) == IdentityRecord("another", 1)


@pytest.mark.parametrize(
    "change", [{"epoch": -1}, {"epoch": "1"}, {"state_id": 1}, {"kafka": None}, {"position": True}]
)
def test_a_record_with_a_wrong_field_is_damaged(path: Path, change: dict[str, object]) -> None:
    path.write_text(json.dumps(asdict(IdentityRecord("t", 1)) | change))
    with pytest.raises(LogDamaged):
        load_record(path)


def test_a_wrong_log_is_refused_before_it_is_read(path: Path) -> None:
    save_record(path, IdentityRecord("t", 9))
    with pytest.raises(LogTruncated, match="ends at offset 8, but was read up to offset 9"):
        FileIdentityStore(path).check_topic(Topic("shop.metadata", "t", HERE, 8))


def test_the_cluster_of_a_log_is_known_from_its_first_entry(world: World) -> None:
    world.grow(3)
    asked: list[int] = []
    check: Callable[[], None] = lambda: asked.append(1)  # noqa: E731
    assert cluster_id_of_log(world.log, check) == world.cluster_id
    assert asked == [1]
    world.log.delete_before(1)
    with pytest.raises(LogTruncated):
        cluster_id_of_log(world.log)
