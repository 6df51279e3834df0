"""Rows on disk: the node verifies each file, and a crash at any moment leaves one whole commit."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from ringlog.node.rows import disk_rows
from ringlog.node.rows.disk_rows import APPLICATION, CACHE_KB, FORMAT, LOG_BYTES, DiskRows
from ringlog.node.rows.store import RowsMark
from ringlog.node.rows.wal_owner import ids_in_file, ids_in_log
from ringlog.protocol.nodes.errors import NodeFailed, RowsBehind, RowsDamaged, RowsForeign, RowsMixed, RowsNewer
from ringlog.wire.data import RowVersion

NODE, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
RING = ((0, 0),)
MARK = RowsMark("c", 5, "s", "topic", {0: 40})


def row(number: int) -> RowVersion:
    return RowVersion("a.t", number * 7_919 % 1_000, b"k%d" % number, (b"c",), number, b"v" * (number % 300))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with 40 rows, as of MARK."""
    found = tmp_path / "rows.sqlite"
    store = DiskRows(found, NODE)
    for number in range(40):
        store.add(row(number))
    store.commit(MARK, sync=True)
    store.close()
    return found


def refused(path: Path, kind: type[NodeFailed], says: str, cluster_id: str = "") -> None:
    with pytest.raises(kind, match=says) as caught:
        DiskRows(path, NODE, cluster_id)
    assert str(path) in str(caught.value)
    assert (
        caught.value.code == {RowsDamaged: "rows_damaged", RowsForeign: "rows_foreign", RowsNewer: "rows_newer"}[kind]
    )


def test_files_of_other_nodes_are_rejected(path: Path) -> None:
    DiskRows(path, NODE, "c").close()
    refused(path, RowsForeign, "of cluster c", "d")
    with pytest.raises(RowsForeign, match=f"of node {NODE}"):
        DiskRows(path, OTHER)
    with closing(sqlite3.connect(path.parent / "notes")) as notes:
        notes.execute("CREATE TABLE notes (a)")
    refused(path.parent / "notes", RowsForeign, "no file of rows|not a file of rows")


