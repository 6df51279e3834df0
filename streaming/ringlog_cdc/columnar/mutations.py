"""Mutations as columns: what routing and rows need of many Avro records, by their places in the bytes.

``scan`` goes through the records field by field, in the order of the schema ``ringlog.mutations.Mutation``. Nothing is
copied but numbers: texts, keys and cells stay where they are. A record is *plain* when it is of a known schema, all
of it was read and found canonical, its names are ASCII, and it is one statement without collections: the fields behind
``cells`` are at their defaults, a zero byte each, or the schema is older than they. All others are for the reader of
single records, ``ringlog.wire.records.decode_mutation``, which is the definition: of a plain record both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ringlog.wire.avro.codec import HEADER_BYTES, header
from ringlog_cdc.columnar.scan import ByteSpan, Cursor
from ringlog_cdc.columnar.words import I64, KEEP, U8, WORD, Flags, is_ascii, rows_of, words_of
from ringlog_schemas import by_fingerprint

MUTATION = "ringlog.mutations.Mutation"

ITEMS_MAX = 256
"""Records with longer arrays are left to the reader of single records, so that one of them cannot slow down a batch."""


@dataclass(frozen=True, slots=True)
class Items:
    """Arrays of n records: ``count`` items each; ``first``: where the first item begins, behind the count.

    Of item k of every record, or nothing where there are fewer: ``whole[k]`` all of its bytes, ``inner[k]`` those
    behind the union's branch (of a cell: its column), ``content[k]`` those without the length too; ``is_null[k]``.
    """

    count: I64
    first: I64
    whole: tuple[ByteSpan, ...]
    inner: tuple[ByteSpan, ...]
    content: tuple[ByteSpan, ...]
    is_null: tuple[Flags, ...]

    def any_null(self) -> Flags:
        """True for arrays with a null in them."""
        found: Flags = np.zeros(len(self.count), dtype=bool)
        for flags in self.is_null:
            found = found | flags
        return found


@dataclass(frozen=True, slots=True)
class Mutations:
    """Columns of n records. Only of ``plain`` ones they mean anything.

    Spans of optional fields begin with the union's branch; ``names`` are keyspace and table, each behind its length.
    ``ttl_value`` is 0 where there is none; ``operation``: place in the schema's list; ``rest``: from behind the
    partition key to the end of the cells.
    """

    data: U8
    plain: Flags
    mutation_id: ByteSpan
    cluster_id: ByteSpan
    names: ByteSpan
    keyspace: ByteSpan
    table: ByteSpan
    timestamp: I64
    timestamp_at: ByteSpan
    ttl: ByteSpan
    ttl_value: I64
    operation: I64
    partition_key: Items
    clustering_key: Items
    cells: Items
    clustering_at: ByteSpan
    rest: ByteSpan


def defaults_behind_cells() -> tuple[tuple[bytes, int], ...]:
    """Return header and number of fields behind the cells, for each known schema of mutations."""
    found = []
    for fingerprint, schema in sorted(by_fingerprint().items()):
        if schema.full_name == MUTATION:
            names = [field["name"] for field in schema.json["fields"]]
            found.append((header(fingerprint), len(names) - 1 - names.index("cells")))
    return tuple(found)


@cache
def operations_known() -> I64:
    """How many operations a known schema has, by the number of its fields behind the cells."""
    fewest = np.zeros(ITEMS_MAX, dtype=np.int64)
    for fingerprint, schema in by_fingerprint().items():
        if schema.full_name == MUTATION:
            behind = dict(defaults_behind_cells())[header(fingerprint)]
            (symbols,) = (field["type"]["symbols"] for field in schema.json["fields"] if field["name"] == "operation")
            fewest[behind] = min(fewest[behind] or len(symbols), len(symbols))
    return fewest


def scan(data: U8, start: I64, end: I64) -> Mutations:
    """The records ``data[start:end]``, n of them; ``data`` is padded."""
    begin, behind = _headers(data, start, end)
    cursor = Cursor(data, begin, end)
    cursor.expect(behind >= 0)
    mutation_id = _optional(cursor, 16)
    cluster_id = _optional(cursor, 16)
    before = cursor.at
    keyspace = cursor.sized()
    table = cursor.sized()
    names = cursor.span_from(before)
    before = cursor.at
    timestamp = cursor.number()
    timestamp_at = cursor.span_from(before)
    before = cursor.at
    part = cursor.where(cursor.null_or())
    ttl_value = part.spread(part.number())
    part.give_back()
    ttl = cursor.span_from(before)
    operation = cursor.number()
    cursor.expect((operation >= 0) & (operation < operations_known()[behind.clip(0)]))
    partition_key = _items(cursor, named=False)
    # An array that is not empty ends with a zero byte, and the row takes it along.
    rest = cursor.at - (partition_key.count > 0)
    before = cursor.at
    clustering_key = _items(cursor, named=False)
    clustering_at = cursor.span_from(before)
    cells = _items(cursor, named=True)
    rest_at = cursor.span_from(rest)
    tail = cursor.at
    cursor.skip(behind.clip(0))
    plain = cursor.sound & (cursor.at == end)
    assert int(behind.max(initial=0)) <= WORD, "one word is looked at"
    plain = plain & (words_of(data)[tail] & KEEP.take(behind.clip(0)) == 0)
    for text in cells.content:
        plain = plain & is_ascii(data, text.start, text.length)
    # Lengths below 64 are single bytes below 128: usually one look tells of both names.
    short = is_ascii(data, names.start, names.length)
    if not short.all():
        both = is_ascii(data, keyspace.start, keyspace.length) & is_ascii(data, table.start, table.length)
        plain = plain & both
    return Mutations(
        data=data,
        plain=plain,
        mutation_id=mutation_id,
        cluster_id=cluster_id,
        names=names,
        keyspace=keyspace,
        table=table,
        timestamp=timestamp,
        timestamp_at=timestamp_at,
        ttl=ttl,
        ttl_value=ttl_value,
        operation=operation,
        partition_key=partition_key,
        clustering_key=clustering_key,
        cells=cells,
        clustering_at=clustering_at,
        rest=rest_at,
    )


def _optional(cursor: Cursor, size: int) -> ByteSpan:
    """Null, or that number of bytes; with the branch."""
    before = cursor.at
    cursor.skip(np.where(cursor.null_or(), size, 0))
    return cursor.span_from(before)


def _items(cursor: Cursor, *, named: bool) -> Items:
    """An array of optional bytes, each behind its column's name if ``named``."""
    count = cursor.number()
    cursor.expect((count >= 0) & (count <= ITEMS_MAX))
    first = cursor.at
    whole, inner, content, nulls = [], [], [], []
    for place in range(int(count[cursor.sound].max(initial=0))):
        part = cursor.where(count > place)
        begin = part.at
        name = part.sized() if named else None
        name_end = part.at
        has_value = part.null_or()
        behind_branch = part.at
        value = part.where(has_value)
        text = value.sized()
        value.give_back()
        part.give_back()
        nulls.append(part.spread(~has_value))
        whole.append(part.spread_span(part.span_from(begin)))
        if name is not None:
            inner.append(part.spread_span(ByteSpan(begin, name_end - begin)))
            content.append(part.spread_span(name))
        else:
            inner.append(part.spread_span(part.span_from(behind_branch)))
            content.append(part.spread_span(value.spread_span(text)))
    part = cursor.where(count > 0)
    part.expect(part.byte() == 0)
    part.give_back()
    return Items(count, first, tuple(whole), tuple(inner), tuple(content), tuple(nulls))


