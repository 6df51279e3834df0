"""Images for a batch: selects the writes with fast images, and processes all writes in the order of the topic.

Plain mutations arrive as columns from ``ringlog_cdc.columnar`` and are regrouped write by write. Each *easy* write then
takes the fast path of ``ringlog_cdc.bulk.flat_image``, and every other write the definition.

Invariant: states depend on the order of writes, so both kinds are processed in one sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringlog.client.cdc.rows import POSTIMAGE, PREIMAGE, ROW_DELETE
from ringlog.kernel.rows.writes import expiry
from ringlog_cdc.bulk.flat_image import changed, live, tail
from ringlog_cdc.bulk.logged_rows import Logged, laid
from ringlog_cdc.bulk.rows import Input, Out, PartContext, outgoing
from ringlog_cdc.columnar.encode import composed_keys
from ringlog_cdc.columnar.mutations import Mutations, grouped
from ringlog_cdc.columnar.pieces import BytePieces, encoded_numbers
from ringlog_cdc.columnar.pieces import number as item_number
from ringlog_cdc.columnar.route import NamedTables, named, operation_codes
from ringlog_cdc.columnar.routing import RoutingTable
from ringlog_cdc.columnar.scan import ByteSpan
from ringlog_cdc.columnar.words import I64, Flags
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.images.define import States
from ringlog_cdc.images.state import common_key

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


def is_easy(mutations: Mutations, rows: I64, tables: NamedTables, images: Mapping[str, ImageTable]) -> Flags:
    """Return True for mutations that can take the fast path if they are routed.

    Args:
        mutations: Columns of a batch.
        rows: Numbers of plain mutations.
        tables: Their tables.
        images: Full name to table, for tables that keep images.
    """
    flat = np.array([*(name in images and images[name].is_flat for name in tables.names), False])
    codes = operation_codes()[mutations.operation[rows].clip(0)]
    easy: Flags = flat[tables.codes] & (codes > 0) & (codes <= ROW_DELETE)
    return easy


@dataclass(frozen=True, slots=True)
class Easy:
    """Easy writes of a batch, in ascending order, with everything that their images need.

    Attributes:
        numbers: Numbers of the records in the batch.
        logged: Their rows without images.
        composed: Partition keys as they are hashed.
        clustering: Clustering keys as in keys of states.
        timestamps: Microseconds.
        expires: Expiry of the cells, microseconds, or None.
        appended: Append time, microseconds.
        inputs: Function from a number to the decoded record.
    """

    numbers: I64
    logged: Logged
    tables: NamedTables
    composed: pa.LargeBinaryArray
    clustering: pa.LargeBinaryArray
    operations: Sequence[int]
    timestamps: Sequence[int]
    expires: Sequence[int | None]
    appended: Sequence[int]
    cells: Cells
    inputs: Callable[[int], Input]

    def keys(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the key of each row's state, as ``ringlog_cdc.images.state.row_key`` builds it.

        Args:
            numbers: Number of each table in the store.
        """
        heads = np.empty((len(self.numbers), 2), dtype=">u4")
        # The extra entry serves code -1, which indexes from the end.
        heads[:, 0] = np.array([*numbers, 0])[self.tables.codes]
        heads[:, 1] = pc.binary_length(self.composed).to_numpy(zero_copy_only=False)
        prefix = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(heads), [None, pa.py_buffer(heads)])
        columns = prefix.cast(pa.large_binary()), self.composed, self.clustering
        joined = pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
        return list(joined.to_pylist())


def easy_writes(
    mutations: Mutations,
    numbers: I64,
    rows: pa.LargeBinaryArray,
    generations: I64,
    places: tuple[I64, I64, I64],
    topic: str,
    inputs: Callable[[int], Input],
) -> Easy:
    """Collect the easy writes.

    Args:
        mutations: Columns of a batch.
        numbers: Numbers of the easy writes.
        rows: Their rows without images.
        generations: Start of the generation of each, microseconds.
        places: Source partition, source offset and append time of each.
        topic: Name of the mutations topic.
        inputs: Function from a number to the decoded record.
    """
    partitions, offsets, appended = places
    ttls = mutations.ttl.length[numbers]
    # Positions within each encoded row follow from the lengths of its fields, in the order of ``ringlog.cdc.CdcRow``.
    at = HEAD + encoded_numbers(generations)[1] + TIME
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
    return Easy(
        numbers,
        Logged(rows, at, begin, end),
        named(mutations, numbers),
        composed_keys(mutations, numbers),
        _clustering(mutations, numbers),
        operation_codes()[mutations.operation[numbers]].tolist(),
        timestamps,
        expires,
        appended.tolist(),
        _cells(mutations, numbers),
        inputs,
    )


def _clustering(mutations: Mutations, numbers: I64) -> pa.LargeBinaryArray:
    """Return the clustering keys as in ``ringlog_cdc.images.state.row_key``: each component after its 4-byte length."""
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


# --------------------------------------------------------------------------------------------------- through a batch


