"""Images for a batch: processes all writes of tables that keep images, in the order of the topic.

*Flat* writes are plain, and their tables have one cell per column. They arrive as rows without images, and take the
fast path of ``ringlog_cdc.bulk.flat_image``. The definition processes all other writes.

Invariant: states depend on the order of writes, so both kinds are processed in one sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringlog.kernel.rows.log_rows import POSTIMAGE, PREIMAGE, ROW_DELETE
from ringlog.kernel.rows.writes import expiry
from ringlog.kernel.values import Value, replace
from ringlog.wire.avro.writing import number as item_number
from ringlog_cdc.bulk.choice import RecordPath
from ringlog_cdc.bulk.columns import NamedTables, named, operations_of
from ringlog_cdc.bulk.encode import composed_keys
from ringlog_cdc.bulk.flat_image import changed, live, tail
from ringlog_cdc.bulk.logged_rows import Logged, laid
from ringlog_cdc.bulk.outgoing_columns import OutgoingColumns, defined, in_order
from ringlog_cdc.columnar.mutations import Mutations, grouped
from ringlog_cdc.columnar.pieces import BytePieces, encoded_numbers
from ringlog_cdc.columnar.scan import ByteSpan
from ringlog_cdc.columnar.words import I64
from ringlog_cdc.definition.decision import Input, Outgoing, PartContext, decide
from ringlog_cdc.definition.image_states import COLLECTIONS, LIMIT, common_key
from ringlog_cdc.definition.images import States
from ringlog_cdc.definition.routing_table import RoutingTable

HEAD = 10 + 16
"""Bytes of a row before its generation: header and stream id."""
TIME = 16
"""Bytes of ``cdc$time``."""
COLUMNS_MAX = 256
"""Most distinct column names of a batch that are decoded once each."""

NO_ITEM = b""
"""Placeholder for a missing cell, for writes with fewer cells than others in the batch."""

Cells = tuple[Sequence[tuple[str, ...]], Sequence[tuple[bytes | None, ...]]]
"""Columns of each write, and their encoded cells. None: null."""


class FlatWrites(Value):
    """Flat writes of a batch, in ascending order, with everything that their images need.

    Attributes:
        rows: Their rows without images, one for each write.
        logged: The same rows, with positions within them.
        composed: Partition keys as they are hashed.
        clustering: Clustering keys as in keys of states.
        timestamps: Microseconds.
        expires: Expiry of the cells, microseconds, or None.
        appended: Append time, microseconds.
    """

    rows: OutgoingColumns
    logged: Logged
    tables: NamedTables
    composed: pa.LargeBinaryArray
    clustering: pa.LargeBinaryArray
    operations: Sequence[int]
    timestamps: Sequence[int]
    expires: Sequence[int | None]
    appended: Sequence[int]
    cells: Cells

    def keys(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the key of each row's state, as ``ringlog_cdc.definition.image_states.row_key`` builds it.

        Args:
            numbers: Number of each table in the store.
        """
        heads = np.empty((len(self.rows.numbers), 2), dtype=">u4")
        # The extra entry serves code -1, which indexes from the end.
        heads[:, 0] = np.array([*numbers, 0])[self.tables.codes]
        heads[:, 1] = pc.binary_length(self.composed).to_numpy(zero_copy_only=False)
        prefix = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(heads), [None, pa.py_buffer(heads)])
        columns = prefix.cast(pa.large_binary()), self.composed, self.clustering
        joined = pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
        return list(joined.to_pylist())


