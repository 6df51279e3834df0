"""Many byte strings put together from pieces at once.

A piece is a column: of each of n results the next few bytes, wherever they lie. Pieces are kept as Arrow's *views*
(16 bytes: length, then up to 12 bytes themselves, or 4 bytes of prefix, number of a buffer, place in it), laid down
result by result, and copied together by Arrow in one go, which costs little more than the bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog_cdc.columnar.scan import I64, NUMBER_BYTES_MAX, U8, Span

INLINE = 12
_VIEW = np.dtype([("length", "<i4"), ("head", "V12")])
_FAR = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("place", "<i4")])
BUFFER_BYTES_MAX = 2**31 - 1
"""Places in a buffer are 32-bit numbers."""


class Pieces:
    """Results in the making: ``count`` of them, each of the pieces in the order of the calls."""

    def __init__(self, count: int, data: U8) -> None:
        """``data``: the buffer that spans lie in, padded."""
        assert len(data) <= BUFFER_BYTES_MAX, "a batch is cut before it is that large"
        self._count = count
        self._buffers = [data]
        self._views: list[NDArray[np.void]] = []

    def constant(self, data: bytes) -> None:
        """The same bytes for all."""
        self.rows(np.broadcast_to(np.frombuffer(data, dtype=np.uint8), (self._count, len(data))))

    def rows(self, data: U8, lengths: I64 | None = None) -> None:
        """Of each the first ``lengths`` bytes (all) of its row of a table."""
        count, width = data.shape
        assert count == self._count, "a row for each"
        if width <= INLINE:
            views = np.zeros(count, dtype=_VIEW)
            views["length"] = width if lengths is None else lengths
            content = np.zeros((count, INLINE), dtype=np.uint8)
            content[:, :width] = data
            if lengths is not None:
                content[np.arange(INLINE) >= lengths[:, None]] = 0
            views["head"] = content.view("V12").ravel()
            self._views.append(views)
            return
        flat = np.zeros(count * width + INLINE, dtype=np.uint8)
        flat[: count * width] = data.ravel()
        start = np.arange(count, dtype=np.int64) * width
        self._spans(flat, Span(start, np.full(count, width) if lengths is None else lengths))

    def numbers(self, values: I64) -> None:
        """Zigzag numbers."""
        self.rows(*encoded_numbers(values))

    def spans(self, span: Span) -> None:
        """Bytes of the buffer."""
        self._spans(self._buffers[0], span)

    def _spans(self, data: U8, span: Span) -> None:
        number = next((place for place, known in enumerate(self._buffers) if known is data), len(self._buffers))
        if number == len(self._buffers):
            self._buffers.append(data)
        views = np.zeros(self._count, dtype=_VIEW)
        views["length"] = span.length
        windows = np.ndarray((len(data) - INLINE + 1,), dtype="V12", buffer=data, strides=(1,))
        content = windows[span.start].view(np.uint8).reshape(-1, INLINE)
        short = span.length <= INLINE
        content[(np.arange(INLINE) >= span.length[:, None]) & short[:, None]] = 0
        views["head"] = content.view("V12").ravel()
        far = views.view(_FAR)
        far["buffer"][~short] = number
        far["place"][~short] = span.start[~short]
        self._views.append(views)

    def joined(self) -> pa.LargeBinaryArray:
        """The results."""
        width = len(self._views)
        table = np.empty((self._count, width), dtype=_VIEW)
        for place, views in enumerate(self._views):
            table[:, place] = views
        lengths = table["length"].sum(axis=1, dtype=np.int64)
        ends = np.zeros(self._count + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        buffers = [None, pa.py_buffer(table), *map(pa.py_buffer, self._buffers)]
        one_by_one = pa.Array.from_buffers(pa.binary_view(), self._count * width, buffers).cast(pa.large_binary())
        content = one_by_one.buffers()[2] if self._count else pa.py_buffer(b"")
        return pa.Array.from_buffers(pa.large_binary(), self._count, [None, pa.py_buffer(ends), content])


def encoded_numbers(values: I64) -> tuple[U8, I64]:
    """Zigzag numbers as rows of ``NUMBER_BYTES_MAX`` bytes, and how many of them count."""
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    table = np.zeros((len(values), NUMBER_BYTES_MAX), dtype=np.uint8)
    lengths = np.ones(len(values), dtype=np.int64)
    for place in range(NUMBER_BYTES_MAX):
        table[:, place] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        more = left != 0
        if not more.any():
            break
        table[more, place] |= 0x80
        lengths[more] = place + 2
    return table, lengths
