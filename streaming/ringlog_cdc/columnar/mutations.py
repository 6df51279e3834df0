"""Mutations as columns: the fields of many Avro records that routing and rows need, as positions in the bytes.

``scan`` parses the records field by field, in the order of the schema ``ringlog.mutations.Mutation``. Only numbers are
copied. Texts, keys and cells stay in place.

A record is *plain* if all of these hold:

* Its schema is known, and every field was read and is canonical.
* Its names are ASCII.
* It is one statement without collections: every field after ``cells`` has its default (one zero byte each), or the
  schema is older than these fields.

Invariant: for a plain record the columns agree with ``ringlog.wire.records.decode_mutation``, which is the definition.
All other records are decoded with it, one by one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.values import Value
from ringlog.wire.avro.codec import HEADER_BYTES, header
from ringlog_cdc.columnar.scan import ByteSpan, Cursor
from ringlog_cdc.columnar.words import I64, KEEP, U8, WORD, Flags, is_ascii, rows_of, words_of
from ringlog_schemas import by_fingerprint

MUTATION = "ringlog.mutations.Mutation"
"""Full name of the schema."""

ITEMS_MAX = 256
"""Longest array parsed here. One record with a longer array must not slow down a batch, so it is decoded alone."""


class Items(Value):
    """An array field of n records.

    Spans with index k describe item k of every record, and are empty for records with fewer items.

    Attributes:
        count: Number of items.
        first: Position of the first item, after the count.
        whole: All bytes of item k.
        inner: The item's bytes after the union's branch. For a cell: its column name with length.
        content: The value's bytes without length. For a cell: its column name without length.
        values: The value's bytes without length, also for a cell.
        is_null: True if item k is null.
    """

    count: I64
    first: I64
    whole: tuple[ByteSpan, ...]
    inner: tuple[ByteSpan, ...]
    content: tuple[ByteSpan, ...]
    values: tuple[ByteSpan, ...]
    is_null: tuple[Flags, ...]

    def any_null(self) -> Flags:
        """Return True for each array with a null."""
        found: Flags = np.zeros(len(self.count), dtype=bool)
        for flags in self.is_null:
            found = found | flags
        return found


class Mutations(Value):
    """Columns of n records. Values are meaningful for ``plain`` records only.

    Attributes:
        data: The padded buffer of all spans.
        mutation_id: The optional id, with the union's branch.
        cluster_id: The optional id, with the union's branch.
        names: Keyspace and table, each with its length.
        keyspace: Name without length.
        table: Name without length.
        timestamp: Microseconds.
        timestamp_at: The timestamp's bytes.
        ttl: The optional time to live, with the union's branch.
        ttl_value: Seconds. 0 if there is none.
        operation: Index into the symbols of the schema.
        clustering_at: The whole array of the clustering key.
        rest: Everything from the end of the partition key to the end of the cells.
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
    """Return (record header, number of fields after the cells) for each known schema of mutations."""
    found = []
    for fingerprint, schema in sorted(by_fingerprint().items()):
        if schema.full_name == MUTATION:
            names = [field["name"] for field in schema.json["fields"]]
            found.append((header(fingerprint), len(names) - 1 - names.index("cells")))
    return tuple(found)


@cache
def operations_known() -> I64:
    """Return the number of operations in a schema, indexed by its number of fields after the cells."""
    fewest = np.zeros(ITEMS_MAX, dtype=np.int64)
    for fingerprint, schema in by_fingerprint().items():
        if schema.full_name == MUTATION:
            behind = dict(defaults_behind_cells())[header(fingerprint)]
            (symbols,) = (field["type"]["symbols"] for field in schema.json["fields"] if field["name"] == "operation")
            # Schemas with equally many fields share an entry. The smallest number is safe: further operations make a
            # record doubtful, not wrong.
            fewest[behind] = min(fewest[behind] or len(symbols), len(symbols))
    return fewest