def flat_writes(mutations: Mutations, rows: OutgoingColumns, positions: tuple[I64, I64, I64], topic: str) -> FlatWrites:
    """Collect the flat writes.

    Args:
        mutations: Columns of a batch.
        rows: Rows of the flat writes without images.
        positions: Source partition, source offset and append time of every record of the batch.
        topic: Name of the mutations topic.
    """
    numbers = rows.numbers
    partitions, offsets, appended = (column[numbers] for column in positions)
    ttls = mutations.ttl.length[numbers]
    # Positions within each encoded row follow from the lengths of its fields, in the order of ``ringlog.cdc.CdcRow``.
    at = HEAD + encoded_numbers(rows.generations)[1] + TIME
    begin = at + 2 + ttls + 1
    source = len(topic.encode()) + encoded_numbers(np.array([len(topic.encode())]))[1][0]
    end = begin + mutations.names.length[numbers] + mutations.mutation_id.length[numbers] + source
    end += encoded_numbers(partitions)[1] + encoded_numbers(offsets)[1] + mutations.timestamp_at.length[numbers]
    end += encoded_numbers(mutations.partition_key.count[numbers])[1] + 1 + mutations.clustering_at.length[numbers]
    for span in mutations.partition_key.inner:
        end += span.length[numbers]
    timestamps = mutations.timestamp[numbers].tolist()
    expires: Sequence[int | None] = [None] * len(numbers)
    if (ttls > 1).any():
        values = mutations.ttl_value[numbers].tolist()
        expires = [expiry(time, ttl) for time, ttl in zip(timestamps, values, strict=True)]
    return FlatWrites(
        rows,
        Logged(rows.values, at, begin, end),
        named(mutations, numbers),
        composed_keys(mutations, numbers),
        _clustering(mutations, numbers),
        operations_of(mutations, numbers).tolist(),
        timestamps,
        expires,
        appended.tolist(),
        _cells(mutations, numbers),
    )


def _clustering(mutations: Mutations, numbers: I64) -> pa.LargeBinaryArray:
    """Return the clustering keys as ``ringlog_cdc.definition.image_states.row_key`` has them."""
    pieces = BytePieces(len(numbers), mutations.data)
    key = mutations.clustering_key
    pieces.constant(b"\1")
    for place, span in enumerate(key.content):
        there = key.count[numbers] > place
        length = span.length[numbers]
        pieces.rows(length.astype(">u4").view(np.uint8).reshape(-1, 4), there * np.int64(4))
        pieces.spans(ByteSpan(span.start[numbers], length))
    return pieces.joined()


