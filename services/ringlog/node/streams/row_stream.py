"""Streams of rows between nodes, page by page. The gaining node keeps each page on arrival.

The source holds no resources between pages: it looks up each page separately, and refuses if it must not continue. If
the source restarts, the stream continues after the last page. The source then has all rows below the positions that the
gaining node noted, and the gaining node reads the others from the topic. If the gaining node restarts, it begins the
stream again; rows that it already has do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from ringlog.client.data.peers import Peers
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId
from ringlog.node.checks import token_of_partition
from ringlog.node.protocol.stream import RowStreamProgress
from ringlog.node.rows.pages import Body, StreamBroken, verified_bodies
from ringlog.node.rows.replica import RowFetch
from ringlog.node.rows.store import inside, order
from ringlog.wire.data import Rows, RowsRequest, RowVersion, StreamPage, pack, unpack

CALL_S = 60.0


def bodies(page: Callable[[RowVersion | None], Rows], after: RowVersion | None) -> Iterator[Body]:
    """Yield page bodies of a source's rows after ``after``.

    Args:
        page: Returns the next rows, or none at the end.
    """
    while found := page(after):
        yield pack(found), len(found)
        after = found.rows[-1]


def rows_of(body: Body, after: RowVersion | None, fetch: RowFetch) -> Rows:
    """Decode and verify the rows of a page that follows ``after``. Raises StreamBroken, WireError."""
    data, count = body
    found = unpack(Rows, data)
    rows = found.rows
    if not rows or len(rows) != count:
        raise StreamBroken(f"a page of {count} rows has {len(rows)}")
    if any(order(one) >= order(other) for one, other in pairwise(rows if after is None else (after, *rows))):
        raise StreamBroken("a page has rows that do not ascend")
    if not all(inside(one.token, fetch.ranges) for one in rows):
        raise StreamBroken("a page has rows of other ranges")
    if any(one.token != token_of_partition(one.partition_key) for one in rows):
        raise StreamBroken("a page has rows whose token is not that of their key")
    if sorted({one.table for one in rows}) != [name for name, _ in found.tables]:
        raise StreamBroken("a page does not name the ids of the tables of its rows")
    return found


class RowPull:
    """A ``Pull`` of rows into ``gained``, requested under ``state``."""

    def __init__(self, peers: Peers, node: NodeId, state: ClusterState, gained: RowStreamProgress) -> None:
        self._peers = peers
        self._node = node
        self._cluster_id = state.cluster_id
        self._state_id = state_id_at(state, gained.fetch.epoch)
        self._newest = state.epoch, state.state_id
        self._gained = gained
        self.keep = gained.keep
        self.end = gained.end

    def pages(self) -> Iterator[Rows]:
        """Perform one call. Raises StreamBroken, Unreachable, WireError or grpc.RpcError if another call is needed."""
        for body in verified_bodies(self.messages(), self._gained.fetch.source):
            yield rows_of(body, self._gained.last, self._gained.fetch)

    def messages(self) -> Iterator[StreamPage]:
        """Yield the messages of the source."""
        fetch = self._gained.fetch
        request = RowsRequest(
            self._cluster_id,
            fetch.source,
            fetch.epoch,
            self._state_id,
            self._node,
            fetch.operation,
            fetch.replication,
            fetch.ranges,
            fetch.positions,
            self._gained.last,
            *self._newest,
        )
        for data in self._peers.stream(fetch.source, "StreamRows", pack(request), CALL_S):
            yield unpack(StreamPage, data)
