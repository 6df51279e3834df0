"""SQLite copies of arbitrary logs: tables over their versions, names that differ in case, values that no column can
store. The model keeps all writes of each table by its id and scans them.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ringlog.client.cdc.copies.sqlite import WHOLE_ROW, SqliteTables
from ringlog.client.cdc.rows import CdcChange
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.values import CdcOptions, Column, replace
from ringlog.runtime.clock import ManualClock
from ringlog.wire.records import CdcRow, Cell, DeletedElements
from tests.client.cdc.changes import AT, TABLE, change, row

INSERT, UPDATE, ROW_DELETE = 2, 1, 3
NAMES = ("t", "T", "other")
VARIANTS: tuple[dict[str, str], ...] = (
    {"p": "text", "c": "int", "v": "int", "w": "text"},
    {"p": "text", "c": "int", "v": "text", "x": "int"},
    {"p": "text", "P": "int", "c": "int", "v": "int", "V": "int"},
)
KEYS = ("a", "b")


def table(name: str, number: int, changed: int, columns: dict[str, str]) -> TableChange:
    """Return a version of the ``number``-th table."""
    return TableChange(
        epoch=changed,
        id=f"0000000{number}-0000-4000-8000-000000000000",
        keyspace="ks",
        name=name,
        columns=tuple(Column(column, kind) for column, kind in columns.items()),
        partition_key=("p", "P") if "P" in columns else ("p",),
        clustering_key=("c",),
        cdc=CdcOptions(enabled=True),
        version="",
        changed=changed,
        committed_by_log=True,
    )


def schema(chance: Random) -> list[TableChange]:
    """Return table versions in log order: created, altered, dropped, recreated."""
    found: list[TableChange] = []
    for epoch in range(10, 10 * chance.randint(3, 7), 10):
        name = chance.choice(NAMES)
        last = next((one for one in reversed(found) if one.name == name), None)
        if last is not None and chance.random() < 0.4:
            more = {column.name: column.type for column in last.columns} | {f"n{epoch}": "int"}
            made = table(name, int(last.id[:8]), epoch, more)
        else:
            made = table(name, epoch // 10, epoch, chance.choice(VARIANTS))
        found.append(made)
    return found


@dataclass
class Model:
    """All cells ever written to each table, by row and column, and the times of its row deletions."""

    cells: dict[tuple[Any, ...], list[tuple[int, bytes]]] = field(default_factory=dict)
    markers: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    deletes: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    newest: dict[str, TableChange] = field(default_factory=dict)

    def take(self, version: TableChange, found: CdcRow) -> None:
        if version.changed >= self.newest.get(version.id, version).changed:
            self.newest[version.id] = version
        place = (version.id, found.partition_key, found.clustering_key)
        if found.operation == ROW_DELETE:
            self.deletes.setdefault(place, []).append(found.timestamp)
            return
        if found.operation == INSERT:
            self.markers.setdefault(place, []).append(found.timestamp)
        for cell in found.cells:
            self.cells.setdefault((*place, cell.column), []).append((found.timestamp, cell.value or b""))

    def seen(self, table_id: str) -> tuple[Counter[str], Counter[str]]:
        """Return (rows, undecoded cells) of a table as text."""
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        odd: Counter[str] = Counter()
        version = self.newest[table_id]
        types = {column.name: column.type for column in version.columns}
        for place, times in self.markers.items():
            if place[0] == table_id and max(times) > max(self.deletes.get(place, [0])):
                rows.setdefault(place, {})
        for (*where, column), written in self.cells.items():
            place = tuple(where)
            at, data = max(written)
            if place[0] != table_id or at <= max(self.deletes.get(place, [0])):
                continue
            own = rows.setdefault(place, {})
            value = decoded(types.get(column), data) if column not in ("p", "P", "c") else None
            if value is None:
                odd[repr((place[1], place[2], column, data))] += 1
            else:
                own[column] = value
        return Counter(shown(version, place, values) for place, values in rows.items()), odd


def decoded(kind: str | None, data: bytes) -> Any:
    if kind == "int":
        return int.from_bytes(data, "big", signed=True) if len(data) == 4 else None
    return data.decode() if kind == "text" and data != b"\xff" else None


def shown(version: TableChange, place: tuple[Any, ...], values: dict[str, Any]) -> str:
    key = [place[1][0].decode(), *(int.from_bytes(part, "big", signed=True) for part in place[1][1:])]
    named = dict(zip(version.partition_key, key, strict=True))
    named["c"] = int.from_bytes(place[2][0], "big", signed=True)
    return repr(sorted((named | values).items()))


def drawn(chance: Random, version: TableChange, at: int) -> CdcRow:
    """Return a random write: mostly valid, sometimes with an unknown column, a key column, or an invalid value."""
    parts = [chance.choice(KEYS).encode(), serialize("int", chance.randint(0, 1))][: len(version.partition_key)]
    operation = chance.choice((INSERT, UPDATE, UPDATE, ROW_DELETE))
    columns = [column for column in version.columns if column.name not in (*version.partition_key, "c")]
    cells = []
    for column in chance.sample(columns, chance.randint(0, len(columns))) if operation != ROW_DELETE else ():
        good = serialize(column.type, chance.randint(-3, 3) if column.type == "int" else chance.choice(("x", "y")))
        cells.append(Cell(column.name, chance.choice((good, good, good, b"\xff"))))
    if operation != ROW_DELETE and chance.random() < 0.2:
        cells.append(Cell(chance.choice(("nocol", "W", "c", "p")), b"\0\0\0\1"))
    return row(
        operation, timestamp=at, partition_key=tuple(parts), clustering_key=(serialize("int", chance.randint(0, 2)),),
        cells=tuple(cells), keyspace="ks", table=version.name, epoch=version.changed,
    )  # fmt: skip


def in_file(path: Path) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]], dict[str, str]]:
    """Return (rows, undecoded cells, name of the copy) of each table as the file shows them to any client."""
    with closing(sqlite3.connect(path)) as found:
        found.row_factory = sqlite3.Row
        tables = found.execute("SELECT * FROM ringlog_tables").fetchall()
        rows: dict[str, Counter[str]] = {}
        for one in tables:
            columns = {own: column for column, own in json.loads(one["columns"]).items()}
            listed = found.execute(f'SELECT * FROM "{one["copy"]}"').fetchall()
            rows[one["id"]] = Counter(
                repr(sorted((columns[own], line[own]) for own in line.keys() if line[own] is not None))  # noqa: SIM118
                for line in listed
            )
        odd: dict[str, Counter[str]] = {one["id"]: Counter() for one in tables}
        for line in found.execute('SELECT * FROM "cdc$undecoded" WHERE place IS NULL'):
            key, rest = (
                tuple(bytes.fromhex(part) for part in json.loads(line[n])) for n in ("partition_key", "clustering_key")
            )
            odd[line["table_id"]][repr((key, rest, line["column"], line["value"]))] += 1
        return rows, odd, {one["id"]: one["copy"] for one in tables}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tables"


@pytest.fixture
def target(path: Path) -> SqliteTables:
    return SqliteTables(path, ManualClock(AT))


def test_random_table_versions_are_copied_separately_in_any_order(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for seed in range(60):
        chance, path, model = Random(seed), tmp_path / f"{seed}.sqlite", Model()
        versions = schema(chance)
        writes = []
        for at in range(1, chance.randint(5, 40)):
            version = chance.choice(versions)
            found = drawn(chance, version, AT + at)
            model.take(version, found)
            writes.append(change(found, table=version))
        chance.shuffle(writes)
        apply(path, writes, chance)
        rows, odd, copies = in_file(path)
        assert set(rows) == set(model.newest), seed
        for table_id in rows:
            assert (rows[table_id], odd[table_id]) == model.seen(table_id), (seed, table_id)
        for name in NAMES:
            mine = [one for one in model.newest.values() if one.name == name]
            last = max(mine, key=lambda one: one.changed, default=None)
            for one in mine:
                assert (" dropped " in copies[one.id]) == (one is not last), (seed, copies)
        met["renamed"] += sum(" dropped " in copy for copy in copies.values())
        met["case"] += sum("$2" in copy for copy in copies.values())
        met["odd"] += sum(map(len, odd.values()))
    assert min(met.values()) > 20, met


def apply(path: Path, writes: list[CdcChange], chance: Random) -> None:
    """Apply the rows in transactions of any size, with occasional restarts."""
    target = SqliteTables(path, ManualClock(AT))
    for one in writes:
        target.apply(one)
        if chance.random() < 0.3:
            target.save("there")
        if chance.random() < 0.1:
            target.save("there")
            target.close()
            target = SqliteTables(path, ManualClock(AT))
    target.save("end")
    target.close()


def test_undecodable_cells_are_counted_and_stored_apart(path: Path, target: SqliteTables) -> None:
    cells = (Cell("nosuchcol", b"!"), Cell("v", b"\1"), Cell("w", b"fine"), Cell("m", b"no map"), Cell("p", b"p9"))
    target.apply(change(row(INSERT, (1,), cells=cells, deleted=("gone",))))
    assert target.undecoded == {"ks.t": {"nosuchcol": 1, "v": 1, "m": 1, "p": 1, "cdc$deleted_gone": 1}}
    target.save("first")
    assert copied(path) == [("p1", 1, None, "fine", None, None, None)]
    place, key = "3/41", ('["7031"]', '["00000001"]')
    assert undecoded(path) == [
        ("ks.t", *key, "m", b"no map", place),
        ("ks.t", *key, "nosuchcol", b"!", None),
        ("ks.t", *key, "p", b"p9", None),
        ("ks.t", *key, "v", b"\1", None),
    ]
    target.apply(change(row(UPDATE, (1,), {"v": 7}, timestamp=AT + 1, cells=(Cell("v", b"\0\0\0\7"),))))
    target.apply(change(row(UPDATE, (1,), timestamp=AT + 1, deleted=("nosuchcol",))))
    target.save("second")
    target.close()
    assert copied(path) == [("p1", 1, 7, "fine", None, None, None)]
    assert [line[3] for line in undecoded(path)] == ["m", "p"]


def test_rows_that_do_not_fit_their_table_are_kept_whole(path: Path, target: SqliteTables) -> None:
    odd = [
        row(INSERT, (1,), partition_key=(b"a", b"b")),
        row(INSERT, (1,), partition_key=()),
        row(INSERT, (1, 2)),
        row(ROW_DELETE, ()),
        row(5, (1,)),
        row(8, (1,)),
        row(77, (1,)),
    ]
    for one in odd:
        target.apply(change(one))
    target.apply(change(row(7, (1,)), row(5, (0,)), row(7, (9,))))  # An end without a start, and a range.
    target.apply(change(row(INSERT, (1,), {"v": 5}), table=None))
    target.apply(change(row(INSERT, (1,), {"v": 5}, timestamp=AT + 1)))
    target.save("all")
    target.close()
    assert copied(path) == [("p1", 1, 5, None, None, None, None)]
    kept = undecoded(path)
    assert {line[3] for line in kept} == {WHOLE_ROW}
    assert len(kept) == len(odd) + 2
    assert target.undecoded["ks.t"][WHOLE_ROW] == len(odd) + 2


@pytest.mark.parametrize("ttl", [2**44, 2**63 - 1])
def test_an_overflowing_time_to_live_does_not_stop_the_copy(ttl: int, tmp_path: Path) -> None:
    plain = table("t", 1, 10, VARIANTS[0])
    store = SqliteTables(tmp_path / "f", ManualClock(AT))
    store.apply(change(row(INSERT, values={"v": 1}, ttl=ttl), table=plain))
    store.save("1")
    store.close()
    with closing(sqlite3.connect(tmp_path / "f")) as found:
        assert found.execute('SELECT v FROM "ks.t"').fetchall() == [(1,)]


def test_elements_of_a_plain_column_do_not_stop_the_copy(path: Path, target: SqliteTables) -> None:
    taken = (DeletedElements("nosuchcol", (b"k",)), DeletedElements("v", (b"k",)), DeletedElements("m", (b"\xff",)))
    target.apply(change(row(UPDATE, (1,), {"w": "x"}, deleted_elements=taken)))
    target.save("all")
    target.close()
    assert copied(path) == [("p1", 1, None, "x", None, None, None)]
    assert target.undecoded["ks.t"] == dict.fromkeys((f"cdc$deleted_elements_{one.column}" for one in taken), 1)


def test_a_recreated_table_takes_the_name_of_the_dropped_one(path: Path) -> None:
    old, new = table("t", 1, 10, VARIANTS[0]), table("t", 2, 20, VARIANTS[1])
    target = SqliteTables(path, ManualClock(AT))
    target.apply(change(row(INSERT, (1,), cells=(Cell("v", b"\0\0\0\1"),)), table=old))
    target.save("old")
    assert names(path) == {"ks.t"}
    target.apply(change(row(INSERT, (1,), cells=(Cell("v", b"text"),)), table=new))
    target.save("new")
    # From a partition that is read later.
    target.apply(change(row(INSERT, (2,), cells=(Cell("v", b"\0\0\0\2"),)), table=old))
    target.save("late")
    target.close()
    assert names(path) == {"ks.t", f"ks.t dropped {old.id}"}
    with closing(sqlite3.connect(path)) as found:
        assert found.execute('SELECT c, v FROM "ks.t"').fetchall() == [(1, "text")]
        assert found.execute(f'SELECT c, v FROM "ks.t dropped {old.id}"').fetchall() == [(1, 1), (2, 2)]


def test_columns_are_renamed_dropped_and_recreated(path: Path) -> None:
    first = table("t", 1, 10, {"p": "text", "c": "int", "v": "int", "w": "text"})
    renamed = table("t", 1, 20, {"p": "text", "c": "int", "x": "int"})
    renamed = replace(renamed, stored=(("x", "v"),), respelled=20)
    ignore_remains = table("t", 1, 30, {"p": "text", "c": "int", "x": "int", "v": "text", "w": "int"})
    ignore_remains = replace(ignore_remains, stored=(("x", "v"), ("v", "v@30"), ("w", "w@30")), respelled=20)
    number = serialize("int", 5)
    target = SqliteTables(path, ManualClock(AT))
    for name, version, key, cells in (
        ("first", first, 1, (Cell("v", serialize("int", 1)), Cell("w", b"old"))),
        ("renamed", renamed, 1, (Cell("v", serialize("int", 2)),)),
        ("anew", ignore_remains, 1, (Cell("v@30", b"new"), Cell("w@30", number))),
        ("late", first, 2, (Cell("v", serialize("int", 3)), Cell("w", b"old"))),
    ):
        target.apply(change(row(INSERT, (key,), cells=cells), table=version))
        target.save(name)
    target.close()
    with closing(sqlite3.connect(path)) as found:
        rows = found.execute('SELECT c, x, v, w, "w dropped" FROM "ks.t" ORDER BY c').fetchall()
        assert rows == [(1, 2, "new", 5, None), (2, 3, None, None, None)]
    assert undecoded(path) == []


def test_a_column_that_gets_its_first_name_back_has_it_in_the_copy(path: Path) -> None:
    first = table("t", 1, 10, {"p": "text", "c": "int", "v": "int"})
    renamed = replace(table("t", 1, 20, {"p": "text", "c": "int", "x": "int"}), stored=(("x", "v"),), respelled=20)
    target = SqliteTables(path, ManualClock(AT))
    for version in (first, renamed, replace(first, changed=30, respelled=30)):
        target.apply(change(row(INSERT, (1,), cells=(Cell("v", serialize("int", 1)),)), table=version))
    target.save("here")
    target.close()
    with closing(sqlite3.connect(path)) as found:
        assert found.execute('SELECT c, v FROM "ks.t"').fetchall() == [(1, 1)]


def test_names_that_differ_only_in_case_are_separate(path: Path, target: SqliteTables) -> None:
    lower, upper = table("orders", 1, 10, VARIANTS[2]), table("Orders", 2, 20, VARIANTS[2])
    for version, value in ((lower, 1), (upper, 2)):
        cells = (Cell("v", serialize("int", value)), Cell("V", serialize("int", -value)))
        key = (b"a", serialize("int", value))
        target.apply(change(row(INSERT, (1,), partition_key=key, cells=cells), table=version))
    target.save("both")
    target.close()
    with closing(sqlite3.connect(path)) as found:
        assert found.execute('SELECT * FROM "ks.orders"').fetchall() == [("a", 1, 1, 1, -1)]
        cursor = found.execute('SELECT * FROM "ks.Orders$2"')
        assert [column[0] for column in cursor.description] == ["p", "P$2", "c", "v", "V$2"]
        assert cursor.fetchall() == [("a", 2, 1, 2, -2)]


def test_a_keyspace_may_have_a_name_reserved_by_sqlite(path: Path, target: SqliteTables) -> None:
    target.apply(change(row(INSERT, (1,)), table=replace(TABLE, keyspace="sqlite_x")))
    target.save("one")
    target.close()
    assert names(path) == {"$sqlite_x.t"}


def test_keys_that_sqlite_considers_equal_are_separate(path: Path) -> None:
    made = table("t", 1, 10, {"p": "double", "c": "int", "v": "double"})
    target = SqliteTables(path, ManualClock(AT))
    for key in (0.0, -0.0, float("nan")):
        cells = (Cell("v", serialize("double", float("nan"))),)
        target.apply(change(row(INSERT, (1,), partition_key=(serialize("double", key),), cells=cells), table=made))
        target.save("one")
    target.close()
    with closing(sqlite3.connect(path)) as found:
        assert set(found.execute('SELECT p, v FROM "ks.t"')) == {(0.0, "nan"), ("-0.0", "nan"), ("nan", "nan")}


def test_a_table_dropped_from_the_file_does_not_stop_the_next_one(path: Path, target: SqliteTables) -> None:
    target.apply(change(row(INSERT, (1,)), table=table("t", 1, 10, VARIANTS[0])))
    target.save("old")
    with closing(sqlite3.connect(path)) as other:
        other.execute('DROP TABLE "ks.t"')
    target.apply(change(row(INSERT, (1,)), table=table("t", 2, 20, VARIANTS[0])))
    target.save("new")
    target.close()
    assert names(path) == {"ks.t"}


# --------------------------------------------------------------------------------------------------- reading the copies


def names(path: Path) -> set[str]:
    """Return the copied tables of the file."""
    with closing(sqlite3.connect(path)) as found:
        return {
            line[0] for line in found.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if "." in line[0]
        }


def copied(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as found:
        return found.execute('SELECT * FROM "ks.t" ORDER BY p, c').fetchall()


def undecoded(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as found:
        return found.execute(
            'SELECT "table", partition_key, clustering_key, "column", value, place FROM "cdc$undecoded" ORDER BY 4, 5'
        ).fetchall()
