"""Concatenate many byte strings from pieces at once, and encode the cells of rows.

A piece is a column: of each of n results the next few bytes, wherever they are. Adjacent pieces of the same few bytes'
width in all results are side by side in a table, which is then one piece. Pieces are kept as Arrow's *views* (16 bytes:
length, then up to 12 bytes themselves, or 4 bytes of prefix, number of a buffer, place in it), written result by
result, and Arrow copies all of them together, which costs little more than the bytes. The prefix serves comparisons;
these views are never compared, so it is left out.

A cell is its column, then its value, in Avro: the same bytes in a mutation and in a row of the log. Image states keep
cells in this form. So nothing is encoded twice, and only values that the definition needs are decoded.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog_cdc.columnar.scan import NUMBER_BYTES_MAX, ByteSpan
from ringlog_cdc.columnar.words import I64, U8, rows_of, same

INLINE = 12
WIDTH_MAX = 24
"""Spans up to this width go into tables, if all have the same: longer ones are better copied once."""
_VIEW = np.dtype([("length", "<i4"), ("head", "V12")])
_FAR = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("place", "<i4")])
BUFFER_BYTES_MAX = 2**31 - 1
"""Places in a buffer are 32-bit numbers."""


class BytePieces:
    """Results in the making: ``count`` of them, each of the pieces in the order of the calls."""

    def __init__(self, count: int, data: U8) -> None:
        """``data``: the buffer that spans lie in, padded."""
        assert len(data) <= BUFFER_BYTES_MAX, "a batch is cut before it is that large"
        self._count = count
        self._buffers = [data]
        self._table: list[U8] = []
        self._views: list[NDArray[np.void]] = []
        self._lengths = np.zeros(count, dtype=np.int64)

    def constant(self, data: bytes) -> None:
        """The same bytes for all."""
        self._table.append(np.frombuffer(data, dtype=np.uint8))

    def rows(self, data: U8, lengths: I64 | None = None) -> None:
        """Of each the first ``lengths`` bytes (all) of its row of a table."""
        count, _ = data.shape
        assert count == self._count, "a row for each"
        if lengths is None or (width := same(lengths)) is not None:
            self._table.append(data if lengths is None else data[:, :width])
            return
        self._lay_table()
        flat = np.zeros(data.size + INLINE, dtype=np.uint8)
        flat[: data.size] = data.ravel()
        self._far(flat, ByteSpan(np.arange(count, dtype=np.int64) * data.shape[1], lengths))

    def numbers(self, values: I64) -> None:
        """Zigzag numbers."""
        self.rows(*encoded_numbers(values))

    def spans(self, span: ByteSpan) -> None:
        """Bytes of the buffer."""
        width = same(span.length)
        if width == 0:
            return
        if width is not None and width <= WIDTH_MAX:
            self._table.append(rows_of(self._buffers[0], span.start, width))
            return
        self._lay_table()
        self._far(self._buffers[0], span)

    def _lay_table(self) -> None:
        """The columns that wait, side by side, become one piece."""
        columns = [column for column in self._table if column.shape[-1]]
        self._table = []
        width = sum(column.shape[-1] for column in columns)
        if not width or not self._count:
            return
        fields = [(str(place), f"V{column.shape[-1]}") for place, column in enumerate(columns)]
        flat = np.zeros(self._count * width + INLINE, dtype=np.uint8)
        table = flat[: self._count * width].view(np.dtype(fields))
        for (name, kind), column in zip(fields, columns, strict=True):
            table[name] = np.ascontiguousarray(column).view(kind).reshape(column.shape[:-1])
        self._far(flat, ByteSpan(np.arange(self._count) * width, np.full(self._count, width)))

    def _far(self, data: U8, span: ByteSpan) -> None:
        """Views of a buffer that has ``INLINE`` bytes behind the last."""
        number = next((place for place, known in enumerate(self._buffers) if known is data), len(self._buffers))
        if number == len(self._buffers):
            self._buffers.append(data)
        views = np.zeros(self._count, dtype=_VIEW)
        views["length"] = span.length
        far = views.view(_FAR)
        far["buffer"] = number
        far["place"] = span.start
        short = np.flatnonzero(span.length <= INLINE)
        if len(short):
            content = rows_of(data, span.start[short], INLINE)
            content[np.arange(INLINE) >= span.length[short, None]] = 0
            views["head"][short] = content.view("V12").ravel()
        self._views.append(views)
        self._lengths += span.length

    def joined(self) -> pa.LargeBinaryArray:
        """The results."""
        self._lay_table()
        width = len(self._views)
        table = np.empty((self._count, width), dtype=_VIEW)
        for place, views in enumerate(self._views):
            table[:, place] = views
        ends = np.zeros(self._count + 1, dtype=np.int64)
        np.cumsum(self._lengths, out=ends[1:])
        content = pa.py_buffer(b"")
        if table.size:
            buffers = [None, pa.py_buffer(table), *map(pa.py_buffer, self._buffers)]
            one_by_one = pa.Array.from_buffers(pa.binary_view(), table.size, buffers).cast(pa.large_binary())
            content = one_by_one.buffers()[2]
        return pa.Array.from_buffers(pa.large_binary(), self._count, [None, pa.py_buffer(ends), content])


def encoded_numbers(values: I64) -> tuple[U8, I64]:
    """Zigzag numbers as rows of up to ``NUMBER_BYTES_MAX`` bytes, and how many of them count."""
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max((int(left.max(initial=0)).bit_length() + 6) // 7, 1)
    assert width <= NUMBER_BYTES_MAX, "64 bits"
    table = np.zeros((len(values), width), dtype=np.uint8)
    lengths = np.ones(len(values), dtype=np.int64)
    for place in range(width):
        table[:, place] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        if place + 1 < width:
            more = left != 0
            table[:, place] |= more.astype(np.uint8) << np.uint8(7)
            lengths += more
    return table, lengths


@lru_cache(maxsize=1 << 16)
def number(value: int) -> bytes:
    """A zigzag number."""
    table, lengths = encoded_numbers(np.array([value], dtype=np.int64))
    return table[0, : int(lengths[0])].tobytes()


@lru_cache(maxsize=1 << 12)
def text(value: str) -> bytes:
    """A text behind its length."""
    data = value.encode()
    return number(len(data)) + data


def item_of(column: str, value: bytes) -> bytes:
    """A cell that has a value."""
    return b"".join((text(column), b"\2", number(len(value)), value))


def value_of(column: str, item: bytes) -> bytes:
    """The reverse: the value of the column's cell."""
    at = len(text(column)) + 1
    while item[at] & 0x80:
        at += 1
    return item[at + 1 :]
