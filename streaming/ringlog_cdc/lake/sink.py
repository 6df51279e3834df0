"""The lake as a sink of the job: rows of plan parts go into the Delta tables of their base tables.

Invariants:

* The CDC topic gets the rows of a part before the lake does. The lake thus never has a row that the topic lacks, and
  missing rows can be found in the topic.
* A lake is *filled* from the topic when a checkpoint first uses it: a new lake, or a checkpoint that replaces a lost
  one.
* Each table gets its own commit, numbered with the sequence of the plan part. A repeated part commits only to the
  tables that lack it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from ringlog.client.cdc.table_versions import TableVersions
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value
from ringlog_cdc.bulk.arrow import ADDRESSED_TYPE
from ringlog_cdc.bulk.arrow_batching import ARROW_RECORDS
from ringlog_cdc.errors import CdcError
from ringlog_cdc.lake.column_names import ColumnNames, columns_for
from ringlog_cdc.lake.columns import (
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    LakeColumns,
    Versions,
    all_versions,
    versions_in,
)
from ringlog_cdc.lake.delta import WRITERS, DeltaTables, description_path, log_path, types_of
from ringlog_cdc.lake.descriptions import Descriptions
from ringlog_cdc.lake.heads import heads_of
from ringlog_cdc.lake.identity import Identity, Made, author_prefix
from ringlog_cdc.plan.plan import PlanEntry

Batches = Iterator[pa.RecordBatch]
Positions = Mapping[int, int]

ROWS_PER_FILE = 200_000
"""Rows per file. Larger parts of a table are split by range of generation and token, so each stream is in one file."""
HEADS_TYPE = (
    "table string, topic string, generation bigint, token bigint, number int, operation int, partition int, "
    "offset bigint, timestamp bigint, last boolean, epoch bigint, value binary"
)
"""Spark schema of ``heads``."""
KEPT = ("table", "generation", "token", "epoch")
"""Columns added for the lake to outgoing records."""
KEPT_TYPE = f"{ADDRESSED_TYPE}, table string, generation bigint, token bigint, epoch bigint"
"""Spark schema of outgoing records with these columns."""
SORTED_BYTES = 128 * 2**20
"""Rows of a file are sorted by stream and time in sections of about this size, so that a task needs bounded memory."""
IDENTITY = {
    "partition": SOURCE_PARTITION,
    "offset": SOURCE_OFFSET,
    "timestamp": "cdc$timestamp",
    "number": "cdc$batch_seq_no",
}
"""Columns of ``heads`` that identify a row, to their names in the lake."""


class LakeCommit(Value):
    """Properties of a commit of rows.

    Attributes:
        version: Its number. None: the commit is not numbered.
        ``told``: Metadata stored with it.
    """

    version: int | None
    told: Mapping[str, Any]


def commit_of(entry: PlanEntry, identity: Identity, cdc_from: Positions) -> LakeCommit:
    """Return the commit of a plan part.

    Args:
        entry: The part.
        identity: Author of the commit.
        cdc_from: Ends of the CDC topic before the part was written to it.
    """
    return LakeCommit(
        entry.sequence,
        {
            "writer": identity.writer,
            "author": identity.author,
            "sequence": entry.sequence,
            "batch": entry.batch,
            "part": entry.part,
            "epoch": entry.epoch,
            "positions": {str(partition): offset for partition, offset in entry.positions},
            "cdc_from": {str(partition): offset for partition, offset in sorted(cdc_from.items())},
        },
    )


class Lake:
    """One lake. Call ``append`` from the thread of the batches, ``describe`` from any."""

    def __init__(
        self,
        delta: DeltaTables,
        identity: Identity,
        made: Made | None = None,
        rows_per_file: int = ROWS_PER_FILE,
        known: Callable[[ClusterState], TableVersions] = versions_in,
    ) -> None:
        """Open a lake.

        Args:
            delta: Access to Delta.
            identity: Author of the commits.
            made: Tables that the checkpoint knows to exist.
            rows_per_file: Most rows per file.
            known: Function from a state to the table versions up to it.
        """
        self.identity = identity
        self._made = made
        self.delta = delta
        self._rows_per_file = rows_per_file
        self._there: dict[str, dict[str, str] | None] = {}
        self._descriptions = Descriptions(delta, identity.root, identity.cluster_id, self.check_there)
        self.names = ColumnNames(delta, identity.root, identity.cluster_id, self.check_there)
        self._known = known
        self._lock = threading.Lock()

    def describe(self, state: ClusterState) -> None:
        """Update columns, generations and streams to the state. Raises CdcError ``lake_lost``."""
        with self._lock:
            self.names.keep(self._known(state), state.tables)
            self._descriptions.keep(state)

    def append(
        self,
        rows: DataFrame,
        entry: PlanEntry,
        versions: Versions,
        told: Positions,
        ids: Mapping[str, str],
    ) -> None:
        """Add the rows of a plan part, each table in one commit, unless they are present.

        Args:
            rows: Rows with the columns of ``with_heads``.
            entry: The part.
            versions: Table versions that read its rows.
            ``told``: Ends of the CDC topic before the part.
            ids: Table to its id.

        Raises:
            CdcError: ``lake_lost``.
        """
        self.check_there()
        self.add(rows, commit_of(entry, self.identity, told), versions, ids)

    def add(self, rows: DataFrame, commit: LakeCommit, versions: Versions, ids: Mapping[str, str]) -> dict[str, int]:
        """Add rows of any tables. Return the number of rows by table.

        Args:
            rows: Columns ``KEPT`` and ``value``.
            commit: Properties of the commits.
            versions: Table versions that read the rows.
            ids: Table to its id.

        Raises:
            CdcError: ``lake_lost``.
        """
        counts: dict[str, dict[int, int]] = {}
        for row in rows.groupBy("table", "epoch").count().collect():
            counts.setdefault(row["table"], {})[row["epoch"]] = row["count"]
        for table, by_epoch in sorted(counts.items()):
            if not self._is_there(table) and self._made is not None:
                self._made.check(table, ids.get(table, ""))
            first = [*(self._there[table] or {}).items(), *self.names.facts.fields(table)]
            columns = columns_for(table, by_epoch, versions.get(table, ()), first)
            self._add(table, rows.where(F.col("table") == table), sum(by_epoch.values()), commit, columns)
            if self._made is not None:
                self._made.note(table, ids.get(table, ""))
        return {table: sum(by_epoch.values()) for table, by_epoch in counts.items()}

    def _is_there(self, table: str) -> bool:
        """Return True if the lake has the table, and load its columns."""
        path = log_path(self.identity.root, table)
        if self._there.get(table) is None or not self.delta.is_there(path):
            self._there[table] = self.delta.columns(path)
        return self._there[table] is not None

    def _add(self, table: str, rows: DataFrame, count: int, commit: LakeCommit, columns: LakeColumns) -> None:
        """Add the rows of one table."""
        path, schema = log_path(self.identity.root, table), from_arrow_schema(columns.schema())
        files = -(-count // self._rows_per_file)
        # One file for a small part: many small files make a Delta table slow. Encoded rows are smaller than typed ones.
        rows = rows.repartitionByRange(files, "generation", "token") if files > 1 else rows.repartition(1)
        typed = rows.select("value", "epoch").mapInArrow(decoder(columns), schema)
        self.delta.append(path, typed, commit.version, commit.told)
        self._there[table] = types_of(schema) | (self._there[table] or {})

    def others(self) -> list[str]:
        """Return the authors of this cluster that used the lake before this checkpoint.

        Raises:
            CdcError: ``lake_of_another``.
        """
        authors = sorted({row["author"] for row in self._signed()})
        if any(not name.startswith(author_prefix(self.identity.cluster_id)) for name in authors):
            raise CdcError(
                "lake_of_another",
                f"{self.identity.root} is the lake of another cluster",
                "use another --lake for each cluster",
            )
        return [name for name in authors if name != self.identity.author]

    def check_signed(self) -> None:
        """Check that this checkpoint has signed the lake. Raises CdcError ``lake_lost``."""
        if self.identity.author not in {row["author"] for row in self._signed()}:
            raise self._lost()

    def has_same_tables(self) -> bool:
        """Return True if every author of the lake has the tables of this one."""
        return {row["tables"] for row in self._signed()} == {self.identity.tables}

    def check_there(self) -> None:
        """Check, before each part and at low cost, that the signed lake exists. Raises CdcError ``lake_lost``."""
        if not self.delta.is_there(description_path(self.identity.root, WRITERS)):
            raise self._lost()

    def _lost(self) -> CdcError:
        return CdcError(
            "lake_lost",
            (
                f"this checkpoint has written to the lake {self.identity.root}, but the lake at this path does "
                "not contain those writes"
            ),
            (
                "restore that lake; or delete lake.json in the checkpoint: the job then fills this lake from "
                "the CDC topic"
            ),
        )

    def _signed(self) -> list[Row]:
        there = self.delta.load(description_path(self.identity.root, WRITERS))
        return [] if there is None else there.collect()

    def sign(self, epoch: int = 0) -> None:
        """Add this checkpoint to the authors. May be repeated.

        Args:
            epoch: Epoch of the state. The author with the greatest one is the last.
        """
        mine = self.identity
        one = pa.table({"author": [mine.author], "writer": [mine.writer], "tables": [mine.tables], "epoch": [epoch]})
        path = description_path(self.identity.root, WRITERS)
        self.delta.append(path, self.delta.session.createDataFrame(one), 0, {})

    def fill(self, rows: DataFrame, known: TableVersions, ids: Mapping[str, str]) -> dict[str, int]:
        """Add the rows of the CDC topic that the lake lacks. Return the number of rows by table.

        Other authors are closed out first, so none of them can add one of these rows afterwards. Repetitions in
        ``rows`` count once.

        Args:
            rows: Rows with the columns of ``HEADS_TYPE``.
            known: Table versions, as far back as the log has them.
            ids: Table to its id.
        """
        found: dict[str, int] = {}
        authors = self.others()
        for table in filter(self.identity.selects, [row["table"] for row in rows.select("table").distinct().collect()]):
            path = log_path(self.identity.root, table)
            for author in authors:
                self.delta.close_out(path, author)
            missing = rows.where(F.col("table") == table).dropDuplicates(["topic", *IDENTITY])
            there = self.delta.load(path)
            if there is not None:
                keys = [F.col(name).alias(mine) for mine, name in IDENTITY.items()]
                had = there.select(*keys, F.col(SOURCE_TOPIC).alias("topic"))
                missing = missing.join(had, ["topic", *IDENTITY], "left_anti")
            versions, commit = all_versions(known, [table]), LakeCommit(None, {"filled": self.identity.author})
            found |= self.add(missing.select(*COLUMNS), commit, versions, ids)
        return found

    def lacks_from(self, tables: Iterable[str]) -> dict[int, int]:
        """Return the first offsets of the CDC topic with rows that the lake may lack.

        They come from the newest commit of an earlier checkpoint of this writer. Empty if there is none.
        """
        found: list[dict[int, int]] = []
        for table in tables:
            for told in self.delta.told(log_path(self.identity.root, table)):
                if told.get("writer") == self.identity.writer and "cdc_from" in told:
                    found.append({int(partition): offset for partition, offset in told["cdc_from"].items()})
                    break
        return max(found, key=lambda places: sum(places.values()), default={})


def with_heads(
    function: Callable[[Batches], Batches], topic: str, selects: Callable[[str], bool] = bool
) -> Callable[[Batches], Batches]:
    """Wrap a function of ``ADDRESSED_TYPE`` batches to add table, generation, token and epoch (``KEPT_TYPE``).

    Args:
        function: The function.
        topic: Topic of the rows. Records of other topics get nulls.
        selects: Function that returns True for the tables of the lake. Rows of other tables have no table here.
    """

    def outgoing(batches: Batches) -> Batches:
        for batch in function(batches):
            is_row = pc.equal(batch.column("topic"), topic).to_numpy(zero_copy_only=False)
            found = heads_of(batch.column("value").filter(pa.array(is_row)))
            # Index of each row among the rows, and null for letters: ``take`` then returns null for them.
            place = pa.array(np.cumsum(is_row) - 1, mask=~is_row)
            named = found.tables.dictionary_encode()
            kept = pa.array([table if selects(table) else None for table in named.dictionary.to_pylist()], pa.string())
            columns = (kept.take(named.indices), found.generations, found.tokens, found.epochs)
            taken = [pa.array(column).take(place) for column in columns]
            yield pa.RecordBatch.from_arrays([*batch.columns, *taken], names=[*batch.schema.names, *KEPT])

    return outgoing


def heads(batches: Batches) -> Batches:
    """Add the identifying fields to values of the CDC topic (``HEADS_TYPE``)."""
    for batch in batches:
        values = batch.column("value")
        found = heads_of(values)
        yield pa.RecordBatch.from_arrays(
            [
                found.tables,
                found.topics,
                pa.array(found.generations),
                pa.array(found.tokens),
                pa.array(found.numbers.astype("int32")),
                pa.array(found.operations.astype("int32")),
                pa.array(found.partitions.astype("int32")),
                pa.array(found.offsets),
                pa.array(found.timestamps),
                pa.array(found.lasts),
                pa.array(found.epochs),
                values,
            ],
            names=list(COLUMNS),
        )


COLUMNS = (
    "table",
    "topic",
    "generation",
    "token",
    "number",
    "operation",
    "partition",
    "offset",
    "timestamp",
    "last",
    "epoch",
    "value",
)
"""Columns of ``heads``, in order."""


def decoder(columns: LakeColumns) -> Callable[[Batches], Batches]:
    """Return a function from values of one table in the CDC topic, and their epochs, to its columns in the lake.

    It sorts the rows before they are decoded: as one column of bytes they are cheaper to move than as typed columns.
    """

    def decoded(batches: Batches) -> Batches:
        for section in _sections(batches):
            values, epochs = (column.combine_chunks() for column in section.select(["value", "epoch"]).columns)
            of = heads_of(values)
            order = np.lexsort((of.numbers, of.offsets, of.partitions, of.timestamps, of.tokens, of.generations))
            for start in range(0, len(order), ARROW_RECORDS):
                chosen = pa.array(order[start : start + ARROW_RECORDS])
                yield from columns.batches(values.take(chosen), epochs.take(chosen))

    return decoded


def _sections(batches: Batches) -> Iterator[pa.Table]:
    """Collect batches to tables of about ``SORTED_BYTES``, without empty ones."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= SORTED_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
