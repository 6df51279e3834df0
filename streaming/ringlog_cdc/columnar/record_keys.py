"""Vectorized check of record keys: the rule of ``ringlog.wire.records.is_key_of`` on Arrow arrays.

A key is the full table name, a zero byte and the composed partition key.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ringlog_cdc.columnar.words import Flags, same

ZERO = b"\0"


def own_keys(keys: pa.Array, names: pa.Array, composed: pa.Array) -> Flags:
    """Return True for records with the key of their write.

    Args:
        keys: Keys of the records, or null.
        names: Full table names.
        composed: Composed partition keys, or empty.
    """
    keys = keys.cast(pa.large_binary())
    if (found := _own_keys_alike(keys, names, composed)) is not None:
        return found
    parts = names.cast(pa.large_binary()), composed.cast(pa.large_binary())
    own = pc.binary_join_element_wise(*parts, pa.scalar(ZERO, pa.large_binary()))
    equal: Flags = pc.equal(keys, own).fill_null(False).to_numpy(zero_copy_only=False)
    return equal


def _own_keys_alike(keys: pa.Array, names: pa.Array, composed: pa.Array) -> Flags | None:
    """Return the result of ``own_keys`` for keys of one table and one width, or None for others."""
    distinct = pc.unique(names).to_pylist()
    if keys.null_count or len(distinct) != 1:
        return None
    head = np.frombuffer(distinct[0].encode() + ZERO, dtype=np.uint8)
    (data, starts), (parts, part_starts) = buffers(keys), buffers(composed)
    width, own = same(starts[1:] - starts[:-1]), same(part_starts[1:] - part_starts[:-1])
    if width is None or own is None or width != len(head) + own:
        return None
    count = len(keys)
    heads = _items(data[starts[0] :], count, 0, len(head), width)
    found: Flags = heads == _items(head, 1, 0, len(head), len(head))
    if own:
        own_parts = _items(parts[part_starts[0] :], count, 0, own, own)
        found &= _items(data[starts[0] :], count, len(head), own, width) == own_parts
    return found


def _items(data: NDArray[np.uint8], count: int, at: int, size: int, width: int) -> NDArray[np.void]:
    """Return ``size`` bytes from position ``at`` of each record of this width as one item. A strided view."""
    return np.ndarray((count,), f"V{size}", data, at, (width,))


def buffers(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (bytes, n + 1 offsets) of a binary array without nulls. Nothing is copied if Arrow allows it."""
    assert values.null_count == 0, "the caller has replaced nulls"
    large = values.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    # A slice shares the buffers of its array, and begins at its own offset within them.
    starts = np.frombuffer(offsets, dtype=np.int64, count=large.offset + len(large) + 1)[large.offset :]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return content, starts
