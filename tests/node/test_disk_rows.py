"""Rows on disk: what a file says is a claim, and a crash at any moment leaves one whole commit."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from ringlog.node.disk_rows import APPLICATION, CACHE_KB, FORMAT, LOG_BYTES, DiskRows
from ringlog.node.errors import NodeFailed, RowsBehind, RowsDamaged, RowsForeign, RowsNewer
from ringlog.node.store import RowsMark, RowVersion

NODE, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
RING = ((0, 0),)
MARK = RowsMark("c", 5, "s", "topic", {0: 40})


def row(number: int) -> RowVersion:
    return RowVersion("a.t", number * 7_919 % 1_000, b"k%d" % number, (b"c",), number, b"v" * (number % 300))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with 40 rows, as of MARK."""
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
        caught.value.code
        == {
            RowsDamaged: "rows_damaged",
            RowsForeign: "rows_foreign",
            RowsNewer: "rows_newer",
        }[kind]
    )


def test_what_is_of_others_is_refused(path: Path) -> None:
    DiskRows(path, NODE, "c").close()
    refused(path, RowsForeign, "of cluster c", "d")
    with pytest.raises(RowsForeign, match=f"of node {NODE}"):
        DiskRows(path, OTHER)
    with closing(sqlite3.connect(path.parent / "notes")) as notes:
        notes.execute("CREATE TABLE notes (a)")
    refused(path.parent / "notes", RowsForeign, "no file of rows|not a file of rows")


def test_a_later_format_is_refused_and_left_as_it_is(path: Path) -> None:
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


def first_format(path: Path, node: str) -> None:
    """Make of a file what the release before would have written."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("ALTER TABLE tables DROP COLUMN id")
        said = {"node": node, "cluster_id": "c", "epoch": 5, "state_id": "s", "topic_id": "topic"}
        text = json.dumps({**said, "positions": [[0, 40]], "tables": {"a.t": "1"}})
        file.execute("UPDATE mark SET mark = ?, sum = ?", (text, crc32(text.encode())))
        file.execute("PRAGMA user_version = 1")


def test_a_file_of_the_first_format_is_read_and_is_of_this_one_then(path: Path) -> None:
    first_format(path, NODE)
    for _ in range(2):
        store = DiskRows(path, NODE, "c")
        assert (store.mark, len(store), store.ids) == (MARK, 40, {"a.t": "1"})
        assert len(store.versions(RING)) == 40
        store.close()
    first_format(path, OTHER)
    for _ in range(2):
        refused(path, RowsForeign, f"of node {OTHER}")


def test_a_commit_writes_no_more_where_there_are_many_tables(path: Path) -> None:
    store = DiskRows(path, NODE)
    for number in range(300):
        store.identify(f"a.t{number}", str(number))
    store.commit(MARK)
    store.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT LENGTH(mark) FROM mark").fetchone()[0] < 200
        assert file.execute("SELECT COUNT(*) FROM tables WHERE id <> ''").fetchone() == (300,)


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_found_before_a_row_of_it_is_given(path: Path, seed: int) -> None:
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
            assert set(found) <= set(expected), "what is given is right"
            if store.mark == MARK and len(store) == 40:
                assert len(found) == 40 or damaged[:100] != data[:100], "and nothing is left out"
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


def test_what_a_start_finds_in_the_log_is_in_the_file_before_anybody_learns_of_it(tmp_path: Path) -> None:
    """After a failed sync the log may be in memory alone, and to sync it once more would say that all is well."""
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
from ringlog.node.disk_rows import DiskRows
from ringlog.node.store import RowsMark
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
    """What the child has when it has committed up to a position."""
    found: set[RowVersion] = set()
    for number in range(position):
        found.add(row(number))
        if number % 500 == 499:
            found = {one for one in found if not number % 900 < one.token <= number % 900 + 50}
    return found


def test_a_process_that_is_killed_leaves_its_last_commit(tmp_path: Path) -> None:
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
        assert position >= last, "what was committed outlives the process"
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


def test_the_files_and_the_cache_have_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much goes through it: the write-ahead log is as large as a transaction and what is between two copies."""
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
