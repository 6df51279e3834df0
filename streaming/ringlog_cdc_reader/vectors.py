"""Vectorized conversion of CDC rows to Arrow batches, from the bytes of the records.

Records are parsed by columns as in ``ringlog_cdc_reader.heads``, but to their end: keys, cells and names of deleted
columns. Fixed-size values and texts are copied from the records' bytes. Values of other types are deserialized one by
one.

Invariants:

* ``LogColumns.batch`` is the definition. For each record both give the same columns.
* A record goes to the definition as a whole if it is doubtful, removes elements from a collection, or has a value of
  the wrong size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog.client.cdc.rows import DELETED, TableTypes
from ringlog.kernel.values import Value
from ringlog.wire.records import CdcRow
from ringlog_cdc.columnar.mutations import ITEMS_MAX, grouped
from ringlog_cdc.columnar.pieces import BytePieces
from ringlog_cdc.columnar.scan import ByteSpan, Cursor
from ringlog_cdc.columnar.words import I64, U8, Flags, is_ascii, rows_of
from ringlog_cdc_reader.columns import EPOCH, TIMESTAMP_MAX, LogColumns, read_value, reader_of
from ringlog_cdc_reader.heads import NAMES_MAX, Front, RowHead, front

NUMBERS = {
    "tinyint": ">i1",
    "smallint": ">i2",
    "int": ">i4",
    "bigint": ">i8",
    "timestamp": ">i8",
    "float": ">f4",
    "double": ">f8",
}
"""CQL type to the numpy type of its bytes, big-endian."""
TEXTS = ("ascii", "text", "blob")
"""Types whose CQL bytes are the bytes of the Arrow value."""


class Item(Value):
    """The k-th item of each record's array, for n records.

    Attributes:
        there: Flags of the records that have such an item.
        name: Span of its name, if the items have names.
        value: Span of its value.
        has_value: False for null.
    """

    there: Flags
    name: ByteSpan
    value: ByteSpan
    has_value: Flags


@dataclass(slots=True)
class Values:
    """The value of one column in each of n records: spans of the buffer, and flags of records with a value."""

    start: I64
    length: I64
    has: Flags

    def put(self, rows: I64, span: ByteSpan, has: Flags) -> None:
        """Set the value of some records. A later value replaces an earlier one."""
        self.start[rows], self.length[rows], self.has[rows] = span.start[rows], span.length[rows], has[rows]


def batch_of(columns: LogColumns, heads: Sequence[RowHead], partition: int) -> pa.RecordBatch:
    """Convert rows, in order, to one batch without the rows of other tables.

    Raises:
        UnreadableRecord: A record is not a CDC row.
    """
    return batch_behind(columns, front([head.value for head in heads]), lambda number: heads[number].row(partition))


def batch_behind(columns: LogColumns, found: Front, whole: Callable[[int], CdcRow]) -> pa.RecordBatch:
    """Convert records whose leading fields were parsed, in order, to one batch. The cursor advances to their ends.

    Args:
        columns: Columns of the table.
        found: Leading fields of n records.
        whole: Function from a record's number to its row, decoded by the definition.
    """
    fast = _fast(columns, found)
    if fast is None:
        return columns.batch([whole(number) for number in range(len(found.stream))])
    rows, made = fast
    doubtful = [(number, whole(number)) for number in np.flatnonzero(~found.cursor.sound).tolist()]
    mine = [(number, row) for number, row in doubtful if columns.is_mine(row.epoch)]
    if not mine:
        return made
    slow = columns.batch([row for _, row in mine])
    # Both parts are in ascending order. Sorting their record numbers merges them into the order of the records.
    order = np.argsort(np.concatenate((rows, [number for number, _ in mine])), kind="stable")
    return pa.Table.from_batches([made, slow]).take(pa.array(order)).combine_chunks().to_batches()[0]


def _fast(columns: LogColumns, found: Front) -> tuple[I64, pa.RecordBatch] | None:
    """Convert the sound records.

    Returns:
        The numbers of the table's rows, and their batch. None if no such row is left, if a text is not UTF-8, or if
        columns are stored under other names.
    """
    if columns.table.stored:
        return None
    types, schema = TableTypes(columns.table), columns.schema()
    cursor = found.cursor
    values, deleted, epochs = _named(cursor, types, columns.out)
    kept = {name: kind for name, kind in types.columns.items() if name not in columns.out}
    for name, kind in kept.items():
        _check(cursor, kind, values[name])
    # Spark's types for these two columns are narrower than the log's.
    cursor.expect((found.operation >= -128) & (found.operation < 128) & (abs(found.number) < 2**31))
    rows = np.flatnonzero(cursor.sound)
    rows = rows[_mine(columns, epochs[rows])]
    if not len(rows):
        return None
    data = cursor.data
    undecoded: list[dict[str, bytes]] = []
    made: dict[str, pa.Array] = {
        "cdc$stream_id": pa.array(_sixteen(data, found.stream[rows])).cast(pa.binary()),
        "cdc$time": _uuids(data, found.time[rows]),
        "cdc$batch_seq_no": pa.array(found.number[rows], pa.int32()),
        "cdc$operation": pa.array(found.operation[rows], pa.int8()),
        "cdc$ttl": pa.array(found.ttl[rows], mask=~found.has_ttl[rows]),
        "cdc$end_of_batch": pa.array(found.last[rows]),
        "cdc$timestamp": pa.array(found.timestamp[rows]),
        "cdc$generation": pa.array(found.generation[rows]),
        EPOCH: pa.array(epochs[rows], mask=epochs[rows] == 0),
    }
    try:
        for name, kind in kept.items():
            # ArrowInvalid, for a text that is not UTF-8, does not name the row. The definition then takes all rows.
            one = Values(values[name].start[rows], values[name].length[rows], values[name].has[rows])
            made[name] = _typed(data, kind, one, schema.field(name).type, name, undecoded)
    except pa.ArrowInvalid:
        return None
    for name, flags in deleted.items():
        made[DELETED + name] = pa.array(np.ones(len(rows), dtype=bool), mask=~flags[rows])
    odd = schema.field("cdc$undecoded").type
    if any(undecoded):
        made["cdc$undecoded"] = pa.array([list(some.items()) or None for some in undecoded], odd)
    arrays = [made[field.name] if field.name in made else pa.nulls(len(rows), field.type) for field in schema]
    return rows, pa.RecordBatch.from_arrays(arrays, schema=schema)


def _mine(columns: LogColumns, epochs: I64) -> Flags:
    """Return a flag for each record of this table. A batch has few distinct epochs, so each is checked once."""
    found: Flags = np.zeros(len(epochs), dtype=bool)
    for epoch in np.unique(epochs).tolist():
        if columns.is_mine(epoch):
            found |= epochs == epoch
    return found


# ---------------------------------------------------------------------------------------------------- scanning


def _named(cursor: Cursor, types: TableTypes, out: frozenset[str]) -> tuple[dict[str, Values], dict[str, Flags], I64]:
    """Parse the records to their ends.

    Returns:
        Column name to values, data column name to flags of deletion, and the epoch of each record. A record with a cell
        for an unknown or omitted column becomes doubtful.
    """
    count = len(cursor.at)

    def none() -> Values:
        zeros = np.zeros(count, dtype=np.int64)
        # Two arrays: ``put`` writes start and length separately.
        return Values(zeros, zeros.copy(), np.zeros(count, dtype=bool))

    found = {name: none() for name in types.columns}
    for names, items in (
        (types.partition_key, _items(cursor, nullable=False)),
        (types.clustering_key, _items(cursor, nullable=True)),
    ):
        for place, item in enumerate(items):
            if place < len(names) and names[place] not in out:
                # The k-th component belongs to the k-th key column. Further components have no column.
                found[names[place]].put(np.flatnonzero(item.there), item.value, item.has_value)
            else:
                cursor.expect(~item.there)
    deleted = {name: np.zeros(count, dtype=bool) for name in types.data}
    for item in _items(cursor, named=True, nullable=True):
        for name, rows in _rows_by_name(cursor, item.there, item.name):
            if name in deleted and name not in out:
                found[name].put(rows, item.value, item.has_value)
            else:
                _doubt(cursor, rows)
    for item in _items(cursor, nullable=False):
        for name, rows in _rows_by_name(cursor, item.there, item.value):
            if name in deleted and DELETED + name not in out:
                deleted[name][rows] = True
            else:
                _doubt(cursor, rows)
    cursor.expect(cursor.byte() == 0)  # an empty array; removed elements of collections go to the definition
    epochs = cursor.number()
    # Trailing bytes would be another schema.
    cursor.expect(cursor.at == cursor.end)
    return found, deleted, epochs


def _doubt(cursor: Cursor, rows: I64) -> None:
    """Mark the records with these numbers as doubtful."""
    clear = np.ones(len(cursor.at), dtype=bool)
    clear[rows] = False
    cursor.expect(clear)


def _items(cursor: Cursor, *, nullable: bool, named: bool = False) -> list[Item]:
    """Parse an array of bytes or texts, item by item across all records.

    Args:
        nullable: Items are unions with null.
        named: Each item starts with a name.
    """
    count = cursor.number()
    cursor.expect((count >= 0) & (count <= ITEMS_MAX))
    found = []
    # Doubtful records do not count: one corrupt count would cost many empty rounds.
    for place in range(int(count[cursor.sound].max(initial=0))):
        there = (count > place) & cursor.sound
        part = cursor.where(there)
        name = part.sized() if named else part.skip(0)
        if nullable:
            has_value = part.null_or()
            inner = part.where(has_value)
            text = inner.sized()
            inner.give_back()
            value = inner.spread_span(text)
        else:
            value = part.sized()
            has_value = np.ones(len(part.at), dtype=bool)
        part.give_back()
        found.append(Item(there, part.spread_span(name), part.spread_span(value), part.spread(has_value)))
    part = cursor.where(count > 0)
    # A non-empty Avro array ends with an empty block. An empty one consists of that block alone.
    part.expect(part.byte() == 0)
    part.give_back()
    return found


def _rows_by_name(cursor: Cursor, there: Flags, name: ByteSpan) -> list[tuple[str, I64]]:
    """Return (name, numbers of the records whose item has it) for each distinct name.

    Records with a name that is not ASCII become doubtful.
    """
    cursor.expect(~there | is_ascii(cursor.data, name.start, name.length))
    rows = np.flatnonzero(there & cursor.sound)
    codes, contents = grouped(cursor.data, name, rows, NAMES_MAX)
    known = np.ones(len(there), dtype=bool)
    known[rows] = codes >= 0
    cursor.expect(known)
    return [(content.decode(), rows[codes == code]) for code, content in enumerate(contents)]


def _check(cursor: Cursor, kind: str, values: Values) -> None:
    """Mark records as doubtful whose value cannot have the column's type."""
    if kind in NUMBERS:
        cursor.expect(~values.has | (values.length == np.dtype(NUMBERS[kind]).itemsize))
    elif kind == "boolean":
        cursor.expect(~values.has | (values.length == 1))
        cursor.expect(~values.has | (cursor.data.take(values.start) <= 1))
    elif kind == "ascii":
        cursor.expect(~values.has | is_ascii(cursor.data, values.start, values.length))


