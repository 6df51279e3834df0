"""Recovery of a lost log: a copy is restored at its offsets and ends with a recovery entry; an invalid copy changes
nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.client.creation.recovery import RecoveryPlan, RecoveryRefused, fill, planned, read_back, store_again
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import SNAPSHOTS_KEPT_MAX, TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import RecordArchive, TruncateLog
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.control.recovery import LeaveRecovery
from ringlog.kernel.encoding.encoder import encoded_parts
from ringlog.kernel.history import ARCHIVED, allowed_begin, confirmed_snapshots
from ringlog.kernel.model.modes import SCOPES
from ringlog.kernel.service import in_recovery
from ringlog.log.archive.archive import Archive, all_records, extend_archive
from ringlog.log.archive.copies import LogCopy, copy_of_archive, end_of
from ringlog.log.errors import ArchiveForged, CopyMissing, LogForked, ReplicaHalted
from ringlog.log.folding import BEGINNING
from ringlog.log.memory import MemoryKeyed, MemoryLog
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.node.log.log_copy import COPY, copy_of_member
from ringlog.node.log.member_copy import open_copy
from ringlog.operator.errors import Refused
from ringlog.operator.history.state_json import bytes_of, composed, exported, json_of
from tests.kernel.entries import random_history
from tests.log.test_snapshots import Cluster
from tests.node.test_log_copy import confirmed, filled
from tests.refusals import raises_code

LONG_S = 60.0


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.log.append([b"junk before the founding"])
    made.live(random.Random(3), 0)
    made.apply(*[Noop()] * 20)
    return made


@pytest.fixture
def archive(tmp_path: Path, cluster: Cluster) -> Archive:
    """Return an archive of the whole log up to now; the log records the archive."""
    made = Archive(tmp_path / "archive")
    extend_archive(made, all_records(cluster.log, None), BEGINNING, cluster.log.identity())
    last = made.segments()[-1]
    cluster.apply(RecordArchive(last.last, last.next, last.digest))
    return made


@pytest.fixture
def copy(tmp_path: Path, cluster: Cluster) -> LogCopy:
    """Return the copy of a member, which starts with a snapshot."""
    with closing(open_copy(tmp_path / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
        confirmed(cluster)
        cluster.log.gap(2)
        cluster.apply(Noop(), Noop())
        filled(file, cluster)
    return copy_of_member(tmp_path)


def rebuilt(plan: RecoveryPlan) -> tuple[MemoryLog, StartPointFinder]:
    log, records = MemoryLog(), MemoryKeyed()
    fill(log, plan)
    if plan.copy.begin:
        store_again(SnapshotTopic(records), log.identity(), plan, 0, "again")
        log.delete_before(plan.copy.begin)
    return log, StartPointFinder(lambda: SnapshotTopic(records))


def test_a_recovery_from_a_member_keeps_all_offsets(cluster: Cluster, copy: LogCopy) -> None:
    plan = planned(copy, "ann", "the disk burnt")
    assert plan.commands == ("EnterRecovery", "TruncateLog")
    assert (plan.end.at.state, plan.end.lost) == (cluster.state, ())
    log, start_finder = rebuilt(plan)
    read_back(log, plan, start_finder)
    assert log.begin_offset() == copy.begin == allowed_begin(plan.after) > 0
    held = cluster.log.read(copy.begin, 0, 100)[0]
    assert [one for one in log.read(copy.begin, 0, 100)[0] if one.data][: len(held)] == held
    running = in_recovery(plan.after)
    assert running is not None
    assert (running.operator, running.reason) == ("ann", "the disk burnt")
    lives_on = Cluster(log, state=plan.after)
    lives_on.apply(LeaveRecovery("mended", "ann"))
    with LogReplica(log, start_finder=start_finder, watch_s=0.01) as replica:
        assert in_recovery(replica.read_barrier(LONG_S)) is None


def test_a_recovery_from_an_archive_ends_that_archive(cluster: Cluster, archive: Archive) -> None:
    at_first = planned(copy_of_archive(archive), "ann", "lost")
    assert at_first.commands == ("EnterRecovery",)
    extend_archive(archive, all_records(cluster.log, None), BEGINNING, cluster.log.identity())
    plan = planned(copy_of_archive(archive), "ann", "lost")
    assert plan.commands == ("EnterRecovery", "RecordArchive")
    assert ARCHIVED not in plan.after.log_bounds
    assert plan.end.at.state == cluster.state
    read_back(rebuilt(plan)[0], plan, StartPointFinder(lambda: SnapshotTopic(MemoryKeyed())))


def test_a_recovery_reports_epochs_beyond_its_copy(cluster: Cluster, archive: Archive) -> None:
    seen = KnownEpoch(cluster.state.epoch, cluster.state.state_id, "a node")
    copy = copy_of_archive(archive)
    plan = planned(LogCopy(copy.place, copy.start, copy.records, (*copy.seen, seen)), "ann", "lost")
    assert plan.end.lost == (seen,)
    other = KnownEpoch(5, cluster.state.state_id, "a node of another history")
    with pytest.raises(LogForked, match="another history"):
        end_of(LogCopy(copy.place, copy.start, copy.records, (other,)))


def _cut(records: list[bytes]) -> list[bytes]:
    return records[:10] + records[11:]


def _broken(records: list[bytes]) -> list[bytes]:
    return [*records[:10], b"broken", *records[11:]]


@pytest.mark.parametrize("change", [_cut, _broken])
def test_a_log_without_an_entry_halts_readers(cluster: Cluster, change: Callable[[list[bytes]], list[bytes]]) -> None:
    log = MemoryLog()
    log.append(change([one.data for one in cluster.log.read(0, 0, 1_000)[0]]))
    with LogReplica(log) as replica, pytest.raises(ReplicaHalted, match="log_gap"):
        replica.read_barrier(LONG_S)
    copy = LogCopy("here", BEGINNING, lambda: log.read(0, 0, 1_000)[0])
    plan = planned(copy, "ann", "what is left")
    assert (plan.end.has_gap, plan.end.at.state.epoch, plan.end.at.position) == (True, 9, 10)
    read_back(rebuilt(plan)[0], plan, StartPointFinder(lambda: SnapshotTopic(MemoryKeyed())))


def test_a_copy_without_a_cluster_and_a_forged_archive_are_refused(tmp_path: Path, archive: Archive) -> None:
    with pytest.raises(CopyMissing):
        copy_of_archive(Archive(tmp_path / "nothing"))
    with pytest.raises(CopyMissing):
        end_of(LogCopy("here", BEGINNING, lambda: ()))
    (head,) = archive.segments()
    path = tmp_path / "archive" / head.name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchiveForged):
        planned(copy_of_archive(archive), "ann", "lost")


@pytest.mark.parametrize(("operator", "reason"), [("", "why"), ("ann", " ")])
def test_a_recovery_has_a_name_and_a_reason(copy: LogCopy, operator: str, reason: str) -> None:
    with raises_code(RecoveryRefused, "bad_field"):
        planned(copy, operator, reason)


# ---------------------------------------------------------------------------------------------- composed states


def edited(copy: LogCopy, change: Callable[[dict[str, Any]], object]) -> str:
    document = exported(end_of(copy).at.state)
    change(document)
    return json.dumps(document)


def test_a_composed_state_follows_the_copy(copy: LogCopy) -> None:
    text = edited(copy, lambda found: found["parts"].update(settings={"snapshot_entries": 500}))
    plan = planned(copy, "ann", "mended", lambda state: composed(text, state))
    assert plan.commands[-1] == "ForceState"
    assert dict(plan.after.settings) == {"snapshot_entries": 500}
    log, start_finder = rebuilt(plan)
    read_back(log, plan, start_finder)
    assert planned(copy, "ann", "as it was", lambda state: composed(edited(copy, len), state)).commands == (
        "EnterRecovery",
        "TruncateLog",
    )


def test_a_composed_state_that_breaks_an_invariant_is_refused(copy: LogCopy) -> None:
    text = edited(copy, lambda found: found["parts"].update(node_names={"n1": "no such node"}))
    with raises_code(RecoveryRefused, "state_unsound", match="names"):
        planned(copy, "ann", "mended", lambda state: composed(text, state))


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(epoch=1),
        lambda found: found.update(more=1),
        lambda found: found["parts"].update(recoveries={}),
        lambda found: found["parts"].update(settings=1.5),
        lambda found: found["parts"].update(nodes={"is": "bytes", "hex": "x"}),
    ],
)
def test_an_invalid_state_file_is_rejected(copy: LogCopy, change: Callable[[dict[str, Any]], object]) -> None:
    text = edited(copy, change)
    with raises_code(Refused, "state_file_refused"):
        planned(copy, "ann", "mended", lambda state: composed(text, state))


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_a_state_is_restored_from_its_json(draw: random.Random, length: int) -> None:
    state = random_history(draw, length)
    for name, data in encoded_parts(state).items():
        assert bytes_of(json.loads(json.dumps(json_of(data)))) == data, name
    assert composed(json.dumps(exported(state)), state) == ()


STEPS = ("asked", "confirmed", "truncated", "entries")


@pytest.mark.parametrize("scope", SCOPES)
def test_a_pause_does_not_block_a_recovery(tmp_path: Path, cluster: Cluster, scope: str) -> None:
    """Without a log no operator can resume the cluster."""
    cluster.apply(PauseChanges((scope,)))
    copy = copy_from_snapshot(tmp_path, cluster)
    plan = planned(copy, "ann", "the disk burnt")
    assert "TruncateLog" in plan.commands
    log, start_finder = rebuilt(plan)
    read_back(log, plan, start_finder)


@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 10)), max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_member_always_recovers(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """Requested and unconfirmed snapshots never prevent a recovery, however many exist."""
    folder = tmp_path_factory.mktemp("member")
    cluster = Cluster()
    cluster.live(random.Random(3), 0)
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
        for what, number in steps:
            match what:
                case "asked":
                    cluster.apply(*[TakeSnapshot()] * number)
                case "confirmed":
                    confirmed(cluster)
                case "truncated" if marks := confirmed_snapshots(cluster.state)[-3:]:
                    below = marks[number % len(marks)].epoch
                    if marks[number % len(marks)].position - 1 > allowed_begin(cluster.state):
                        cluster.apply(TruncateLog(below))
                case _:
                    cluster.apply(*[Noop()] * number)
            filled(file, cluster)
    plan = planned(copy_of_member(folder), "ann", "the disk burnt")
    assert plan.end.at.state == cluster.state
    log, start_finder = rebuilt(plan)
    assert plan.fillers == sum(not one.data for one in log.read(plan.copy.begin, 0, 10_000)[0]) + plan.copy.begin
    read_back(log, plan, start_finder)


def copy_from_snapshot(folder: Path, cluster: Cluster) -> LogCopy:
    """Return the copy of a member that started with a snapshot which two agents confirmed but the log does
    not record.
    """
    cluster.store("publisher")
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
    return copy_of_member(folder)


def test_a_recovery_confirms_a_snapshot_that_the_log_has_not_confirmed(tmp_path: Path, cluster: Cluster) -> None:
    copy = copy_from_snapshot(tmp_path, cluster)
    assert copy.begin
    plan = planned(copy, "ann", "the disk burnt")
    assert plan.commands == ("EnterRecovery", "ConfirmSnapshot", "TruncateLog")
    log, start_finder = rebuilt(plan)
    read_back(log, plan, start_finder)


def test_an_impossible_recovery_changes_nothing(tmp_path: Path, cluster: Cluster) -> None:
    copy = copy_from_snapshot(tmp_path, cluster)
    cluster.apply(*[TakeSnapshot()] * (SNAPSHOTS_KEPT_MAX + 1))
    with closing(open_copy(tmp_path / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
    with raises_code(RecoveryRefused, "truncation_uncovered"):
        planned(copy_of_member(tmp_path), "ann", "the disk burnt")
    assert copy.begin
