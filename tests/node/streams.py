"""Streams of rows from one holder to another, at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ringlog.node.holder import Holder, RowFetch
from ringlog.node.protocol.stream import GainedRows
from ringlog.node.store import RowVersion


def source_rows(source: Holder, fetch: RowFetch) -> tuple[RowVersion, ...]:
    """All rows that a source has for a stream. Raises NotReady, NotServed."""
    return source.page(fetch.operation, fetch.replication, fetch.ranges, dict(fetch.positions), None, sys.maxsize)


def received(holder: Holder, fetch: RowFetch, rows: Sequence[RowVersion]) -> bool:
    """They come as one page; False if nobody wants them any more."""
    gained = GainedRows(holder, fetch)
    return (not rows or gained.keep(rows)) and gained.end()