# ------------------------------------------------------------------------------------------------------ arrays


def _typed(data: U8, kind: str, values: Values, arrow: pa.DataType, name: str, odd: list[dict[str, bytes]]) -> pa.Array:
    """Return the Arrow array of a column.

    Unreadable values become null and are added to ``odd``, which then has one dict for each row. It may be empty
    before.
    """
    if kind in NUMBERS:
        return _numbers(data, kind, values, arrow)
    if kind == "boolean":
        return pa.array(data.take(np.where(values.has, values.start, 0)) == 1, mask=~values.has)
    if kind in TEXTS:
        return _bytes(data, values).cast(arrow)
    read = reader_of(kind)
    odd.extend({} for _ in range(len(values.start) - len(odd)))
    listed = zip(values.start.tolist(), values.length.tolist(), values.has.tolist(), odd, strict=True)
    whole = data.tobytes()
    found = [read_value(read, name, whole[at : at + size] if has else None, some) for at, size, has, some in listed]
    return pa.array(found, arrow)


def _numbers(data: U8, kind: str, values: Values, arrow: pa.DataType) -> pa.Array:
    """Return numbers or timestamps as an Arrow array, decoded from big-endian bytes."""
    dtype = np.dtype(NUMBERS[kind])
    # Rows without a value read the bytes at 0 and are masked: an index array must be valid everywhere.
    start = np.where(values.has, values.start, 0)
    found: NDArray[Any] = rows_of(data, start, dtype.itemsize).view(dtype).reshape(-1).astype(dtype.newbyteorder("="))
    if kind == "timestamp":
        # Clamp before the multiplication, which would overflow, then replace what was clamped by Spark's bounds.
        limit = TIMESTAMP_MAX // 1_000
        micros = np.clip(found, -limit, limit) * 1_000
        micros[found > limit], micros[found < -limit] = TIMESTAMP_MAX, -TIMESTAMP_MAX
        return pa.array(micros, mask=~values.has).view(arrow)
    # ``from_pandas=False`` keeps NaN as a value. The default would make it null.
    return pa.array(found, arrow, mask=~values.has, from_pandas=False)


