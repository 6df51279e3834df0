"""Caches for decoding, a pure function, because many readers decode the same bytes."""

from __future__ import annotations

from functools import lru_cache

from ringlog.wire.changes import decode_change
from ringlog.wire.errors import WireError
from ringlog.wire.records import CommandRequest, decode_mutation, decode_node_ack, decode_node_load, decode_result
from ringlog.wire.requests import decode_requests

KEPT = 4_096

cached_result = lru_cache(KEPT)(decode_result)
cached_ack = lru_cache(KEPT)(decode_node_ack)
cached_load = lru_cache(KEPT)(decode_node_load)
cached_mutation = lru_cache(KEPT)(decode_mutation)
cached_change = lru_cache(KEPT)(decode_change)


@lru_cache(KEPT)
def cached_requests(data: bytes) -> tuple[CommandRequest, ...]:
    """Return ``decode_requests`` without invalid parts, or empty for an invalid record."""
    try:
        return tuple(request for request in decode_requests(data) if request is not None)
    except WireError:
        return ()