def scan(data: U8, start: I64, end: I64) -> Mutations:
    """Parse the records ``data[start:end]``, n of them. ``data`` is padded."""
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
    # A non-empty array ends with a zero byte, in a CDC row too, so that byte belongs to the rest.
    rest = cursor.at - (partition_key.count > 0)
    before = cursor.at
    clustering_key = _items(cursor, named=False)
    clustering_at = cursor.span_from(before)
    cells = _items(cursor, named=True)
    rest_at = cursor.span_from(rest)
    tail = cursor.at  # fields with defaults: zero bytes, compared below as one masked word
    cursor.skip(behind.clip(0))
    plain = cursor.sound & (cursor.at == end)
    assert int(behind.max(initial=0)) <= WORD, "the trailing fields fit one word"
    plain = plain & (words_of(data)[tail] & KEEP.take(behind.clip(0)) == 0)
    for text in cells.content:
        plain = plain & is_ascii(data, text.start, text.length)
    # Usually one check covers both names: a length below 64 is one byte below 128.
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
    """Read null or ``size`` bytes. Return their span, with the union's branch."""
    before = cursor.at
    cursor.skip(np.where(cursor.null_or(), size, 0))
    return cursor.span_from(before)


def _items(cursor: Cursor, *, named: bool) -> Items:
    """Read an array of optional bytes, item by item across all records.

    With ``named``, each item starts with a column name.
    """
    count = cursor.number()
    cursor.expect((count >= 0) & (count <= ITEMS_MAX))
    first = cursor.at
    whole, inner, content, values, nulls = [], [], [], [], []
    # Doubtful records do not count: one corrupt count would cost many empty rounds.
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
        values.append(part.spread_span(value.spread_span(text)))
        whole.append(part.spread_span(part.span_from(begin)))
        if name is not None:
            inner.append(part.spread_span(ByteSpan(begin, name_end - begin)))
            content.append(part.spread_span(name))
        else:
            inner.append(part.spread_span(part.span_from(behind_branch)))
            content.append(values[-1])
    # A non-empty Avro array ends with an empty block. An empty array is that block alone, and was read as the count.
    part = cursor.where(count > 0)
    part.expect(part.byte() == 0)
    part.give_back()
    return Items(count, first, tuple(whole), tuple(inner), tuple(content), tuple(values), tuple(nulls))


def _headers(data: U8, start: I64, end: I64) -> tuple[I64, I64]:
    """Return where each body starts and how many fields follow its cells, or -1 for an unknown header."""
    marks = rows_of(data, start, HEADER_BYTES)
    behind = np.full(len(start), -1, dtype=np.int64)
    for mark, fields in defaults_behind_cells():
        behind[(marks == np.frombuffer(mark, dtype=np.uint8)).all(axis=1)] = fields
    behind[end - start < HEADER_BYTES] = -1
    # A body that starts at the record's end makes the record doubtful at the first read.
    return np.where(behind < 0, end, start + HEADER_BYTES), behind


def grouped(data: U8, span: ByteSpan, rows: I64, groups_max: int) -> tuple[NDArray[np.int32], list[bytes]]:
    """Number the distinct contents of spans.

    Args:
        data: The padded buffer.
        span: Spans of n records.
        rows: Numbers of the m records to look at.
        groups_max: Most distinct contents.

    Returns:
        The index of each record's content, shape (m,), or -1 beyond ``groups_max``; and the contents.
    """
    words = words_of(data)
    codes = np.full(len(rows), -1, dtype=np.int32)
    contents: list[bytes] = []
    left = np.arange(len(rows))
    while len(left) and len(contents) < groups_max:
        # Each round compares all records left with the first of them. Batches have few distinct names.
        first = rows[left[0]]
        start, size = int(span.start[first]), int(span.length[first])
        at = span.start[rows[left]]
        same = span.length[rows[left]] == size
        for begin in range(0, size, 8):
            keep = KEEP[min(size - begin, 8)]
            # Clamped: a record with another length may end before this word. Its result is already False.
            same &= (words[np.minimum(at + begin, len(words) - 1)] ^ words[start + begin]) & keep == 0
        codes[left[same]] = len(contents)
        contents.append(data[start : start + size].tobytes())
        left = left[~same]
    return codes, contents
