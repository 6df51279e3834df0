"""An archive in an fsspec store has the same content and refusal codes as an archive in a folder.

The store is fsspec's own in memory. It has no rename and copies instead, as object stores do.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ringlog.extras import ExtraMissing
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import replace
from ringlog.log.archive.archive import Archive, all_records, extend_archive
from ringlog.log.archive.copies import copy_of_archive, end_of
from ringlog.log.archive.locations import StoreLocation, open_location
from ringlog.log.errors import ArchivePlaceUnknown, ArchiveRefused, ArchiveUnavailable, CopyMissing
from ringlog.log.folding import BEGINNING
from tests.log.test_archive import folded
from tests.log.test_snapshots import Cluster

PLACE = "memory://bucket/shop"


@pytest.fixture
def store() -> Iterator[MemoryFileSystem]:
    """Return the one memory store of the process, empty."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(3), 30)
    return made


@pytest.fixture
def archive(store: MemoryFileSystem, cluster: Cluster) -> Archive:
    """Return an archive of three segments."""
    assert store.ls("/") == []
    made = Archive(open_location(PLACE))
    for seed in (1, 2, 3):
        archived(cluster, made)
        cluster.live(random.Random(seed), 10)
        cluster.apply(Noop())  # a random command may be refused
    return made


def archived(cluster: Cluster, archive: Archive) -> None:
    extend_archive(archive, all_records(cluster.log, None, 0), BEGINNING, cluster.log.identity())


def names(store: MemoryFileSystem) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in store.find("/bucket/shop"))


def test_archive_and_log_are_the_log(store: MemoryFileSystem, cluster: Cluster, archive: Archive) -> None:
    assert len(archive.segments()) == 3
    assert names(store) == [head.name for head in archive.segments()], "no draft is left"
    cluster.log.delete_before(archive.segments()[-1].next)
    assert folded(cluster, Archive(open_location(PLACE))) == digest(cluster.state)
    copy = copy_of_archive(archive)
    assert (copy.place, end_of(copy).at.state.epoch) == (PLACE, archive.segments()[-1].last)


def test_a_missing_location_is_empty(store: MemoryFileSystem) -> None:
    archive = Archive(open_location("memory://elsewhere/a/b"))
    assert archive.segments() == ()
    with pytest.raises(CopyMissing, match="memory://elsewhere/a/b"):
        copy_of_archive(archive)
    assert store.ls("/") == []


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("gap", "archive_gap"),
        ("half", "archive_forged"),
        ("half a head", "archive_cut"),
        ("empty", "archive_cut"),
        ("changed", "archive_forged"),
        ("another cluster", "archive_of_another_log"),
    ],
)
def test_damage_is_refused(store: MemoryFileSystem, cluster: Cluster, archive: Archive, damage: str, code: str) -> None:
    paths = [f"/bucket/shop/{name}" for name in names(store)]
    whole_one = store.cat_file(paths[1])
    if damage == "gap":
        store.rm_file(paths[1])
    elif damage == "another cluster":
        head = replace(archive.segments()[1], cluster_id="another")
        store.pipe_file(paths[1], head.line + whole_one.split(b"\n", 1)[1])
    else:
        broken = {
            "half": whole_one[: len(whole_one) // 2],
            "half a head": whole_one[:40],
            "empty": b"",
            "changed": whole_one[:-1] + bytes([whole_one[-1] ^ 1]),
        }
        store.pipe_file(paths[1], broken[damage])
    with pytest.raises(ArchiveRefused) as refused:
        list(all_records(cluster.log, Archive(open_location(PLACE))))
    assert refused.value.code == code


class Failing(MemoryFileSystem):
    """A store in memory that dies at a step or writes half of its data."""

    cachable = False
    step = ""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.step == "half":
            value = value[: len(value) // 2]
        super().pipe_file(path, value, mode, **options)
        if self.step == "draft":
            raise ConnectionError("a-secret is not let in")

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.step == "move":
            raise ConnectionError("gone")
        super().cp_file(path1, path2, **options)

    def rm_file(self, path: str) -> None:
        if self.step == "leave":
            raise ConnectionError("gone")
        super().rm_file(path)


@pytest.mark.parametrize("step", ["half", "draft", "move", "leave"])
def test_a_write_is_all_or_nothing(store: MemoryFileSystem, cluster: Cluster, archive: Archive, step: str) -> None:
    held = names(store)
    failing = Failing()
    failing.step = step
    place = StoreLocation(failing, "/bucket/shop", "memory://me:a-secret@bucket/shop")
    with pytest.raises(ArchiveUnavailable) as failed:
        archived(cluster, Archive(place))
    assert "a-secret" not in str(failed.value)
    assert "memory://me:…@bucket/shop" in str(failed.value)
    segments = [name for name in names(store) if name.endswith(".segment")]
    assert segments[:3] == held
    assert len(segments) == (4 if step == "leave" else 3), "the segment exists once it has its final name"
    archived(cluster, archive)
    assert folded(cluster, archive) == digest(cluster.state)
    assert len(archive.segments()) == 4


def test_a_store_with_rename_works_too(cluster: Cluster, tmp_path: Path) -> None:
    """The store is fsspec's local file system, which no user configures: users name a folder by its path."""
    place = StoreLocation(DirFileSystem(str(tmp_path), LocalFileSystem()), "/log", "dir://log")
    archive = Archive(place)
    assert archive.segments() == ()
    archived(cluster, archive)
    assert [path.name for path in (tmp_path / "log").iterdir()] == [head.name for head in archive.segments()]
    assert folded(cluster, archive) == folded(cluster, Archive(tmp_path / "log")) == digest(cluster.state)


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("file://host/log", "on another machine"),
        ("file:///log?x", "cannot have options"),
        ("memory://a#b", "cannot have options"),
        ("simplecache::memory://a", "or a chain"),
        ("http://a/b", "is not supported for an archive"),
        ("local:///a", "is not supported for an archive"),
        ("memory://a/*", "several locations"),
        ("nothing-like-it://me:a-secret@a/b", "ValueError"),
        ("http://[a", "neither a folder nor a URL"),
    ],
)
def test_an_invalid_location_is_refused(place: str, rule: str) -> None:
    with pytest.raises(ArchivePlaceUnknown) as refused:
        open_location(place)
    assert rule in str(refused.value)
    assert "a-secret" not in str(refused.value)


def test_an_unreachable_store_is_not_an_unknown_location() -> None:
    """fsspec's FTP client logs in before any other call."""
    with pytest.raises(ArchiveUnavailable) as away:
        open_location("ftp://me:a-secret@127.0.0.1:1/log")
    assert "a-secret" not in str(away.value)


def test_a_store_without_its_library_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "s3fs", None)
        with pytest.raises(ArchivePlaceUnknown, match="s3fs"):
            open_location("s3://bucket/log")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ExtraMissing, match=r"ringlog\[archive\]"):
        open_location(PLACE)
