"""Mutations that lie alike: what was found out about one of them holds for all that have its layout.

A *layout* is a plain mutation of one row without nulls, less everything that is free in it: ids, the digits of its
timestamp, and the contents of keys and cells. A record of the same width that has the layout's bytes wherever they are
not free is such a mutation, too, and each of its values stands where that of the first one does. So the fields of
thousands of records are columns of a table, with one place and one width each, and nothing is searched for.

Records of many widths, or with anything odd, have no layout here: ``ringlog_cdc.columnar.mutations`` reads them field
by field, and is the definition of what a layout says. A property test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX
from ringlog_cdc.columnar.mutations import Mutations, scan
from ringlog_cdc.columnar.route import full_name
from ringlog_cdc.columnar.scan import ByteSpan, padded
from ringlog_cdc.columnar.words import I64, KEEP, U8, U64, WORD, low_bits

WIDTHS_MAX = 8
"""At most N widths of one Arrow batch are looked at, the most frequent ones."""
COVERED_LEAST = 0.75
"""The share of an Arrow batch that these widths must have: otherwise they are not worth it."""
ALIKE_MAX = 4
"""At most N layouts of one width are tried, and kept."""
WIDTHS_KEPT = 64
_CONTINUED = 0x80


@dataclass(frozen=True, slots=True, eq=False)
class ByteLayout:
    """What is the same in all records of a layout. Places count from the begin of a record.

    ``words``: places of words to compare, what stands there, and which of its bits count. ``mutation``: the columns of
    the record that it was found with. ``mutation_id``, ``cluster_id``: place of the 16 bytes, -1 where there are none.
    ``key``: place and width of the components of the partition key. ``name``: the table's, with its keyspace.
    """

    width: int
    words: tuple[tuple[int, np.uint64, np.uint64], ...]
    mutation: Mutations
    timestamp: int
    timestamp_bytes: int
    mutation_id: int
    cluster_id: int
    key: tuple[tuple[int, int], ...]
    name: str

    def of(self, table: ByteTable) -> NDArray[np.bool_]:
        """Which records have it."""
        wrong: U64 = np.zeros(table.count, dtype=np.uint64)
        for place, want, mask in self.words:
            wrong |= (table.words(place) ^ want) & mask
        # The last byte of a number in several is not 0, or it would be in fewer.
        found: NDArray[np.bool_] = wrong == 0
        if self.timestamp_bytes > 1:
            found &= table.words(self.timestamp + self.timestamp_bytes - WORD) >> np.uint64(56) != 0
        return found

    def timestamps(self, table: ByteTable) -> I64:
        """Microseconds, of records that have it."""
        at, size = self.timestamp, self.timestamp_bytes
        raw = low_bits(table.words(at) & KEEP[min(size, WORD)])
        if size > WORD:
            raw = raw | (table.words(at + 1) >> np.uint64(56)) << np.uint64(7 * WORD)
        value: I64 = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
        return value


@dataclass(frozen=True, slots=True)
class ByteTable:
    """``count`` records of one width, at least 1, one behind the other."""

    data: U8
    count: int
    width: int

    def words(self, place: int) -> U64:
        """The 8 bytes from a place on of each, as a little-endian number."""
        return np.ndarray((self.count,), dtype="<u8", buffer=self.data, offset=place, strides=(self.width,))

    def column(self, place: int, size: int) -> NDArray[np.void]:
        """This number of bytes from a place on of each."""
        return np.ndarray((self.count,), dtype=f"V{size}", buffer=self.data, offset=place, strides=(self.width,))

    def only(self, chosen: I64) -> ByteTable:
        """These of them."""
        if len(chosen) == self.count:
            return self
        rows = self.data.view(f"V{self.width}")[chosen]
        return ByteTable(rows.view(np.uint8), len(chosen), self.width)


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Records with one layout, and their numbers in the Arrow batch, ascending."""

    layout: ByteLayout
    table: ByteTable
    numbers: I64


