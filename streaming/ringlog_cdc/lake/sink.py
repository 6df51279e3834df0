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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from ringlog.kernel.model.state import ClusterState
from ringlog_cdc.bulk.arrow import ADDRESSED_TYPE
from ringlog_cdc.errors import CdcError
from ringlog_cdc.lake.columns import (
    GENERATION,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    TOKEN,
    LakeColumns,
    TableFields,
    fields_of,
    ids_of,
    left_out,
    table_of,
)
from ringlog_cdc.lake.delta import WRITERS, DeltaTables, description_path, log_path, types_of
from ringlog_cdc.lake.descriptions import Descriptions
from ringlog_cdc.lake.heads import heads_of
from ringlog_cdc.lake.identity import Identity, Made, author_prefix
from ringlog_cdc.plan.plan import PlanEntry

Batches = Iterable[pa.RecordBatch]
Positions = Mapping[int, int]

ROWS_PER_FILE = 200_000
"""Rows per file. Larger parts of a table are split by range of generation and token, so each stream is in one file."""
HEADS_TYPE = (
    "table string, topic string, generation bigint, token bigint, number int, operation int, partition int, "
    "offset bigint, timestamp bigint, last boolean, value binary"
)
"""Spark schema of ``heads``."""
KEPT = ("table", "generation", "token")
"""Columns added for the lake to outgoing records."""
KEPT_TYPE = f"{ADDRESSED_TYPE}, table string, generation bigint, token bigint"
"""Spark schema of outgoing records with these columns."""
ORDER = (GENERATION, TOKEN, "cdc$timestamp", SOURCE_PARTITION, SOURCE_OFFSET, "cdc$batch_seq_no")
"""Sort order within a file."""
IDENTITY = {
    "partition": SOURCE_PARTITION,
    "offset": SOURCE_OFFSET,
    "timestamp": "cdc$timestamp",
    "number": "cdc$batch_seq_no",
}
"""Columns of ``heads`` that identify a row, to their names in the lake."""


