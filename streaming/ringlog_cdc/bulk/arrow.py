"""The Arrow functions that Spark's Python workers run, and the counts that they return.

Both functions take records of the mutations topic (partition, offset, append time, key, value):

* ``facts_function`` returns the facts for a plan whose records may have to be held.
* ``rows_function`` returns the CDC rows and dead letters of a plan part, in order.

Each record takes the fastest path that applies: byte layouts (``ringlog_cdc.bulk.template_rows``), then columns
(``ringlog_cdc.columnar``), then the definition (``ringlog_cdc.bulk.rows``), one by one. All paths give the same bytes.

Spark pickles both functions by the name of their module, so a worker imports this module and never the job.

Workers count each Arrow batch, and a Spark accumulator adds the counts up on the driver. It takes the counts of a task
once, when the task succeeds, however often it was tried. The counts of a write are complete when the write returns.
Counting in Spark itself would cost an expression for every reason, generation and row, and a pass through the
listeners' queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import AccumulatorParam

from ringlog_cdc.bulk import rows as one
from ringlog_cdc.bulk.arrow_batching import before_mark
from ringlog_cdc.bulk.image_work import ImageWork, carried
from ringlog_cdc.bulk.imaged_batch import easy_writes, is_easy, through
from ringlog_cdc.bulk.template_rows import ArrowSource, halves_of, rows_alike
from ringlog_cdc.bulk.workers import settle
from ringlog_cdc.columnar.encode import Places, cdc_rows
from ringlog_cdc.columnar.layouts import groups_of
from ringlog_cdc.columnar.mutations import Mutations, scan
from ringlog_cdc.columnar.record_keys import buffers
from ringlog_cdc.columnar.route import (
    check_columns,
    columns_of,
    has_images,
    is_compound,
    mistyped_clustering,
    named,
)
from ringlog_cdc.columnar.routing import ROUTED, SKIPPED, RoutingTable, route
from ringlog_cdc.columnar.scan import padded
from ringlog_cdc.columnar.words import I64, same
from ringlog_cdc.images.define import States
from ringlog_cdc.images.store import ImageStore

Key = tuple[str, int]
Tally = dict[Key, int]
"""Counts by kind and number: ``RECORDS`` of the source, ``(REASON, number)`` of records, ``(GENERATION, timestamp)`` of
rows, and ``(WITH_STATES, source partition)`` of records in a part that makes images.
"""

RECORDS: Key = ("records", 0)
REASON, GENERATION, WITH_STATES = "reason", "generation", "with states"


class TallyParam(AccumulatorParam[Tally]):
    """Spark's rule to add up tallies."""

    def zero(self, value: Tally) -> Tally:
        """Return a tally with nothing counted."""
        return dict.fromkeys(value, 0)

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:
        """Add the second tally to the first, and return it."""
        for key, count in value2.items():
            value1[key] = value1.get(key, 0) + count
        return value1


def counted(name: str, values: NDArray[np.int64] | NDArray[np.int32]) -> Iterable[tuple[Key, int]]:
    """Return how often each distinct value occurs, as items of a tally."""
    # The usual case, without the sort of ``np.unique``.
    if len(values) and (values == values[0]).all():
        return [((name, int(values[0])), len(values))]
    found, counts = np.unique(values, return_counts=True)
    return [((name, value), count) for value, count in zip(found.tolist(), counts.tolist(), strict=True)]


def of_kind(tally: Mapping[Key, int], name: str) -> dict[int, int]:
    """Return the nonzero counts of one kind, by ascending number."""
    return {number: count for (kind, number), count in sorted(tally.items()) if kind == name and count}


FACTS_TYPE = "partition int, held bigint, used bigint"
"""Spark schema of the facts."""
OUT = ("partition", "key", "value")
"""Columns of the outgoing records."""
ADDRESSED_TYPE = "topic string, partition int, key binary, value binary"
"""Spark schema of the records for Kafka's sink."""
LETTER = -1
"""Partition of a dead letter, which goes to another topic."""
NEVER = 2**63 - 1
"""Offset that means "no write is held"."""