def _bytes(data: U8, values: Values) -> pa.Array:
    """Copy the values into one Arrow binary array."""
    lengths = np.where(values.has, values.length, 0)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    pieces = BytePieces(len(lengths), data)
    pieces.spans(ByteSpan(np.where(values.has, values.start, 0), lengths))
    buffers = [pa.array(values.has).buffers()[1], pa.py_buffer(offsets), pieces.joined().buffers()[2]]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _sixteen(data: U8, start: I64) -> pa.Array:
    """Return the 16 bytes at each start as a fixed-size array, without copying them again."""
    found = pa.py_buffer(rows_of(data, start, 16))
    return pa.Array.from_buffers(pa.binary(16), len(start), [None, found])


def _uuids(data: U8, start: I64) -> pa.Array:
    """Return the canonical text of the UUIDs at each start."""
    digits = np.frombuffer(rows_of(data, start, 16).tobytes().hex().encode(), dtype=np.uint8).reshape(-1, 32)
    # Fill with dashes, then copy the five groups of hex digits between them.
    text = np.full((len(start), 36), ord("-"), dtype=np.uint8)
    for at, begin, end in ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32)):
        text[:, at : at + end - begin] = digits[:, begin:end]
    offsets = np.arange(0, 36 * len(start) + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(start), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
