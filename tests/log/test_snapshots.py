"""Snapshots: a replica that starts with one has the same state, byte for byte; an invalid snapshot is refused."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, TruncateLog
from ringlog.kernel.encoding.encoder import digest, encode, encoded_parts, sha256_of
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.packed import to_stored
from ringlog.kernel.history import STORED_MAX
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command, replace
from ringlog.log.errors import (
    LogUnavailable,
    ReplicaHalted,
    SnapshotForged,
    SnapshotIncomplete,
    SnapshotUnknown,
    TopicMissing,
)
from ringlog.log.folding import Start, follow
from ringlog.log.memory import MemoryKeyed, MemoryLog
from ringlog.log.replicas.identity import FileIdentityStore, IdentityRecord, KnownEpoch, Topic
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.log.snapshots import CHUNK_BYTES, GENERATIONS, decode_snapshot, encode_snapshot
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    SnapshotChunk,
    SnapshotConfirmation,
    StoredSnapshot,
    decode_snapshot_record,
    encode_snapshot_record,
)
from tests.kernel.entries import entry, random_command
from tests.kernel.generations.clusters import directory, generation
from tests.log.conftest import Author


@dataclass
class Cluster:
    """A log, its snapshots, and the states and positions behind every ``TakeSnapshot``."""

    log: MemoryLog = field(default_factory=MemoryLog)
    records: MemoryKeyed = field(default_factory=MemoryKeyed)
    state: ClusterState = EMPTY_STATE
    taken: list[Start] = field(default_factory=list)
    author: Author = field(default_factory=lambda: Author("tester", ManualClock(), SeededDraw(b"author")))

    def apply(self, *commands: Command) -> None:
        for command in commands:
            data = self.author.entry(self.state, command).data
            self.log.append([data])
            (made,) = follow([self.log.read(self.log.end_offset() - 1, 0, 1)[0][0]], self.state)
            if made.after is not self.state and isinstance(command, TakeSnapshot):
                self.taken.append(made.next)
            self.state = made.after

    def live(self, draw: random.Random, length: int) -> None:
        if self.state.epoch == 0:
            self.apply(InitializeCluster("c"))
        for _ in range(length):
            with suppress(WireError):  # The log never contains invalid UTF-8.
                self.apply(random_command(draw, self.state))

    def store(self, *confirmed_by: str) -> StoredSnapshot:
        """Store a snapshot of the state behind a new ``TakeSnapshot``, confirmed by these readers."""
        self.apply(TakeSnapshot())
        start = self.taken[-1]
        head = SnapshotTopic(self.records).store(start, self.log.identity(), "keeper", 0, f"s{start.state.epoch}")
        for role in confirmed_by:
            SnapshotTopic(self.records).confirm(confirmation(head, role))
        return head

    def start_finder(self) -> StartPointFinder:
        return StartPointFinder(lambda: SnapshotTopic(self.records))

    def begin(self, remembered: tuple[KnownEpoch, ...] = (), epoch_max: int | None = None) -> Start:
        start_finder = StartPointFinder(lambda: SnapshotTopic(self.records), epoch_max)
        return start_finder.start(self.log, self.log.identity(), lambda _: remembered)

    def rewrite(self, change: Callable[[object], object | None]) -> None:
        """Return another topic with changed records; None drops a record."""
        records, self.records = self.records, MemoryKeyed()
        for record in records.read(0, 0, 1_000)[0]:
            changed = change(decode_snapshot_record(record.data))
            if changed is None:
                self.records.gap()
            else:
                assert isinstance(changed, StoredSnapshot | SnapshotChunk | SnapshotConfirmation)
                self.records.put(str(record.offset), encode_snapshot_record(changed))


def confirmation(head: StoredSnapshot, role: str) -> SnapshotConfirmation:
    return SnapshotConfirmation(
        head.cluster_id, head.topic_id, head.epoch, head.state_id, head.position, head.digest, role, 0
    )


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(3), 60)
    return made


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 40), st.integers(0, 40), st.integers(40, 3_000))
def test_snapshot_and_tail_are_the_whole_log(draw: random.Random, before: int, after: int, chunk_bytes: int) -> None:
    cluster = Cluster()
    cluster.live(draw, before)
    cluster.apply(TakeSnapshot())
    start = cluster.taken[-1]
    head, chunks = encode_snapshot(start, cluster.log.identity(), "keeper", 0, "s", chunk_bytes)
    mixed = list(chunks)
    draw.shuffle(mixed)
    found = decode_snapshot(head, mixed)
    assert (found, encode(found), digest(found)) == (start.state, encode(start.state), head.digest)
    cluster.live(draw, after)
    with LogReplica(cluster.log, start=Start(found, head.position)) as replica:
        state = replica.read_barrier()
    assert encode(state) == encode(cluster.state)
    assert digest(state) == digest(cluster.state)


def test_a_replica_starts_with_the_newest_snapshot_and_folds_later_entries(cluster: Cluster) -> None:
    cluster.store("publisher")
    cluster.live(random.Random(1), 5)
    newest = cluster.store("coordinator")
    cluster.live(random.Random(2), 5)
    with LogReplica(cluster.log, start_finder=StartPointFinder(lambda: SnapshotTopic(cluster.records))) as replica:
        assert digest(replica.read_barrier()) == digest(cluster.state)
        assert sum(replica.counts.values()) == cluster.log.end_offset() - newest.position


def test_a_replica_releases_its_initial_state(cluster: Cluster) -> None:
    cluster.live(random.Random(1), 30)
    epoch = cluster.store("publisher").epoch
    cluster.taken.clear()
    with LogReplica(cluster.log, start_finder=cluster.start_finder()) as replica:
        began = id(replica.state)
        assert replica.state.epoch == epoch
        cluster.apply(Noop(), Noop())  # The previous snapshot is still in memory.
        assert replica.read_barrier().epoch == epoch + 2
        assert replica.started_from.epoch == epoch
        gc.collect()
        there = {id(one): one.epoch for one in gc.get_objects() if isinstance(one, ClusterState)}
        assert there[id(replica.state)] == epoch + 2
        assert there.get(began) != epoch  # Other tests may hold states of that epoch too.


BROKEN: dict[str, Callable[[object, StoredSnapshot], object | None]] = {
    "a chunk is missing": lambda record, _: None if isinstance(record, SnapshotChunk) else record,
    "a chunk is another": lambda record, _: (
        replace(record, data=record.data[:-1] + b"?") if isinstance(record, SnapshotChunk) else record
    ),
    "a part has another digest": lambda record, head: (
        replace(record, parts=(replace(head.parts[0], digest="0" * 64), *head.parts[1:])) if record == head else record
    ),
    "two parts are mixed up": lambda record, head: (
        replace(record, parts=(head.parts[1], head.parts[0], *head.parts[2:])) if record == head else record
    ),
    "another digest, confirmed": lambda record, _: (
        record if isinstance(record, SnapshotChunk) else replace(record, digest="0" * 64)  # type: ignore[type-var]
    ),
    "another position, confirmed": lambda record, _: (
        record if isinstance(record, SnapshotChunk) else replace(record, position=record.position - 1)  # type: ignore
    ),
    "another topic, confirmed": lambda record, _: (
        record if isinstance(record, SnapshotChunk) else replace(record, topic_id="x")  # type: ignore[type-var]
    ),
    "nobody confirmed it": lambda record, _: None if isinstance(record, SnapshotConfirmation) else record,
    "who stored it confirmed it": lambda record, _: (
        replace(record, by="keeper") if isinstance(record, SnapshotConfirmation) else record
    ),
    "another reader has another digest": lambda record, _: (
        replace(record, digest="0" * 64) if isinstance(record, SnapshotConfirmation) else record
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_invalid_snapshot_is_refused_and_an_older_one_is_used(cluster: Cluster, what: str) -> None:
    older = cluster.store("publisher")
    expected = cluster.taken[-1]
    cluster.live(random.Random(1), 3)
    head = cluster.store("publisher")

    def change(record: object) -> object | None:
        is_newest = record == head or getattr(record, "id", None) == head.id
        is_newest |= isinstance(record, SnapshotConfirmation) and record.epoch == head.epoch
        return BROKEN[what](record, head) if is_newest else record

    assert cluster.begin().state.epoch == head.epoch
    cluster.rewrite(change)
    assert cluster.begin() == expected
    assert cluster.begin().state.epoch == older.epoch
    cluster.records.delete_before(cluster.records.end_offset())
    assert cluster.begin() == Start()


def test_generations_are_stored_by_their_differences(cluster: Cluster) -> None:
    ring, nodes = {number * 7: "a" for number in range(400)}, directory((2, 12))
    each = [to_stored(generate(ring, nodes, bytes([number] * 16))) for number in range(3)]
    made = tuple(replace(generation((), number, f"g{number}"), ranges=one) for number, one in enumerate(each))
    state = replace(cluster.state, generations=made)
    head, chunks = encode_snapshot(Start(state, 9), "t", "keeper", 0, "s", 500)
    assert head.digest == digest(state)
    assert decode_snapshot(head, chunks) == state
    sizes = {part.name: part.size for part in head.parts}
    assert 3 * sizes[GENERATIONS] < len(encoded_parts(state)["generations"])

    forged = [replace(part, digest="0" * 64) if part.name == GENERATIONS else part for part in head.parts]
    with pytest.raises(SnapshotForged, match="the digest of part"):
        decode_snapshot(replace(head, parts=tuple(forged)), chunks)
    body = b"".join(chunk.data for chunk in chunks)
    others = body[:-1] + bytes([body[-1] ^ 1])
    pieces = [others[at : at + 500] for at in range(0, len(others), 500)]
    changed = replace(head, chunks=tuple(map(sha256_of, pieces)))
    with pytest.raises(SnapshotForged, match="the digest of part generations:columns differs"):
        decode_snapshot(changed, [SnapshotChunk("s", number, data) for number, data in enumerate(pieces)])
    later = [replace(part, name="generations:later") if part.name == GENERATIONS else part for part in head.parts]
    with pytest.raises(
        SnapshotUnknown, match="generations:later has a storage format that this release does not support"
    ):
        decode_snapshot(replace(head, parts=tuple(later)), chunks)


def test_refused_snapshots_have_codes(cluster: Cluster) -> None:
    cluster.apply(TakeSnapshot())
    head, chunks = encode_snapshot(cluster.taken[-1], "t", "keeper", 0, "s", 500)
    with pytest.raises(SnapshotIncomplete, match=r"chunk 1 of \d+ is missing"):
        decode_snapshot(head, (*chunks[:1], *chunks[2:]))
    with pytest.raises(SnapshotForged, match="chunk 0 differs"):
        decode_snapshot(head, (replace(chunks[0], data=b""), *chunks[1:]))
    with pytest.raises(SnapshotForged, match="differs from the digest of the state"):
        decode_snapshot(replace(head, digest="0" * 64), chunks)
    with pytest.raises(SnapshotForged, match="contains epoch"):
        decode_snapshot(replace(head, epoch=head.epoch + 1), chunks)
    with pytest.raises(SnapshotForged, match="its parts need"):
        decode_snapshot(replace(head, parts=head.parts[:-1]), chunks)


def test_a_log_cut_and_extended_is_another_log(cluster: Cluster) -> None:
    head = cluster.store("publisher")
    cluster.log.truncate(head.position - 1)
    before = cluster.taken[-1].state
    (*_, made) = follow(cluster.log.read(0, 0, 10_000)[0])
    cluster.state = made.after
    cluster.author = Author("other", ManualClock(), SeededDraw(b"other"))
    cluster.apply(TakeSnapshot(), TakeSnapshot())
    assert cluster.log.end_offset() > head.position
    assert cluster.state.state_id != before.state_id
    assert cluster.begin() == Start()


def forged(cluster: Cluster, start: Start) -> StoredSnapshot:
    """Store a state that the log does not lead to, confirmed by an invented role."""
    state = replace(start.state, name="forged")
    head = SnapshotTopic(cluster.records).store(replace(start, state=state), cluster.log.identity(), "keeper", 0, "x")
    SnapshotTopic(cluster.records).confirm(confirmation(head, "publisher"))
    return head


def test_a_snapshot_that_the_log_contradicts_is_skipped(cluster: Cluster) -> None:
    """A thief who may write the snapshot topic, but not the log, invents a state and two roles that confirm it."""
    early, true = cluster.store("publisher"), cluster.store("publisher")
    cluster.apply(Noop(), ConfirmSnapshot(true.epoch, true.state_id, true.position, true.digest, ("keeper", "other")))
    assert cluster.begin().state.epoch == true.epoch
    assert forged(cluster, cluster.taken[-1]).digest != true.digest
    assert cluster.begin().state.epoch == early.epoch


def test_a_snapshot_of_an_epoch_without_a_mark_is_skipped(cluster: Cluster) -> None:
    """The log never confirms such an epoch, so a forged state of it would not be found."""
    early = cluster.store("publisher")
    cluster.apply(Noop())
    forged(cluster, Start(cluster.state, cluster.log.end_offset()))
    assert cluster.begin().state.epoch == early.epoch


def test_the_stored_view_of_a_process_is_compared(cluster: Cluster, tmp_path: object) -> None:
    head = cluster.store("publisher")
    with (
        LogReplica(
            cluster.log,
            start_finder=StartPointFinder(lambda: SnapshotTopic(cluster.records)),
            seen=[KnownEpoch(head.epoch - 3, "another", "a test")],
        ) as replica,
        pytest.raises(ReplicaHalted, match="log_forked"),
    ):
        replica.read_barrier()


def test_a_snapshot_without_the_stored_epoch_is_skipped() -> None:
    cluster = Cluster()
    cluster.apply(InitializeCluster("c", (("history_entries", 100),)))
    early = cluster.store("publisher")
    cluster.apply(*[Noop()] * 130)
    late = cluster.store("publisher")
    known = cluster.taken[0].state
    assert cluster.taken[1].state.history.oldest > known.epoch
    assert cluster.begin().state.epoch == late.epoch
    seen = (KnownEpoch(known.epoch, known.state_id, "a test"),)
    assert cluster.begin(seen).state.epoch == early.epoch
    cluster.log.delete_before(late.position - 1)
    assert cluster.begin(seen).state.epoch == late.epoch, "the epochs cannot be compared"


def test_a_snapshot_does_not_overwrite_the_view_of_another_history(cluster: Cluster, tmp_path: Path) -> None:
    head = cluster.store("publisher")
    path = tmp_path / "log.json"
    memory = FileIdentityStore(path)
    memory.check_topic(Topic(cluster.log.name, cluster.log.identity(), "memory", None))
    wrong = IdentityRecord(cluster.log.identity(), 3, 2, "another", cluster.state.cluster_id, "c", "memory")
    memory.save(wrong)
    begins = StartPointFinder(lambda: SnapshotTopic(cluster.records))
    for _ in range(2):
        with LogReplica(cluster.log, record=path, start_finder=begins) as replica, pytest.raises(ReplicaHalted):
            replica.read_barrier()
    assert head.position > 3


def test_a_reader_with_a_start_limit_starts_earlier(cluster: Cluster) -> None:
    early = cluster.store("publisher")
    late = cluster.store("publisher")
    assert cluster.begin(epoch_max=late.epoch).state.epoch == late.epoch
    assert cluster.begin(epoch_max=late.epoch - 1).state.epoch == early.epoch
    assert cluster.begin(epoch_max=early.epoch - 1) == Start()


def test_a_missing_topic_or_broker_does_not_block_a_start(cluster: Cluster) -> None:
    for error in (TopicMissing("c.snapshots"), LogUnavailable("c.snapshots: no answer")):

        def open_topic(error: Exception = error) -> SnapshotTopic:
            raise error

        begin = partial(StartPointFinder(open_topic).start, cluster.log, cluster.log.identity(), lambda _: ())
        assert begin() == Start()
    cluster.log.delete_before(1)
    with pytest.raises(LogUnavailable, match="cannot read any snapshot of memory"):
        begin()


def test_foreign_records_are_ignored(cluster: Cluster) -> None:
    cluster.records.put("x", b"no record")
    head = cluster.store("publisher")
    cluster.records.put("y", encode_snapshot_record(replace(head, epoch=head.epoch + 1, first=-5)))
    cluster.records.put("z", encode_snapshot_record(replace(head, epoch=head.epoch + 2, first=10**9)))
    for epoch in (head.epoch + 1, head.epoch + 2):
        SnapshotTopic(cluster.records).confirm(replace(confirmation(head, "coordinator"), epoch=epoch))
    assert cluster.begin().state.epoch == head.epoch


@pytest.mark.parametrize("compacts", [False, True])
def test_the_topic_keeps_a_bounded_number_of_snapshots(cluster: Cluster, compacts: bool) -> None:
    topic = SnapshotTopic(cluster.records)
    heads = []
    for number in range(12):
        cluster.apply(TakeSnapshot())
        start = cluster.taken[-1]
        heads.append(topic.store(start, cluster.log.identity(), "keeper", 0, f"s{number}"))
        if number % 3 == 0:
            topic.confirm(confirmation(heads[-1], "publisher"))
        if compacts:
            cluster.records.compact()
    cluster.records.compact()
    confirmed = [head.epoch for head in heads[::3]][-STORED_MAX:]
    others = [head.epoch for number, head in enumerate(heads) if number % 3][-STORED_MAX:]
    assert [one.head.epoch for one in topic.listed()] == sorted((*confirmed, *others), reverse=True)
    for one in topic.listed():
        assert topic.state(one.head).epoch == one.head.epoch
    held = len(list(_records(cluster.records)))
    assert held <= 2 * STORED_MAX * 2 + STORED_MAX


def test_the_first_snapshot_of_the_log_is_kept(cluster: Cluster) -> None:
    first = cluster.store("publisher")
    said = first.epoch, first.state_id, first.position, first.digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), TruncateLog(first.epoch))
    later = [cluster.store("publisher") for _ in range(STORED_MAX + 2)]
    cluster.records.compact()
    kept = [one.head.epoch for one in SnapshotTopic(cluster.records).listed()]
    assert kept == [*(head.epoch for head in later[:0:-1]), first.epoch], (
        "the last one was not confirmed when it was stored"
    )
    assert cluster.begin(epoch_max=later[0].epoch - 1).state.epoch == first.epoch
    said = later[-1].epoch, later[-1].state_id, later[-1].position, later[-1].digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), TruncateLog(later[-1].epoch), TakeSnapshot())
    topic, start = SnapshotTopic(cluster.records), cluster.taken[-1]
    for begin, there in ((first.position - 1, True), (later[-1].position - 1, False)):
        topic.store(start, cluster.log.identity(), "keeper", 0, f"begins at {begin}", begin)
        cluster.records.compact()
        assert any(one.head.epoch == first.epoch for one in topic.listed()) is there


def test_an_incomplete_snapshot_is_ignored_and_removed_later(cluster: Cluster) -> None:
    cluster.apply(TakeSnapshot())
    _, chunks = encode_snapshot(cluster.taken[-1], "t", "keeper", 0, "dead", 500)
    for chunk in chunks[:-1]:
        cluster.records.put(f"dead/{chunk.number}", encode_snapshot_record(chunk))
    head = cluster.store("publisher")
    cluster.records.compact()
    assert {record.id for record in _records(cluster.records) if isinstance(record, SnapshotChunk)} == {head.id}
    assert cluster.begin().state.epoch == head.epoch


def test_a_chunk_fits_the_record_size_of_the_topic() -> None:
    chunk = SnapshotChunk("x" * 36, 10**6, bytes(CHUNK_BYTES))
    assert len(encode_snapshot_record(chunk)) < 2 * 1024 * 1024 - 4_096


def _records(records: MemoryKeyed) -> Iterator[object]:
    for record in records.read(0, 0, 100_000)[0]:
        yield decode_snapshot_record(record.data)


def test_the_state_of_a_snapshot_folds_later_entries(cluster: Cluster) -> None:
    cluster.store("publisher")
    found = cluster.begin().state
    for number in range(5):
        one = entry(found, random_command(random.Random(number), found))
        assert fold(found, one) == fold(cluster.taken[-1].state, one)


@pytest.mark.parametrize(
    ("same", "other", "code", "outvoted"),
    [
        ((), (), "snapshot_unconfirmed", ()),
        (("publisher",), (), "", ()),
        (("publisher",), ("coordinator",), "", ("coordinator",)),
        (("coordinator", "publisher"), ("keeper",), "", ("keeper",)),
        ((), ("publisher",), "snapshot_disputed", ()),
        (("publisher",), ("keeper",), "snapshot_disputed", ()),
        (("publisher",), ("coordinator", "validator"), "snapshot_disputed", ()),
    ],
)
def test_two_readers_outvote_one(
    cluster: Cluster, same: tuple[str, ...], other: tuple[str, ...], code: str, outvoted: tuple[str, ...]
) -> None:
    head = cluster.store(*same)
    topic = SnapshotTopic(cluster.records)
    for role in other:
        topic.confirm(replace(confirmation(head, role), digest="0" * 64))
    found = topic.listed()[0]
    assert (found.code, found.disputed_by) == (code, outvoted)
    assert (cluster.begin().state.epoch == head.epoch) is not bool(code)


def test_a_truncated_log_starts_though_one_reader_has_another_state(cluster: Cluster) -> None:
    head = cluster.store("publisher")
    said = head.epoch, head.state_id, head.position, head.digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), TruncateLog(head.epoch))
    cluster.log.delete_before(head.position - 1)
    SnapshotTopic(cluster.records).confirm(replace(confirmation(head, "coordinator"), digest="0" * 64))
    with capture_logs() as logs, LogReplica(cluster.log, start_finder=cluster.start_finder()) as replica:
        assert replica.read_barrier(60).epoch == cluster.state.epoch
    assert [(one["epoch"], one["roles"]) for one in logs if one["event"] == "snapshot_outvoted"] == [
        (head.epoch, ["coordinator"])
    ]
