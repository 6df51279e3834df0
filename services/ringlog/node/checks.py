"""Checks of the form of a request, before its content is considered.

A process that reaches the port may send anything, and what is kept here goes on to other nodes, for years. So nothing
is believed because of who says it: a token beside a name is computed again, sizes and orders are checked where a
message comes in, an epoch is only what the sender says it is. A refusal is a code of ``ringlog.wire.data``; empty:
none.

What depends on the state (is this node a member, does the operation want that stream, is there such a keyspace) is
decided under it, by ``ringlog.node.registers.registers`` and ``ringlog.node.rows.replica``.
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
    """The token of a composed partition key; many rows have the same."""
    return token_of(key)


def has_own_token(key: Key) -> bool:
    """True if the key names a register: its token is that of its name."""
    return key == key_of(key.keyspace, key.name)


def key_refusal(key: Key) -> str:
    """The code that refuses a key as such."""
    if len(key.name) > KEY_BYTES_MAX:
        return TOO_LARGE
    return "" if has_own_token(key) else BAD_TOKEN


def cell_refusal(cell: RegisterCell) -> str:
    """The code that refuses a cell as such."""
    if len(cell.value) > VALUE_BYTES_MAX:
        return TOO_LARGE
    return BAD_CELL if cell.deleted and cell.value else ""


def write_refusal(request: WriteRequest) -> str:
    """The code that refuses a write or a repair as such."""
    return _epoch_refusal(request.epoch) or key_refusal(request.key) or cell_refusal(request.cell)


def read_refusal(request: ReadRequest) -> str:
    """The code that refuses a read as such."""
    return _epoch_refusal(request.epoch) or key_refusal(request.key)


def rows_refusal(request: ReadRowsRequest) -> str:
    """The code that refuses a read of rows as such."""
    if _epoch_refusal(request.epoch):
        return BAD_EPOCH
    if len(request.partition_key) > KEY_BYTES_MAX:
        return TOO_LARGE
    return "" if _are_positions(request.at) else BAD_POSITION


def entries_refusal(request: EntriesRequest) -> str:
    """The code that refuses a question about the log as such."""
    return _epoch_refusal(min(request.epoch, request.snapshot, request.chunk))


def stream_refusal(request: StreamRequest | RowsRequest) -> str:
    """The code that refuses a stream as such: its ranges ascend, each once, and so do its positions."""
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
