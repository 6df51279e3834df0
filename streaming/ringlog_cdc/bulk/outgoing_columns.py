"""The records that leave a worker, as columns: the only result of all paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ringlog.kernel.values import Value
from ringlog_cdc.bulk.choice import RecordPath
from ringlog_cdc.bulk.tally import Tally, counted
from ringlog_cdc.columnar.record_keys import buffers
from ringlog_cdc.columnar.words import I32, I64, U8, Flags
from ringlog_cdc.definition.decision import Outgoing
from ringlog_cdc.definition.reasons import ROUTED, SKIPPED

OUT = ("partition", "key", "value")
"""Columns of a batch for Spark."""
LETTER = -1
"""Partition of a dead letter in such a batch, which goes to another topic."""


class OutgoingColumns(Value):
    """Outgoing records in ascending order of their source records. ``Outgoing`` describes one of them.

    Records without output are included to be counted.

    Attributes:
        numbers: Number of the source record in its Arrow batch. A record with several rows repeats.
        paths: How the source record was processed (``RecordPath``).
        reasons: ``ROUTED`` for a row, ``SKIPPED`` for no output, else the number of the dead letter's reason.
        generations: Start of the row's generation, microseconds.
        partitions: Partition of the CDC topic.
    """

    numbers: I64
    paths: U8
    reasons: I32
    generations: I64
    partitions: I32
    keys: pa.Array
    values: pa.Array

    def only(self, chosen: I64) -> OutgoingColumns:
        """Select records by index."""
        kept = pa.array(chosen)
        return OutgoingColumns(
            self.numbers[chosen],
            self.paths[chosen],
            self.reasons[chosen],
            self.generations[chosen],
            self.partitions[chosen],
            self.keys.take(kept),
            self.values.take(kept),
        )

    def batch(self) -> pa.RecordBatch:
        """Return the ``OUT`` batch for Spark."""
        partitions = np.where(self.reasons == ROUTED, self.partitions, LETTER).astype(np.int32)
        columns = [pa.array(partitions), self.keys.cast(pa.binary()), self.values.cast(pa.binary())]
        made = pa.RecordBatch.from_arrays(columns, names=list(OUT))
        silent = self.reasons == SKIPPED
        return made.filter(pa.array(~silent)) if silent.any() else made

    def tally(self) -> Tally:
        """Return the counts of these records."""
        # Numbers ascend, so each change is another source record.
        first = np.flatnonzero(np.diff(self.numbers, prepend=-1))
        rows = self.generations[self.reasons == ROUTED]
        return Tally(
            records=len(first),
            reasons=counted(self.reasons),
            generations=counted(rows),
            paths=counted(self.paths[first]),
        )


def in_bulk(numbers: I64, generations: I64, partitions: I32, keys: pa.Array, values: pa.Array) -> OutgoingColumns:
    """Return rows of the fast path."""
    count = len(numbers)
    paths, reasons = np.full(count, RecordPath.BULK, dtype=np.uint8), np.full(count, ROUTED, dtype=np.int32)
    return OutgoingColumns(numbers, paths, reasons, generations, partitions, keys, values)


def silent(numbers: I64) -> OutgoingColumns:
    """Return records of the fast path without output."""
    zeros, empty = np.zeros(len(numbers), dtype=np.int64), pa.array([b""] * len(numbers), pa.large_binary())
    made = in_bulk(numbers, zeros, zeros.astype(np.int32), empty, empty)
    made.reasons[:] = SKIPPED
    return made


def defined(found: Sequence[tuple[int, int, Outgoing]]) -> OutgoingColumns:
    """Return results of the definition: (number of the source record, path, outgoing record)."""
    outs = [out for *_, out in found]
    return OutgoingColumns(
        numbers=np.array([number for number, *_ in found], dtype=np.int64),
        paths=np.array([path for _, path, _ in found], dtype=np.uint8),
        reasons=np.array([out.reason for out in outs], dtype=np.int32),
        generations=np.array([out.generation for out in outs], dtype=np.int64),
        partitions=np.array([out.partition for out in outs], dtype=np.int32),
        keys=pa.array([out.key for out in outs], pa.large_binary()),
        values=pa.array([out.value for out in outs], pa.large_binary()),
    )


def in_order(parts: Sequence[OutgoingColumns]) -> OutgoingColumns:
    """Merge several parts by the numbers of their records."""
    filled = [some for some in parts if len(some.numbers)]
    if len(filled) <= 1:
        return filled[0] if filled else parts[0]
    numbers = np.concatenate([some.numbers for some in filled])
    # Stable: the rows of one record keep their order.
    order = np.argsort(numbers, kind="stable")
    places = pa.array(order)
    return OutgoingColumns(
        numbers[order],
        np.concatenate([some.paths for some in filled])[order],
        np.concatenate([some.reasons for some in filled])[order],
        np.concatenate([some.generations for some in filled])[order],
        np.concatenate([some.partitions for some in filled])[order],
        pa.concat_arrays([some.keys.cast(pa.large_binary()) for some in filled]).take(places),
        pa.concat_arrays([some.values.cast(pa.large_binary()) for some in filled]).take(places),
    )


def fixed_width(rows: U8) -> pa.BinaryArray:
    """Return the rows of a table as an array of byte strings."""
    count, width = rows.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(rows))]
    )


def fits(values: pa.Array, bytes_max: int) -> Flags:
    """Return True for values that are not larger than the limit."""
    _, ends = buffers(values)
    found: Flags = ends[1:] - ends[:-1] <= bytes_max
    return found
