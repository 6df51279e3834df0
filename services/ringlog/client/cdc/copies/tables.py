"""The SQLite tables that hold the copies of CDC tables, and their columns. ``ringlog_tables`` stores the mapping.

=============================================  =====================================================================
Table                                          Its copy
=============================================  =====================================================================
``ks.t``                                       ``ks.t``.
``ks.T``, if ``ks.t`` exists                   ``ks.T$2``: SQLite ignores case in names (``names.unique_names``).
Dropped, and recreated as ``ks.t``             ``ks.t dropped <id>``, from the first write to the new table.
Dropped, no write to a new table of that name  Unchanged.
=============================================  =====================================================================

Columns follow the same rule: of ``v`` and ``V``, the second is ``V$2``. A copy gets the columns that are added to its
table and loses none. A renamed column is renamed. A dropped column remains, with null in rows that are written again.
It is renamed to ``v dropped`` when a new column ``v`` is created.

Tables that users create in the file are never changed. Users may drop the copy of a table without further writes. The
next write to its table would raise BadStore.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from ringlog.client.cdc.copies.names import unique_names
from ringlog.kernel.changes import TableChange
from ringlog.kernel.schema.stored import stored_names
from ringlog.kernel.values import CdcOptions, Column, Value, replace

UNDECODED = "cdc$undecoded"
TABLES = "ringlog_tables"
RESERVED = "sqlite_"
"""The prefix of SQLite's internal tables. SQLite rejects it for user tables, but a keyspace name may begin with it."""


class Copy(Value):
    """The copy of a table.

    ``table_key``: id of the table. ``name``: ``keyspace.table``. ``table``: name of the copy. ``columns``: stored
    column names (``kernel.schema.stored``) to those of the copy. ``schema``: the newest table version in a change.
    """

    table_key: str
    name: str
    table: str
    columns: Mapping[str, str]
    schema: TableChange


