"""The SQLite target: visible rows, the whole state over restarts, and one transaction for tables and position."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from ringlog.client.cdc.copies.sqlite import SqliteTables
from ringlog.client.cdc.copies.state_text import state_of, state_text
from ringlog.client.cdc.errors import BadStore, ProgressInUse
from ringlog.client.cdc.stores import FileProgress
from ringlog.kernel.rows.log_rows import fold
from ringlog.kernel.rows.partition import PartitionState
from ringlog.runtime.clock import ManualClock
from tests.client.cdc.changes import AT, change, row
from tests.client.cdc.test_table import SHAPE, rows_of
from tests.kernel.rows.histories import draw

UUID = "04c29680-833b-11ee-8000-000000000001"


def rows(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as found:
        return found.execute('SELECT * FROM "ks.t" ORDER BY p, c').fetchall()


def test_a_table_follows_its_log_and_expired_rows_disappear(tmp_path: Path) -> None:
    path, clock = tmp_path / "tables", ManualClock(AT)
    target = SqliteTables(path, clock)
    target.apply(change(row(2, (1,), {"v": 1, "w": "one", "m": (("x", 1),), "l": ((UUID, 3),), "b": b"\x01"})))
    target.apply(change(row(1, (2,), {"v": 2}, ttl=10)))
    assert target.load() is None
    target.save("first")
    target.close()
    assert rows(path) == [("p1", 1, 1, "one", '[["x", 1]]', "[3]", b"\x01"), ("p1", 2, 2, None, None, None, None)]

    target = SqliteTables(path, clock)
    assert target.load() == "first"
    clock.advance(10)
    target.save("second")
    target.apply(change(row(3, (1,), timestamp=AT - 1)))
    target.save("third")
    target.close()
    assert rows(path) == [("p1", 1, 1, "one", '[["x", 1]]', "[3]", b"\x01")]


def test_unsaved_rows_are_absent(tmp_path: Path) -> None:
    path = tmp_path / "tables"
    target = SqliteTables(path, ManualClock(AT))
    target.apply(change(row(2, (1,), {"v": 1})))
    target.save("first")
    target.apply(change(row(2, (2,), {"v": 2})))
    with pytest.raises(ProgressInUse):
        SqliteTables(path)
    target.close()
    assert len(rows(path)) == 1
    again = SqliteTables(path)
    assert again.load() == "first"
    again.close()


def test_a_state_survives_serialization() -> None:
    for seed in range(60):
        chance = Random(seed)
        state = PartitionState()
        for _ in range(12):
            state = fold(state, rows_of(draw(chance)), SHAPE.columns)
        assert state_of(state_text(state)) == state
    assert state_of(state_text(PartitionState())) == PartitionState()


def test_an_unusable_file_is_reported_and_left_unchanged(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"no database" * 200)
    for path, why in ((tmp_path, "a folder"), (text, "file is not a database"), (text / "x", "")):
        with pytest.raises(BadStore, match=f"{path}: .*{why}"):
            SqliteTables(path)
    assert text.read_bytes() == b"no database" * 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text", "text.lock"]


def test_an_unusable_position_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match="a folder"):
        FileProgress(tmp_path)
    pipe = tmp_path / "pipe"  # A device would be replaced for every process of the machine.
    os.mkfifo(pipe)
    with pytest.raises(BadStore, match="not a regular file"):
        FileProgress(pipe)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(BadStore, match="utf-8"):
        FileProgress(binary).load()


def test_a_transaction_that_fails_is_an_error_and_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "tables"
    target = SqliteTables(path, ManualClock(AT))
    target.apply(change(row(2, (1,), {"v": 1})))
    target.save("first")
    with closing(sqlite3.connect(path)) as other:
        other.execute('DROP TABLE "ks.t"')
    target.apply(change(row(2, (2,), {"v": 2})))
    with pytest.raises(BadStore, match="no such table"):
        target.save("second")
    target.close()
    with closing(SqliteTables(path)) as again:
        assert again.load() == "first"