@dataclass(slots=True)
class ImagedRows:
    """Results for writes of tables that keep images. ``ringlog_cdc.bulk.arrow`` merges them.

    Attributes:
        places: For each row, the index of its write among the easy writes.
        rows: Encoded rows of easy writes.
        numbers: Record numbers of the definition's results.
        outs: The definition's results.
    """

    places: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rows: pa.LargeBinaryArray | None = None
    numbers: list[int] = field(default_factory=list)
    outs: list[Out] = field(default_factory=list)


def through(
    easy: Easy, others: Mapping[int, Input], table: RoutingTable, part: PartContext, states: States
) -> ImagedRows:
    """Process all writes of tables that keep images, in ascending order.

    Args:
        easy: The easy writes.
        others: Number to record, for the writes that are not easy.
        table: Routing table.
        part: Context of the plan part.
        states: States of rows.
    """
    way = _Way(easy, table, part, states)
    at = 0
    for number, item in sorted(others.items()):
        stop = bisect_left(easy.numbers, number)
        way.quick(stop - at)
        way.define(number, item)
        at = stop
    way.quick(len(easy.numbers) - at)
    return way.made()


class _Way:
    """Progress through a batch."""

    def __init__(self, easy: Easy, table: RoutingTable, part: PartContext, states: States) -> None:
        self._easy = easy
        self._table = table
        self._part = part
        self._states = states
        self._images = [table.images[name] for name in easy.tables.names]
        numbers = [states.number(*one) for one in zip(easy.tables.names, self._images, strict=True)]
        self._prefixes = [number.to_bytes(4, "big") for number in numbers]
        keys = easy.keys(numbers)
        states.fetch(keys)
        self._look()
        if any(self._common):
            states.fetch(common_key(_prefix(key)) for key in keys)
        codes = easy.tables.codes.tolist()
        columns = (keys, codes, easy.operations, easy.timestamps, easy.expires, easy.appended, *easy.cells)
        self._writes = enumerate(zip(*columns, strict=True))
        count = len(keys)
        self._end = item_number(part.epoch)
        self._tail_bytes_max = easy.logged.tail_bytes_max(part.row_bytes_max) - len(self._end)
        self._before: list[bytes | None] = [None] * count
        self._after: list[bytes | None] = [None] * count
        self._kept = np.ones(count, dtype=bool)
        self._made = ImagedRows()

    def _look(self) -> None:
        """Refresh which tables have partitions with common state (tombstones, static columns)."""
        self._common = [
            image.shape.has_rows and self._states.has_common(prefix)
            for image, prefix in zip(self._images, self._prefixes, strict=True)
        ]

    def define(self, number: int, item: Input) -> None:
        """Process a write by the definition."""
        outs = outgoing(self._table, [item], self._part, self._states)
        self._made.numbers += [number] * len(outs)
        self._made.outs += outs
        # The write may have left a tombstone.
        self._look()

    def quick(self, count: int) -> None:
        """Process the next ``count`` easy writes."""
        states, images, limit = self._states, self._images, self._tail_bytes_max
        for place, (key, code, operation, at, expires, now, columns, items) in islice(self._writes, count):
            image = images[code]
            row = states.get(key)
            if row is not None and row[0] <= now:
                row = None
            # Collections or tombstones of the partition are for the definition.
            if (row is not None and row[7] is not None) or (self._common[code] and _is_common(states, key)):
                self._give_up(place)
                continue
            before = after = None
            if row is not None and image.preimage != "false" and (values := live(row, now)) is not None:
                before = tail(image, PREIMAGE, values, None if operation == ROW_DELETE else columns)
            row = changed(row, operation, at, expires, columns, items, now, image.ttl)
            if row is not None and image.postimage and (values := live(row, now)) is not None:
                after = tail(image, POSTIMAGE, values, None)
            # Nothing was changed yet, so the definition can still process the write.
            if len(before or b"") > limit or len(after or b"") > limit:
                self._give_up(place)
                continue
            states.put(key, row)
            self._before[place], self._after[place] = self._ended(before), self._ended(after)

    def _ended(self, tail: bytes | None) -> bytes | None:
        """Append the epoch to a tail."""
        return None if tail is None else tail + self._end

    def _give_up(self, place: int) -> None:
        """Pass a write to the definition. Its state is unchanged."""
        self._kept[place] = False
        number = int(self._easy.numbers[place])
        self.define(number, self._easy.inputs(number))

    def made(self) -> ImagedRows:
        """Return the results, after the last write."""
        made = self._made
        made.places, made.rows = laid(self._easy.logged, self._kept, self._before, self._after)
        return made


def _prefix(key: bytes) -> bytes:
    """Return the part of a state's key that identifies the partition."""
    return key[: 8 + int.from_bytes(key[4:8], "big")]


def _is_common(states: States, key: bytes) -> bool:
    """Return True if the partition of this row's key has common state."""
    return states.get(common_key(_prefix(key))) is not None
