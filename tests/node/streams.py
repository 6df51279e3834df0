"""Synchronous streams of rows from one replica to another."""

from __future__ import annotations

import sys

from ringlog.kernel.values import Epoch
from ringlog.node.protocol.stream import RowStreamProgress
from ringlog.node.rows.replica import RowFetch, RowReplica
from ringlog.wire.data import Rows


def source_rows(source: RowReplica, fetch: RowFetch, newest: Epoch = 0) -> Rows:
    """Return all rows of a source for a receiver at epoch ``newest``. Raises NotReady, NotServed."""
    return source.page(fetch, newest, None, sys.maxsize)


def received(row_replica: RowReplica, fetch: RowFetch, page: Rows) -> bool:
    """Store the rows as one page; return False if the stream is not wanted."""
    gained = RowStreamProgress(row_replica, fetch)
    return (not page or gained.keep(page)) and gained.end()
