"""Planted bugs in copies of the log and in recoveries: each bug fails a story that passes without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
from immutables import Map

from ringlog.client.creation.recovery import RecoveryPlan, planned, rebuild
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import RecordArchive
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.encoding.encoder import digest, encoded_parts
from ringlog.kernel.fold import fold
from ringlog.kernel.history import ARCHIVED, allowed_begin
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Command, replace
from ringlog.log.archive.archive import Archive, all_records, extend_archive
from ringlog.log.archive.copies import LogCopy, copy_of_archive, end_of
from ringlog.log.errors import (
    ArchiveForged,
    ArchiveGap,
    ArchiveOfAnotherLog,
    CopiesUndecided,
    LogForked,
    LogNotEmpty,
    LogTruncated,
)
from ringlog.log.folding import BEGINNING
from ringlog.log.memory import MemoryLog
from ringlog.node.log.log_copy import COPY, copy_of_member, read_copy_state
from ringlog.node.log.member_copy import EVIDENCE, open_copy
from ringlog_sim.mutants.plant import Mutant, planted
from tests.client.test_recovery_killed import Killed, MemoryPlace, Steps
from tests.log.test_snapshots import Cluster
from tests.node.test_log_copy import confirmed, filled

Story: TypeAlias = Callable[[Path], object]


def used_cluster() -> Cluster:
    made = Cluster()
    made.apply(InitializeCluster("c"), *[Noop()] * 8)
    return made


def copied(folder: Path, cluster: Cluster) -> LogCopy:
    """Return the copy of a member, which starts with a snapshot and has a gap in its offsets."""
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
        confirmed(cluster)
        cluster.log.gap(2)
        cluster.apply(Noop(), Noop())
        filled(file, cluster)
    return copy_of_member(folder)


def archived(folder: Path, cluster: Cluster, segments: int = 1) -> Archive:
    archive = Archive(folder)
    for until in range(4, 4 + segments):
        extend_archive(archive, all_records(cluster.log, None), BEGINNING, cluster.log.identity(), until)
    return archive


def plan_of(copy: LogCopy) -> RecoveryPlan:
    return planned(copy, "ann", "the disk burnt")


def place_of(steps: Steps | None = None) -> MemoryPlace:
    made = MemoryPlace(steps or Steps())
    made.name = "c"
    return made


def applied(cluster: Cluster, *commands: Command) -> list[str]:
    """Return the result of each command: empty, or the code of its rejection."""
    codes = []
    for command in commands:
        made = fold(cluster.state, cluster.author.entry(cluster.state, command).entry)
        codes.append(made.outcome.code)
        cluster.state = made.state
    return codes


# ------------------------------------------------------------------------------------------------- the copies


def a_copy_is_the_log(folder: Path) -> None:
    cluster = used_cluster()
    copy = copied(folder, cluster)
    assert digest(end_of(copy).at.state) == digest(cluster.state)
    assert copy.begin > 0
    assert list(copy.records()) == cluster.log.read(copy.begin, 0, 100)[0]


def another_history_never_replaces_a_copy(folder: Path) -> None:
    cluster = used_cluster()
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
    end = cluster.log.end_offset()
    cluster.log.truncate(end - 3)
    with pytest.raises(LogTruncated):
        open_copy(folder / COPY, cluster.log, cluster.start_finder())
    cluster.log.append([b"other"] * 5)
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as again, pytest.raises(LogForked):
        again.append(cluster.log.read(again.state.next, 0, 100)[0])
    assert read_copy_state(folder / COPY).at.position == end


def a_damaged_copy_is_kept(folder: Path) -> None:
    cluster = used_cluster()
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
        cluster.apply(Noop())
        filled(file, cluster)
    path = folder / COPY
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    open_copy(path, cluster.log, cluster.start_finder()).close()
    assert path.with_suffix(EVIDENCE).exists()


def an_archive_is_whole_and_of_one_log(folder: Path) -> None:
    cluster = used_cluster()
    archive = archived(folder, cluster, 4)
    heads = archive.segments()
    assert len(heads) == 4
    path = folder / heads[1].name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArchiveForged, match="the digest of its records differs"):
        list(archive.records(heads))
    path.unlink()
    with pytest.raises(ArchiveGap):
        archive.segments()
    path.write_bytes(data)
    with pytest.raises(ArchiveOfAnotherLog, match="belongs to topic"):
        extend_archive(archive, all_records(cluster.log, None), BEGINNING, MemoryLog().identity())


# ------------------------------------------------------------------------------------------------ the recovery


def a_recovery_keeps_all_offsets(folder: Path) -> None:
    cluster = used_cluster()
    copy = copied(folder, cluster)
    before = cluster.log.end_offset()
    cluster.log.append([b"has no effect"])
    plan = plan_of(copy)
    assert plan.end.lost == ()
    place = place_of()
    rebuild(place, plan)
    held = cluster.log.read(copy.begin, 0, 100)[0]
    again = [one for one in place.log.read(copy.begin, 0, 100)[0] if one.data]
    assert [(one.offset, one.data) for one in again[: -len(plan.entries)]] == [
        (one.offset, one.data) for one in held if one.offset < before
    ]
    assert in_recovery(plan.after) is not None
    assert place.log.begin_offset() == allowed_begin(plan.after)


def a_recovery_ignores_unconfirmed_snapshots(folder: Path) -> None:
    cluster = used_cluster()
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        filled(file, cluster)
        confirmed(cluster)
        filled(file, cluster)
        cluster.apply(*[TakeSnapshot()] * 9)
        filled(file, cluster)
    rebuild(place_of(), plan_of(copy_of_member(folder)))


def an_impossible_recovery_changes_nothing(folder: Path) -> None:
    plan = plan_of(copied(folder, used_cluster()))
    place = place_of()
    place.make()
    place.log.append([b"what was there"])

    def refuse() -> None:
        raise CopiesUndecided("2 brokers are up")

    place.check = refuse  # type: ignore[method-assign]
    with pytest.raises(CopiesUndecided):
        rebuild(place, plan, replace=True)
    assert place.log.end_offset() == 1


def records_without_effect_are_not_copied(folder: Path) -> None:
    cluster = used_cluster()
    with closing(open_copy(folder / COPY, cluster.log, cluster.start_finder())) as file:
        cluster.log.append([b"has no effect"])
        filled(file, cluster)
    place = place_of()
    plan = plan_of(copy_of_member(folder))
    rebuild(place, plan)
    assert place.log.end_offset() == plan.end.at.position + len(plan.entries)


def a_new_topic_has_no_archive(folder: Path) -> None:
    cluster = used_cluster()
    head = archived(folder, cluster).segments()[-1]
    cluster.apply(RecordArchive(head.last, head.next, head.digest))
    archive = Archive(folder)
    extend_archive(archive, all_records(cluster.log, None), BEGINNING, cluster.log.identity())
    assert ARCHIVED not in plan_of(copy_of_archive(archive)).after.log_bounds


def written_records_are_read_back(folder: Path) -> None:
    class Garbling(MemoryLog):
        def append(self, entries: Sequence[bytes]) -> None:
            super().append([one[:-1] + b"?" for one in entries])

    cluster = used_cluster()
    place = place_of()
    place.make()
    place.log = Garbling()  # type: ignore[assignment]
    with pytest.raises(LogForked):
        rebuild(place, plan_of(copy_of_archive(archived(folder, cluster))))


def a_missing_entry_is_detected(_: Path) -> None:
    cluster = used_cluster()
    log = MemoryLog()
    records = [one.data for one in cluster.log.read(0, 0, 100)[0]]
    log.append(records[:4] + records[5:])
    copy = LogCopy("here", BEGINNING, lambda: log.read(0, 0, 100)[0])
    assert end_of(copy).has_gap


def only_an_unfinished_recovery_is_restarted(folder: Path) -> None:
    copy = copied(folder, used_cluster())
    steps = Steps()
    place = place_of(steps)
    steps.last = 6
    with pytest.raises(Killed):
        rebuild(place, plan_of(copy))
    steps.last = 1_000
    plan = plan_of(copy)
    rebuild(place, plan)
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))
    place.note("of another topic")
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))
    place.note(place.log.identity())
    Cluster(place.log, state=plan.after).apply(Noop())
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))


def a_forced_state_is_sound_and_marked(_: Path) -> None:
    cluster = used_cluster()
    names = encoded_parts(replace(cluster.state, node_names=Map({"n1": "no such node"})))["node_names"]
    sound = ForcedPart("settings", b"")
    bound = ForcedPart("log_bounds", b"")
    assert applied(cluster, ForceState("why", "ann", (sound,))) == ["not_in_recovery"]
    assert applied(cluster, EnterRecovery("why", "ann"), EnterRecovery("why", "ann")) == ["", "in_recovery"]
    assert applied(cluster, ForceState("why", "ann", (bound,))) == ["bad_field"]
    assert applied(cluster, ForceState("why", "ann", (ForcedPart("node_names", names),))) == ["state_unsound"]
    assert applied(cluster, ForceState("why", "ann", (sound,))) == [""]
    running = in_recovery(cluster.state)
    assert running is not None
    assert running.forced == (cluster.state.epoch,)
    assert applied(cluster, LeaveRecovery("mended", "ann")) == [""]
    assert in_recovery(cluster.state) is None


LOG_COPY, MEMBER, ARCHIVE = "ringlog.node.log.log_copy", "ringlog.node.log.member_copy", "ringlog.log.archive.archive"
RECOVERING, COPIED, FORCE = (
    "ringlog.client.creation.recovery",
    "ringlog.log.archive.copies",
    "ringlog.kernel.commands.control.recovery",
)
BUGS: tuple[tuple[Story, str, str, str, str], ...] = (
    (
        a_copy_is_the_log,
        f"{LOG_COPY}:CopyFile._rewrite_from",
        "kept = (record for record in _records(_payloads(self._path)) if record.offset >= base.position - 1)",
        "kept = (record for record in _records(_payloads(self._path)) if record.offset >= base.position)",
        "a copy loses the entry that made its snapshot",
    ),
    (
        another_history_never_replaces_a_copy,
        f"{LOG_COPY}:CopyState.append",
        "record.offset == last.offset and record != last",
        "record.offset < 0",
        "a copy goes on with a log that has grown again",
    ),
    (
        another_history_never_replaces_a_copy,
        f"{MEMBER}:continue_or_restart",
        "now.epoch < before.epoch or contradicts(now, before.epoch, before.state_id)",
        "now.epoch < 0 and contradicts(now, before.epoch, before.state_id)",
        "a log that was cut takes the place of the copy",
    ),
    (
        a_damaged_copy_is_kept,
        f"{MEMBER}:_intact_copy",
        "path.replace(aside)",
        "path.unlink()",
        "a damaged copy is deleted",
    ),
    (
        an_archive_is_whole_and_of_one_log,
        f"{ARCHIVE}:_records",
        "sha256_of(body) != head.body",
        "not body",
        "a segment of the archive is believed unread",
    ),
    (
        an_archive_is_whole_and_of_one_log,
        f"{ARCHIVE}:_check_chain",
        "head.first != before.last + 1 or head.begin != before.next",
        "head.first < before.last",
        "a segment may be missing",
    ),
    (
        an_archive_is_whole_and_of_one_log,
        f"{ARCHIVE}:_SegmentWriter.__init__",
        "self._last is not None and self._last.topic_id != topic_id",
        "self._last is not None and not topic_id",
        "an archive goes on with another topic",
    ),
    (
        a_recovery_keeps_all_offsets,
        f"{RECOVERING}:_data",
        "yield from _fillers(record.offset - at)",
        "yield from _fillers(0)",
        "records lose their offsets",
    ),
    (
        a_recovery_keeps_all_offsets,
        f"{RECOVERING}:_commands",
        "copy.begin > allowed_begin(state)",
        "copy.begin < 0",
        "the log may not begin where it does",
    ),
    (
        a_recovery_keeps_all_offsets,
        f"{RECOVERING}:rebuild",
        "store_again(topic, topic_id, plan, now, draw_uuid(draw or SystemDraw()))",
        "pass",
        "entries are deleted without a snapshot behind them",
    ),
    (
        a_recovery_ignores_unconfirmed_snapshots,
        "ringlog.kernel.commands.cluster.snapshots:_kept_marks",
        "begins | {one.epoch for one in confirmed_snapshots(state)[-STORED_MAX:]}",
        "begins",
        "the newest confirmed snapshot is forgotten",
    ),
    (
        an_impossible_recovery_changes_nothing,
        f"{RECOVERING}:rebuild",
        "place.check()",
        "",
        "the log is deleted before it is known that another one can be made",
    ),
    (
        records_without_effect_are_not_copied,
        f"{RECOVERING}:_kept",
        "takewhile(lambda one: one.offset < end.at.position, copy.records())",
        "takewhile(lambda one: one.offset >= 0, copy.records())",
        "what follows the last entry that applies comes back, too",
    ),
    (
        a_new_topic_has_no_archive,
        f"{RECOVERING}:_commands",
        "ARCHIVED in state.log_bounds",
        "ARCHIVED in state.settings",
        "the new topic counts as archived",
    ),
    (
        written_records_are_read_back,
        f"{RECOVERING}:rebuild",
        "read_back(place.log, plan, StartPointFinder(place.snapshots, warns=False))",
        "",
        "what was written is not looked at",
    ),
    (a_missing_entry_is_detected, f"{COPIED}:end_of", "watch.check(made)", "pass", "a gap in a copy goes unsaid"),
    (
        only_an_unfinished_recovery_is_restarted,
        f"{RECOVERING}:rebuild",
        "place.note(topic_id)\nfill(place.log, plan)",
        "fill(place.log, plan)\nplace.note(topic_id)",
        "who is killed before the note must say --replace",
    ),
    (
        only_an_unfinished_recovery_is_restarted,
        f"{RECOVERING}:rebuild",
        'place.note("")',
        "",
        "a log that came back is made anew by the same command",
    ),
    (
        only_an_unfinished_recovery_is_restarted,
        f"{RECOVERING}:_is_begun",
        "there.topic_id == place.unfinished() and there.end <= plan.end.at.position + len(plan.entries)",
        "place.unfinished() and there.end <= plan.end.at.position + len(plan.entries)",
        "another topic than the note's is replaced",
    ),
    (
        only_an_unfinished_recovery_is_restarted,
        f"{RECOVERING}:_is_begun",
        "there.topic_id == place.unfinished() and there.end <= plan.end.at.position + len(plan.entries)",
        "there.topic_id == place.unfinished()",
        "a log that somebody has gone on with is replaced",
    ),
    (
        a_forced_state_is_sound_and_marked,
        f"{FORCE}:decide_force_state",
        "(wrong := _unsound(state, after, context))",
        '(wrong := "")',
        "a composed state is not held against the invariants",
    ),
    (
        a_forced_state_is_sound_and_marked,
        f"{FORCE}:decide_force_state",
        "set(names) <= set(FORCEABLE)",
        "set(names) <= set(PARTS)",
        "facts of the log can be wished away",
    ),
    (
        a_forced_state_is_sound_and_marked,
        f"{FORCE}:decide_force_state",
        "forced = replace(running, forced=(*running.forced, context.epoch)[-FORCED_KEPT_MAX:])",
        "forced = running",
        "a composed state leaves no mark",
    ),
    (
        a_forced_state_is_sound_and_marked,
        f"{FORCE}:decide_enter_recovery",
        "(running := in_recovery(state)) is not None",
        "(running := in_recovery(state)) is None and state.epoch < 0",
        "two recoveries go on at once",
    ),
    (
        a_forced_state_is_sound_and_marked,
        f"{FORCE}:decide_leave_recovery",
        "ended = replace(running, left=context.epoch, left_by=command.operator)",
        "ended = replace(running, left_by=command.operator)",
        "a recovery never ends",
    ),
)
STORIES = tuple(dict.fromkeys(story for story, *_ in BUGS))


def passes(story: Story, folder: Path) -> bool:
    try:
        story(folder)
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_passes_without_a_bug(story: Story, tmp_path: Path) -> None:
    story(tmp_path)


@pytest.mark.parametrize(("story", "target", "old", "new", "bug"), BUGS, ids=[bug for *_, bug in BUGS])
def test_a_planted_bug_is_found(story: Story, target: str, old: str, new: str, bug: str, tmp_path: Path) -> None:
    with planted(Mutant("", target, old, new, bug, 0)):
        assert not passes(story, tmp_path), bug
