"""Concatenation of many byte strings from pieces, and Avro encoding of numbers and cells.

A piece is a column: the next few bytes of each of n results, wherever they are. Adjacent pieces of constant width form
one table, which then is one piece.

Each piece is stored as an Arrow *view*, 16 bytes per result. A view is the length and up to 12 bytes of content, or the
length, a prefix, a buffer number and an offset. The views are ordered result by result, and one Arrow cast copies all
bytes at once. That costs little more than copying the bytes. Arrow uses the prefix for comparisons only. These views
are never compared, so the prefix stays empty.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog_cdc.columnar.scan import NUMBER_BYTES_MAX, ByteSpan
from ringlog_cdc.columnar.words import I64, U8, rows_of, same

INLINE = 12
"""Longest content that Arrow requires inside the view itself."""
WIDTH_MAX = 24
"""Widest span that is copied into a table. Wider spans are cheaper to copy once, as a separate piece."""
_VIEW = np.dtype([("length", "<i4"), ("head", "V12")])
"""Arrow's view of short content."""
_FAR = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("place", "<i4")])
"""Arrow's view of content in a buffer. It overlays ``_VIEW``."""
BUFFER_BYTES_MAX = 2**31 - 1
"""Offsets in a view are signed 32-bit numbers."""


class BytePieces:
    """Builder of n byte strings. Each call appends one piece to every string."""

    def __init__(self, count: int, data: U8) -> None:
        """Start with ``count`` empty strings. ``data`` is the padded buffer of all spans."""
        assert len(data) <= BUFFER_BYTES_MAX, "arrow_batching limits a batch to less than 2 GiB"
        self._count = count
        self._buffers = [data]
        self._table: list[U8] = []
        self._views: list[NDArray[np.void]] = []
        self._lengths = np.zeros(count, dtype=np.int64)

    def constant(self, data: bytes) -> None:
        """Append the same bytes to all strings."""
        self._table.append(np.frombuffer(data, dtype=np.uint8))

    def rows(self, data: U8, lengths: I64 | None = None) -> None:
        """Append the first ``lengths`` bytes of each row of a table of shape (n, width). None: all of them."""
        count, _ = data.shape
        assert count == self._count, "the table has one row for each string"
        if lengths is None or (width := same(lengths)) is not None:
            self._table.append(data if lengths is None else data[:, :width])
            return
        self._lay_table()
        # Rows of different lengths become spans of the flattened table.
        flat = np.zeros(data.size + INLINE, dtype=np.uint8)
        flat[: data.size] = data.ravel()
        self._far(flat, ByteSpan(np.arange(count, dtype=np.int64) * data.shape[1], lengths))

    def numbers(self, values: I64) -> None:
        """Append zigzag numbers."""
        self.rows(*encoded_numbers(values))

    def spans(self, span: ByteSpan) -> None:
        """Append spans of the buffer."""
        width = same(span.length)
        if width == 0:
            return
        if width is not None and width <= WIDTH_MAX:
            self._table.append(rows_of(self._buffers[0], span.start, width))
            return
        self._lay_table()
        self._far(self._buffers[0], span)

    def _lay_table(self) -> None:
        """Turn the pending columns of constant width into one piece."""
        columns = [column for column in self._table if column.shape[-1]]
        self._table = []
        width = sum(column.shape[-1] for column in columns)
        if not width or not self._count:
            return
        # One void field per column, so that each assignment below copies a whole column.
        fields = [(str(place), f"V{column.shape[-1]}") for place, column in enumerate(columns)]
        flat = np.zeros(self._count * width + INLINE, dtype=np.uint8)
        table = flat[: self._count * width].view(np.dtype(fields))
        for (name, kind), column in zip(fields, columns, strict=True):
            # A constant has shape (width,) and broadcasts over all rows.
            table[name] = np.ascontiguousarray(column).view(kind).reshape(column.shape[:-1])
        self._far(flat, ByteSpan(np.arange(self._count) * width, np.full(self._count, width)))

    def _far(self, data: U8, span: ByteSpan) -> None:
        """Append spans of any buffer with at least ``INLINE`` bytes after its last span."""
        # Each buffer is listed once, by identity.
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
            # Arrow requires zeros after inline content.
            content[np.arange(INLINE) >= span.length[short, None]] = 0
            views["head"][short] = content.view("V12").ravel()
        self._views.append(views)
        self._lengths += span.length

    def joined(self) -> pa.LargeBinaryArray:
        """Return the strings."""
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
            # The cast copies the pieces of all strings into one buffer, in order. Only its content is used: the
            # strings' ends are the sums of their pieces.
            one_by_one = pa.Array.from_buffers(pa.binary_view(), table.size, buffers).cast(pa.large_binary())
            content = one_by_one.buffers()[2]
        return pa.Array.from_buffers(pa.large_binary(), self._count, [None, pa.py_buffer(ends), content])


def encoded_numbers(values: I64) -> tuple[U8, I64]:
    """Encode zigzag numbers.

    Returns:
        Shape (n, w) with the bytes of each number, w at most ``NUMBER_BYTES_MAX``; and the length of each, shape (n,).
    """
    # Zigzag: the sign moves to the lowest bit.
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max((int(left.max(initial=0)).bit_length() + 6) // 7, 1)
    assert width <= NUMBER_BYTES_MAX, "the numbers have 64 bits"
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
