"""Work that many readers of the same bytes share."""

from __future__ import annotations

from functools import lru_cache

from ringlog.wire.records import Result, decode_result


@lru_cache(maxsize=4_096)
def cached_result(data: bytes) -> Result:
    """``decode_result``, once for all who read the record. Raises WireError."""
    return decode_result(data)
