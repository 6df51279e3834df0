"""Rows on their way from one node to another, page by page; the gaining node keeps them when all are there.

Rows are in memory on both sides, so what a gaining node has got of a stream is lost with it, and it begins anew. A
source that is killed and restarted goes on after the last page that has arrived: it holds again whatever lies below the
positions that the gaining node noted, and what it holds above them the gaining node has by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ringlog.client.peers import Peers
from ringlog.kernel.history import state_id_at
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import NodeId
from ringlog.node.checks import token_of_partition
from ringlog.node.holder import Fetch, Snapshot
from ringlog.node.pages import Body, StreamBroken, grouped, received
from ringlog.node.store import Version, checksum, inside, order
from ringlog.wire.data import WRONG_NODE, Rows, RowsRequest, StreamPage, pack, unpack

CALL_S = 60.0


def bodies(versions: Sequence[Version], after: Version | None, page_bytes: int) -> Iterator[Body]:
    """The bodies of a source's rows, which are in order, from the one after ``after`` on."""
    wanted = (one for one in versions if after is None or order(one) > order(after))
    for group in grouped(((one, len(one.partition_key) + len(one.value)) for one in wanted), page_bytes):
        yield pack(Rows(group)), len(group)


def rows_of(body: Body, after: Version | None, fetch: Fetch) -> tuple[Version, ...]:
    """The rows of a page that follows ``after``; raises StreamBroken, WireError."""
    data, count = body
    rows = unpack(Rows, data).rows
    if not rows or len(rows) != count:
        raise StreamBroken(f"a page of {count} rows has {len(rows)}")
    if any(order(one) >= order(other) for one, other in pairwise(rows if after is None else (after, *rows))):
        raise StreamBroken("a page has rows that do not ascend")
    if not all(inside(one.token, fetch.ranges) for one in rows):
        raise StreamBroken("rows of other ranges came")
    if any(one.token != token_of_partition(one.partition_key) for one in rows):
        raise StreamBroken("a page has rows whose token is not that of their key")
    return rows


class RowPull:
    """One stream of rows under ``state``; ``once`` is called until it gives them all."""

    def __init__(self, peers: Peers, node: NodeId, state: ClusterState, fetch: Fetch) -> None:
        self._peers = peers
        self._node = node
        self._cluster_id = state.cluster_id
        self._state_id = state_id_at(state, fetch.epoch)
        self._fetch = fetch
        self._rows: list[Version] = []

    @property
    def rows(self) -> int:
        """How many have come so far."""
        return len(self._rows)

    def once(self) -> Snapshot:
        """All rows; raises StreamBroken, Unreachable, WireError, grpc.RpcError where there are more to come."""
        try:
            for body in received(self._pages(), self._fetch.source):
                self._rows += rows_of(body, self._last(), self._fetch)
        except StreamBroken as broken:
            if broken.code == WRONG_NODE:
                self._peers.forget(self._fetch.source)
            raise
        return Snapshot(tuple(self._rows), checksum(self._rows))

    def _last(self) -> Version | None:
        return self._rows[-1] if self._rows else None

    def _pages(self) -> Iterator[StreamPage]:
        fetch = self._fetch
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
            self._last(),
        )
        for data in self._peers.stream(fetch.source, "StreamRows", pack(request), CALL_S):
            yield unpack(StreamPage, data)