Batches = Iterable[pa.RecordBatch]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ArrowRecords:
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

    def inputs(self, numbers: I64) -> list[one.Input]:
        """Decode some records one by one."""
        return [self.input(number) for number in numbers.tolist()]

    def input(self, number: int) -> one.Input:
        """Decode one record."""
        value = self.values[number].as_py()
        place = int(self.partitions[number]), int(self.offsets[number]), int(self.appended[number])
        return one.Input(*place, self.keys[number].as_py(), value, one.read_mutation(value))


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
            rows = []
            for partition in np.unique(found.partitions).tolist():
                mine = found.partitions == partition
                first = found.offsets[mine & held].min(initial=NEVER)
                rows.append((partition, int(first), int(uses[mine & ~held].max(initial=0))))
            yield pa.RecordBatch.from_arrays(
                [pa.array([row[place] for row in rows], type) for place, type in enumerate(_FACTS)],
                names=["partition", "held", "used"],
            )

    return facts


_FACTS = (pa.int32(), pa.int64(), pa.int64())


def uses_of(found: ArrowRecords, leeway: int) -> I64:
    """Return the largest time that routing each record uses, microseconds.

    The rule is ``ringlog_cdc.plan.plan.use_of``.
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
    table: Any, part: one.PartContext, counts: Any, images: ImageWork | None = None
) -> Callable[[Batches], Batches]:
    """Return the function that makes the outgoing records of a plan part.

    It yields batches with the columns ``OUT``: rows with their partition of the CDC topic, and dead letters with the
    partition ``LETTER``.

    Args:
        table: Broadcast ``RoutingTable``.
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
        own = {} if states is None else {(WITH_STATES, states.partition): batch.num_rows}
        counts.add(made.tally() | own)
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
    table: RoutingTable, batch: pa.RecordBatch, part: one.PartContext, states: States | None = None
) -> OutgoingColumns:
    """Return the outgoing records of an Arrow batch, in order: by byte layout if possible, else by ``records_of``."""
    alike = _alike(table, batch, part)
    if alike is None:
        return records_of(table, read(batch), part, states)
    left = np.setdiff1d(np.arange(batch.num_rows), alike.numbers, assume_unique=True)
    if not len(left):
        return alike
    others = records_of(table, read(batch.take(pa.array(left))), part, states)
    return _in_order([alike, replace(others, numbers=left[others.numbers])])


def _alike(table: RoutingTable, batch: pa.RecordBatch, part: one.PartContext) -> OutgoingColumns | None:
    """Return the rows of mutations with a byte layout, or None if this path does not apply."""
    partitions, values = _numbers(batch, "partition"), batch.column("value")
    # Templates are made for one source partition, and ``buffers`` takes no nulls.
    if same(partitions) is None or values.null_count:
        return None
    # Earlier writes may need an earlier version of their table, so they are checked one by one.
    if (_numbers(batch, "appended") < table.newest_since).any():
        return None
    source = ArrowSource(
        part.source_topic,
        int(partitions[0]),
        bytes.fromhex(part.cluster_id.replace("-", "")),
        part.epoch,
        _numbers(batch, "offset"),
        _numbers(batch, "appended"),
        batch.column("key"),
    )
    made = rows_alike(groups_of(*buffers(values)), table, source, part.row_bytes_max)
    if made is None or not len(made.numbers):
        return None
    reasons = np.full(len(made.numbers), ROUTED, dtype=np.int32)
    return OutgoingColumns(made.numbers, reasons, made.generations, made.partitions, made.keys, made.values)