def _cells(mutations: Mutations, numbers: I64) -> Cells:
    """Return columns and encoded cells of each write, from one list per cell position."""
    data, cells = mutations.data.tobytes(), mutations.cells
    counts = cells.count[numbers]
    most = int(counts.max(initial=0))
    found: list[tuple[list[str], list[bytes | None]]] = []
    for whole, name, null in zip(cells.whole[:most], cells.content, cells.is_null, strict=False):
        start, end = whole.start[numbers], (whole.start + whole.length)[numbers]
        items: list[bytes | None] = [data[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        for place in np.flatnonzero(null[numbers]).tolist():
            items[place] = None
        found.append((_names(mutations, name, numbers, data), items))
    if not most:
        return [()] * len(numbers), [()] * len(numbers)
    # If all writes name the same columns, sorting the positions by name gives the order that states use.
    found.sort(key=lambda one: one[0][0])
    columns, every = ([*zip(*some, strict=True)] for some in zip(*found, strict=True))
    for place in np.flatnonzero(counts < most).tolist():
        pairs = [pair for pair in zip(columns[place], every[place], strict=True) if pair[1] != NO_ITEM]
        columns[place], every[place] = tuple(name for name, _ in pairs), tuple(item for _, item in pairs)
    return columns, every


def _names(mutations: Mutations, span: ByteSpan, numbers: I64, data: bytes) -> list[str]:
    """Return the text of each span, decoding each distinct name once if they are few."""
    codes, contents = grouped(mutations.data, span, numbers, COLUMNS_MAX)
    if (codes < 0).any():
        spans = zip(span.start[numbers].tolist(), span.length[numbers].tolist(), strict=True)
        return [data[start : start + length].decode() for start, length in spans]
    known = [content.decode() for content in contents]
    return [known[code] for code in codes.tolist()]


# --------------------------------------------------------------------------------------------------- in sequence


def with_images(
    flat: FlatWrites,
    others: Mapping[int, tuple[int, Input]],
    inputs: Callable[[int], Input],
    table: RoutingTable,
    part: PartContext,
    states: States,
) -> OutgoingColumns:
    """Process all writes of tables that keep images, in ascending order.

    Args:
        flat: The flat writes.
        others: Number to path and record, for all other writes.
        inputs: Function from a number to the decoded record.
        table: Routing table.
        part: Context of the plan part.
        states: States of rows.
    """
    sequence = _Sequence(flat, inputs, table, part, states)
    at = 0
    for number, (path, item) in sorted(others.items()):
        stop = bisect_left(flat.rows.numbers, number)
        sequence.quick(stop - at)
        sequence.define(number, path, item)
        at = stop
    sequence.quick(len(flat.rows.numbers) - at)
    return sequence.made()


class _Sequence:
    """Progress through a batch."""

    def __init__(
        self,
        flat: FlatWrites,
        inputs: Callable[[int], Input],
        table: RoutingTable,
        part: PartContext,
        states: States,
    ) -> None:
        self._flat = flat
        self._inputs = inputs
        self._table = table
        self._part = part
        self._states = states
        self._images = [table.images[name] for name in flat.tables.names]
        numbers = [states.number(*one) for one in zip(flat.tables.names, self._images, strict=True)]
        self._prefixes = [number.to_bytes(4, "big") for number in numbers]
        keys = flat.keys(numbers)
        states.fetch(keys)
        self._look()
        if any(self._common):
            states.fetch(common_key(_prefix(key)) for key in keys)
        codes = flat.tables.codes.tolist()
        columns = (keys, codes, flat.operations, flat.timestamps, flat.expires, flat.appended, *flat.cells)
        self._writes = enumerate(zip(*columns, strict=True))
        count = len(keys)
        self._end = item_number(part.epoch)
        self._tail_bytes_max = flat.logged.tail_bytes_max(part.row_bytes_max) - len(self._end)
        self._before: list[bytes | None] = [None] * count
        self._after: list[bytes | None] = [None] * count
        self._kept = np.ones(count, dtype=bool)
        self._defined: list[tuple[int, int, Outgoing]] = []

    def _look(self) -> None:
        """Refresh which tables have partitions with common state (tombstones, static columns)."""
        self._common = [
            image.columns.has_rows and self._states.has_common(prefix)
            for image, prefix in zip(self._images, self._prefixes, strict=True)
        ]

    def define(self, number: int, path: int, item: Input) -> None:
        """Process a write by the definition."""
        self._defined += [(number, path, out) for out in decide(self._table, item, self._part, self._states)]
        # The write may have left a tombstone.
        self._look()

    def quick(self, count: int) -> None:
        """Process the next ``count`` flat writes."""
        states, images, limit = self._states, self._images, self._tail_bytes_max
        for place, (key, code, operation, at, expires, now, columns, items) in islice(self._writes, count):
            image = images[code]
            row = states.get(key)
            if row is not None and row[LIMIT] <= now:
                row = None
            # Collections or tombstones of the partition are for the definition.
            if (row is not None and row[COLLECTIONS] is not None) or (self._common[code] and _is_common(states, key)):
                self._fall_back(place, RecordPath.IMAGES)
                continue
            before = after = None
            if row is not None and image.preimage != "false" and (values := live(row, now)) is not None:
                before = tail(image, PREIMAGE, values, None if operation == ROW_DELETE else columns)
            row = changed(row, operation, at, expires, columns, items, now, image.ttl)
            if row is not None and image.postimage and (values := live(row, now)) is not None:
                after = tail(image, POSTIMAGE, values, None)
            # Nothing was changed yet, so the definition can still process the write.
            if len(before or b"") > limit or len(after or b"") > limit:
                self._fall_back(place, RecordPath.OVERSIZED)
                continue
            states.put(key, row)
            self._before[place], self._after[place] = self._ended(before), self._ended(after)

    def _ended(self, tail: bytes | None) -> bytes | None:
        """Append the epoch to a tail."""
        return None if tail is None else tail + self._end

    def _fall_back(self, place: int, path: RecordPath) -> None:
        """Pass a write to the definition. Its state is unchanged."""
        self._kept[place] = False
        number = int(self._flat.rows.numbers[place])
        self.define(number, path, self._inputs(number))

    def made(self) -> OutgoingColumns:
        """Return the results, after the last write."""
        places, values = laid(self._flat.logged, self._kept, self._before, self._after)
        rows = replace(self._flat.rows.only(places), values=values)
        return in_order([rows, defined(self._defined)])


def _prefix(key: bytes) -> bytes:
    """Return the part of a state's key that identifies the partition."""
    return key[: 8 + int.from_bytes(key[4:8], "big")]


def _is_common(states: States, key: bytes) -> bool:
    """Return True if the partition of this row's key has common state."""
    return states.get(common_key(_prefix(key))) is not None