def _headers(data: U8, start: I64, end: I64) -> tuple[I64, I64]:
    """(where each body begins, how many fields follow its cells: -1 where no known schema's header stands)."""
    marks = rows_of(data, start, HEADER_BYTES)
    behind = np.full(len(start), -1, dtype=np.int64)
    for mark, fields in defaults_behind_cells():
        behind[(marks == np.frombuffer(mark, dtype=np.uint8)).all(axis=1)] = fields
    behind[end - start < HEADER_BYTES] = -1
    return np.where(behind < 0, end, start + HEADER_BYTES), behind


def grouped(data: U8, span: ByteSpan, rows: I64, groups_max: int) -> tuple[NDArray[np.int32], list[bytes]]:
    """(a number for each of ``rows``, the contents they stand for); -1 for what is beyond the bound."""
    words = words_of(data)
    codes = np.full(len(rows), -1, dtype=np.int32)
    contents: list[bytes] = []
    left = np.arange(len(rows))
    while len(left) and len(contents) < groups_max:
        first = rows[left[0]]
        start, size = int(span.start[first]), int(span.length[first])
        at = span.start[rows[left]]
        same = span.length[rows[left]] == size
        for begin in range(0, size, 8):
            keep = KEEP[min(size - begin, 8)]
            same &= (words[np.minimum(at + begin, len(words) - 1)] ^ words[start + begin]) & keep == 0
        codes[left[same]] = len(contents)
        contents.append(data[start : start + size].tobytes())
        left = left[~same]
    return codes, contents
