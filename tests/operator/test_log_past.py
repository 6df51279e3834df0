"""The past of the log can be folded again, and stored states are compared with it."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringlog.files import FileUnusable
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import RecordArchive, TruncateLog
from ringlog.kernel.commands.control.plans import ApprovePlan, StagePlan
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.history import allowed_begin
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.plans import planned
from ringlog.kernel.values import CdcOptions, Column, Replication, replace
from ringlog.log.archive.archive import Archive, update_archive
from ringlog.log.errors import LogTruncated
from ringlog.log.folding import FoldedRecord, Start, follow
from ringlog.log.port import LogRecord
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_lines import LogFilter, check_export, chosen, read_dump, write_dump, write_export
from ringlog.operator.history.log_past import Past, archive_fault, checked, past, state_at
from ringlog.operator.views.summary import OFFERED_RECORDS, format_truncation, truncation_view
from tests.agents.world import World
from tests.kernel.commands.test_truncation import DIGEST, confirm
from tests.kernel.entries import applied, entry, founded, uuid, with_normal_nodes
from tests.log.test_snapshots import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(5), 40)
    return made


def past_in(cluster: Cluster, archive: Archive | None = None) -> Past:
    return past(cluster.log, lambda: SnapshotTopic(cluster.records), archive)


def test_every_past_epoch_can_be_read(cluster: Cluster) -> None:
    for made in past_in(cluster).lines():
        if made.after is not made.before:
            assert digest(state_at(past_in(cluster), made.after.epoch)) == digest(made.after)


def test_a_future_epoch_is_refused(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="the log ends with epoch"):
        state_at(past_in(cluster), cluster.state.epoch + 1)


def test_stored_states_match_the_log(cluster: Cluster) -> None:
    heads = [cluster.store(), cluster.store("publisher")]
    cluster.apply(TakeSnapshot())
    state, rows = checked(past_in(cluster), cluster.log.identity(), heads)
    assert digest(state) == digest(cluster.state)
    assert [(row.head, row.folded, row.why) for row in rows] == [(head, head.digest, "") for head in heads]


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", "0" * 64), ("position", 3), ("topic_id", "x"), ("state_id", "y"), ("cluster_id", "z")],
)
def test_mismatches_are_named(cluster: Cluster, field: str, value: Any) -> None:
    head = cluster.store()
    changes: dict[str, Any] = {field: value}
    wrong = replace(head, **changes)
    _, (row,) = checked(past_in(cluster), cluster.log.identity(), [wrong])
    assert str(value) in row.why
    assert str(getattr(head, field)) in row.why


def test_a_snapshot_of_an_unknown_epoch_is_named(cluster: Cluster) -> None:
    head = replace(cluster.store(), epoch=10_000)
    _, (row,) = checked(past_in(cluster), cluster.log.identity(), [head])
    assert (row.folded, row.why) == ("", f"the log ends with epoch {cluster.state.epoch}")


# ------------------------------------------------------------------------------------------- a log that begins later


def test_the_past_begins_with_the_oldest_usable_snapshot(cluster: Cluster) -> None:
    first, second = cluster.store("publisher"), cluster.store("publisher")
    last = cluster.store("publisher")
    cluster.log.delete_before(second.position - 1)
    state, rows = checked(past_in(cluster), cluster.log.identity(), [first, second, last])
    assert digest(state) == digest(cluster.state)
    assert [(row.head, row.why) for row in rows] == [(second, ""), (last, "")]
    assert digest(state_at(past_in(cluster), last.epoch)) == last.digest
    assert digest(state_at(past_in(cluster), second.epoch)) == second.digest
    with pytest.raises(Refused, match=f"the log begins with epoch {second.epoch}"):
        state_at(past_in(cluster), first.epoch)


def test_a_late_epoch_starts_at_the_newest_earlier_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    heads = [cluster.store("publisher"), cluster.store("publisher")]
    cluster.live(random.Random(6), 20)
    archive = Archive(tmp_path)
    update_archive(archive, cluster.log, lambda: SnapshotTopic(cluster.records))
    states = {made.after.epoch: digest(made.after) for made in past_in(cluster).lines()}

    def near(epoch: int, archive: Archive | None = None) -> Past:
        return past(cluster.log, lambda: SnapshotTopic(cluster.records), archive, epoch)

    first, second = (head.epoch for head in heads)
    begun = {-1: 0, first - 1: 0, first: first, second - 1: first, second: second, cluster.state.epoch: second}
    for epoch, wanted in begun.items():
        found = near(epoch)
        assert found.start.state.epoch == wanted
        assert near(epoch, archive).start.state.epoch == 0
        if epoch > 0:
            assert digest(state_at(found, epoch)) == states[epoch]
    cluster.log.delete_before(heads[0].position - 1)
    assert [near(epoch).start.state.epoch for epoch in (-1, first - 1, second)] == [first, first, second]
    with pytest.raises(Refused, match=f"the log begins with epoch {first}. Pass --archive"):
        state_at(near(first - 1), first - 1)


def test_without_snapshot_or_archive_nothing_can_be_folded(cluster: Cluster) -> None:
    cluster.store()
    cluster.log.delete_before(5)
    with pytest.raises(LogTruncated, match="begins at offset 5, and no snapshot"):
        past_in(cluster)


def test_the_archive_has_every_epoch(cluster: Cluster, tmp_path: Path) -> None:
    head, archive = cluster.store("publisher"), Archive(tmp_path)
    end = update_archive(archive, cluster.log, lambda: SnapshotTopic(cluster.records), head.epoch)
    assert end == Start(cluster.state, cluster.log.end_offset())
    states = {made.after.epoch: digest(made.after) for made in past_in(cluster).lines()}
    cluster.log.delete_before(head.position - 1)
    cluster.live(random.Random(8), 10)
    for epoch in (1, head.epoch // 2, head.epoch - 1, head.epoch):
        assert digest(state_at(past_in(cluster, archive), epoch)) == states[epoch]
    state, (row,) = checked(past_in(cluster, archive), cluster.log.identity(), [head])
    assert (digest(state), row.why) == (digest(cluster.state), "")


def test_the_log_determines_its_archive(cluster: Cluster, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    update_archive(archive, cluster.log, lambda: SnapshotTopic(cluster.records))
    segments = archive.segments()
    assert archive_fault(cluster.state, ()) == ""
    cluster.apply(RecordArchive(segments[-1].last, segments[-1].next, segments[-1].digest))
    assert archive_fault(cluster.state, segments) == ""
    for others in ((), [replace(segments[0], body="0" * 64), *segments[1:]][-1:]):
        assert f"epoch {segments[-1].last}" in archive_fault(cluster.state, others)


# ``ringlog log`` reads logs of years: its memory does not grow with the input.


def records(count: int) -> list[LogRecord]:
    world = World()
    return [LogRecord(offset, world.direct().data) for offset in range(1, count + 1)]


def alive() -> int:
    """Return the number of records in memory. No cycle contains one, so no collection is needed."""
    return sum(type(one) is FoldedRecord for one in gc.get_objects())


def test_only_the_last_lines_are_kept_in_memory() -> None:
    others, most = alive(), 0

    def watched() -> Iterator[LogRecord]:
        nonlocal most
        for record in records(60):
            yield record
            if record.offset > 55:
                most = max(most, alive() - others)

    shown = list(chosen(follow(watched()), LogFilter(all_records=True), 3))
    assert [line.offset for line in shown] == [58, 59, 60]
    assert 3 <= most <= 5


@pytest.mark.parametrize(
    ("by", "expected"), [("ops", 1), ("coordinator", 2), ("coordinator-1a", 1), ("o", 0), ("Bob Smith", 2), ("ws7", 0)]
)
def test_only_the_entries_of_an_author_are_shown(by: str, expected: int) -> None:
    lines, state = [], founded()
    for number, author in enumerate(
        (
            "ops host=ws7 on_behalf=Bob Smith",
            "ops-2 client=ringlog/1 on_behalf=Bob Smith",
            "coordinator-1a host=ws7",
            "coordinator-2b",
        )
    ):
        item = entry(state, Noop(), submitter=author)
        after = fold(state, item)
        lines.append(FoldedRecord(number, item, after.outcome, state, after.state))
        state = after.state
    assert len(list(chosen(lines, LogFilter(by=by), None))) == expected


def test_entries_are_selected_by_command_and_time() -> None:
    """A command counts inside a schema batch and in the plan that an approval applies."""
    columns = (Column("a", "int"),)
    table = CreateTable("ks", "t", uuid(1, 9), columns, ("a",), (), CdcOptions())
    drop = DropTable("ks", "t")
    state = applied(with_normal_nodes(founded(), 1), CreateKeyspace("ks", Replication("simple", 1)))
    lines: list[FoldedRecord] = []
    other = CreateTable("ks", "u", uuid(2, 9), columns, ("a",), (), CdcOptions())
    approval = ApprovePlan("p", state.epoch + 2)
    batch = SchemaBatch((statement_of(table, False),))
    for command in (batch, StagePlan("p", (planned(drop),)), approval, other, Noop()):
        item = entry(state, command)
        after = fold(state, item)
        lines.append(FoldedRecord(len(lines), item, after.outcome, state, after.state))
        state = after.state

    def shown(**wanted: Any) -> list[int]:
        return [line.offset for line in chosen(lines, LogFilter(**wanted), None)]

    assert "ks.t" not in state.tables
    assert shown(kinds=frozenset({"CreateTable"})) == [0, 3]
    assert shown(kinds=frozenset({"DropTable"})) == [1, 2]
    assert shown(kinds=frozenset({"Noop", "SchemaBatch"})) == [0, 4]
    times = [line.item.at for line in lines if isinstance(line.item, Entry)]
    assert shown(first=times[1], until=times[3]) == [1, 2]


def test_an_export_is_valid_by_itself_and_its_chain_is_that_of_the_log(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "trail.jsonl"
    written = write_export(path, past_in(cluster))
    state = cluster.state
    assert written == {"records": len(list(read_dump(path))), "epoch": state.epoch, "chain": state.chain.hex()}
    assert check_export(path, {state.epoch: state.chain.hex()}) == written
    for anchors, why in (
        ({state.epoch: "00" * 32}, "has another chain than the anchor"),
        ({state.epoch + 1: "00" * 32}, "before the anchor of epoch"),
    ):
        with pytest.raises(Refused, match=why):
            check_export(path, anchors)


@pytest.mark.parametrize(
    "change", ["author", "bytes", "missing", "swapped", "added", "repeated", "text", "cut", "twice", "null", "hex"]
)
def test_a_changed_export_is_refused_with_its_line(tmp_path: Path, cluster: Cluster, change: str) -> None:
    path = tmp_path / "trail.jsonl"
    written = write_export(path, past_in(cluster))
    lines = path.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if number > 8 and json.loads(line)["outcome"] == "applied")
    told = json.loads(lines[place])
    match change:
        case "author":
            lines[place] = json.dumps(told | {"submitter": "somebody"})
        case "bytes":
            lines[place] = json.dumps(told | {"data": json.loads(lines[place - 1])["data"]})
        case "missing":
            del lines[place]
        case "swapped":
            lines[place], lines[place + 1] = lines[place + 1], lines[place]
        case "added" | "repeated":
            lines.insert(place, lines[place] if change == "repeated" else json.dumps(told | {"data": "00"}))
        case "text":
            lines[place] = lines[place][:-3]
        case "twice":
            lines[place] = '{"submitter": "somebody", ' + lines[place][1:]
        case "null":
            lines[place] = json.dumps(told | {"more": None})
        case "hex":
            lines[place] = json.dumps(told | {"data": told["data"].upper()})
        case "cut":
            del lines[place:]
    path.write_text("\n".join(lines) + "\n")
    anchors = {written["epoch"]: written["chain"]} if change == "cut" else {}
    with pytest.raises(Refused, match="before the anchor" if change == "cut" else r"line \d+: |trail.jsonl: "):
        check_export(path, anchors)


def test_a_dump_replaces_the_previous_one_only_when_complete(tmp_path: Path) -> None:
    kept, path = records(5), tmp_path / "shop.log"
    assert write_dump(path, iter(kept)) == 5
    assert list(read_dump(path)) == kept

    def broken() -> Iterator[LogRecord]:
        yield kept[0]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write_dump(path, broken())
    assert list(read_dump(path)) == kept


@pytest.mark.parametrize("place", ["no-folder/x", "folder", "a-file/x"])
def test_a_failed_dump_names_its_path(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a-file").touch()
    with pytest.raises(FileUnusable, match=str(tmp_path / place)):
        write_dump(tmp_path / place, records(1))


# ``status`` offers a truncation if it frees much space and is allowed.


FIRST, SECOND = OFFERED_RECORDS + 1, 2 * OFFERED_RECORDS


@pytest.fixture
def state() -> ClusterState:
    """Return a state with confirmed snapshots of epochs 2 and 4."""
    state = applied(founded(), TakeSnapshot(), Noop(), TakeSnapshot())
    return applied(state, confirm(state, 2, FIRST), confirm(state, 4, SECOND))


def test_the_newest_confirmed_snapshot_is_offered(state: ClusterState) -> None:
    found = truncation_view(state)
    assert found is not None
    assert (found["records"], found["command"]) == (SECOND - 1, "ringlog log truncate --below 4")
    assert allowed_begin(applied(state, TruncateLog(4))) == found["records"]
    assert format_truncation(found).endswith("truncation deletes them permanently): ringlog log truncate --below 4")


def test_epochs_missing_in_the_archive_are_not_offered(state: ClusterState) -> None:
    assert truncation_view(applied(state, RecordArchive(1, 1, DIGEST))) is None
    found = truncation_view(applied(state, RecordArchive(2, FIRST, DIGEST)))
    assert found is not None
    assert (found["records"], found["archived"]) == (FIRST - 1, True)
    assert allowed_begin(applied(state, RecordArchive(2, FIRST, DIGEST), TruncateLog(2))) == found["records"]


def test_a_small_truncation_is_not_offered(state: ClusterState) -> None:
    assert truncation_view(founded()) is None
    assert truncation_view(applied(state, TruncateLog(2))) is None
