"""The contract between a data store and its participant: the methods of the store, and their arguments.

A *place* names data as ``client.routing.replicas`` does: a keyspace on the ring, or a table (``keyspace.table``). A
store that labels each row with its place and token can answer every call.

Invariant: ``adopt``, ``drain`` and ``forget`` are called by one thread, one at a time. ``fetch`` is called by other
threads. Every call may be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Protocol

from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.ring.ranges import Range, in_range
from ringlog.kernel.values import Epoch, Token, Value


class NodeInfo(Value):
    """The registration of a node; see ``ringlog.commands.register_node``.

    ``features``: the default says that the store moves tablets, which the participant does for it.
    """

    name: str
    address: str
    datacenter: str = "dc1"
    rack: str = "r1"
    shards: int = 1
    ignore_msb: int = 0
    release: str = "none"
    features: tuple[str, ...] = ("tablets",)
    capacity: int = 1


class Loss(Value):
    """Rows that this node must delete: those of ``places`` with a token in one of ``ranges``, each ``(start, end]``."""

    places: tuple[str, ...]
    ranges: tuple[Range, ...]

    def has(self, place: str, token: Token) -> bool:
        """Return whether a row is part of it."""
        return place in self.places and any(in_range(token, start, end) for start, end in self.ranges)


class Gain(Loss):
    """Rows that this node must copy from ``source``.

    Attributes:
        work: Id of the operation (``join-12``), or the session of a tablet (``ks.orders/3@45``).
        epoch: The source answers after it has adopted and drained this epoch.
    """

    source: Node
    work: str
    epoch: Epoch


class Store(Protocol):
    """A data store that takes part as one node. An exception of ``fetch`` is retried, any other ends the participant.

    A store may also have ``sizes(place) -> Iterable[tuple[Token, int]]``: the bytes by token of a table in tablets, for
    load reports.
    """

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        """Admit and route requests by ``after`` from now on. ``before``: None for the first state of this process."""

    def drain(self, below: Epoch) -> None:
        """Return when every write that was admitted before this epoch is applied and durable."""

    def fetch(self, gain: Gain) -> Iterable[bytes]:
        """Copy rows from the source. Yield the bytes of each row after it is durable; both sides count the same bytes.

        The participant stops to iterate when the rows are no longer wanted. Raise if the source is silent for seconds.
        """

    def forget(self, loss: Loss) -> None:
        """Delete rows that belong to other nodes now, durably. There may be none."""


class AsyncStore(Protocol):
    """A ``Store`` whose methods are coroutine functions, for ``Participant.serve``. ``fetch`` is an async generator."""

    async def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        """See ``Store.adopt``."""

    async def drain(self, below: Epoch) -> None:
        """See ``Store.drain``."""

    def fetch(self, gain: Gain) -> AsyncIterable[bytes]:
        """See ``Store.fetch``."""

    async def forget(self, loss: Loss) -> None:
        """See ``Store.forget``."""
