"""The Arrow functions that Spark's Python workers run.

Both functions take records of the mutations topic (partition, offset, append time, key, value):

* ``facts_function`` returns the facts for a plan whose records may have to be held.
* ``rows_function`` returns the CDC rows and dead letters of a plan part, in order.

A record is processed in bulk, or by the definition for a reason (``ringlog_cdc.bulk.choice``). Both give the same
bytes. Records in bulk use byte layouts if most of a batch has few of them (``ringlog_cdc.bulk.template_rows``).

Spark pickles both functions by the name of their module, so a worker imports this module and never the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ringlog.kernel.values import Value, replace
from ringlog_cdc.bulk.arrow_batching import before_mark
from ringlog_cdc.bulk.choice import RecordPath, choose
from ringlog_cdc.bulk.columns import check_columns, columns_of, has_images, named, operations_of
from ringlog_cdc.bulk.encode import Destinations, cdc_rows
from ringlog_cdc.bulk.image_work import ImageWork, carried
from ringlog_cdc.bulk.imaged_batch import flat_writes, with_images
from ringlog_cdc.bulk.layouts import groups_of
from ringlog_cdc.bulk.outgoing_columns import (
    LETTER,
    OutgoingColumns,
    defined,
    fits,
    fixed_width,
    in_bulk,
    in_order,
    silent,
)
from ringlog_cdc.bulk.routing import BulkTable, route
from ringlog_cdc.bulk.tally import Tally
from ringlog_cdc.bulk.template_rows import ArrowSource, rows_alike
from ringlog_cdc.bulk.workers import settle
from ringlog_cdc.columnar.mutations import Mutations, scan
from ringlog_cdc.columnar.record_keys import buffers
from ringlog_cdc.columnar.scan import padded
from ringlog_cdc.columnar.words import I64, U8, same
from ringlog_cdc.definition.decision import Input, PartContext, decide, read_mutation
from ringlog_cdc.definition.images import States
from ringlog_cdc.images.store import ImageStore

FACTS_TYPE = "partition int, held bigint, used bigint"
"""Spark schema of the facts."""
ADDRESSED_TYPE = "topic string, partition int, key binary, value binary"
"""Spark schema of the records for Kafka's sink."""
NEVER = 2**63 - 1
"""Offset that means "no write is held"."""

Batches = Iterator[pa.RecordBatch]


class ArrowRecords(Value):
    """An Arrow batch of n records, with its mutations as columns.

    Attributes:
        appended: Append time, microseconds.
        plain: Numbers of the plain mutations.
        others: Numbers of the other records.
    """

    partitions: I64
    offsets: I64
    appended: I64
    keys: pa.Array
    values: pa.Array
    mutations: Mutations
    plain: I64
    others: I64

    def inputs(self, numbers: I64) -> list[Input]:
        """Decode some records one by one."""
        return [self.input(number) for number in numbers.tolist()]

    def input(self, number: int) -> Input:
        """Decode one record."""
        value = self.values[number].as_py()
        place = int(self.partitions[number]), int(self.offsets[number]), int(self.appended[number])
        return Input(*place, self.keys[number].as_py(), value, read_mutation(value))


def read(batch: pa.RecordBatch) -> ArrowRecords:
    """Parse an Arrow batch with the columns partition, offset, appended, key and value."""
    values = batch.column("value")
    # A tombstone becomes an empty record, which is not plain.
    data, ends = buffers(values.fill_null(b""))
    mutations = scan(padded(data), ends[:-1], ends[1:])
    return ArrowRecords(
        partitions=_numbers(batch, "partition"),
        offsets=_numbers(batch, "offset"),
        appended=_numbers(batch, "appended"),
        keys=batch.column("key"),
        values=values,
        mutations=mutations,
        plain=np.flatnonzero(mutations.plain),
        others=np.flatnonzero(~mutations.plain),
    )


def _numbers(batch: pa.RecordBatch, name: str) -> I64:
    found: I64 = batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


# ------------------------------------------------------------------------------------------------------ facts