def records_of(
    table: RoutingTable, found: ArrowRecords, part: one.PartContext, states: States | None = None
) -> OutgoingColumns:
    """Return the outgoing records of an Arrow batch, in the order of the source.

    Args:
        states: States of rows, for tables that keep images. None if no table does.
    """
    rows, skipped = _plain(table, found, part)
    left = np.setdiff1d(np.arange(len(found.offsets)), np.concatenate((rows.numbers, skipped)), assume_unique=True)
    made = [rows]
    if states is not None:
        made, left = _with_images(table, found, rows, left, part, states)
    others = one.outgoing(table, found.inputs(left), part) if len(left) else []
    parts = [some for some in (*made, _silent(skipped), _listed(left, others)) if len(some.numbers)]
    return _in_order(parts) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class OutgoingColumns:
    """Outgoing records as columns, in ascending order of their source records.

    Skipped records are included to be counted.

    Attributes:
        numbers: Number of the source record in its Arrow batch. A record with several rows repeats.
        reasons: ``ROUTED`` for a row, ``SKIPPED`` for no output, else the number of the dead letter's reason.
        generations: Start of the row's generation, microseconds.
        partitions: Partition of the CDC topic.
    """

    numbers: I64
    reasons: I32
    generations: I64
    partitions: I32
    keys: pa.Array
    values: pa.Array

    def only(self, chosen: I64, values: pa.Array | None = None) -> OutgoingColumns:
        """Select records by index, possibly repeated, optionally with other values."""
        kept = pa.array(chosen)
        numbers = self.numbers[chosen], self.reasons[chosen], self.generations[chosen], self.partitions[chosen]
        return OutgoingColumns(*numbers, self.keys.take(kept), self.values.take(kept) if values is None else values)

    def batch(self) -> pa.RecordBatch:
        """Return the ``OUT`` batch for Spark."""
        partitions = np.where(self.reasons == ROUTED, self.partitions, LETTER).astype(np.int32)
        columns = [pa.array(partitions), self.keys.cast(pa.binary()), self.values.cast(pa.binary())]
        made = pa.RecordBatch.from_arrays(columns, names=list(OUT))
        # Verdicts below ``ROUTED`` have no output.
        silent = self.reasons < ROUTED
        return made.filter(pa.array(~silent)) if silent.any() else made

    def tally(self) -> Tally:
        """Count source records, records by reason, and rows by generation."""
        # Numbers ascend, so each change is another source record.
        records = 1 + int(np.count_nonzero(np.diff(self.numbers)))
        rows = self.generations[self.reasons == ROUTED]
        return {RECORDS: records, **dict(counted(REASON, self.reasons)), **dict(counted(GENERATION, rows))}


def _in_order(parts: Sequence[OutgoingColumns]) -> OutgoingColumns:
    """Merge several parts by the numbers of their records."""
    numbers = np.concatenate([some.numbers for some in parts])
    # Stable: the rows of one record keep their order.
    order = np.argsort(numbers, kind="stable")
    places = pa.array(order)
    return OutgoingColumns(
        numbers[order],
        np.concatenate([some.reasons for some in parts])[order],
        np.concatenate([some.generations for some in parts])[order],
        np.concatenate([some.partitions for some in parts])[order],
        pa.concat_arrays([some.keys.cast(pa.large_binary()) for some in parts]).take(places),
        pa.concat_arrays([some.values.cast(pa.large_binary()) for some in parts]).take(places),
    )


