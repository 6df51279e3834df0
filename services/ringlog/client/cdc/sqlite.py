"""Tables rebuilt from their CDC log in a SQLite file, each change in effect exactly once.

The file holds, for every partition, what the fold must know (``table``), the rows as they are seen, in a table
named ``keyspace.table`` with a column for each of its columns, and the reader's place. All three change in one
transaction, so the file is as of one place in the log whatever is killed. Rows whose time to live is over go with the
next transaction.

Values: integers that fit, floats and text as such, bytes as blobs, larger integers as text; collections, tuples and
user types as JSON.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from immutables import Map

from ringlog.client.cdc.errors import BadStore, UnknownTable
from ringlog.client.cdc.output import json_value
from ringlog.client.cdc.rows import Change
from ringlog.client.cdc.stores import FileLock
from ringlog.client.cdc.table import TableShape, fold
from ringlog.kernel.changes import TableChange
from ringlog.kernel.rows.cells import Cell, RowState
from ringlog.kernel.rows.partition import PartitionState, Range
from ringlog.kernel.rows.reading import SeenRow, next_expiry, seen
from ringlog.kernel.values import Micros
from ringlog.runtime.clock import Clock, SystemClock

PARTITIONS, PLACE = "ringlog_partitions", "ringlog_place"
INTEGER_MAX = 2**63 - 1
BUSY_S = 30.0
SWEEP_MAX = 1_000
"""Partitions looked at again in one transaction because something of them has expired."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {PARTITIONS}
    (name TEXT, key TEXT, state TEXT NOT NULL, due INTEGER, PRIMARY KEY (name, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ringlog_due ON {PARTITIONS} (due) WHERE due IS NOT NULL;
CREATE TABLE IF NOT EXISTS {PLACE} (one INTEGER PRIMARY KEY CHECK (one = 1), place TEXT NOT NULL);
"""

PartitionKey = tuple[bytes, ...]


class SqliteTables:
    """A store of progress that also holds the tables; for one thread. ``apply`` changes, then ``save`` the place: that
    is the transaction. Raises ProgressInUse if another process writes the file, BadStore if it cannot be used.

    ``tables``: those that may be met, by ``keyspace.table``.
    """

    def __init__(self, path: Path, tables: Mapping[str, TableChange] | None = None, clock: Clock | None = None) -> None:
        self._tables: Mapping[str, TableChange] = tables or {}
        self._clock = clock or SystemClock()
        self._shapes: dict[str, tuple[TableChange, TableShape]] = {}
        self._touched: dict[tuple[str, PartitionKey], PartitionState] = {}
        # Two writers of one file would each skip what the other one applied; readers are welcome at any time.
        self._lock = FileLock(path.absolute())
        self._path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
        except sqlite3.Error as error:
            self._lock.close()
            raise BadStore(path, error) from error
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise BadStore(path, error) from error
            raise

    def know(self, tables: Mapping[str, TableChange]) -> None:
        """The tables of the schema, a mapping that may change later."""
        self._tables = tables

    def load(self) -> str | None:
        """The place of the last transaction."""
        found = self._connection.execute(f"SELECT place FROM {PLACE}").fetchone()
        return None if found is None else str(found[0])

    def apply(self, change: Change) -> None:
        """Take a change in; it is in the file after the next ``save``. Raises UnknownTable."""
        shape = self._shape(change.name)
        key = change.raw[0].partition_key
        state = self._touched.get((change.name, key))
        if state is None:
            state = self._stored(change.name, key)
        self._touched[change.name, key] = fold(state, change.raw, shape)

    def save(self, text: str) -> None:
        """One transaction: everything applied since the last one, what has expired, and the place behind it."""
        try:
            self._save(text)
        except sqlite3.Error as error:
            raise BadStore(self._path, error) from error

    def _save(self, text: str) -> None:
        now = self._clock.now_us()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for (name, key), state in self._touched.items():
                self._write(name, key, state, now)
            self._sweep(now)
            self._connection.execute(f"INSERT OR REPLACE INTO {PLACE} VALUES (1, ?)", (text,))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back by itself
                self._connection.execute("ROLLBACK")
            raise
        self._touched = {}

    def close(self) -> None:
        """Let go of the file; what was applied and not saved is dropped."""
        self._connection.close()
        self._lock.close()

    # ------------------------------------------------------------------------------------------------ tables

    def _shape(self, name: str) -> TableShape:
        table = self._tables.get(name)
        if table is None:
            raise UnknownTable(name, "not in the schema")
        known = self._shapes.get(name)
        if known is None or known[0] is not table:
            self._make(name, table)
            known = self._shapes[name] = (table, TableShape(table))
        return known[1]

    def _make(self, name: str, table: TableChange) -> None:
        columns = [column.name for column in table.columns]
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(name)} ({_list(columns)})")
        there = {row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(name)})")}
        for column in columns:
            if column not in there:
                self._connection.execute(f"ALTER TABLE {_quoted(name)} ADD COLUMN {_quoted(column)}")
        keys = _list(table.partition_key)
        self._connection.execute(f"CREATE INDEX IF NOT EXISTS {_quoted(name + ' key')} ON {_quoted(name)} ({keys})")

    def _stored(self, name: str, key: PartitionKey) -> PartitionState:
        found = self._connection.execute(
            f"SELECT state FROM {PARTITIONS} WHERE name = ? AND key = ?", (name, _key_text(key))
        ).fetchone()
        return PartitionState() if found is None else state_of(found[0])

    def _write(self, name: str, key: PartitionKey, state: PartitionState, now: Micros) -> None:
        shape = self._shape(name)
        self._connection.execute(
            f"INSERT OR REPLACE INTO {PARTITIONS} VALUES (?, ?, ?, ?)",
            (name, _key_text(key), state_text(state), next_expiry(state, now)),
        )
        names = shape.types.partition_key
        fixed = {column: _cell(shape.types.value(column, part)) for column, part in zip(names, key, strict=True)}
        where = " AND ".join(f"{_quoted(column)} IS ?" for column in fixed)
        self._connection.execute(f"DELETE FROM {_quoted(name)} WHERE {where}", tuple(fixed.values()))
        for row in seen(state, shape.columns, now):
            self._insert(name, fixed, row, shape)

    def _insert(self, name: str, fixed: Mapping[str, Any], row: SeenRow, shape: TableShape) -> None:
        values = dict(fixed)
        for column, part in zip(shape.types.clustering_key, row.clustering_key or (), strict=False):
            values[column] = _cell(shape.types.value(column, part))
        for column, data in (*row.static.items(), *row.values.items()):
            values[column] = _cell(_plain(shape, column, data))
        marks = ", ".join("?" * len(values))
        self._connection.execute(
            f"INSERT INTO {_quoted(name)} ({_list(values)}) VALUES ({marks})", tuple(values.values())
        )

    def _sweep(self, now: Micros) -> None:
        """Write again the partitions of which something has expired."""
        due = self._connection.execute(
            f"SELECT name, key, state FROM {PARTITIONS} WHERE due <= ? ORDER BY due LIMIT ?", (now, SWEEP_MAX)
        ).fetchall()
        for name, key, state in due:
            self._write(name, tuple(bytes.fromhex(part) for part in json.loads(key)), state_of(state), now)


def _plain(shape: TableShape, column: str, data: bytes) -> Any:
    """A value as the table has it: a list without the time UUIDs of its cells."""
    value = shape.types.value(column, data)
    if shape.column_types[column].startswith("list") and isinstance(value, tuple):
        return tuple(item for _, item in value)
    return value


def _cell(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INTEGER_MAX:
        return str(value)
    return json.dumps(json_value(value), ensure_ascii=False) if isinstance(value, tuple | dict) else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _list(names: Iterable[str]) -> str:
    return ", ".join(_quoted(name) for name in names)


def _key_text(key: PartitionKey) -> str:
    return json.dumps([part.hex() for part in key])


# ------------------------------------------------------------------------------------------------- state as text


def state_text(state: PartitionState) -> str:
    """A partition's state as JSON."""
    found = {
        "deleted": state.deleted,
        "ranges": [
            [_hexes(item.start), item.start_inclusive, _hexes(item.end), item.end_inclusive, item.deleted]
            for item in state.ranges
        ],
        "static": _row_json(state.static),
        "rows": [[_hexes(key), _row_json(row)] for key, row in sorted(state.rows.items(), key=str)],
    }
    return json.dumps(found, separators=(",", ":"))


def state_of(text: str) -> PartitionState:
    """The reverse of ``state_text``."""
    found = json.loads(text)
    ranges = tuple(Range(_bytes(a), b, _bytes(c), d, at) for a, b, c, d, at in found["ranges"])
    rows = Map({_bytes(key): _row(row) for key, row in found["rows"]})
    return PartitionState(found["deleted"], ranges, _row(found["static"]), rows)


def _row_json(row: RowState) -> list[Any]:
    marker = None if row.marker is None else [row.marker.timestamp, row.marker.expires]
    cells = [
        [column, _hex(key), cell.timestamp, _hex(cell.value), cell.expires]
        for (column, key), cell in sorted(row.cells.items(), key=str)
    ]
    return [row.deleted, marker, cells, dict(sorted(row.wiped.items()))]


def _row(found: list[Any]) -> RowState:
    deleted, marker, cells, wiped = found
    return RowState(
        deleted,
        None if marker is None else Cell(marker[0], b"", marker[1]),
        Map({(column, _unhex(key)): Cell(at, _unhex(value), expires) for column, key, at, value, expires in cells}),
        Map(wiped),
    )


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _hexes(parts: Iterable[bytes | None]) -> list[str | None]:
    return [_hex(part) for part in parts]


def _bytes(parts: Iterable[str | None]) -> tuple[bytes | None, ...]:
    return tuple(_unhex(part) for part in parts)