def facts_function(horizon: int, leeway: int) -> Callable[[Batches], Batches]:
    """Return the function that finds held records.

    For each source partition of an Arrow batch it yields the first held offset (or ``NEVER``), and the largest time
    that routing the other records uses.

    Args:
        horizon: Records that use this time or a later one are held, microseconds.
        leeway: Allowed lateness, microseconds.
    """

    def facts(batches: Batches) -> Batches:
        """Yield the facts of each Arrow batch."""
        for batch in batches:
            found = read(batch)
            uses = uses_of(found, leeway)
            held = uses >= horizon
            partitions = np.unique(found.partitions)
            mine = [found.partitions == partition for partition in partitions.tolist()]
            first = [found.offsets[own & held].min(initial=NEVER) for own in mine]
            used = [uses[own & ~held].max(initial=0) for own in mine]
            columns = [pa.array(partitions, pa.int32()), pa.array(first, pa.int64()), pa.array(used, pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, names=["partition", "held", "used"])

    return facts


def uses_of(found: ArrowRecords, leeway: int) -> I64:
    """Return the largest time that routing each record uses, microseconds.

    The rule is ``ringlog_cdc.definition.decision.use_of``.
    """
    # The default, for records that are not mutations.
    uses = found.appended.copy()
    timestamps, appended = found.mutations.timestamp[found.plain], found.appended[found.plain]
    uses[found.plain] = np.where(timestamps <= appended + leeway, np.maximum(appended, timestamps), appended)
    for number, item in zip(found.others.tolist(), found.inputs(found.others), strict=True):
        uses[number] = item.use(leeway)
    return uses


# ------------------------------------------------------------------------------------------------------- rows


def rows_function(
    table: Any, part: PartContext, counts: Any, images: ImageWork | None = None
) -> Callable[[Batches], Batches]:
    """Return the function that makes the outgoing records of a plan part.

    It yields batches with the columns ``OUT``: rows with their partition of the CDC topic, and dead letters with the
    partition ``LETTER``.

    Args:
        table: Broadcast ``BulkTable``.
        part: Context of the part.
        counts: Accumulator of tallies.
        images: Image work of the part. None if none of its tables keeps images.
    """

    def outgoing(batches: Batches) -> Batches:
        """Make the outgoing records of one task."""
        settle()
        if images is not None:
            yield from carried(batches, images, written)
            return
        for batch in before_mark(batches, counts):
            if batch.num_rows:
                yield written(batch)

    def written(batch: pa.RecordBatch, states: ImageStore | None = None) -> pa.RecordBatch:
        made = going_out(table.value, batch, part, states)
        tally: Tally = made.tally()
        if states is not None:
            tally.with_states[states.partition] = batch.num_rows
        counts.add(tally)
        return made.batch()

    return outgoing


def addressed(function: Callable[[Batches], Batches], rows: str, letters: str) -> Callable[[Batches], Batches]:
    """Wrap a function of ``OUT`` batches to yield ``ADDRESSED_TYPE`` for Kafka's sink.

    Rows go to the topic ``rows``, dead letters to partition 0 of the topic ``letters``. A Spark expression could do the
    same, but would copy every row once more.
    """
    names = pa.array([rows, letters])

    def outgoing(batches: Batches) -> Batches:
        """Add the topic to the outgoing records of one task."""
        for batch in function(batches):
            partitions = batch.column("partition").to_numpy(zero_copy_only=False)
            # Index 0 is the topic of rows, 1 that of letters.
            topics = names.take(pa.array((partitions == LETTER).astype(np.int8)))
            columns = [topics, pa.array(np.maximum(partitions, 0)), batch.column("key"), batch.column("value")]
            yield pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "key", "value"])

    return outgoing


def going_out(
    table: BulkTable, batch: pa.RecordBatch, part: PartContext, states: States | None = None
) -> OutgoingColumns:
    """Return the outgoing records of an Arrow batch, in order: by byte layout if possible, else by ``records_of``."""
    alike = _alike(table, batch, part)
    if alike is None:
        return records_of(table, read(batch), part, states)
    left = np.setdiff1d(np.arange(batch.num_rows), alike.numbers, assume_unique=True)
    if not len(left):
        return alike
    others = records_of(table, read(batch.take(pa.array(left))), part, states)
    return in_order([alike, replace(others, numbers=left[others.numbers])])


def _alike(table: BulkTable, batch: pa.RecordBatch, part: PartContext) -> OutgoingColumns | None:
    """Return the rows of mutations with a byte layout, or None if there are none."""
    partitions, values = _numbers(batch, "partition"), batch.column("value")
    # Templates are made for one source partition, and ``buffers`` takes no nulls.
    if same(partitions) is None or values.null_count:
        return None
    # Earlier writes may need an earlier version of their table.
    if (_numbers(batch, "appended") < table.newest_since).any():
        return None
    source = ArrowSource(
        part.source_topic,
        int(partitions[0]),
        table.cluster_id,
        part.epoch,
        _numbers(batch, "offset"),
        _numbers(batch, "appended"),
        batch.column("key"),
    )
    return rows_alike(groups_of(*buffers(values)), table, source, part.row_bytes_max)


