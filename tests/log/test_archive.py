"""The archive stores the log's records unchanged; missing, cut or changed records are refused with a code."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ringlog import files
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import replace
from ringlog.log.archive import archive as archives
from ringlog.log.archive.archive import Archive, SegmentHead, all_records, extend_archive
from ringlog.log.archive.locations import FolderLocation, open_location
from ringlog.log.errors import ArchiveRefused, ArchiveUnavailable, LogError, LogTruncated
from ringlog.log.folding import BEGINNING, Start, follow
from tests.log.test_snapshots import Cluster

Break = Callable[[Path, list[SegmentHead]], None]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.log.append([b"junk before the founding"])
    made.live(random.Random(3), 60)
    return made


@pytest.fixture
def archive(tmp_path: Path, cluster: Cluster) -> Archive:
    """Return an archive of three segments, with a record without effect in the second one. Later records are only in
    the log.
    """
    made = Archive(tmp_path / "archive")
    archived(cluster, made)
    cluster.log.append([b"junk in between"])
    cluster.log.gap(3)
    for seed in (1, 2):
        cluster.live(random.Random(seed), 20)
        archived(cluster, made)
    cluster.apply(Noop())
    return made


def folder_in(archive: Archive) -> Path:
    assert isinstance(archive.place, FolderLocation)
    return archive.place.folder


def archived(cluster: Cluster, archive: Archive, start: Start = BEGINNING) -> Start:
    return extend_archive(archive, all_records(cluster.log, None, start.position), start, cluster.log.identity())


def folded(cluster: Cluster, archive: Archive | None) -> str:
    *_, last = follow(all_records(cluster.log, archive))
    return digest(last.after)


def test_archive_and_log_are_the_log(cluster: Cluster, archive: Archive) -> None:
    heads = archive.segments()
    assert [head.first for head in heads] == [1, *(head.last + 1 for head in heads[:-1])]
    held = list(archive.records(heads))
    assert held == cluster.log.read(0, 0, len(held))[0]
    assert list(all_records(cluster.log, archive)) == cluster.log.read(0, 0, 100_000)[0]
    assert folded(cluster, archive) == digest(cluster.state)
    cluster.log.delete_before(heads[-1].next)
    assert folded(cluster, archive) == digest(cluster.state)
    with pytest.raises(LogTruncated):
        folded(cluster, None)


def test_existing_segments_are_not_written_again(cluster: Cluster, archive: Archive) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder_in(archive).iterdir()}
    end = archived(cluster, archive)
    assert digest(end.state) == digest(cluster.state)
    after = {path.name: path.stat().st_mtime_ns for path in folder_in(archive).iterdir()}
    assert after.items() > before.items()
    assert len(after) == len(before) + 1
    assert archived(cluster, archive, end) == end
    assert len(archive.segments()) == len(after)


def test_an_archive_after_a_snapshot_needs_no_earlier_record(cluster: Cluster, archive: Archive) -> None:
    end = archived(cluster, archive)
    cluster.log.delete_before(end.position)
    cluster.apply(Noop())
    assert digest(archived(cluster, archive, end).state) == digest(cluster.state)
    with pytest.raises(LogTruncated):
        archived(cluster, archive)


def test_segments_are_bounded(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SEGMENT_RECORDS_MAX", 7)
    made = Archive(tmp_path / "small")
    end = archived(cluster, made)
    assert all(head.records <= 7 + 1 for head in made.segments()[:1])
    assert len(made.segments()) > 3
    assert made.segments()[-1].next == end.position
    monkeypatch.setattr(archives, "SEGMENT_BYTES_MAX", 1)
    cluster.apply(Noop(), Noop())
    archived(cluster, made)
    assert made.segments()[-1].records == 1


def test_an_archive_ends_at_the_requested_position(cluster: Cluster, tmp_path: Path) -> None:
    made = Archive(tmp_path / "part")
    end = extend_archive(made, all_records(cluster.log, None), BEGINNING, cluster.log.identity(), until=5)
    assert (end.state.epoch, made.segments()[-1].last) == (5, 5)


def _rewrite(change: Callable[[SegmentHead], SegmentHead], number: int) -> Break:
    """Replace the head as if the segment had been written with it; the file name follows."""

    def act(folder: Path, heads: list[SegmentHead]) -> None:
        path, head = folder / heads[number].name, change(heads[number])
        data = path.read_bytes()
        path.unlink()
        (folder / head.name).write_bytes(head.line + data.split(b"\n", 1)[1])

    return act


def _bytes(change: Callable[[bytes], bytes], number: int) -> Break:
    def act(folder: Path, heads: list[SegmentHead]) -> None:
        path = folder / heads[number].name
        path.write_bytes(change(path.read_bytes()))

    return act


def _forge(folder: Path, heads: list[SegmentHead]) -> None:
    """Write a segment that is valid alone but does not follow the previous one."""
    path = folder / heads[1].name
    _, body = path.read_bytes().split(b"\n", 1)
    body = body[:-1] + bytes([body[-1] ^ 1])
    path.write_bytes(replace(heads[1], body=archives.sha256_of(body)).line + body)


BROKEN: dict[str, tuple[str, Break]] = {
    "the first is missing": ("archive_gap", lambda folder, heads: (folder / heads[0].name).unlink()),
    "one in the middle is missing": ("archive_gap", lambda folder, heads: (folder / heads[1].name).unlink()),
    "the end of a body is missing": ("archive_forged", _bytes(lambda data: data[:-1], 1)),
    "a body is empty": ("archive_forged", _bytes(lambda data: data.split(b"\n")[0] + b"\n", 2)),
    "a head ends early": ("archive_cut", _bytes(lambda data: data[:40], 1)),
    "a file is empty": ("archive_cut", _bytes(lambda data: b"", 0)),
    "a byte of a body is another": ("archive_forged", _bytes(lambda data: data[:-1] + bytes([data[-1] ^ 1]), 2)),
    "a segment is forged": ("archive_forged", _forge),
    "no head": ("archive_forged", _bytes(lambda data: b"[]\n" + data, 1)),
    "a head with another field": ("archive_forged", _bytes(lambda data: data.replace(b'"first"', b'"fist"'), 1)),
    "a head of other types": (
        "archive_forged",
        _bytes(lambda data: data.replace(b'"format": 1', b'"format": true'), 1),
    ),
    "another name": ("archive_forged", lambda folder, heads: _renamed(folder, heads[2])),
    "a later format": ("archive_forged", _rewrite(lambda head: replace(head, format=2), 2)),
    "another cluster": ("archive_of_another_log", _rewrite(lambda head: replace(head, cluster_id="x"), 2)),
    "fewer records": ("archive_cut", _rewrite(lambda head: replace(head, records=head.records + 1), 2)),
    "an end that lies further": ("archive_cut", _rewrite(lambda head: replace(head, next=head.next + 1), 2)),
    "a begin that lies behind a record": ("archive_gap", _rewrite(lambda head: replace(head, begin=head.begin + 1), 2)),
    "an epoch between": ("archive_gap", _rewrite(lambda head: replace(head, first=head.first + 1), 2)),
}


def _renamed(folder: Path, head: SegmentHead) -> None:
    (folder / head.name).rename(folder / replace(head, last=head.last + 1).name)


@pytest.mark.parametrize("name", BROKEN)
def test_an_invalid_segment_is_refused(cluster: Cluster, archive: Archive, name: str) -> None:
    code, act = BROKEN[name]
    act(folder_in(archive), list(archive.segments()))
    with pytest.raises(ArchiveRefused) as caught:
        list(all_records(cluster.log, archive))
    assert caught.value.code == code


def test_a_draft_is_ignored(cluster: Cluster, archive: Archive) -> None:
    last = archive.segments()[-1]
    (folder_in(archive) / f"{last.name}.77.part").write_bytes(b"half")
    (folder_in(archive) / "notes.txt").write_text("mine")
    assert folded(cluster, archive) == digest(cluster.state)


def test_records_of_another_topic_or_history_are_not_added(cluster: Cluster, archive: Archive) -> None:
    held = len(archive.segments())
    with pytest.raises(ArchiveRefused, match="the archive belongs to topic"):
        extend_archive(archive, all_records(cluster.log, None), BEGINNING, "another")
    other = Cluster()
    other.apply(InitializeCluster("other"))
    other.live(random.Random(9), 200)
    with pytest.raises(ArchiveRefused, match=r"the log has .* at that epoch"):
        extend_archive(archive, all_records(other.log, None), BEGINNING, archive.segments()[0].topic_id)
    with pytest.raises(ArchiveRefused, match="has later entries than the log"):
        extend_archive(archive, cluster.log.read(0, 0, 30)[0], BEGINNING, archive.segments()[0].topic_id)
    with pytest.raises(ArchiveRefused, match="the archive ends before offset"):
        extend_archive(archive, [], Start(cluster.state, cluster.log.end_offset()), archive.segments()[0].topic_id)
    assert len(archive.segments()) == held


def test_an_unwritable_location_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArchiveUnavailable):
            archived(cluster, Archive(place))


def test_a_full_disk_leaves_no_segment(cluster: Cluster, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    held = archive.segments()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ArchiveUnavailable, match="No space left"):
        archived(cluster, archive)
    assert archive.segments() == held


def test_a_folder_is_named_by_its_path_or_its_url() -> None:
    named = {"/a/b": "/a/b", "file:///a/b": "/a/b", "a%20b": "a%20b", "file:///a%20b": "/a b"}
    for place, folder in named.items():
        found = open_location(place)
        assert isinstance(found, FolderLocation)
        assert found.folder == Path(folder)


def test_every_code_is_unique() -> None:
    codes = [kind.code for kind in (*ArchiveRefused.__subclasses__(), ArchiveUnavailable, ArchiveRefused)]
    assert len(set(codes)) == len(codes)
    assert all(issubclass(kind, LogError) for kind in ArchiveRefused.__subclasses__())
    assert json.loads('"archive_gap"') in codes