def _plain(table: RoutingTable, found: ArrowRecords, part: one.PartContext) -> tuple[OutgoingColumns, I64]:
    """Encode the rows of plain mutations.

    Returns:
        The rows, and the numbers of the mutations whose table has no CDC log. All other mutations are left for the
            definition: compound ones, dead letters, and rows that are too large.
    """
    chosen = found.plain
    tables = named(found.mutations, chosen)
    identity = bytes.fromhex(part.cluster_id.replace("-", ""))
    places = found.appended[chosen], found.partitions[chosen], found.offsets[chosen]
    checks = check_columns(found.mutations, chosen, tables, table)
    mistyped = mistyped_clustering(found.mutations, chosen, tables, table)
    record_keys = found.keys if len(chosen) == len(found.keys) else found.keys.take(pa.array(chosen))
    columns = columns_of(found.mutations, chosen, tables, checks, mistyped, record_keys, identity, *places)
    routed = route(table, columns)
    alone = is_compound(found.mutations, chosen, tables, table) | checks.doubtful | (places[0] < table.newest_since)
    if table.images:
        # Images need their writes in order, but the row itself of an easy write can be encoded here.
        alone |= has_images(tables, table) & ~is_easy(found.mutations, chosen, tables, table.images)
    simple = (tables.codes >= 0) & ~alone
    rows = np.flatnonzero(simple & (routed.verdict == ROUTED))
    keys_only = np.array([shape.delta == "keys" for shape in tables.shapes(table)])[tables.codes[rows]]
    streams = halves_of(routed.stream_high[rows], routed.stream_low[rows])
    values = cdc_rows(
        found.mutations,
        chosen[rows],
        Places(
            streams=streams,
            times=halves_of(routed.time_high[rows], routed.time_low[rows]),
            generations=routed.generation[rows],
            operations=columns.operations[rows].astype(np.int64),
            partitions=found.partitions[chosen[rows]],
            offsets=found.offsets[chosen[rows]],
            keys_only=keys_only,
        ),
        part.source_topic,
        part.epoch,
    )
    _, ends = buffers(values)
    # The size is known only after encoding. The definition turns rows that do not fit into dead letters.
    fits = ends[1:] - ends[:-1] <= part.row_bytes_max
    if not fits.all():
        values, rows, streams = values.filter(pa.array(fits)), rows[fits], streams[fits]
    keys = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(rows), [None, pa.py_buffer(streams)])
    skipped = chosen[simple & (routed.verdict == SKIPPED)]
    return (
        OutgoingColumns(
            chosen[rows], routed.verdict[rows], routed.generation[rows], routed.partition[rows], keys, values
        ),
        skipped,
    )


def _with_images(
    table: RoutingTable, found: ArrowRecords, rows: OutgoingColumns, left: I64, part: one.PartContext, states: States
) -> tuple[list[OutgoingColumns], I64]:
    """Process the writes of tables that keep images.

    Args:
        rows: Encoded rows of plain mutations.
        left: Numbers of the records without a result yet.

    Returns:
        The rows of tables without images and all results of tables with images; and the numbers still left.
    """
    with_images = table.images.keys() | table.earlier_images.names
    mine = has_images(named(found.mutations, rows.numbers), table)
    numbers = rows.numbers[mine]
    values = rows.values.filter(pa.array(mine))
    places = found.partitions[numbers], found.offsets[numbers], found.appended[numbers]
    easy = easy_writes(found.mutations, numbers, values, rows.generations[mine], places, part.source_topic, found.input)
    others = {
        number: item
        for number, item in zip(left.tolist(), found.inputs(left), strict=True)
        if item.mutation is not None and f"{item.mutation.keyspace}.{item.mutation.table}" in with_images
    }
    made = through(easy, others, table, part, states)
    imaged = rows.only(np.flatnonzero(mine)[made.places], made.rows)
    defined = [replace(out, number=number) for number, out in zip(made.numbers, made.outs, strict=True)]
    every = np.arange(len(found.offsets))
    return [rows.only(np.flatnonzero(~mine)), imaged, _listed(every, defined)], np.setdiff1d(left, [*others])


def _silent(numbers: I64) -> OutgoingColumns:
    """Return records without output, to be counted."""
    count = len(numbers)
    zeros = np.zeros(count, dtype=np.int64)
    empty = pa.array([b""] * count, pa.large_binary())
    reasons = np.full(count, SKIPPED, dtype=np.int32)
    return OutgoingColumns(numbers, reasons, zeros, zeros.astype(np.int32), empty, empty)


def _listed(left: I64, others: list[one.Out]) -> OutgoingColumns:
    """Return the results of the definition as columns. ``left`` maps their numbers to numbers in the batch."""
    return OutgoingColumns(
        numbers=left[[out.number for out in others]] if others else left[:0],
        reasons=np.array([out.reason for out in others], dtype=np.int32),
        generations=np.array([out.generation for out in others], dtype=np.int64),
        partitions=np.array([out.partition for out in others], dtype=np.int32),
        keys=pa.array([out.key for out in others], pa.large_binary()),
        values=pa.array([out.value for out in others], pa.large_binary()),
    )