class Copies:
    """The copies in one file. The caller controls the connection and its transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._by_key: dict[str, Copy] | None = None

    def forget(self) -> None:
        """Drop the cached mapping after a rollback."""
        self._by_key = None

    def all(self) -> Mapping[str, Copy]:
        """Return the copies by table id."""
        if self._by_key is None:
            rows = self._connection.execute(f"SELECT id, name, copy, columns, version FROM {TABLES}").fetchall()
            self._by_key = {
                table_key: Copy(
                    table_key, name, table, json.loads(columns), _schema_of(name, table_key, json.loads(version))
                )
                for table_key, name, table, columns, version in rows
            }
        return self._by_key

    def ensure(self, table_key: str, table: TableChange) -> None:
        """Create or extend the copy of a table for a write to this version."""
        copy = self.all().get(table_key)
        if copy is None:
            copy = self._make(table_key, table)
        elif table.changed > copy.schema.changed:
            copy = self._respelled(replace(copy, schema=table))
        elif all(place in copy.columns for place in stored_names(table).values()):
            return
        fresh = {name: place for name, place in stored_names(table).items() if place not in copy.columns}
        added = unique_names(fresh, copy.columns.values())
        for name in fresh:
            self._connection.execute(f"ALTER TABLE {quoted(copy.table)} ADD COLUMN {quoted(added[name])}")
        self._put(replace(copy, columns={**copy.columns, **{place: added[name] for name, place in fresh.items()}}))

    def _respelled(self, copy: Copy) -> Copy:
        """Rename columns as in the newest version. A dropped column is renamed if a new column has its name."""
        table = copy.schema
        if not table.respelled:
            return copy
        own = unique_names(column.name for column in table.columns)
        wanted = {place: own[name] for name, place in stored_names(table).items()}
        gone = {place: name for place, name in copy.columns.items() if place not in wanted}
        taken = {name.lower() for name in wanted.values()}
        for place, name in gone.items():
            is_taken = name.lower() in taken
            wanted[place] = unique_names([f"{name} dropped"], gone.values())[f"{name} dropped"] if is_taken else name
        moved = {place: name for place, name in copy.columns.items() if wanted[place] != name}
        # Rename in two steps, because columns may exchange their names.
        for place, name in moved.items():
            self._rename_column(copy, name, f"cdc$moved {place}")
        for place in moved:
            self._rename_column(copy, f"cdc$moved {place}", wanted[place])
        return replace(copy, columns={place: wanted[place] for place in copy.columns})

    def _rename_column(self, copy: Copy, name: str, to: str) -> None:
        self._connection.execute(f"ALTER TABLE {quoted(copy.table)} RENAME COLUMN {quoted(name)} TO {quoted(to)}")

    def _make(self, table_key: str, table: TableChange) -> Copy:
        """Create a copy. The plain name belongs to the table of that name with the newest version."""
        name = f"{table.keyspace}.{table.name}"
        plain = f"${name}" if name.lower().startswith(RESERVED) else name
        namesakes = [copy for copy in self.all().values() if copy.name == name]
        if any(copy.schema.changed > table.changed for copy in namesakes):
            own = f"{plain} dropped {table_key}"
        else:
            for copy in namesakes:
                if " dropped " not in copy.table:
                    self._rename(copy, f"{plain} dropped {copy.table_key}")
            own = unique_names([plain], self._names())[plain]
        names = unique_names(column.name for column in table.columns)
        columns = {place: names[name] for name, place in stored_names(table).items()}
        self._connection.execute(f"CREATE TABLE {quoted(own)} ({listed(columns.values())})")
        keys = listed(names[name] for name in table.partition_key)
        self._connection.execute(f"CREATE INDEX {quoted(own + ' key')} ON {quoted(own)} ({keys})")
        return Copy(table_key, name, own, columns, table)

    def _rename(self, copy: Copy, name: str) -> None:
        self._put(replace(copy, table=name))
        if not self._columns_of(copy.table):
            # A user dropped the copy.
            return
        self._connection.execute(f"ALTER TABLE {quoted(copy.table)} RENAME TO {quoted(name)}")
        places = stored_names(copy.schema)
        keys = listed(copy.columns[places[column]] for column in copy.schema.partition_key)
        self._connection.execute(f"DROP INDEX IF EXISTS {quoted(copy.table + ' key')}")
        self._connection.execute(f"CREATE INDEX {quoted(name + ' key')} ON {quoted(name)} ({keys})")

    def _put(self, copy: Copy) -> None:
        self._connection.execute(
            f"INSERT OR REPLACE INTO {TABLES} VALUES (?, ?, ?, ?, ?)",
            (copy.table_key, copy.name, copy.table, json.dumps(copy.columns), json.dumps(_schema_json(copy.schema))),
        )
        self._by_key = {**self.all(), copy.table_key: copy}

    def _names(self) -> list[str]:
        return [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master")]

    def _columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f"PRAGMA table_info({quoted(table)})")}


def _schema_json(table: TableChange) -> dict[str, Any]:
    return {
        "id": table.id,
        "changed": table.changed,
        "columns": [[column.name, column.type, column.static] for column in table.columns],
        "partition_key": list(table.partition_key),
        "clustering_key": list(table.clustering_key),
        "stored": list(table.stored),
        "respelled": table.respelled,
    }


def _schema_of(name: str, table_key: str, found: Mapping[str, Any]) -> TableChange:
    keyspace, _, own = name.partition(".")
    return TableChange(
        epoch=found["changed"],
        id=found["id"],
        keyspace=keyspace,
        name=own,
        columns=tuple(Column(*column) for column in found["columns"]),
        partition_key=tuple(found["partition_key"]),
        clustering_key=tuple(found["clustering_key"]),
        cdc=CdcOptions(enabled=True),
        version=table_key,
        changed=found["changed"],
        stored=tuple((column, place) for column, place in found["stored"]),
        respelled=found["respelled"],
    )


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Quote names for SQL, separated by commas."""
    return ", ".join(map(quoted, names))
