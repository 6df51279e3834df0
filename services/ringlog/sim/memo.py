"""Work that many readers of the same bytes share: decoding is a pure function."""

from __future__ import annotations

from functools import lru_cache

from ringlog.kernel.changes import Change
from ringlog.wire.changes import decode_change
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CommandRequest,
    Mutation,
    NodeAck,
    NodeLoad,
    Result,
    decode_mutation,
    decode_node_ack,
    decode_node_load,
    decode_requests,
    decode_result,
)

KEPT = 4_096


@lru_cache(KEPT)
def cached_result(data: bytes) -> Result:
    """``decode_result``. Raises WireError."""
    return decode_result(data)


@lru_cache(KEPT)
def cached_ack(data: bytes) -> NodeAck:
    """``decode_node_ack``. Raises WireError."""
    return decode_node_ack(data)


@lru_cache(KEPT)
def cached_load(data: bytes) -> NodeLoad:
    """``decode_node_load``. Raises WireError."""
    return decode_node_load(data)


@lru_cache(KEPT)
def cached_mutation(data: bytes) -> Mutation:
    """``decode_mutation``. Raises WireError."""
    return decode_mutation(data)


@lru_cache(KEPT)
def cached_requests(data: bytes) -> tuple[CommandRequest, ...]:
    """``decode_requests``, without parts that are none; empty for a record that is none."""
    try:
        return tuple(request for request in decode_requests(data) if request is not None)
    except WireError:
        return ()


@lru_cache(KEPT)
def cached_change(data: bytes) -> Change:
    """``decode_change``. Raises WireError."""
    return decode_change(data)
