"""Copies of tables in a SQLite file, rebuilt from their CDC log.

The file contains the merge state of every partition (``ringlog_partitions``), the visible rows, and the reader's
position. The visible rows of a table are in its *copy*, a SQLite table (``tables``).

Invariants:

- Each change takes effect exactly once. State, rows and position change in one transaction, so after any crash the file
  reflects one position in the log.

- A table is identified by its id. Rows of a dropped table and of a table recreated under its name stay separate, in any
  order of arrival. The types of a write are those of its table at the decision on the write.

- No content of the log stops the reading. Values that fit no column (``rows``) are stored in the table
  ``cdc$undecoded`` as raw bytes. With a null ``place``, the value is part of the *current* partition and is recomputed
  with each write to it. With a position of the CDC topic as ``place``, it is a row that is not a write to its table, or
  an invalid collection. Such rows are kept permanently.

Each transaction removes expired rows from at most ``SWEEP_MAX`` partitions.

SQLite types: numbers that fit and text are stored directly, bytes as blobs, larger integers as text. Collections,
tuples and user types are stored as JSON.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ringlog.client.cdc.copies.partition import FoldedShape, fits_key, fitting, unfolded
from ringlog.client.cdc.copies.state_text import state_of, state_text
from ringlog.client.cdc.copies.tables import TABLES, UNDECODED, Copies, Copy, listed, quoted
from ringlog.client.cdc.errors import BadStore
from ringlog.client.cdc.output import json_value
from ringlog.client.cdc.rows import CdcChange
from ringlog.client.cdc.stores import FileLock
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.types import TypeMismatch, deserialize
from ringlog.kernel.rows.log_rows import POSTIMAGE, PREIMAGE, fold
from ringlog.kernel.rows.partition import PartitionState, only
from ringlog.kernel.rows.reading import SeenRow, next_expiry, seen
from ringlog.kernel.schema.stored import in_stored_names
from ringlog.kernel.values import Micros
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.wire.records import CdcRow, encode_cdc_row

PARTITIONS, PLACE = "ringlog_partitions", "ringlog_place"
INTEGER_MAX = 2**63 - 1
BUSY_S = 30.0
SWEEP_MAX = 1_000
"""The most partitions that one transaction rewrites because of expired rows."""

WHOLE_ROW = ""
"""Replaces the column name if a complete log row is undecoded."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {TABLES} (id TEXT PRIMARY KEY, name TEXT, copy TEXT, columns TEXT, version TEXT);
CREATE TABLE IF NOT EXISTS {PARTITIONS}
    (id TEXT, key TEXT, state TEXT NOT NULL, due INTEGER, PRIMARY KEY (id, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ringlog_due ON {PARTITIONS} (due) WHERE due IS NOT NULL;
CREATE TABLE IF NOT EXISTS {PLACE} (one INTEGER PRIMARY KEY CHECK (one = 1), place TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS {quoted(UNDECODED)}
    ("table" TEXT, table_id TEXT, partition_key TEXT, clustering_key TEXT, "column" TEXT, value BLOB, place TEXT);
CREATE INDEX IF NOT EXISTS ringlog_undecoded ON {quoted(UNDECODED)} (table_id, partition_key);
"""

PartitionKey = tuple[bytes, ...]
Row = tuple[Any, ...]


class SqliteTables:
    """A progress store that also holds the tables. Not thread-safe.

    A transaction consists of any number of ``apply`` calls and one ``save`` of the position. ``undecoded``: number of
    undecoded values since the creation of this object, by table and column (``WHOLE_ROW``: a complete row). Raises
    ProgressInUse if another process writes the file, BadStore if it cannot be used.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.undecoded: dict[str, Counter[str]] = {}
        self._clock = clock or SystemClock()
        self._shapes: dict[tuple[str, int], FoldedShape] = {}
        self._met: dict[str, TableChange] = {}
        self._touched: dict[tuple[str, PartitionKey], PartitionState] = {}
        self._kept: list[Row] = []
        # Each of two writers would skip the changes that the other applied. Readers need no lock.
        self._lock = FileLock(path.absolute())
        self._path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
        except sqlite3.Error as error:
            self._lock.close()
            raise BadStore(path, error) from error
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            # ``save`` must be durable when it returns. In WAL mode, NORMAL could lose the last commits in a power
            # failure.
            self._connection.execute("PRAGMA synchronous = FULL")
            self._copies = Copies(self._connection)
            self._connection.executescript(_SCHEMA)
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise BadStore(path, error) from error
            raise

    def load(self) -> str | None:
        """Return the position of the last transaction."""
        found = self._connection.execute(f"SELECT place FROM {PLACE}").fetchone()
        return None if found is None else str(found[0])

    def apply(self, change: CdcChange) -> None:
        """Add a change to the next transaction."""
        for row in change.rows:
            if row.code not in (PREIMAGE, POSTIMAGE):
                for column in row.undecoded:
                    self._count(change.name, column)
        table = change.schema
        if table is None or not fits_key(change.raw, table):
            self._keep(change, change.raw)
            return
        shape = self._shape(table)
        table_key = table.id
        rows, misfits = fitting(change.raw, shape)
        self._keep(change, misfits)
        for one in rows:
            for column, data in unfolded(one, shape):
                self._kept.append(_undecoded(change.name, table.id, one, column, data, _place(change)))
        if table_key not in self._met or self._met[table_key].changed < table.changed:
            self._met[table_key] = table
        if rows:
            key = change.raw[0].partition_key
            state = self._touched.get((table_key, key))
            if state is None:
                state = self._stored(table_key, key)
            self._touched[table_key, key] = fold(state, rows, shape.columns)

    def save(self, text: str) -> None:
        """Commit all changes since the last ``save``, the removal of expired rows, and the position after them."""
        try:
            self._save(text)
        except sqlite3.Error as error:
            raise BadStore(self._path, error) from error

    def _save(self, text: str) -> None:
        now = self._clock.now_us()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for table_key, table in self._met.items():
                self._copies.ensure(table_key, table)
            for (table_key, key), state in self._touched.items():
                self._write(self._copies.all()[table_key], key, state, now)
            for row in self._kept:
                self._keep_row(row)
            self._sweep(now)
            self._connection.execute(f"INSERT OR REPLACE INTO {PLACE} VALUES (1, ?)", (text,))
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._touched, self._met, self._kept = {}, {}, []

    def _roll_back(self) -> None:
        self._copies.forget()
        # SQLite has already rolled back after errors such as a full disk.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file. Changes without a ``save`` are dropped."""
        self._connection.close()
        self._lock.close()

    # ------------------------------------------------------------------------------------------------ tables

    def _shape(self, table: TableChange) -> FoldedShape:
        version = (table.id, table.changed)
        shape = self._shapes.get(version)
        if shape is None:
            shape = self._shapes[version] = FoldedShape(in_stored_names(table))
        return shape

    def _stored(self, table_key: str, key: PartitionKey) -> PartitionState:
        found = self._connection.execute(
            f"SELECT state FROM {PARTITIONS} WHERE id = ? AND key = ?", (table_key, _key_text(key))
        ).fetchone()
        return PartitionState() if found is None else state_of(found[0])

    def _write(self, copy: Copy, key: PartitionKey, state: PartitionState, now: Micros) -> None:
        shape = self._shape(copy.schema)
        self._connection.execute(
            f"INSERT OR REPLACE INTO {PARTITIONS} VALUES (?, ?, ?, ?)",
            (copy.table_key, _key_text(key), state_text(state), _next_check(next_expiry(state, now))),
        )
        self._connection.execute(
            f"DELETE FROM {quoted(UNDECODED)} WHERE table_id = ? AND partition_key = ? AND place IS NULL",
            (copy.schema.id, _key_text(key)),
        )
        names = shape.types.partition_key
        fixed = {column: _key_cell(shape.types.value(column, part)) for column, part in zip(names, key, strict=True)}
        where = " AND ".join(f"{quoted(copy.columns[column])} IS ?" for column in fixed)
        self._connection.execute(f"DELETE FROM {quoted(copy.table)} WHERE {where}", tuple(fixed.values()))
        odd: dict[tuple[str | None, str], bytes] = {}
        # The state may contain values of dropped columns.
        if copy.schema.respelled:
            state = only(state, frozenset(shape.types.data))
        for row in seen(state, shape.columns, now):
            odd |= self._insert(copy, fixed, row, shape)
        for (place, column), data in odd.items():
            self._keep_row((copy.name, copy.schema.id, _key_text(key), place, column, data, None))

    def _insert(
        self, copy: Copy, fixed: Mapping[str, Any], row: SeenRow, shape: FoldedShape
    ) -> dict[tuple[str | None, str], bytes]:
        """Insert a visible row. Return undecoded values by clustering key (None: static columns) and column."""
        values, odd = dict(fixed), {}
        for column, part in zip(shape.types.clustering_key, row.clustering_key or (), strict=False):
            values[column] = _key_cell(shape.types.value(column, part))
        for place, names in ((None, row.static), (_key_text(row.clustering_key), row.values)):
            for column, data in names.items():
                try:
                    values[column] = _plain(shape, column, data)
                except TypeMismatch:
                    odd[place, column] = data
        own = [copy.columns[column] for column in values]
        marks = ", ".join("?" * len(own))
        self._connection.execute(
            f"INSERT INTO {quoted(copy.table)} ({listed(own)}) VALUES ({marks})", tuple(values.values())
        )
        return odd

    def _sweep(self, now: Micros) -> None:
        """Rewrite partitions with expired rows."""
        expired = self._connection.execute(
            f"SELECT id, key, state FROM {PARTITIONS} WHERE due <= ? ORDER BY due LIMIT ?", (now, SWEEP_MAX)
        ).fetchall()
        for table_key, key, state in expired:
            parts = tuple(bytes.fromhex(part) for part in json.loads(key))
            self._write(self._copies.all()[table_key], parts, state_of(state), now)

    # --------------------------------------------------------------------------------------------- undecoded

    def _keep(self, change: CdcChange, rows: Iterable[CdcRow]) -> None:
        """Store log rows that are not writes to their table."""
        for row in rows:
            self._count(change.name, WHOLE_ROW)
            place = _place(change)
            self._kept.append(
                _undecoded(change.name, change.table_id or "", row, WHOLE_ROW, encode_cdc_row(row), place)
            )

    def _keep_row(self, row: Row) -> None:
        self._connection.execute(f"INSERT INTO {quoted(UNDECODED)} VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _count(self, name: str, column: str) -> None:
        self.undecoded.setdefault(name, Counter())[column] += 1


def _undecoded(name: str, table_id: str, row: CdcRow, column: str, data: bytes, place: str) -> Row:
    return name, table_id, _key_text(row.partition_key), _key_text(row.clustering_key), column, data, place


def _place(change: CdcChange) -> str:
    return "/".join(map(str, change.place))


def _plain(shape: FoldedShape, column: str, data: bytes) -> Any:
    """Convert a value to SQLite's types; a list loses the time UUIDs of its cells.

    Raises TypeMismatch, also for an unknown column.
    """
    if column not in shape.types.data:
        raise TypeMismatch("unknown", "the table has no such column outside its key", column)
    value = deserialize(shape.types.columns[column], data)
    if shape.column_types[column].startswith("list"):
        assert isinstance(value, tuple), "the decoded list consists of pairs"
        value = tuple(item for _, item in value)
    return _cell(value)


def _next_check(expiry: Micros | None) -> Micros | None:
    """Return the time of the next expiry check. A time beyond SQLite's integers never comes, so it becomes None."""
    return None if expiry is None or expiry > INTEGER_MAX else expiry


def _cell(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INTEGER_MAX:
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        # SQLite stores NaN as null.
        return str(value)
    return json.dumps(json_value(value), ensure_ascii=False) if isinstance(value, tuple | dict) else value


def _key_cell(value: Any) -> Any:
    """Convert a key value so that different keys stay different: SQLite treats 0.0 and -0.0 as equal."""
    return "-0.0" if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0 else _cell(value)


def _key_text(key: tuple[bytes | None, ...] | None) -> str | None:
    return None if key is None else json.dumps([None if part is None else part.hex() for part in key])
