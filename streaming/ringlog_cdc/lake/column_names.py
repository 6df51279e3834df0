"""The table ``cdc-columns`` in the lake: the name and type of each column of a log table, by metadata epoch.

Invariants:

* A row is a *period*: from one epoch to before another, a base table has a column of this name and type, and rows store
  its values in ``column``. Periods follow from the metadata log, so restarts and replays give the same rows.
* If two columns of one Delta table have the same name, or differ in case only, the first one in the log has the column.
  Values of the other one go to ``cdc$undecoded``, unless both have the same name and type.
* Each commit has the number of its epoch. A driver that is behind changes nothing.

The table grows with each change of a column, and never shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from ringlog.client.cdc.rows import DELETED, ELEMENTS
from ringlog.client.cdc.table_versions import TableVersions
from ringlog.kernel.changes import TableChange
from ringlog.kernel.schema.stored import stored_names
from ringlog_cdc.lake.columns import SOURCE, LakeColumns, TableFields, table_of, version_at
from ringlog_cdc.lake.delta import DeltaTables, description_path, log_path
from ringlog_cdc_reader.columns import LogColumns

COLUMNS = "cdc-columns"
COLUMN_FIELDS = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("table_id", pa.string()),
        pa.field("column", pa.string()),
        pa.field("name", pa.string()),
        pa.field("type", pa.string()),
        pa.field("position", pa.int32()),
        pa.field("from_epoch", pa.int64()),
        pa.field("until_epoch", pa.int64()),
    ]
)
Fact = tuple[str, tuple[tuple[str, str, str], ...]] | None
"""The table that has a name from an epoch on: its id, and the column, name and type of each of its columns. None: no
table has the name.
"""
Field = tuple[str, str]
"""Name and Spark type of a column of a Delta table."""


class ColumnFacts:
    """The facts about the columns of all tables, from the metadata log."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Begin with the rows that an earlier driver wrote."""
        self._facts = facts_in(rows)
        self._fields: dict[str, list[Field]] = {}

    def add(self, known: TableVersions) -> bool:
        """Add table versions up to an epoch. Return False if all of them are known."""
        before = {name: len(own) for name, own in self._facts.items()}
        for name in known.names():
            own = self._facts.setdefault(name, {})
            for epoch, table in known.history(name):
                own.setdefault(epoch, None if table is None else fact_of(table))
        for name in self.dropped(known.current()):
            self._facts[name][known.epoch] = None
        self._fields.clear()
        return before != {name: len(own) for name, own in self._facts.items()}

    def dropped(self, tables: Collection[str]) -> list[str]:
        """Return the tables that are not among ``tables`` and whose drop is not known."""
        return [name for name, own in self._facts.items() if own[max(own)] is not None and name not in tables]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``cdc-columns``."""
        return [row for name in sorted(self._facts) for row in periods(name, self._facts[name])]

    def fields(self, table: str) -> Sequence[Field]:
        """Return the Delta columns of all versions of a table, in the order of the log."""
        if table not in self._fields:
            facts = [fact for _, fact in sorted(self._facts.get(table, {}).items()) if fact is not None]
            versions = (table_of(table, (0, [[column, kind] for column, _, kind in own], (), ())) for _, own in facts)
            fields = (field for version in versions for field in fields_of_version(version))
            self._fields[table] = [*dict.fromkeys(fields)]
        return self._fields[table]


class ColumnNames:
    """The table of one lake. For one thread at a time."""

    def __init__(self, delta: DeltaTables, root: str, cluster_id: str, check: Callable[[], None]) -> None:
        """Open the table.

        Args:
            delta: Access to Delta.
            root: Folder or address of the lake.
            cluster_id: Id of the cluster.
            check: Called before anything is written. May raise.
        """
        self._delta = delta
        self._path = description_path(root, COLUMNS)
        self._author = f"ringlog/{cluster_id}/{COLUMNS}"
        self._check = check
        self._loaded: ColumnFacts | None = None
        self._seen: object = None

    @property
    def facts(self) -> ColumnFacts:
        """The facts, at first those that an earlier driver wrote."""
        if self._loaded is None:
            there = self._delta.load(self._path)
            self._loaded = ColumnFacts([row.asDict() for row in there.collect()] if there is not None else [])
        return self._loaded

    def keep(self, known: TableVersions, seen: object = None) -> None:
        """Add the versions of ``known``, and write the table if they are new.

        Args:
            known: Table versions up to an epoch.
            seen: Object that changes with the tables. If it is the same as before, nothing is done.
        """
        if seen is not None and seen is self._seen:
            return
        if self.facts.add(known):
            self._check()
            rows = pa.Table.from_pylist(self.facts.rows(), COLUMN_FIELDS)
            frame = self._delta.session.createDataFrame(rows).coalesce(1)
            self._delta.overwrite(self._path, frame, known.epoch, self._author)
        self._seen = seen


def fact_of(table: TableChange) -> Fact:
    """Return the fact that a name belongs to this table version."""
    stored = stored_names(table)
    return table.id, tuple((stored[column.name], column.name, column.type) for column in table.columns)


def periods(table: str, facts: Mapping[int, Fact]) -> list[dict[str, Any]]:
    """Return the rows of the table for one name."""
    found: list[dict[str, Any]] = []
    current: dict[tuple[str, ...], dict[str, Any]] = {}
    for epoch, fact in sorted(facts.items()):
        table_id, columns = fact or ("", ())
        now = {(table_id, *column): position for position, column in enumerate(columns)}
        for ended in current.keys() - now.keys():
            current.pop(ended)["until_epoch"] = epoch
        for period, position in now.items():
            if period not in current:
                values = (table, *period, position, epoch, None)
                current[period] = dict(zip(COLUMN_FIELDS.names, values, strict=True))
                found.append(current[period])
    return found


def facts_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, Fact]]:
    """Return full name to the facts by epoch that rows of the table contain."""
    found: dict[str, dict[int, Fact]] = {}
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["from_epoch"], row["position"])):
        tables.setdefault(row["table"], []).append(row)
    for table, own in tables.items():
        # The order of columns never changes: a new column is the last one.
        order: dict[tuple[str, str], int] = {}
        for row in own:
            order.setdefault((row["table_id"], row["column"]), len(order))
        epochs = {row["from_epoch"] for row in own} | {row["until_epoch"] for row in own if row["until_epoch"]}
        for epoch in epochs:
            now = [row for row in own if row["from_epoch"] <= epoch < (row["until_epoch"] or epoch + 1)]
            now.sort(key=lambda row: order[row["table_id"], row["column"]])
            columns = tuple((row["column"], row["name"], row["type"]) for row in now)
            found.setdefault(table, {})[epoch] = (now[0]["table_id"], columns) if now else None
    return found


def fields_of_version(table: TableChange) -> list[Field]:
    """Return the Delta columns of a table version. A name may occur twice."""
    schema = [*LogColumns(table, with_epoch=True).schema(), *SOURCE]
    return [(field.name, from_arrow_schema(pa.schema([field])).fields[0].dataType.simpleString()) for field in schema]


def columns_to_omit(versions: Iterable[TableChange], first: Iterable[Field]) -> list[frozenset[str]]:
    """Return for each version of a table the columns that others displace.

    Args:
        versions: Versions by ascending epoch.
        first: Columns that precede those of the versions.
    """
    owners: dict[str, Field] = {}
    for field in first:
        owners.setdefault(field[0].lower(), field)
    return [
        frozenset(field[0] for field in fields_of_version(table) if owners.setdefault(field[0].lower(), field) != field)
        for table in versions
    ]


def columns_for(
    table: str, epochs: Iterable[int], versions: Sequence[TableFields], first: Iterable[Field]
) -> LakeColumns:
    """Return the conversion of rows of these epochs.

    Args:
        table: Full name of the table.
        epochs: Epochs of the rows.
        versions: Versions that read the rows.
        first: Columns that precede those of the versions.
    """
    read_by = {epoch: version_at(versions, epoch) for epoch in epochs}
    tables = {made.epoch: made for made in (table_of(table, fields) for fields in read_by.values())}
    used = [tables[epoch] for epoch in sorted(tables)]
    places = {one.epoch: place for place, one in enumerate(used)}
    by_epoch = {epoch: places[fields[0] if fields else 0] for epoch, fields in read_by.items()}
    return LakeColumns(tuple(zip(used, columns_to_omit(used, first), strict=True)), by_epoch)


# ------------------------------------------------------------------------------------------------------ reading


def with_current_names(session: SparkSession, lake: str, table: str) -> DataFrame:
    """Return the log of a table with the current names of its columns.

    A column that was dropped keeps its stored name, or has ``name@dropped`` if another column has that name now.

    Args:
        session: Spark session with Delta.
        lake: Folder or address of the lake.
        table: Full name of the table.
    """
    log = session.read.format("delta").load(log_path(lake, table))
    rows = session.read.format("delta").load(description_path(lake, COLUMNS)).where(F.col("table") == table).collect()
    names = current_names([row.asDict() for row in rows], log.columns)
    return log.select([F.col(f"`{column}`").alias(name) for column, name in names.items()])


def current_names(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> dict[str, str]:
    """Return the current names of columns of a Delta table.

    Args:
        rows: Rows of ``cdc-columns`` of the table.
        columns: Columns of the Delta table.
    """
    found, columns = sorted(rows, key=lambda row: row["from_epoch"]), list(columns)
    ends = [row["until_epoch"] for row in found]
    # A dropped table keeps the names that it had last.
    last = None if None in ends else max(ends, default=None)
    names: dict[str, str] = {row["column"]: row["name"] for row in found if row["until_epoch"] == last}
    taken = {f"{prefix}{name}" for name in names.values() for prefix in ("", DELETED, ELEMENTS)}

    def named(column: str) -> str:
        prefix = next((one for one in (ELEMENTS, DELETED) if column.startswith(one)), "")
        name = names.get(column.removeprefix(prefix))
        if name is not None:
            return prefix + name
        return f"{column}@dropped" if column in taken else column

    return {column: named(column) for column in columns}
