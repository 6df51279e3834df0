"""The lake as a sink of the job: rows of plan parts into the Delta tables of their base tables.

The CDC topic gets the rows of a part first, the lake after it. So the lake never has a row that the topic has not, and
what the lake may lack is found by looking at the topic: that is how a lake is *filled*, when a checkpoint meets it for
the first time (a new lake, or a checkpoint that took the place of a lost one).

Each table is a commit of its own, with the sequence of the plan part as its number: a part that is carried out again
commits to those tables that lack it, and to no other.
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
"""A part of more rows of one table is written in several files, each with streams of its own."""
HEADS_TYPE = (
    "table string, topic string, generation bigint, token bigint, number int, operation int, partition int, "
    "offset bigint, timestamp bigint, last boolean, value binary"
)
KEPT = ("table", "generation", "token")
KEPT_TYPE = f"{ADDRESSED_TYPE}, table string, generation bigint, token bigint"
ORDER = (GENERATION, TOKEN, "cdc$timestamp", SOURCE_PARTITION, SOURCE_OFFSET, "cdc$batch_seq_no")
IDENTITY = {
    "partition": SOURCE_PARTITION,
    "offset": SOURCE_OFFSET,
    "timestamp": "cdc$timestamp",
    "number": "cdc$batch_seq_no",
}


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """What a commit of rows is: its number (None: it needs none), and what is kept with it."""

    version: int | None
    told: Mapping[str, Any]


def commit_of(entry: PlanEntry, identity: Identity, cdc_from: Positions) -> LakeCommit:
    """The commit of a plan part. ``cdc_from``: where the CDC topic ended before the part was written to it."""
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
    """One lake. ``append`` is for the thread of the batches, ``describe`` for any. ``made``: its tables as the
    checkpoint knows them.
    """

    def __init__(
        self, delta: DeltaTables, identity: Identity, made: Made | None = None, rows_per_file: int = ROWS_PER_FILE
    ) -> None:
        self.identity = identity
        self._made = made
        self.delta = delta
        self._rows_per_file = rows_per_file
        self._there: dict[str, dict[str, str] | None] = {}
        self._descriptions = Descriptions(delta, identity.root, identity.cluster_id, self.check_there)
        self._lock = threading.Lock()

    def describe(self, state: ClusterState) -> None:
        """Bring generations and streams in step with the state. Raises CdcError ``lake_lost``."""
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
        """Add the rows of a plan part (``with_heads``), each table's in one commit, unless they are there.

        ``fields``: what their tables are decoded by; ``told``: where the CDC topic ended before the part; ``ids``:
        tables to their ids. Raises CdcError ``lake_lost``.
        """
        self.check_there()
        self.add(rows, commit_of(entry, self.identity, told), fields, ids)

    def add(
        self, rows: DataFrame, commit: LakeCommit, fields: Mapping[str, TableFields], ids: Mapping[str, str]
    ) -> dict[str, int]:
        """Add rows of any tables (``table``, ``generation``, ``token``, ``value``); their numbers by table.

        Raises CdcError ``lake_lost``.
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
        """Is there a table of the lake now? Its columns are known then."""
        path = log_path(self.identity.root, table)
        if self._there.get(table) is None or not self.delta.is_there(path):
            self._there[table] = self.delta.columns(path)
        return self._there[table] is not None

    def _add(self, table: str, rows: DataFrame, count: int, commit: LakeCommit, fields: TableFields | None) -> None:
        path = log_path(self.identity.root, table)
        wanted = types_of(from_arrow_schema(LakeColumns(table_of(table, fields)).schema()))
        columns = LakeColumns(table_of(table, fields), left_out(wanted, self._there[table] or {}))
        files = -(-count // self._rows_per_file)
        rows = rows.repartitionByRange(files, "generation", "token") if files > 1 else rows
        typed = rows.select("value").mapInArrow(decoder(columns), from_arrow_schema(columns.schema()))
        typed = typed if files > 1 else typed.repartition(1)
        self.delta.append(path, typed.sortWithinPartitions(*ORDER), commit.version, commit.told)
        added = {name: kind for name, kind in wanted.items() if name not in columns.out}
        self._there[table] = added | (self._there[table] or {})

    def others(self) -> list[str]:
        """Authors of this cluster that met this lake before this checkpoint. Raises CdcError ``lake_of_another``."""
        authors = self._authors()
        if any(not name.startswith(author_prefix(self.identity.cluster_id)) for name in authors):
            raise CdcError(
                "lake_of_another", f"{self.identity.root} is the lake of another cluster", "give each cluster its own"
            )
        return [name for name in authors if name != self.identity.author]

    def check_signed(self) -> None:
        """Raises CdcError ``lake_lost`` unless this checkpoint has signed here."""
        if self.identity.author not in self._authors():
            raise self._lost()

    def check_there(self) -> None:
        """Before each part, at little cost: raises CdcError ``lake_lost`` if what the checkpoint has signed is gone."""
        if not self.delta.is_there(description_path(self.identity.root, WRITERS)):
            raise self._lost()

    def _lost(self) -> CdcError:
        return CdcError(
            "lake_lost",
            f"the checkpoint has written to {self.identity.root}, and what is there now does not know it",
            "bring that lake back; or delete lake.json in the checkpoint: this one is filled from the CDC topic",
        )

    def _authors(self) -> list[str]:
        there = self.delta.load(description_path(self.identity.root, WRITERS))
        return [] if there is None else sorted({row["author"] for row in there.select("author").collect()})

    def sign(self) -> None:
        """Enter this checkpoint among the authors; harmless to repeat."""
        one = pa.table({"author": [self.identity.author], "writer": [self.identity.writer]})
        path = description_path(self.identity.root, WRITERS)
        self.delta.append(path, self.delta.session.createDataFrame(one), 0, {})

    def fill(self, rows: DataFrame, state: ClusterState) -> dict[str, int]:
        """Add those rows of the CDC topic (``HEADS_TYPE``) that the lake has not; their numbers by table.

        No other author can add one of them afterwards. Whatever is repeated in ``rows`` is one row.
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
        """Where in the CDC topic the rows begin that the lake may lack, by the newest commit of an earlier checkpoint
        of this writer; empty: nothing is known of it.
        """
        found: list[dict[int, int]] = []
        for table in tables:
            for told in self.delta.told(log_path(self.identity.root, table)):
                if told.get("writer") == self.identity.writer and "cdc_from" in told:
                    found.append({int(partition): offset for partition, offset in told["cdc_from"].items()})
                    break
        return max(found, key=lambda places: sum(places.values()), default={})


def with_heads(function: Callable[[Batches], Batches], topic: str) -> Callable[[Batches], Batches]:
    """What goes out to topics (``KEPT_TYPE``), with table, generation and token of the rows, which go to ``topic``."""

    def outgoing(batches: Batches) -> Batches:
        for batch in function(batches):
            is_row = pc.equal(batch.column("topic"), topic).to_numpy(zero_copy_only=False)
            found = heads_of(batch.column("value").filter(pa.array(is_row)))
            place = pa.array(np.cumsum(is_row) - 1, mask=~is_row)
            taken = [pa.array(column).take(place) for column in (found.tables, found.generations, found.tokens)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *taken], names=[*batch.schema.names, *KEPT])

    return outgoing


def heads(batches: Batches) -> Batches:
    """Values of the CDC topic with what identifies them (``HEADS_TYPE``)."""
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


def decoder(columns: LakeColumns) -> Callable[[Batches], Batches]:
    """Values of the CDC topic, of one table, as its columns."""

    def decoded(batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield columns.batch(batch.column("value"))

    return decoded