def test_a_later_format_is_rejected_and_left_unchanged(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {FORMAT + 1}")
    refused(path, RowsNewer, "start the release that wrote it")
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT COUNT(*) FROM rows").fetchone() == (40,)
        assert file.execute("PRAGMA application_id").fetchone() == (APPLICATION,)


def test_an_old_copy_is_refused_and_a_new_file_is_not(path: Path) -> None:
    store = DiskRows(path, NODE)
    store.check("c", 5)
    with pytest.raises(RowsBehind, match="acknowledged epoch 6") as caught:
        store.check("c", 6)
    assert caught.value.code == "rows_behind"
    with pytest.raises(RowsForeign, match="of cluster c"):
        store.check("d", 5)
    assert [seen.epoch for seen in store.seen()] == [5]
    store.close()
    fresh = DiskRows(path.parent / "fresh", NODE)
    fresh.check("c", 6)
    assert fresh.seen() == ()
    fresh.close()


def test_a_commit_writes_the_same_with_many_tables(path: Path) -> None:
    store = DiskRows(path, NODE)
    for number in range(300):
        store.identify(f"a.t{number}", str(number))
    store.commit(MARK)
    store.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT LENGTH(mark) FROM mark").fetchone()[0] < 200
        assert file.execute("SELECT COUNT(*) FROM tables WHERE id <> ''").fetchone() == (300,)


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_detected_before_rows_are_returned(path: Path, seed: int) -> None:
    draw, data = Random(seed), bytearray(path.read_bytes())
    expected = sorted(map(row, range(40)), key=lambda one: one.token)
    for _ in range(20):
        damaged = bytearray(data)
        at = draw.randrange(len(data))
        size = draw.choice([1, 1, 100, 5_000])
        damaged[at : at + size] = draw.randbytes(len(damaged[at : at + size]))
        if draw.random() < 0.2:
            damaged = damaged[:at]
        path.write_bytes(damaged)
        try:
            store = DiskRows(path, NODE)
        except (RowsDamaged, RowsForeign, RowsNewer):
            continue
        try:
            found = store.versions(RING)
            assert set(found) <= set(expected), "returned rows are correct"
            if store.mark == MARK and len(store) == 40:
                assert len(found) == 40 or damaged[:100] != data[:100], "no row is missing"
        except RowsDamaged:
            with pytest.raises(RowsDamaged):
                store.add(row(99))
        finally:
            store.close()


def test_a_torn_log_leaves_one_of_the_commits(tmp_path: Path) -> None:
    path, copy = tmp_path / "rows.sqlite", tmp_path / "copy"
    store, states = DiskRows(path, NODE), {0: 0}
    for epoch in range(1, 6):
        for number in range(epoch * 10, epoch * 10 + 10):
            store.add(row(number))
        store.commit(RowsMark("c", epoch, f"s{epoch}", "topic", {0: epoch}))
        states[epoch] = epoch * 10
    log = Path(f"{path}-wal").read_bytes()
    found = set()
    for end in range(0, len(log), 1_500):
        shutil.copy(path, copy)
        Path(f"{copy}-wal").write_bytes(log[:end])
        torn = DiskRows(copy, NODE)
        assert len(torn) == len(torn.versions(RING)) == states[torn.mark.epoch]
        assert torn.mark.positions == ({0: torn.mark.epoch} if torn.mark.epoch else {})
        found.add(torn.mark.epoch)
        torn.close()
    store.close()
    assert len(found) > 3


def test_a_start_checkpoints_the_log_before_it_serves(tmp_path: Path) -> None:
    """A failed sync may leave the log in memory only. A second sync would report success without writing it."""
    path, left, alone = tmp_path / "rows.sqlite", tmp_path / "left", tmp_path / "alone"
    store = DiskRows(path, NODE)
    store.add(row(7))
    store.commit(MARK)
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
    store.close()
    found = DiskRows(left, NODE)
    assert Path(f"{left}-wal").stat().st_size == 0
    shutil.copy(left, alone)
    found.close()
    whole = DiskRows(alone, NODE)
    assert (list(whole.versions(RING)), whole.mark) == ([row(7)], MARK)
    whole.close()


CHILD = """
import sys
from contextlib import closing
from pathlib import Path
from ringlog.node.rows.disk_rows import DiskRows
from ringlog.node.rows.store import RowsMark
from tests.node.test_disk_rows import NODE, row

store = DiskRows(Path(sys.argv[1]), NODE)
first = store.mark.positions.get(0, 0)
for number in range(first, first + 1_000_000):
    store.add(row(number))
    if number % 500 == 499:
        store.drop("a.t", [(number % 900, number % 900 + 50)])
    if number % 37 == 0:
        store.commit(RowsMark("c", number + 1, "s", "topic", {0: number + 1}), sync=number % 5 == 0)
        print(number + 1, flush=True)
"""


def model(position: int) -> set[RowVersion]:
    """Return the rows that the child has after it commits up to a position."""
    found: set[RowVersion] = set()
    for number in range(position):
        found.add(row(number))
        if number % 500 == 499:
            found = {one for one in found if not number % 900 < one.token <= number % 900 + 50}
    return found


def test_a_killed_process_leaves_its_last_commit(tmp_path: Path) -> None:
    path, draw, last = tmp_path / "rows.sqlite", Random(1), 0
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(draw.randrange(1, 60)):
                last = int(child.stdout.readline())
            child.kill()
            for line in child.stdout:
                last = int(line) if line.endswith("\n") else last
        store = DiskRows(path, NODE)
        position = store.mark.positions[0]
        assert position >= last, "committed rows survive the process"
        assert set(store.versions(RING)) == model(position)
        assert len(store) == len(model(position))
        store.close()


def test_dropped_rows_free_their_space(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    store = DiskRows(path, NODE)
    for number in range(2_000):
        store.add(RowVersion("a.t", number, b"k%d" % number, (), 1, b"v" * 1_000))
    store.commit(MARK)
    store.close()
    full = path.stat().st_size
    store = DiskRows(path, NODE)
    assert store.drop("a.t", [(-1, 1_899)]) == 1_900
    store.commit(MARK)
    assert len(store.versions(RING)) == 100
    store.close()
    assert path.stat().st_size < full / 4


def test_files_and_cache_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write-ahead log stays within one transaction plus one checkpoint interval, independent of the traffic."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1])
    path = tmp_path / "rows.sqlite"
    store = DiskRows(path, NODE)
    ((cache,),) = opened[0].execute("PRAGMA cache_size").fetchall()
    assert (cache, CACHE_KB) == (-64 * 1024, 64 * 1024)
    largest = 0
    for commit in range(90):
        for number in range(commit * 200, commit * 200 + 200):
            store.add(RowVersion("a.t", number, b"k%d" % number, (), 1, b"v" * 5_000))
        store.commit(MARK)
        largest = max(largest, path.with_name(f"{path.name}-wal").stat().st_size)
    store.close()
    assert path.stat().st_size > LOG_BYTES > largest > 0


RUN = """
import os, sys
from pathlib import Path
from ringlog.node.rows.disk_rows import DiskRows
from ringlog.node.rows.store import RowsMark
from tests.node.test_disk_rows import NODE, row
store = DiskRows(Path(sys.argv[1]), NODE)
store.identify("a.t", "an id")
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.add(row(number))
    if number % 10 == 9:
        store.commit(RowsMark("c", 1, "s", "topic", {0: number + 1}))
store.commit(RowsMark("c", 1, "s", "topic", {0: int(sys.argv[3])}), sync=True)
os.kill(os.getpid(), 9)
"""


def test_an_old_file_with_a_newer_log_is_rejected(tmp_path: Path) -> None:
    path, copy, log = tmp_path / "rows.sqlite", tmp_path / "copy", tmp_path / "rows.sqlite-wal"

    def run(first: int, last: int) -> None:
        done = subprocess.run([sys.executable, "-c", RUN, str(path), str(first), str(last)], check=False)
        assert done.returncode == -9

    run(0, 500)
    DiskRows(path, NODE).close()
    shutil.copy(path, copy)
    run(500, 510)
    without_its_log = path.read_bytes()
    run(510, 520)
    newest, its_log = path.read_bytes(), log.read_bytes()
    for old in (copy.read_bytes(), without_its_log):
        path.write_bytes(old)
        for _ in range(2):
            with pytest.raises(RowsMixed, match=r"delete rows\.sqlite-wal"):
                DiskRows(path, NODE)
            assert (path.read_bytes(), log.read_bytes()) == (old, its_log), "the file is unchanged"
    log.unlink()
    path.write_bytes(copy.read_bytes())
    restored = DiskRows(path, NODE)
    assert len(restored) == len(restored.versions(((0, 0),))) == 500
    restored.close()
    path.write_bytes(newest)
    log.write_bytes(its_log)
    whole = DiskRows(path, NODE)
    assert len(whole) == len(whole.versions(((0, 0),))) == 520
    whole.close()


@pytest.mark.parametrize("head", ["", "377f0682002de21800000004", "377f0682002de218ffffffff"])
def test_a_log_of_zeros_after_a_power_cut_is_empty(path: Path, head: str) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(bytes.fromhex(head).ljust(8_192, b"\0"))
    again = DiskRows(path, NODE)
    assert len(again) == 40
    again.close()


def test_a_start_killed_while_it_creates_a_log_is_not_a_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies at each statement: the file still has the previous id, and the log has the next one."""
    DiskRows(path, NODE).close()
    begun = DiskRows._begin_log

    def died(self: DiskRows) -> None:
        monkeypatch.setattr(disk_rows, "ALL_INTO_THE_FILE", "SELECT 1")
        begun(self)
        for name in ("rows.sqlite", "rows.sqlite-wal"):
            shutil.copy(path.parent / name, path.parent / f"left-{name}")

    monkeypatch.setattr(DiskRows, "_begin_log", died)
    DiskRows(path, NODE).close()
    monkeypatch.undo()
    for name in ("rows.sqlite", "rows.sqlite-wal"):
        shutil.move(path.parent / f"left-{name}", path.parent / name)
    assert ids_in_file(path) != ids_in_log(path)
    DiskRows(path, NODE).close()
