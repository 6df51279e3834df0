"""The columns of a table's CDC log in the lake: those of the reader in Spark, and where the row came from.

Beside the columns of ``ringlog_cdc.reading.columns`` a row has

=========================  ========================================================================================
column                     type
=========================  ========================================================================================
``cdc$stream_token``       bigint: the first half of the stream id. Files are sorted by it, and Delta keeps its bounds
                           in each file, which it does not for binary columns
``cdc$source_topic``       string: the mutations topic
``cdc$source_partition``   int
``cdc$source_offset``      bigint
=========================  ========================================================================================

A column of a Delta table keeps its type and its name for ever. So what the lake has already decides: a new column of
the base table is added; one that has gone stays, and is null from then on; one that came back with another type, or
differs from another one only in upper and lower case, which Delta does not tell apart, is left out, and its values
are in ``cdc$undecoded`` as they are in the log (keys of elements taken out in hex, by comma). Nothing stops the job,
and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ringlog.client.cdc.rows import TableTypes
from ringlog.kernel.changes import TableChange
from ringlog.kernel.commands.model import CdcOptions, Column
from ringlog.kernel.state import ClusterState, in_order
from ringlog.wire.records import CdcRow
from ringlog_cdc.lake.heads import decoded, heads_in
from ringlog_cdc.reading.columns import LogColumns
from ringlog_cdc.reading.heads import front_of
from ringlog_cdc.reading.vectors import batch_behind

UNDECODED = "cdc$undecoded"
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
    return {
        name: [
            [[column.name, column.type] for column in table.columns],
            list(table.partition_key),
            list(table.clustering_key),
        ]
        for name, table in in_order(state.tables)
    }


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
        committed_by_log=True,
    )


def left_out(wanted: Mapping[str, str], there: Mapping[str, str]) -> frozenset[str]:
    """Names of ``wanted`` columns (to their types) that a table with the columns ``there`` cannot take."""
    taken = {name.lower(): name for name in there}
    refused = set()
    for name in sorted(wanted):
        if taken.setdefault(name.lower(), name) != name or there.get(name, wanted[name]) != wanted[name]:
            refused.add(name)
    return frozenset(refused)


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """Rows of one table as batches of the lake's columns. ``out``: those that are left out. Goes to the tasks."""

    table: TableChange
    out: frozenset[str] = frozenset()

    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        fields = [field for field in LogColumns(self.table).schema() if field.name not in self.out]
        return pa.schema([*fields, *SOURCE])

    def batch(self, values: pa.Array) -> pa.RecordBatch:
        """Encoded rows of the table (binary, no nulls; one or more) as one batch, in their order. Raises BadRow."""
        found = front_of(values)
        of = heads_in(found, values)
        log = batch_behind(LogColumns(self.table), found, lambda number: decoded(values[number].as_py()))
        columns = {field.name: log.column(field.name) for field in log.schema}
        if self.out or not self.table.columns:
            raw = [
                list(({**dict(had or ()), **dict(self._raw(decoded(value)))}).items()) or None
                for value, had in zip(values.to_pylist(), columns[UNDECODED].to_pylist(), strict=True)
            ]
            columns[UNDECODED] = pa.array(raw, columns[UNDECODED].type)
        columns[TOKEN] = pa.array(of.tokens)
        columns[SOURCE_TOPIC] = of.topics
        columns[SOURCE_PARTITION] = pa.array(of.partitions.astype("int32"))
        columns[SOURCE_OFFSET] = pa.array(of.offsets)
        schema = self.schema()
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _raw(self, row: CdcRow) -> Iterable[tuple[str, bytes]]:
        """Values of the columns that are left out, or that nobody knows, as they are in the log."""
        types = TableTypes(self.table)
        for names, prefix, parts in (
            (types.partition_key, "partition", row.partition_key),
            (types.clustering_key, "clustering", row.clustering_key),
        ):
            for place, part in enumerate(parts):
                name = names[place] if place < len(names) else f"{prefix}_{place}"
                if part is not None and (name in self.out or place >= len(names)):
                    yield name, part
        for cell in row.cells:
            if cell.value is not None and (cell.column in self.out or cell.column not in types.columns):
                yield cell.column, cell.value
        for column in row.deleted:
            if f"cdc$deleted_{column}" in self.out or column not in types.columns:
                yield f"cdc$deleted_{column}", b"\1"
        for taken in row.deleted_elements:
            if f"cdc$deleted_elements_{taken.column}" in self.out or taken.column not in types.columns:
                yield f"cdc$deleted_elements_{taken.column}", b",".join(key.hex().encode() for key in taken.keys)
