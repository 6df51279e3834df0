"""The past can be folded anew, and what is stored of it is compared with the log."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlog.kernel.commands.snapshots import TakeSnapshot
from ringlog.kernel.commands.truncation import RecordArchive
from ringlog.kernel.encoding import digest
from ringlog.log.archive import Archive, grown
from ringlog.log.beginning import SnapshotTopic
from ringlog.log.errors import LogTruncated
from ringlog.log.folding import Start
from ringlog.operator.errors import Refused
from ringlog.operator.log_past import Past, archive_fault, checked, past, state_at
from tests.log.test_snapshots import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(5), 40)
    return made


def past_in(cluster: Cluster, archive: Archive | None = None) -> Past:
    return past(cluster.log, lambda: SnapshotTopic(cluster.records), archive)


def test_every_epoch_of_the_past_is_there(cluster: Cluster) -> None:
    for made in past_in(cluster).lines():
        if made.after is not made.before:
            assert digest(state_at(past_in(cluster), made.after.epoch)) == digest(made.after)


def test_an_epoch_to_come_is_refused(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="the log ends with epoch"):
        state_at(past_in(cluster), cluster.state.epoch + 1)


def test_what_was_stored_is_what_the_log_says(cluster: Cluster) -> None:
    heads = [cluster.store(), cluster.store("publisher")]
    cluster.apply(TakeSnapshot())
    state, rows = checked(past_in(cluster), cluster.log.identity(), heads)
    assert digest(state) == digest(cluster.state)
    assert [(row.head, row.folded, row.why) for row in rows] == [(head, head.digest, "") for head in heads]


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", "0" * 64), ("position", 3), ("topic_id", "x"), ("state_id", "y"), ("cluster_id", "z")],
)
def test_what_does_not_fit_is_named(cluster: Cluster, field: str, value: Any) -> None:
    head = cluster.store()
    changes: dict[str, Any] = {field: value}
    wrong = replace(head, **changes)
    _, (row,) = checked(past_in(cluster), cluster.log.identity(), [wrong])
    assert str(value) in row.why
    assert str(getattr(head, field)) in row.why


def test_a_snapshot_of_an_epoch_that_the_log_lacks_is_named(cluster: Cluster) -> None:
    head = replace(cluster.store(), epoch=10_000)
    _, (row,) = checked(past_in(cluster), cluster.log.identity(), [head])
    assert (row.folded, row.why) == ("", f"the log ends with epoch {cluster.state.epoch}")


# ------------------------------------------------------------------------------------------- a log that begins later


def test_the_past_begins_with_the_oldest_snapshot_that_the_log_follows(cluster: Cluster) -> None:
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


def test_who_wants_a_late_epoch_begins_with_the_newest_snapshot_before_it(cluster: Cluster, tmp_path: Path) -> None:
    heads = [cluster.store("publisher"), cluster.store("publisher")]
    cluster.live(random.Random(6), 20)
    archive = Archive(tmp_path)
    grown(archive, cluster.log, lambda: SnapshotTopic(cluster.records))
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
    with pytest.raises(Refused, match=f"the log begins with epoch {first}: name the archive"):
        state_at(near(first - 1), first - 1)


def test_without_snapshot_or_archive_nothing_can_be_folded(cluster: Cluster) -> None:
    cluster.store()
    cluster.log.delete_before(5)
    with pytest.raises(LogTruncated, match="begins at offset 5, and no snapshot"):
        past_in(cluster)


def test_the_archive_has_every_epoch(cluster: Cluster, tmp_path: Path) -> None:
    head, archive = cluster.store("publisher"), Archive(tmp_path)
    end = grown(archive, cluster.log, lambda: SnapshotTopic(cluster.records), head.epoch)
    assert end == Start(cluster.state, cluster.log.end_offset())
    states = {made.after.epoch: digest(made.after) for made in past_in(cluster).lines()}
    cluster.log.delete_before(head.position - 1)
    cluster.live(random.Random(8), 10)
    for epoch in (1, head.epoch // 2, head.epoch - 1, head.epoch):
        assert digest(state_at(past_in(cluster, archive), epoch)) == states[epoch]
    state, (row,) = checked(past_in(cluster, archive), cluster.log.identity(), [head])
    assert (digest(state), row.why) == (digest(cluster.state), "")


def test_an_archive_is_the_one_that_the_log_knows_of(cluster: Cluster, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    grown(archive, cluster.log, lambda: SnapshotTopic(cluster.records))
    segments = archive.segments()
    assert archive_fault(cluster.state, ()) == ""
    cluster.apply(RecordArchive(segments[-1].last, segments[-1].next, segments[-1].digest))
    assert archive_fault(cluster.state, segments) == ""
    for others in ((), [replace(segments[0], body="0" * 64), *segments[1:]][-1:]):
        assert f"epoch {segments[-1].last}" in archive_fault(cluster.state, others)
