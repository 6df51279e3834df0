"""The columns of a table's CDC log in the lake: those of the reader in Spark, and where the row came from.

Beside the columns of ``ringlog_cdc_reader.columns`` a row has

=========================  ========================================================================================
column                     type
=========================  ========================================================================================
``cdc$stream_token``       bigint: the first half of the stream id. Files are sorted by it, and Delta keeps its bounds
                           in each file, which it does not for binary columns
``cdc$source_topic``       string: the mutations topic
``cdc$source_partition``   int
``cdc$source_offset``      bigint
``cdc$epoch``              bigint: an epoch at which the name has the version that reads the row; null: not said.
                           It tells rows of a table that was dropped from those of a namesake
=========================  ========================================================================================

A column of a Delta table keeps its type and its name for ever: it has the name under which its cells lie
(``ringlog.kernel.schema.stored``), the one that it was added with, whatever it is called later. So what the lake has
already decides: a new column of the base table is added; one that has gone stays, and is null from then on; one that
came back with another type (of another table of the name, or of a user type that has grown), or that differs from an
earlier one only in upper and lower case (``ringlog.client.cdc.copies.names``), is left out, and what it would have is
in ``cdc$undecoded``. Nothing stops the job, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ringlog.client.cdc.copies.names import displaced_names
from ringlog.kernel.changes import TableChange
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.schema.stored import in_stored_names
from ringlog.kernel.values import CdcOptions, Column
from ringlog_cdc.lake.heads import decoded, heads_in
from ringlog_cdc_reader.columns import LogColumns
from ringlog_cdc_reader.heads import front_of
from ringlog_cdc_reader.vectors import batch_behind

GENERATION, TOKEN = "cdc$generation", "cdc$stream_token"
SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET = "cdc$source_topic", "cdc$source_partition", "cdc$source_offset"
SOURCE = (
    pa.field(TOKEN, pa.int64()),
    pa.field(SOURCE_TOPIC, pa.string()),
    pa.field(SOURCE_PARTITION, pa.int32()),
    pa.field(SOURCE_OFFSET, pa.int64()),
)

TableFields = Sequence[Any]
"""Columns (name, CQL type), names of the partition key, names of the clustering key: a table in a stored context."""


def fields_of(state: ClusterState) -> dict[str, TableFields]:
    """What rows of every table are decoded by, for the context of a plan part; JSON."""
    tables = ((name, in_stored_names(table)) for name, table in in_order(state.tables))
    return {
        name: [
            [[column.name, column.type] for column in table.columns],
            list(table.partition_key),
            list(table.clustering_key),
        ]
        for name, table in tables
    }


def ids_of(state: ClusterState) -> dict[str, str]:
    """The id of every table."""
    return {name: table.id for name, table in in_order(state.tables)}


def table_of(name: str, fields: TableFields | None) -> TableChange:
    """The table of that full name; None: nothing is known of its columns, and all its values stay bytes."""
    columns, partition_key, clustering_key = fields or ((), (), ())
    keyspace, _, table = name.partition(".")
    return TableChange(
        epoch=0,
        id="",
        keyspace=keyspace,
        name=table,
        columns=tuple(Column(column, kind) for column, kind in columns),
        partition_key=tuple(partition_key),
        clustering_key=tuple(clustering_key),
        cdc=CdcOptions(),
        version="",
        changed=0,
    )


def left_out(wanted: Mapping[str, str], there: Mapping[str, str]) -> frozenset[str]:
    """Names of ``wanted`` columns (to their types) that a table with the columns ``there`` cannot take."""
    changed = (name for name in wanted if there.get(name, wanted[name]) != wanted[name])
    return displaced_names(wanted, there) | frozenset(changed)


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """Rows of one table as batches of the lake's columns. ``out``: those that are left out. Goes to the tasks."""

    table: TableChange
    out: frozenset[str] = frozenset()

    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return pa.schema([*self._log().schema(), *SOURCE])

    def batch(self, values: pa.Array) -> pa.RecordBatch:
        """Encoded rows of the table (binary, no nulls; one or more) as one batch, in their order. Raises BadRow."""
        found = front_of(values)
        of = heads_in(found, values)
        log = batch_behind(self._log(), found, lambda number: decoded(values[number].as_py()))
        columns = {field.name: log.column(field.name) for field in log.schema}
        columns[TOKEN] = pa.array(of.tokens)
        columns[SOURCE_TOPIC] = of.topics
        columns[SOURCE_PARTITION] = pa.array(of.partitions.astype("int32"))
        columns[SOURCE_OFFSET] = pa.array(of.offsets)
        schema = self.schema()
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _log(self) -> LogColumns:
        return LogColumns(self.table, out=self.out, with_epoch=True)