def groups_of(data: U8, starts: I64) -> list[LayoutGroup]:
    """The records that lie alike, of n with n + 1 ``starts`` in ``data``; those that are in no group have no layout.

    A record without a byte (a tombstone, too) has none: it has nothing that could be compared.
    """
    lengths = starts[1:] - starts[:-1]
    found: list[LayoutGroup] = []
    for width, numbers in _frequent(lengths):
        if width:
            found += _alike(_table(data, starts, width, numbers), numbers)
    return found


def _frequent(lengths: I64) -> list[tuple[int, I64]]:
    """(width, numbers of the records that have it), the most frequent ones first; none if these are not worth it."""
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
    """These records, which have that width, side by side: where they lie, if nothing lies between them."""
    first, last = int(starts[numbers[0]]), int(starts[numbers[-1]]) + width
    if last - first == len(numbers) * width:
        return ByteTable(data[first:last], len(numbers), width)
    windows = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    return ByteTable(windows[starts[numbers]].view(np.uint8), len(numbers), width)


def _alike(table: ByteTable, numbers: I64) -> list[LayoutGroup]:
    """Records of one width by layout."""
    found: list[LayoutGroup] = []
    for _ in range(ALIKE_MAX):
        if not table.count:
            break
        layout = _known_or_new(ByteTable(table.data[: table.width], 1, table.width))
        mine = np.zeros(table.count, dtype=bool) if layout is None else layout.of(table)
        if layout is not None:
            chosen = np.flatnonzero(mine)
            found.append(LayoutGroup(layout, table.only(chosen), numbers[chosen]))
        mine[0] = True  # also without a layout: it is not looked at again
        left = np.flatnonzero(~mine)
        table, numbers = table.only(left), numbers[left]
    return found


_known: dict[int, tuple[ByteLayout, ...]] = {}
"""Layouts by width that this process has met, the newest first."""


def _known_or_new(one: ByteTable) -> ByteLayout | None:
    """The layout of a record."""
    known = _known.get(one.width, ())
    layout = next((layout for layout in known if layout.of(one)[0]), None)
    if layout is None and (layout := layout_of(one.data)) is not None:
        _known[one.width] = (layout, *known)[:ALIKE_MAX]
        while len(_known) > WIDTHS_KEPT:
            del _known[next(iter(_known))]
    return layout


def layout_of(record: U8) -> ByteLayout | None:
    """What lies alike in a record and in others; None if it has no layout."""
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
        or digits[1] > WORD + 1
        or width < digits[0] + digits[1] + WORD
    ):
        return None
    ids = [(at + 1, size - 1) for at, size in map(_place, (found.mutation_id, found.cluster_id))]
    free = [*ids, *keys, *map(_place, clustering.content), *_values(record, found)]
    counts = np.full(width, 0xFF, dtype=np.uint8)
    for at, size in free:
        counts[at : at + size] = 0
    at, size = digits
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
        name=full_name(_bytes(record, found.names)),
    )


def _place(span: ByteSpan) -> tuple[int, int]:
    return int(span.start[0]), int(span.length[0])


def _bytes(record: U8, span: ByteSpan) -> bytes:
    at, size = _place(span)
    return record[at : at + size].tobytes()


def _values(record: U8, found: Mutations) -> list[tuple[int, int]]:
    """Where the contents of the cells stand: behind name, branch and length."""
    places = []
    for whole, name in zip(found.cells.whole, found.cells.inner, strict=True):
        at, size = _place(whole)
        end = at + size
        at += _place(name)[1] + 1
        while record[at] & _CONTINUED:
            at += 1
        places.append((at + 1, end - at - 1))
    return places


def _words(record: U8, counts: U8) -> tuple[tuple[int, np.uint64, np.uint64], ...]:
    """Words that hold every bit that counts: place, what stands there, which bits."""
    found = []
    at = 0
    while len(left := np.flatnonzero(counts[at:])):
        place = min(at + int(left[0]), len(record) - WORD)
        want, mask = (bits[place : place + WORD].view("<u8")[0] for bits in (record.copy(), counts))
        found.append((place, want, mask))
        at = place + WORD
    return tuple(found)
