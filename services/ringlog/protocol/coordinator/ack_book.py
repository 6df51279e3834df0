"""What nodes have acknowledged, as far as a log can vouch for it.

An acknowledgement outlives the log that it was made on: the topic keeps the last one of each node, also where the log
has lost its newest entries since, and has others in their place by now. As a witness such a one would advance gates
that its node knows nothing of. So an acknowledgement counts once the log has come to its epoch, and only if the state
there is the one that it names. Until then the one before it counts: a node that is ahead of who looks, all the time,
holds nothing up. Of the incarnations of a node only the latest is heard, and of that the newest epoch counts, however
late an earlier one is sent again (``ringlog.wire.acks``).

Nobody's word is taken for who exists, either: nodes that the state does not have, and other clusters, are passed over.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId
from ringlog.protocol.controller import Wait
from ringlog.protocol.effects import Steps
from ringlog.wire.acks import ReceivedAck, order_of, place_of
from ringlog.wire.records import NodeAck

WAITING_MAX = 64
"""At most this many acknowledgements of one node wait for the log; of more, the newest and the oldest ones."""
STRANGERS_MAX = 10_000
"""At most this many nodes are heard of that had no acknowledgement that counts: of more, who was silent for longest is
forgotten until it speaks again."""


@dataclass(frozen=True, slots=True)
class ReadAcks:
    """Outcome: (offset, acknowledgement) of each record of the topic, from its beginning."""


@dataclass(frozen=True, slots=True)
class NewAcks:
    """Wait. Outcome: (offset, acknowledgement) of each new record; None if the keys changed, so that all records must
    be read and checked again.
    """

    wait: Wait


def is_vouched_for(ack: NodeAck, state: ClusterState) -> bool:
    """True if the acknowledgement is of this log, as ``state`` knows it.

    It names the state of its epoch. A state whose history has forgotten that epoch has no id for it, nor has the node.
    """
    return (
        ack.cluster_id == state.cluster_id
        and ack.node in state.nodes
        and ack.applied <= state.epoch
        and ack.state_id == state_id_at(state, ack.applied)
    )


class AckBook:
    """The acknowledgements that were read, each once, in whatever order they come. For one thread."""

    def __init__(self) -> None:
        self._read: dict[NodeId, list[ReceivedAck]] = {}
        self._said: dict[NodeId, ReceivedAck] = {}
        self._strangers: dict[NodeId, None] = {}
        """The nodes of which nothing has counted yet; who spoke last is last."""

    def take(self, offset: int, ack: NodeAck) -> None:
        """Note an acknowledgement that stands in the topic at ``offset``."""
        if ack.node in self._strangers or ack.node not in self._read:
            self._strangers.pop(ack.node, None)
            self._strangers[ack.node] = None
        read = self._read.setdefault(ack.node, [])
        known, heard = (order_of(read[0][1].incarnation) if read else (0, "")), order_of(ack.incarnation)
        if heard > known:
            read.clear()
        if heard > known or (heard == known and offset >= self._said.get(ack.node, (offset, ack))[0]):
            self._said[ack.node] = offset, ack
        if heard >= known and all(offset != other for other, _ in read):
            insort(read, (offset, ack), key=place_of)
        if len(read) > WAITING_MAX:
            del read[WAITING_MAX // 2]
        if len(self._strangers) > STRANGERS_MAX:
            silent = next(iter(self._strangers))
            del self._strangers[silent], self._read[silent]
            self._said.pop(silent, None)

    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes that were heard of, sorted."""
        return tuple(sorted(self._read))

    def said(self) -> dict[NodeId, NodeAck]:
        """The last acknowledgement of each node, whether it counts or not: to show what is wrong with it."""
        return {node: ack for node, (_, ack) in self._said.items()}

    def newest(self, state: ClusterState) -> dict[NodeId, NodeAck]:
        """The last acknowledgement of each node that counts in ``state``, which is not older than the one before."""
        found = {}
        for node, read in self._read.items():
            last = max((at for at, (_, ack) in enumerate(read) if is_vouched_for(ack, state)), default=None)
            if last is not None:
                del read[:last]
                found[node] = read[0][1]
                self._strangers.pop(node, None)
        return found


def read_acks() -> Steps[AckBook]:
    """Return all acknowledgements of the topic."""
    acks = AckBook()
    _take(acks, (yield ReadAcks()))
    return acks


def update_acks(acks: AckBook, wait: Wait) -> Steps[AckBook]:
    """Return the book with new acknowledgements, or a new book if the keys have changed."""
    records: Iterable[ReceivedAck] | None = yield NewAcks(wait)
    if records is None:
        return (yield from read_acks())
    _take(acks, records)
    return acks


def _take(acks: AckBook, records: Iterable[ReceivedAck]) -> None:
    for offset, ack in records:
        acks.take(offset, ack)