@dataclass(frozen=True, slots=True)
class LakeCommit:
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
        self, delta: DeltaTables, identity: Identity, made: Made | None = None, rows_per_file: int = ROWS_PER_FILE
    ) -> None:
        """Open a lake.

        Args:
            delta: Access to Delta.
            identity: Author of the commits.
            made: Tables that the checkpoint knows to exist.
            rows_per_file: Most rows per file.
        """
        self.identity = identity
        self._made = made
        self.delta = delta
        self._rows_per_file = rows_per_file
        self._there: dict[str, dict[str, str] | None] = {}
        self._descriptions = Descriptions(delta, identity.root, identity.cluster_id, self.check_there)
        self._lock = threading.Lock()

    def describe(self, state: ClusterState) -> None:
        """Update generations and streams to the state. Raises CdcError ``lake_lost``."""
        with self._lock:
            self._descriptions.keep(state)

    def append(
        self,
        rows: DataFrame,
        entry: PlanEntry,
        fields: Mapping[str, TableFields],
        told: Positions,
        ids: Mapping[str, str],
    ) -> None:
        """Add the rows of a plan part, each table in one commit, unless they are present.

        Args:
            rows: Rows with the columns of ``with_heads``.
            entry: The part.
            fields: Table to the fields that decode its rows.
            ``told``: Ends of the CDC topic before the part.
            ids: Table to its id.

        Raises:
            CdcError: ``lake_lost``.
        """
        self.check_there()
        self.add(rows, commit_of(entry, self.identity, told), fields, ids)

    def add(
        self, rows: DataFrame, commit: LakeCommit, fields: Mapping[str, TableFields], ids: Mapping[str, str]
    ) -> dict[str, int]:
        """Add rows of any tables. Return the number of rows by table.

        Args:
            rows: Columns ``table``, ``generation``, ``token`` and ``value``.
            commit: Properties of the commits.
            fields: Table to the fields that decode its rows.
            ids: Table to its id.

        Raises:
            CdcError: ``lake_lost``.
        """
        counts = {row["table"]: row["count"] for row in rows.groupBy("table").count().collect()}
        for table, count in sorted(counts.items()):
            if not self._is_there(table) and self._made is not None:
                self._made.check(table, ids.get(table, ""))
            self._add(table, rows.where(F.col("table") == table), count, commit, fields.get(table))
            if self._made is not None:
                self._made.note(table, ids.get(table, ""))
        return counts

    def _is_there(self, table: str) -> bool:
        """Return True if the lake has the table, and load its columns."""
        path = log_path(self.identity.root, table)
        if self._there.get(table) is None or not self.delta.is_there(path):
            self._there[table] = self.delta.columns(path)
        return self._there[table] is not None

    def _add(self, table: str, rows: DataFrame, count: int, commit: LakeCommit, fields: TableFields | None) -> None:
        """Add the rows of one table."""
        path = log_path(self.identity.root, table)
        wanted = types_of(from_arrow_schema(LakeColumns(table_of(table, fields)).schema()))
        columns = LakeColumns(table_of(table, fields), left_out(wanted, self._there[table] or {}))
        files = -(-count // self._rows_per_file)
        rows = rows.repartitionByRange(files, "generation", "token") if files > 1 else rows
        typed = rows.select("value").mapInArrow(decoder(columns), from_arrow_schema(columns.schema()))
        # One file for a small part: many small files make a Delta table slow.
        typed = typed if files > 1 else typed.repartition(1)
        self.delta.append(path, typed.sortWithinPartitions(*ORDER), commit.version, commit.told)
        added = {name: kind for name, kind in wanted.items() if name not in columns.out}
        self._there[table] = added | (self._there[table] or {})

    def others(self) -> list[str]:
        """Return the authors of this cluster that used the lake before this checkpoint.

        Raises:
            CdcError: ``lake_of_another``.
        """
        authors = self._authors()
        if any(not name.startswith(author_prefix(self.identity.cluster_id)) for name in authors):
            raise CdcError(
                "lake_of_another",
                f"{self.identity.root} is the lake of another cluster",
                "use another --lake for each cluster",
            )
        return [name for name in authors if name != self.identity.author]

    def check_signed(self) -> None:
        """Check that this checkpoint has signed the lake. Raises CdcError ``lake_lost``."""
        if self.identity.author not in self._authors():
            raise self._lost()

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

    def _authors(self) -> list[str]:
        there = self.delta.load(description_path(self.identity.root, WRITERS))
        return [] if there is None else sorted({row["author"] for row in there.select("author").collect()})

    def sign(self) -> None:
        """Add this checkpoint to the authors. May be repeated."""
        one = pa.table({"author": [self.identity.author], "writer": [self.identity.writer]})
        path = description_path(self.identity.root, WRITERS)
        self.delta.append(path, self.delta.session.createDataFrame(one), 0, {})

    def fill(self, rows: DataFrame, state: ClusterState) -> dict[str, int]:
        """Add the rows of the CDC topic that the lake lacks. Return the number of rows by table.

        Other authors are closed out first, so none of them can add one of these rows afterwards. Repetitions in
        ``rows`` count once.

        Args:
            rows: Rows with the columns of ``HEADS_TYPE``.
            state: Cluster state.
        """
        found: dict[str, int] = {}
        authors = self.others()
        fields, ids = fields_of(state), ids_of(state)
        for row in rows.select("table").distinct().collect():
            table = row["table"]
            path = log_path(self.identity.root, table)
            for author in authors:
                self.delta.close_out(path, author)
            missing = rows.where(F.col("table") == table).dropDuplicates(["topic", *IDENTITY])
            there = self.delta.load(path)
            if there is not None:
                keys = [F.col(name).alias(mine) for mine, name in IDENTITY.items()]
                had = there.select(*keys, F.col(SOURCE_TOPIC).alias("topic"))
                missing = missing.join(had, ["topic", *IDENTITY], "left_anti")
            found |= self.add(missing.select(*COLUMNS), LakeCommit(None, {"filled": self.identity.author}), fields, ids)
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


def with_heads(function: Callable[[Batches], Batches], topic: str) -> Callable[[Batches], Batches]:
    """Wrap a function of ``ADDRESSED_TYPE`` batches to add table, generation and token of the rows (``KEPT_TYPE``).

    Args:
        function: The function.
        topic: Topic of the rows. Records of other topics get nulls.
    """

    def outgoing(batches: Batches) -> Batches:
        for batch in function(batches):
            is_row = pc.equal(batch.column("topic"), topic).to_numpy(zero_copy_only=False)
            found = heads_of(batch.column("value").filter(pa.array(is_row)))
            # Index of each row among the rows, and null for letters: ``take`` then returns null for them.
            place = pa.array(np.cumsum(is_row) - 1, mask=~is_row)
            taken = [pa.array(column).take(place) for column in (found.tables, found.generations, found.tokens)]
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
    "value",
)
"""Columns of ``heads``, in order."""


def decoder(columns: LakeColumns) -> Callable[[Batches], Batches]:
    """Return a function from values of one table in the CDC topic to its columns in the lake."""

    def decoded(batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield columns.batch(batch.column("value"))

    return decoded