def records_of(
    table: BulkTable, found: ArrowRecords, part: PartContext, states: States | None = None
) -> OutgoingColumns:
    """Return the outgoing records of an Arrow batch, in the order of the source.

    Args:
        table: The table.
        found: The records.
        part: Context of the plan part.
        states: States of rows, for tables that keep images. None if no table does.
    """
    rows, quiet, path = _plain(table, found, part)
    made = [rows, quiet]
    one_by_one = np.flatnonzero(path != RecordPath.BULK)
    if states is not None:
        imaged, done = _with_images(table, found, rows, path, part, states)
        made = [rows.only(np.flatnonzero(~has_images(named(found.mutations, rows.numbers), table))), quiet, imaged]
        one_by_one = np.setdiff1d(one_by_one, done, assume_unique=True)
    items = zip(one_by_one.tolist(), path[one_by_one].tolist(), found.inputs(one_by_one), strict=True)
    made.append(
        defined([(number, why, out) for number, why, item in items for out in decide(table.definition, item, part)])
    )
    return in_order(made)


def _plain(table: BulkTable, found: ArrowRecords, part: PartContext) -> tuple[OutgoingColumns, OutgoingColumns, U8]:
    """Process plain mutations in bulk.

    Returns:
        The rows, the mutations whose table has no CDC log, and the path of every record of the batch.
    """
    path = np.full(len(found.offsets), RecordPath.NOT_PLAIN, dtype=np.uint8)
    chosen = found.plain
    tables = named(found.mutations, chosen)
    appended, partitions, offsets = (column[chosen] for column in (found.appended, found.partitions, found.offsets))
    checks = check_columns(found.mutations, chosen, tables, table)
    own = choose(found.mutations, chosen, tables, checks, appended, table)
    record_keys = found.keys if len(chosen) == len(found.keys) else found.keys.take(pa.array(chosen))
    where = record_keys, table.cluster_id, appended, partitions, offsets
    routed = route(table, columns_of(found.mutations, chosen, tables, checks, table, *where))
    own[(own == RecordPath.BULK) & ~routed.routed & ~routed.silent] = RecordPath.REJECTED
    quiet = chosen[(own == RecordPath.BULK) & routed.silent]
    rows = np.flatnonzero((own == RecordPath.BULK) & routed.routed)
    keys_only = np.array([shape.delta == "keys" for shape in tables.shapes(table)])[tables.codes[rows]]
    streams = routed.streams[rows]
    values = cdc_rows(
        found.mutations,
        chosen[rows],
        Destinations(
            streams=streams,
            times=routed.times[rows],
            generations=routed.generations[rows],
            operations=operations_of(found.mutations, chosen[rows]),
            partitions=partitions[rows],
            offsets=offsets[rows],
            keys_only=keys_only,
        ),
        part.source_topic,
        part.epoch,
    )
    # The size is known only after encoding.
    small = fits(values, part.row_bytes_max)
    if not small.all():
        own[rows[~small]] = RecordPath.OVERSIZED
        values, rows, streams = values.filter(pa.array(small)), rows[small], streams[small]
    path[chosen] = own
    made = in_bulk(chosen[rows], routed.generations[rows], routed.partitions[rows], fixed_width(streams), values)
    return made, silent(quiet), path


def _with_images(
    table: BulkTable, found: ArrowRecords, rows: OutgoingColumns, path: U8, part: PartContext, states: States
) -> tuple[OutgoingColumns, I64]:
    """Process the writes of tables that keep images.

    Args:
        table: The table.
        found: The records.
        rows: Encoded rows of plain mutations.
        path: The path of every record.
        part: Context of the plan part.
        states: States of rows.

    Returns:
        The results, and the numbers of the records that the definition processed.
    """
    images = table.definition.images.keys() | table.definition.earlier_images.names
    mine = rows.only(np.flatnonzero(has_images(named(found.mutations, rows.numbers), table)))
    flat = flat_writes(found.mutations, mine, (found.partitions, found.offsets, found.appended), part.source_topic)
    left = np.flatnonzero(path != RecordPath.BULK)
    others = {
        number: (int(path[number]), item)
        for number, item in zip(left.tolist(), found.inputs(left), strict=True)
        if item.mutation is not None and f"{item.mutation.keyspace}.{item.mutation.table}" in images
    }
    made = with_images(flat, others, found.input, table.definition, part, states)
    return made, np.array(sorted(others), dtype=np.int64)
