"""The acknowledgements of nodes, and which of them count for a state.

An acknowledgement may survive the log that it was made on. The topic keeps the last one of each node. The log may
meanwhile have lost its newest entries and have other entries in their place. As a witness, such an acknowledgement
would open a gate for an epoch that its node does not know.

So an acknowledgement counts only when the log has reached its epoch, and only if the log's state there is the state
that it names. Until then the previous acknowledgement counts. So a node that is always ahead of the reader does not
delay anything.

Only the latest incarnation of a node counts, and within it the newest epoch, even if an earlier record is sent again
(``ringlog.wire.acks``). Acknowledgements of unregistered nodes and of other clusters are ignored.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId, Value
from ringlog.protocol.controller import Wait
from ringlog.protocol.effects import Effect
from ringlog.wire.acks import ReceivedAck, ack_order, incarnation_order
from ringlog.wire.records import NodeAck

WAITING_MAX = 64
"""The most acknowledgements kept for one node.

Above it the middle one is dropped: the oldest one may count now, and the newest ones will count later.
"""
UNCOUNTED_MAX = 10_000
"""The most nodes kept without an acknowledgement that ever counted.

Above it the node that was silent for longest is dropped until its next acknowledgement. Any client can invent nodes, so
without this bound the memory would grow.
"""


class ReadAcks(Effect[Iterable[ReceivedAck]], Value):
    """Outcome: (offset, acknowledgement) of each record of the topic, from its beginning."""


class NewAcks(Effect[Iterable[ReceivedAck] | None], Value):
    """Wait. Outcome: (offset, acknowledgement) of each new record; None if the keys changed, so that all records must
    be read and checked again.
    """

    wait: Wait


def matches_log(ack: NodeAck, state: ClusterState) -> bool:
    """Return whether the acknowledgement belongs to this log, as ``state`` knows it.

    It must name the log's state at its epoch. If the history no longer remembers that epoch, it must name no state.
    """
    return (
        ack.cluster_id == state.cluster_id
        and ack.node in state.nodes
        and ack.applied <= state.epoch
        and ack.state_id == state_id_at(state, ack.applied)
    )


class AckBook:
    """The acknowledgements that were read, for one thread. Their order and repeated records make no difference."""

    def __init__(self) -> None:
        self._read: dict[NodeId, list[ReceivedAck]] = {}
        self._latest: dict[NodeId, ReceivedAck] = {}
        self._uncounted: dict[NodeId, None] = {}
        """The nodes without an acknowledgement that ever counted, in the order of their last acknowledgement."""

    def take(self, offset: int, ack: NodeAck) -> None:
        """Add the acknowledgement that the topic has at ``offset``."""
        if ack.node in self._uncounted or ack.node not in self._read:
            self._uncounted.pop(ack.node, None)
            self._uncounted[ack.node] = None
        read = self._read.setdefault(ack.node, [])
        known, heard = (
            (incarnation_order(read[0][1].incarnation) if read else (0, "")),
            incarnation_order(ack.incarnation),
        )
        # Only the greatest incarnation counts: an older process of the node may still serve under an epoch that this
        # one left.
        if heard > known:
            read.clear()
        if heard > known or (heard == known and offset >= self._latest.get(ack.node, (offset, ack))[0]):
            self._latest[ack.node] = offset, ack
        if heard >= known and all(offset != other for other, _ in read):
            insort(read, (offset, ack), key=ack_order)
        if len(read) > WAITING_MAX:
            del read[WAITING_MAX // 2]
        if len(self._uncounted) > UNCOUNTED_MAX:
            silent = next(iter(self._uncounted))
            del self._uncounted[silent], self._read[silent]
            self._latest.pop(silent, None)

    def nodes(self) -> tuple[NodeId, ...]:
        """Return the nodes with an acknowledgement, sorted."""
        return tuple(sorted(self._read))

    def latest(self) -> dict[NodeId, NodeAck]:
        """Return the last acknowledgement of each node, even if it does not count. It shows the node's mistake."""
        return {node: ack for node, (_, ack) in self._latest.items()}

    def newest(self, state: ClusterState) -> dict[NodeId, NodeAck]:
        """Return the last acknowledgement of each node that counts in ``state``. Drops the ones before it.

        Args:
            state: not older than the state of the previous call.
        """
        found = {}
        for node, read in self._read.items():
            last = max((at for at, (_, ack) in enumerate(read) if matches_log(ack, state)), default=None)
            if last is not None:
                del read[:last]
                found[node] = read[0][1]
                self._uncounted.pop(node, None)
        return found


async def read_acks() -> AckBook:
    """Return all acknowledgements of the topic."""
    acks = AckBook()
    _take(acks, await ReadAcks())
    return acks


async def update_acks(acks: AckBook, wait: Wait) -> AckBook:
    """Return the book with new acknowledgements, or a new book if the keys have changed."""
    records = await NewAcks(wait)
    if records is None:
        return await read_acks()
    _take(acks, records)
    return acks


def _take(acks: AckBook, records: Iterable[ReceivedAck]) -> None:
    for offset, ack in records:
        acks.take(offset, ack)
