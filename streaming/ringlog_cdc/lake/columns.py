"""Columns of a table's CDC log in the lake: those of the Spark reader, and the origin of the row.

In addition to the columns of ``ringlog_cdc_reader.columns`` a row has:

=========================  ========================================================================================
column                     type
=========================  ========================================================================================
``cdc$stream_token``       bigint: the first half of the stream id. Files are sorted by it, and Delta keeps its bounds
                           for each file, which it does not do for binary columns
``cdc$source_topic``       string: the mutations topic
``cdc$source_partition``   int
``cdc$source_offset``      bigint
``cdc$epoch``              bigint: an epoch when the name had the version that reads the row. Null: unknown. It
                           distinguishes rows of a dropped table from those of a later table with the name
=========================  ========================================================================================

Invariant: a column of a Delta table never changes its type or name. Its name is the stored one
(``ringlog.kernel.schema.stored``), and stays if the column is renamed later. The existing columns of the lake therefore
decide:

* A new column of the base table is added.
* A dropped column stays and is null from then on.
* A column is omitted if its type changed, because it belongs to another table of that name or to a user type that has
  grown. It is also omitted if its name differs from an earlier one only in case (``ringlog.client.cdc.copies.names``).

Values of omitted columns go to ``cdc$undecoded``. Nothing stops the job, and nothing is lost.
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
"""Arrow fields of the additional columns."""

TableFields = Sequence[Any]
"""A table in a stored context: columns (name, CQL type), names of the partition key, names of the clustering key."""


def fields_of(state: ClusterState) -> dict[str, TableFields]:
    """Return the fields that decode the rows of every table, as JSON for the context of a plan part."""
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
    """Return full name to id of every table."""
    return {name: table.id for name, table in in_order(state.tables)}


def table_of(name: str, fields: TableFields | None) -> TableChange:
    """Return the table with that full name.

    Without fields its columns are unknown, and all its values stay undecoded.
    """
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
    """Return the names of columns that an existing table cannot take.

    Args:
        wanted: Wanted columns, name to type.
        there: Columns of the existing table, name to type.
    """
    changed = (name for name in wanted if there.get(name, wanted[name]) != wanted[name])
    return displaced_names(wanted, there) | frozenset(changed)


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """Conversion of rows of one table to batches of the lake's columns. Sent to the tasks.

    Attributes:
        table: The table.
        out: Columns to omit.
    """

    table: TableChange
    out: frozenset[str] = frozenset()

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the batches."""
        return pa.schema([*self._log().schema(), *SOURCE])

    def batch(self, values: pa.Array) -> pa.RecordBatch:
        """Convert at least one encoded row of the table (binary, no nulls) to one batch, in order.

        Raises:
            BadRow: A value is not a CDC row.
        """
        # The leading fields are parsed once for both. ``heads_in`` comes first, because ``batch_behind`` marks further
        # records as doubtful.
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
