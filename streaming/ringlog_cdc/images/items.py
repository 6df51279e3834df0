"""Cells as rows of the log have them: column, then value, in Avro. A mutation has them in the same bytes.

States keep cells so, and an image takes them as they are: nothing is encoded twice, and nothing decoded but where the
definition looks at values.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ringlog_cdc.columnar.pieces import encoded_numbers


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
