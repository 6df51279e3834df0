"""Assembly of the log's rows for writes with images: preimage, row, postimage.

An image shares all bytes with its write's row except number, operation, time to live and tail. All rows are therefore
concatenated at once, from spans of one buffer that holds the rows without images and the tails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ringlog.kernel.rows.log_rows import POSTIMAGE, PREIMAGE
from ringlog.kernel.values import Value
from ringlog.wire.avro.writing import number
from ringlog_cdc.columnar.pieces import BytePieces
from ringlog_cdc.columnar.record_keys import buffers
from ringlog_cdc.columnar.scan import PADDING, ByteSpan
from ringlog_cdc.columnar.words import I64, Flags

NO_TTL = b"\0"
"""Encoded null of the time to live."""


class Logged(Value):
    """Encoded rows of n writes without images, and positions within them.

    Attributes:
        at: Position of the row's number.
        begin: Start of the part that images share: from the table's name on.
        end: End of that part, after the clustering key.
    """

    rows: pa.LargeBinaryArray
    at: I64
    begin: I64
    end: I64

    def tail_bytes_max(self, row_bytes_max: int) -> int:
        """Return the length of the longest tail that keeps every image within ``row_bytes_max``."""
        around = self.at + len(number(0) + number(PREIMAGE) + NO_TTL) + 1 + self.end - self.begin
        return row_bytes_max - int(around.max(initial=0))


def laid(
    logged: Logged, kept: Flags, before: Sequence[bytes | None], after: Sequence[bytes | None]
) -> tuple[I64, pa.LargeBinaryArray]:
    """Assemble the rows.

    Args:
        logged: Rows without images.
        kept: False for writes that the definition processed.
        before: Tail of the preimage of each write, or None.
        after: Tail of the postimage of each write, or None.

    Returns:
        For each row the index of its write, and the rows: preimage, row, postimage of each kept write.
    """
    has_before = np.array([one is not None for one in before], dtype=bool)
    has_after = np.array([one is not None for one in after], dtype=bool)
    tails = [one for pair in zip(before, after, strict=True) for one in pair if one is not None]
    counts = kept * (1 + has_before.astype(np.int64) + has_after)
    places = np.repeat(np.arange(len(kept)), counts)
    # The number of a row within its write: its index minus the index of the write's first row.
    numbers = np.arange(len(places)) - (np.cumsum(counts) - counts)[places]
    # The write's own row has number 1 after a preimage, else 0.
    is_own = numbers == has_before[places]
    is_after = numbers > has_before[places]

    content, ends = buffers(logged.rows)
    operations = number(PREIMAGE) + NO_TTL + number(POSTIMAGE) + NO_TTL
    parts = [content, *(np.frombuffer(data, dtype=np.uint8) for data in (b"".join(tails), operations, bytes(PADDING)))]
    # Tails are concatenated in the order of the rows. Own rows have an empty tail.
    lengths = np.zeros(len(places), dtype=np.int64)
    lengths[~is_own] = np.fromiter(map(len, tails), dtype=np.int64, count=len(tails))
    start, at, begin, end = (column[places] for column in (ends[:-1], logged.at, logged.begin, logged.end))
    size = (ends[1:] - ends[:-1])[places]
    operation = len(content) + len(parts[1]) + np.where(is_after, len(number(PREIMAGE) + NO_TTL), 0)

    # The fields in order: before the number, number, operation and time to live, end of batch, shared part, tail. An
    # own row takes everything from its own bytes, images take their operation from the constants.
    pieces = BytePieces(len(places), np.concatenate(parts))
    pieces.spans(ByteSpan(start, at))
    pieces.numbers(numbers)
    pieces.spans(ByteSpan(np.where(is_own, start + at + 1, operation), np.where(is_own, begin - at - 2, 2)))
    pieces.rows((numbers == counts[places] - 1).astype(np.uint8).reshape(-1, 1))
    pieces.spans(ByteSpan(start + begin, np.where(is_own, size, end) - begin))
    pieces.spans(ByteSpan(len(content) + np.cumsum(lengths) - lengths, lengths))
    return places, pieces.joined()
