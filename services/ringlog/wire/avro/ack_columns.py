"""Vectorized decoding of a command's acknowledgements: 1,000 nodes acknowledge each stage of an operation.

An item consists of a node id with a length prefix and two numbers. Node ids are UUIDs, and close epochs have equal byte
lengths. So all items usually have the same length and form a table of bytes (``kernel.columns.ack_columns``).

Invariant: this returns the same values as the general reader, or None. The general reader then handles the bytes. This
applies to short arrays, and to items that differ in length.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.columns.ack_columns import PACKED_FROM, AckColumns
from ringlog.kernel.values import NodeId
from ringlog.wire.avro.reading import Read, number_at

_ID: Final = 36
"""Characters of a UUID."""

_LENGTH_OF_ID: Final = 2 * _ID
"""The length prefix of an id in zigzag encoding."""

_NUMBER_MAX: Final = 8
"""Maximum bytes of a number: 56 bits, more than any epoch needs."""


def witnesses_reader(items: Mapping[str, Any], one_by_one: Read) -> Read:
    """Return a reader of an array of acknowledgements. ``items`` is their schema, ``one_by_one`` the general reader."""
    assert [field["name"] for field in items["fields"]] == ["node", "applied", "drained"], "the columns' order"

    def read(body: bytes, at: int) -> tuple[Any, int]:
        try:
            found = _packed_at(body, at)
        except (IndexError, ValueError):
            found = None
        return one_by_one(body, at) if found is None else found

    return read


def _packed_at(body: bytes, at: int) -> tuple[AckColumns, int] | None:
    """Return the acknowledgements and the position after them. None or an exception: use the general reader."""
    count, at = number_at(body, at)
    if count < PACKED_FROM:
        return None
    first = at + 1 + _ID
    _, second = number_at(body, first)
    _, behind = number_at(body, second)
    length = behind - at
    end = at + count * length
    if end >= len(body) or body[end] != 0:
        return None
    # Assume that all items have the length of the first one. The checks below reject any other item: an id with another
    # length, or a number with another number of bytes.
    rows = np.frombuffer(body, dtype=np.uint8, count=count * length, offset=at).reshape(count, length)
    applied, drained = _numbers(rows[:, first - at : second - at]), _numbers(rows[:, second - at :])
    ids = rows[:, 1 : 1 + _ID].tobytes()
    if applied is None or drained is None or not ids.isascii() or (rows[:, 0] != _LENGTH_OF_ID).any():
        return None
    return AckColumns(_nodes_of(ids), applied, drained), end + 1


@lru_cache(maxsize=4)
def _nodes_of(ids: bytes) -> tuple[NodeId, ...]:
    """Split concatenated ids. Cached, so that consecutive stages with the same nodes share the strings."""
    text = ids.decode("ascii")
    return tuple([text[at : at + _ID] for at in range(0, len(text), _ID)])


def _numbers(columns: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Decode the number in each row. None if a number does not use exactly all bytes, or uses too many."""
    size = columns.shape[1]
    last = columns[:, -1]
    if size > _NUMBER_MAX or (columns[:, :-1] < 0x80).any() or (last > 0x7F).any() or (size > 1 and not last.all()):
        return None
    numbers = np.zeros(len(columns), dtype=np.int64)
    for place in range(size):
        numbers |= (columns[:, place] & 0x7F).astype(np.int64) << 7 * place
    return (numbers >> 1) ^ -(numbers & 1)
