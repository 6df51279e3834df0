"""Checks of a request's form, made before its content is used.

Any process that can reach the port may send a request, and the data that a node accepts is copied to other nodes.
Therefore no field is trusted. The token of a key is computed again, and sizes and orders are checked on receipt. An
epoch in a request is only a claim of its sender. Each check returns a refusal code of ``ringlog.wire.data``, or an
empty string if the request is acceptable.

Checks that depend on the state (membership, streams of an operation, existing keyspaces) are made by
``ringlog.node.registers.registers`` and ``ringlog.node.rows.replica``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Token
from ringlog.wire.data import (
    BAD_CELL,
    BAD_EPOCH,
    BAD_POSITION,
    BAD_STREAM,
    BAD_TOKEN,
    KEY_BYTES_MAX,
    TOO_LARGE,
    VALUE_BYTES_MAX,
    EntriesRequest,
    Key,
    ReadRequest,
    ReadRowsRequest,
    RegisterCell,
    RowsRequest,
    StreamRequest,
    WriteRequest,
    key_of,
)


@lru_cache(maxsize=65_536)
def token_of_partition(key: bytes) -> Token:
    """Return the token of a composed partition key. Cached, because many rows share a key."""
    return token_of(key)


def has_own_token(key: Key) -> bool:
    """Return True if the key's token is the token of its name."""
    return key == key_of(key.keyspace, key.name)


def key_refusal(key: Key) -> str:
    """Return the code that refuses a key, or an empty string."""
    if len(key.name) > KEY_BYTES_MAX:
        return TOO_LARGE
    return "" if has_own_token(key) else BAD_TOKEN


def cell_refusal(cell: RegisterCell) -> str:
    """Return the code that refuses a cell, or an empty string."""
    if len(cell.value) > VALUE_BYTES_MAX:
        return TOO_LARGE
    return BAD_CELL if cell.deleted and cell.value else ""


def write_refusal(request: WriteRequest) -> str:
    """Return the code that refuses a write or a repair, or an empty string."""
    return _epoch_refusal(request.epoch) or key_refusal(request.key) or cell_refusal(request.cell)


def read_refusal(request: ReadRequest) -> str:
    """Return the code that refuses a read of a register, or an empty string."""
    return _epoch_refusal(request.epoch) or key_refusal(request.key)


def rows_refusal(request: ReadRowsRequest) -> str:
    """Return the code that refuses a read of rows, or an empty string."""
    if _epoch_refusal(request.epoch):
        return BAD_EPOCH
    if len(request.partition_key) > KEY_BYTES_MAX:
        return TOO_LARGE
    return "" if _are_positions(request.at) else BAD_POSITION


def entries_refusal(request: EntriesRequest) -> str:
    """Return the code that refuses a request for log entries, or an empty string."""
    return _epoch_refusal(min(request.epoch, request.snapshot, request.chunk))


def stream_refusal(request: StreamRequest | RowsRequest) -> str:
    """Return the code that refuses a stream, or an empty string. Ranges and positions must be strictly ascending."""
    if _epoch_refusal(request.epoch):
        return BAD_EPOCH
    if not request.ranges or not _ascend(request.ranges):
        return BAD_STREAM
    if isinstance(request, RowsRequest):
        return "" if _are_positions(request.positions) else BAD_STREAM
    return "" if request.after is None else key_refusal(request.after)


def _epoch_refusal(epoch: int) -> str:
    return "" if epoch >= 0 else BAD_EPOCH


def _are_positions(found: Sequence[tuple[int, int]]) -> bool:
    return _ascend([partition for partition, _ in found]) and all(offset >= 0 for _, offset in found)


def _ascend(items: Sequence[Any]) -> bool:
    return all(one < other for one, other in pairwise(items))
