"""Byte layouts: parse one mutation, and apply the result to all records with the same layout.

A *layout* is a plain mutation of one row without nulls, minus the parts that may vary: ids, the digits of the
timestamp, and the contents of keys and cells. A record of the same width that has the layout's bytes everywhere else is
such a mutation too, with each value at the same position. The fields of thousands of records are then columns of a
table, each with one offset and one width, and nothing has to be parsed.

Invariant: ``ringlog_cdc.columnar.mutations`` parses field by field and is the definition. A property test compares
both. Batches with many different widths, and records with anything unusual, have no layout and are parsed there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX
from ringlog.kernel.values import Value
from ringlog_cdc.bulk.columns import full_name
from ringlog_cdc.columnar.mutations import Mutations, scan
from ringlog_cdc.columnar.scan import ByteSpan, padded
from ringlog_cdc.columnar.words import I64, KEEP, U8, U64, WORD, low_bits

WIDTHS_MAX = 8
"""Most widths considered per Arrow batch, the most frequent ones."""
COVERED_LEAST = 0.75
"""Share of an Arrow batch that these widths must cover to be worth the effort."""
ALIKE_MAX = 4
"""Most layouts tried and cached per width."""
WIDTHS_KEPT = 64
"""Most widths with cached layouts per process."""
_CONTINUED = 0x80
"""Highest bit of a byte of an Avro number: more bytes follow."""


class ByteLayout(Value, eq=False):
    """The constant part of all records with this layout. Positions count from the start of a record.

    Attributes:
        width: Bytes of a record.
        words: (position, expected word, mask of its constant bits) of each comparison.
        mutation: Columns of the record that defined the layout.
        timestamp: Position of the timestamp.
        timestamp_bytes: Its length.
        mutation_id: Position of the 16 bytes, or -1 if there are none.
        cluster_id: Position of the 16 bytes, or -1 if there are none.
        key: (position, width) of each component of the partition key.
        clustering: (position, width) of each component of the clustering key.
        values: (position, width) of the value of each cell.
        name: Full name of the table.
    """

    width: int
    words: tuple[tuple[int, np.uint64, np.uint64], ...]
    mutation: Mutations
    timestamp: int
    timestamp_bytes: int
    mutation_id: int
    cluster_id: int
    key: tuple[tuple[int, int], ...]
    clustering: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]
    name: str

    def of(self, table: ByteTable) -> NDArray[np.bool_]:
        """Return True for each record of the table that has this layout."""
        wrong: U64 = np.zeros(table.count, dtype=np.uint64)
        for place, want, mask in self.words:
            # Collect the differing constant bits of all comparisons and test once.
            wrong |= (table.words(place) ^ want) & mask
        # The digits of the timestamp vary, but must be canonical: a last byte of 0 would belong in a shorter number.
        found: NDArray[np.bool_] = wrong == 0
        if self.timestamp_bytes > 1:
            found &= table.words(self.timestamp + self.timestamp_bytes - WORD) >> np.uint64(56) != 0
        return found

    def timestamps(self, table: ByteTable) -> I64:
        """Decode the timestamps of records with this layout, microseconds."""
        at, size = self.timestamp, self.timestamp_bytes
        raw = low_bits(table.words(at) & KEEP[min(size, WORD)])
        if size > WORD:
            # The ninth byte is the last one of the word that starts at the second.
            raw = raw | (table.words(at + 1) >> np.uint64(56)) << np.uint64(7 * WORD)
        value: I64 = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
        return value


class ByteTable(Value):
    """``count`` adjacent records of one width, which is at least one byte."""

    data: U8
    count: int
    width: int

    def words(self, place: int) -> U64:
        """Return the 8 bytes at a position of each record as little-endian numbers. A strided view."""
        return np.ndarray((self.count,), dtype="<u8", buffer=self.data, offset=place, strides=(self.width,))

    def column(self, place: int, size: int) -> NDArray[np.void]:
        """Return ``size`` bytes at a position of each record. A strided view, also for writing."""
        return np.ndarray((self.count,), dtype=f"V{size}", buffer=self.data, offset=place, strides=(self.width,))

    def only(self, chosen: I64) -> ByteTable:
        """Return the chosen records. Copies unless all are chosen."""
        if len(chosen) == self.count:
            return self
        rows = self.data.view(f"V{self.width}")[chosen]
        return ByteTable(rows.view(np.uint8), len(chosen), self.width)


class LayoutGroup(Value):
    """Records with one layout, and their ascending numbers in the Arrow batch."""

    layout: ByteLayout
    table: ByteTable
    numbers: I64


def groups_of(data: U8, starts: I64) -> list[LayoutGroup]:
    """Group records by layout. Records outside of every group have no layout.

    Args:
        data: Buffer of n records.
        starts: Their n + 1 offsets. Empty records and tombstones have no bytes and no layout.
    """
    lengths = starts[1:] - starts[:-1]
    found: list[LayoutGroup] = []
    for width, numbers in _frequent(lengths):
        if width:
            found += _alike(_table(data, starts, width, numbers), numbers)
    return found


def _frequent(lengths: I64) -> list[tuple[int, I64]]:
    """Return (width, numbers of its records), most frequent first.

    Empty if these widths cover too little of the batch.
    """
    if not len(lengths):
        return []
    if (lengths == lengths[0]).all():
        return [(int(lengths[0]), np.arange(len(lengths)))]
    widths, counts = np.unique(lengths, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:WIDTHS_MAX]
    if counts[most].sum() < COVERED_LEAST * len(lengths):
        return []
    return [(int(widths[place]), np.flatnonzero(lengths == widths[place])) for place in most]


def _table(data: U8, starts: I64, width: int, numbers: I64) -> ByteTable:
    """Return records of one width as a table: a view if they are adjacent, else a copy."""
    first, last = int(starts[numbers[0]]), int(starts[numbers[-1]]) + width
    if last - first == len(numbers) * width:
        return ByteTable(data[first:last], len(numbers), width)
    windows = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    return ByteTable(windows[starts[numbers]].view(np.uint8), len(numbers), width)


def _alike(table: ByteTable, numbers: I64) -> list[LayoutGroup]:
    """Group records of one width by layout."""
    found: list[LayoutGroup] = []
    for _ in range(ALIKE_MAX):
        if not table.count:
            break
        # The first record left determines the next layout.
        layout = _known_or_new(ByteTable(table.data[: table.width], 1, table.width))
        mine = np.zeros(table.count, dtype=bool) if layout is None else layout.of(table)
        if layout is not None:
            chosen = np.flatnonzero(mine)
            found.append(LayoutGroup(layout, table.only(chosen), numbers[chosen]))
        mine[0] = True  # even without a layout the first record is done, so each round makes progress
        left = np.flatnonzero(~mine)
        table, numbers = table.only(left), numbers[left]
    return found


_known: dict[int, tuple[ByteLayout, ...]] = {}
"""Width to the layouts that this process has met, newest first."""


def _known_or_new(one: ByteTable) -> ByteLayout | None:
    """Return the layout of a record, from the cache or by parsing it."""
    known = _known.get(one.width, ())
    layout = next((layout for layout in known if layout.of(one)[0]), None)
    if layout is None and (layout := layout_of(one.data)) is not None:
        _known[one.width] = (layout, *known)[:ALIKE_MAX]
        while len(_known) > WIDTHS_KEPT:
            del _known[next(iter(_known))]
    return layout


def layout_of(record: U8) -> ByteLayout | None:
    """Return the layout of a record, or None if it has none."""
    width = len(record)
    found = scan(padded(record), np.zeros(1, dtype=np.int64), np.full(1, width))
    key, clustering, cells = found.partition_key, found.clustering_key, found.cells
    nulls = (*key.is_null, *clustering.is_null, *cells.is_null)
    if not found.plain[0] or any(flags[0] for flags in nulls) or not key.content:
        return None
    keys = [_place(span) for span in key.content]
    digits = _place(found.timestamp_at)
    if (
        any(size > COMPONENT_BYTES_MAX for _, size in keys)
        # ``ByteLayout.timestamps`` decodes at most 9 bytes, and reads a word from the timestamp's second byte on.
        or digits[1] > WORD + 1
        or width < digits[0] + digits[1] + WORD
    ):
        return None
    ids = [(at + 1, size - 1) for at, size in map(_place, (found.mutation_id, found.cluster_id))]
    rows, values = tuple(map(_place, clustering.content)), tuple(map(_place, cells.values))
    free = [*ids, *keys, *rows, *values]
    # A mask of the constant bits of each byte: none in free parts, all elsewhere.
    counts = np.full(width, 0xFF, dtype=np.uint8)
    for at, size in free:
        counts[at : at + size] = 0
    at, size = digits
    # The digits of the timestamp are free, but its length is not: the continuation bits stay.
    counts[at : at + size] = _CONTINUED
    return ByteLayout(
        width=width,
        words=_words(record, counts),
        mutation=found,
        timestamp=at,
        timestamp_bytes=size,
        mutation_id=ids[0][0] if ids[0][1] else -1,
        cluster_id=ids[1][0] if ids[1][1] else -1,
        key=tuple(keys),
        clustering=rows,
        values=values,
        name=full_name(_bytes(record, found.names)),
    )


def _place(span: ByteSpan) -> tuple[int, int]:
    """Return (position, width) of the only record's span."""
    return int(span.start[0]), int(span.length[0])


def _bytes(record: U8, span: ByteSpan) -> bytes:
    at, size = _place(span)
    return record[at : at + size].tobytes()


def _words(record: U8, counts: U8) -> tuple[tuple[int, np.uint64, np.uint64], ...]:
    """Return words that cover every constant bit: (position, expected word, mask)."""
    found = []
    at = 0
    while len(left := np.flatnonzero(counts[at:])):
        # The last word is moved back to stay within the record. Its overlap is compared twice, which is harmless.
        place = min(at + int(left[0]), len(record) - WORD)
        want, mask = (bits[place : place + WORD].view("<u8")[0] for bits in (record.copy(), counts))
        found.append((place, want, mask))
        at = place + WORD
    return tuple(found)
