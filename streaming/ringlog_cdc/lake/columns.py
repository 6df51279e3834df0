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

Invariants:

* Each row is decoded by the version of its table that reads the write (``cdc$epoch``). The result does not depend on
  the time when the job writes the row, nor on the other rows of the part.
* A column of a Delta table never changes its type or name. Its name is the stored one
  (``ringlog.kernel.schema.stored``), and stays if the column is renamed later. ``ringlog_cdc.lake.column_names`` has
  the names of the table, and decides which column is first if two of them differ in type, or in case only.

Values go to ``cdc$undecoded`` if their column is not the first, or if their table version is not known. Nothing stops
the job, and nothing is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ringlog.client.cdc.table_versions import UNKNOWN_EPOCH, TableVersions
from ringlog.kernel.changes import TableChange
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.schema.stored import in_stored_names
from ringlog.kernel.values import CdcOptions, Column, Value
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
"""A table version in a stored context: its epoch, columns (stored name, CQL type), names of the partition key, names of
the clustering key.
"""
Versions = Mapping[str, Sequence[TableFields]]
"""Full name to the versions of all tables that had the name, by ascending epoch."""


def versions_in(state: ClusterState) -> TableVersions:
    """Return the table versions of a state that can read writes."""
    found = TableVersions()
    found.begin(state)
    return found


def all_versions(known: TableVersions, names: Iterable[str]) -> Versions:
    """Return the versions of these tables, as JSON for the context of a plan part."""
    return {name: [fields_of(table) for table in known.all_of(name)] for name in names}


def fields_of(table: TableChange) -> TableFields:
    """Return the fields of a table version."""
    own = in_stored_names(table)
    columns = [[column.name, column.type] for column in own.columns]
    return [table.epoch, columns, list(own.partition_key), list(own.clustering_key)]


def version_at(versions: Sequence[TableFields], epoch: int) -> TableFields | None:
    """Return the version that reads the rows of an epoch, or None if it is not known."""
    place = len(versions) if epoch == UNKNOWN_EPOCH else bisect_right(versions, epoch, key=lambda fields: fields[0])
    return versions[place - 1] if place else None


def ids_of(state: ClusterState) -> dict[str, str]:
    """Return full name to id of every table."""
    return {name: table.id for name, table in in_order(state.tables)}


def table_of(name: str, fields: TableFields | None) -> TableChange:
    """Return a version of the table with that full name.

    Without fields its columns are unknown, and all its values stay undecoded.
    """
    epoch, columns, partition_key, clustering_key = fields or (0, (), (), ())
    keyspace, _, table = name.partition(".")
    return TableChange(
        epoch=epoch,
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


class LakeColumns(Value):
    """Conversion of rows of one table to batches of the lake's columns. Sent to the tasks.

    Attributes:
        versions: Versions of the table, each with its columns to omit. No two of them have a column with the same name
            and different types.
        by_epoch: Epoch of a row to the index of its version.
    """

    versions: tuple[tuple[TableChange, frozenset[str]], ...]
    by_epoch: Mapping[int, int]

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the batches: the columns of all versions."""
        found = {field.name: field for version in range(len(self.versions)) for field in self._log(version).schema()}
        return pa.schema([*found.values(), *SOURCE])

    def batches(self, values: pa.Array, epochs: pa.Array) -> Iterator[pa.RecordBatch]:
        """Convert at least one encoded row of the table (binary, no nulls): a batch for each version, in order.

        Raises:
            BadRow: A value is not a CDC row.
        """
        found, places = np.unique(epochs.to_numpy(zero_copy_only=False), return_inverse=True)
        rows = np.array([self.by_epoch[epoch] for epoch in found.tolist()])[places]
        for version in np.unique(rows).tolist():
            own = values if len(found) == 1 else values.take(pa.array(np.flatnonzero(rows == version)))
            yield self._batch(version, own)

    def _batch(self, version: int, values: pa.Array) -> pa.RecordBatch:
        """Convert rows that one version reads."""
        # The leading fields are parsed once for both. ``heads_in`` comes first, because ``batch_behind`` marks further
        # records as doubtful.
        found = front_of(values)
        of = heads_in(found, values)
        log = batch_behind(self._log(version), found, lambda number: decoded(values[number].as_py()))
        columns = {field.name: log.column(field.name) for field in log.schema}
        columns[TOKEN] = pa.array(of.tokens)
        columns[SOURCE_TOPIC] = of.topics
        columns[SOURCE_PARTITION] = pa.array(of.partitions.astype("int32"))
        columns[SOURCE_OFFSET] = pa.array(of.offsets)
        schema = self.schema()
        arrays = [columns.get(field.name, pa.nulls(len(values), field.type)) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _log(self, version: int) -> LogColumns:
        table, out = self.versions[version]
        return LogColumns(table, out=out, with_epoch=True)
