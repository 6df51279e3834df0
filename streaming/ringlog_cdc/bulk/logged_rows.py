"""Writes of tables with images as logged: the rows that are logged anyway, and their images before and behind them.

An image shares with its write's row all but number, operation, time to live and tail. So all rows are put together at
once from places in one buffer: the rows without images, then the tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringlog.client.cdc.rows import POSTIMAGE, PREIMAGE
from ringlog_cdc.columnar.pieces import BytePieces, number
from ringlog_cdc.columnar.routing import buffers
from ringlog_cdc.columnar.scan import PADDING, ByteSpan
from ringlog_cdc.columnar.words import I64, Flags

NO_TTL = b"\0"


@dataclass(frozen=True, slots=True)
class Logged:
    """Rows of n writes as they are logged without images. From its begin, the number of each stands at ``at``; what
    images have of it too, from the table's name to the clustering key, at ``begin`` to ``end``.
    """

    rows: pa.LargeBinaryArray
    at: I64
    begin: I64
    end: I64

    def tail_bytes_max(self, row_bytes_max: int) -> int:
        """Images with tails of at most N bytes are rows that are not too large."""
        around = self.at + len(number(0) + number(PREIMAGE) + NO_TTL) + 1 + self.end - self.begin
        return row_bytes_max - int(around.max(initial=0))


def laid(
    logged: Logged, kept: Flags, before: Sequence[bytes | None], after: Sequence[bytes | None]
) -> tuple[I64, pa.LargeBinaryArray]:
    """(of each row which of the writes it is from, the rows): of each write that is ``kept``, its preimage if it has a
    tail in ``before``, itself, its postimage likewise.
    """
    has_before = np.array([one is not None for one in before], dtype=bool)
    has_after = np.array([one is not None for one in after], dtype=bool)
    tails = [one for pair in zip(before, after, strict=True) for one in pair if one is not None]
    counts = kept * (1 + has_before.astype(np.int64) + has_after)
    places = np.repeat(np.arange(len(kept)), counts)
    numbers = np.arange(len(places)) - (np.cumsum(counts) - counts)[places]
    is_own = numbers == has_before[places]
    is_after = numbers > has_before[places]

    content, ends = buffers(logged.rows)
    operations = number(PREIMAGE) + NO_TTL + number(POSTIMAGE) + NO_TTL
    parts = [content, *(np.frombuffer(data, dtype=np.uint8) for data in (b"".join(tails), operations, bytes(PADDING)))]
    lengths = np.zeros(len(places), dtype=np.int64)
    lengths[~is_own] = np.fromiter(map(len, tails), dtype=np.int64, count=len(tails))
    start, at, begin, end = (column[places] for column in (ends[:-1], logged.at, logged.begin, logged.end))
    size = (ends[1:] - ends[:-1])[places]
    operation = len(content) + len(parts[1]) + np.where(is_after, len(number(PREIMAGE) + NO_TTL), 0)

    pieces = BytePieces(len(places), np.concatenate(parts))
    pieces.spans(ByteSpan(start, at))
    pieces.numbers(numbers)
    pieces.spans(ByteSpan(np.where(is_own, start + at + 1, operation), np.where(is_own, begin - at - 2, 2)))
    pieces.rows((numbers == counts[places] - 1).astype(np.uint8).reshape(-1, 1))
    pieces.spans(ByteSpan(start + begin, np.where(is_own, size, end) - begin))
    pieces.spans(ByteSpan(len(content) + np.cumsum(lengths) - lengths, lengths))
    return places, pieces.joined()
