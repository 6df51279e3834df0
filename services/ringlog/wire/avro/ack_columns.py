"""The witnesses of a command from their bytes, all at once: a thousand nodes acknowledge each stage of an operation.

An item is a node's id behind its length and two numbers. Ids of nodes are UUIDs, and epochs that lie close together
have as many bytes, so all items are of one shape as a rule: rows of a table of bytes (``kernel.columns.ack_columns``).
Where one is not, or where they are few, all are read one by one, to the same values or the same refusal.
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
"""The byte before it."""

_NUMBER_MAX: Final = 8
"""Bytes of a number: 56 bits, which no epoch needs."""


def witnesses_reader(items: Mapping[str, Any], one_by_one: Read) -> Read:
    """A reader of an array of ``items``, the schema of a witness; ``one_by_one``: the general one."""
    assert [field["name"] for field in items["fields"]] == ["node", "applied", "drained"], "the order of an item"

    def read(body: bytes, at: int) -> tuple[Any, int]:
        try:
            found = _packed_at(body, at)
        except (IndexError, ValueError):
            found = None
        return one_by_one(body, at) if found is None else found

    return read


def _packed_at(body: bytes, at: int) -> tuple[AckColumns, int] | None:
    """The witnesses and the position behind them; None, or an exception, of what is to be read one by one."""
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
    rows = np.frombuffer(body, dtype=np.uint8, count=count * length, offset=at).reshape(count, length)
    applied, drained = _numbers(rows[:, first - at : second - at]), _numbers(rows[:, second - at :])
    ids = rows[:, 1 : 1 + _ID].tobytes()
    if applied is None or drained is None or not ids.isascii() or (rows[:, 0] != _LENGTH_OF_ID).any():
        return None
    return AckColumns(_nodes_of(ids), applied, drained), end + 1


@lru_cache(maxsize=4)
def _nodes_of(ids: bytes) -> tuple[NodeId, ...]:
    """The ids, one after the other: from step to step they are of the same nodes, and are the same objects then."""
    text = ids.decode("ascii")
    return tuple([text[at : at + _ID] for at in range(0, len(text), _ID)])


def _numbers(columns: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """The number of each row, which takes all of its bytes; None if one does not, or takes too many."""
    size = columns.shape[1]
    last = columns[:, -1]
    if size > _NUMBER_MAX or (columns[:, :-1] < 0x80).any() or (last > 0x7F).any() or (size > 1 and not last.all()):
        return None
    numbers = np.zeros(len(columns), dtype=np.int64)
    for place in range(size):
        numbers |= (columns[:, place] & 0x7F).astype(np.int64) << 7 * place
    return (numbers >> 1) ^ -(numbers & 1)
