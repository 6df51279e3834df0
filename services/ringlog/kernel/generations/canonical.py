"""The canonical bytes of ranges in columns, all at once: the same bytes as ``kernel.encoding.encoder`` returns for the
tuple.

The bytes of a row follow from its end, its ignored bits and its number of streams, except for the ids. A ring has
nearly the same rows as before. So the rows of the last written columns are copied run by run, only the other rows are
written, and the ids are then stored at their offsets as an array.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.model.stream_id import STREAM_ID_BYTES
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX

I64 = NDArray[np.int64]

_ID: Final = np.dtype(f"V{STREAM_ID_BYTES}")
_MARK: Final = b"B%d:" % STREAM_ID_BYTES
_STREAM: Final = _MARK + bytes(STREAM_ID_BYTES)
_TENS: Final = np.array([10**digits for digits in range(1, 20)], dtype=np.uint64)

assert IGNORE_MSB_MAX < 10**9, "``_sizes`` counts one digit for the length of the ignored bits"
assert int(_TENS[-1]) <= np.iinfo(np.uint64).max < 10 * int(_TENS[-1]), "``_digits`` counts the digits of any number"


class _Rows(NamedTuple):
    """Consecutive rows, with zeros for ids. ``starts``: the offset of each row, and the end of the last one."""

    columns: PackedRanges
    starts: I64
    data: bytes


# One slot, replaced as a whole, because several threads encode.
_last: Final[IdentityCache[None, _Rows]] = IdentityCache(1)


def size_of_canonical(columns: PackedRanges) -> int:
    """Return the number of bytes of ``canonical``."""
    rows = int(_sizes(columns).sum())
    return 2 + len(str(rows)) + rows


def canonical(columns: PackedRanges) -> bytes:
    """Return the encoding of the tuple that the columns replace."""
    rows = _rows_of(columns)
    out = bytearray(b"L%d:%b" % (len(rows.data), rows.data))
    counts, begin = columns.counts, len(out) - len(rows.data)
    places = begin + rows.starts[1:] - len(_STREAM) * counts + len(_MARK)
    within = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
    # Ids start at any byte: a view with stride 1 lets one assignment store them all.
    anywhere: NDArray[Any] = np.ndarray((len(out) - STREAM_ID_BYTES + 1,), _ID, out, strides=(1,))
    anywhere[np.repeat(places, counts) + len(_STREAM) * within] = np.frombuffer(columns.streams, _ID)
    # The view must release its buffer before the copy.
    del anywhere
    return bytes(out)


def _rows_of(columns: PackedRanges) -> _Rows:
    last = _last.get(None)
    sizes = _sizes(columns)
    starts = np.concatenate((np.zeros(1, np.int64), sizes.cumsum()))
    if last is None:
        at, same = np.zeros(len(columns), np.int64), np.zeros(len(columns), bool)
    else:
        known = last.columns
        at = np.minimum(np.searchsorted(known.ends, columns.ends), len(known) - 1)
        same = (known.ends[at] == columns.ends) & (known.ignored[at] == columns.ignored)
        same &= known.counts[at] == columns.counts
    # A run of rows that also follow each other in the last data is one slice of it.
    goes_on = np.zeros(len(columns), bool)
    goes_on[1:] = same[1:] & same[:-1] & (at[1:] == at[:-1] + 1)
    runs = np.flatnonzero(~goes_on)
    chunks = []
    for first, stop in zip(runs.tolist(), [*runs[1:].tolist(), len(columns)], strict=True):
        if last is not None and same[first]:
            chunks.append(last.data[last.starts[at[first]] : last.starts[at[stop - 1] + 1]])
        else:
            chunks.append(_row(*(int(column[first]) for column in (columns.ends, columns.ignored, columns.counts))))
    data = b"".join(chunks)
    assert len(data) == starts[-1], "the sizes of rows sum to the size of the data"
    return _last.put(None, _Rows(columns, starts, data))


def _row(end: int, ignored: int, streams: int) -> bytes:
    ends, bits = b"%d" % end, b"%d" % ignored
    given = (len(ends), ends, len(bits), bits, len(_STREAM) * streams)
    body = b"S15:GenerationRangeS3:endI%d:%bS10:ignore_msbI%d:%bS7:streamsL%d:" % given + _STREAM * streams
    return b"R%d:%b" % (len(body), body)


def _sizes(columns: PackedRanges) -> I64:
    """Return the number of bytes of each row."""
    ends = columns.ends
    magnitude = ends.view(np.uint64)
    magnitude = np.where(ends < 0, ~magnitude + np.uint64(1), magnitude)
    digits = _digits(magnitude) + (ends < 0)
    ids = len(_STREAM) * columns.counts
    body = len("S15:GenerationRangeS3:endI:S10:ignore_msbI:S7:streamsL:") + digits + _digits(digits)
    # The 1 is the length field of the ignored bits: a number of one or two digits has a length of one digit.
    body += _digits(columns.ignored) + 1 + ids + _digits(ids)
    return body + 2 + _digits(body)


def _digits(numbers: NDArray[Any]) -> I64:
    """Return the number of decimal digits of each number; none is negative."""
    assert numbers.min() >= 0, "numbers are not negative"
    return np.searchsorted(_TENS, numbers.astype(np.uint64), side="right") + 1
