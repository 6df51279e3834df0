"""Routing: the nodes that have a key, for token ring, tablets and zones alike.

``replicas`` answers from one state. ``Router`` answers from the newest state of a replica, and says when the nodes of a
keyspace change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ringlog.client.data.plans import Access, ClientRequest, Failed, Level, RequestPlan, plan
from ringlog.client.errors import RequestImpossible
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.model.state import ClusterState, Node, Replica
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.sections import BY_NAME
from ringlog.kernel.tablets.groups import serving
from ringlog.kernel.values import Epoch, Token, Value
from ringlog.log.replicas.replica import LogReplica

Key = bytes | Sequence[object]
"""A partition key: its composed bytes, or a value for each column of the table's partition key."""
_PLACED: Final = ("nodes", "placements", "keyspaces", "tables", "tablets", "zone_partitions")


class KeyReplicas(Value):
    """The nodes of a token at ``epoch``.

    While the range moves, ``write`` also has the nodes that it moves to, and a write needs the plan's answers
    (``planned``).
    """

    token: Token
    read: tuple[Node, ...]
    write: tuple[Node, ...]
    epoch: Epoch

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the nodes that serve reads, in ring order."""
        return tuple(node.address for node in self.read)


def token_of_key(state: ClusterState, place: str, key: Key) -> Token:
    """Return the token of a key. ``place``: ``keyspace.table``; a keyspace is enough if ``key`` has bytes.

    Raises RequestImpossible, TypeMismatch.
    """
    table = state.tables.get(place)
    if table is None and ("." in place or not isinstance(key, bytes)):  # a dropped table takes no writes
        raise RequestImpossible(place, "unknown_table", f"{place} is not a table at epoch {state.epoch}")
    if isinstance(key, bytes):
        return token_of(key)
    assert table is not None, "only the bytes of a key need no table"
    if len(key) != len(table.partition_key):
        needed = ", ".join(table.partition_key)
        raise RequestImpossible(place, "bad_key", f"the partition key has {len(table.partition_key)} columns: {needed}")
    types = {column.name: column.type for column in table.columns}
    named = zip(table.partition_key, key, strict=True)
    return token_of(compose([_bytes_of(types[name], value) for name, value in named]))


def _bytes_of(kind: str, value: object) -> bytes:
    return serialize(kind, str(value) if isinstance(value, uuid.UUID) else value)


def replicas(state: ClusterState, place: str, key: Key) -> KeyReplicas:
    """Return the nodes that have a key of a table, or of a keyspace on the ring.

    Args:
        state: The state that decides.
        place: ``keyspace.table``, or a keyspace that is not in tablets.
        key: See ``Key``.

    Raises RequestImpossible, TypeMismatch.
    """
    keyspace, _, table = place.partition(".")
    token = token_of_key(state, place, key)
    found = serving(state, keyspace, table, token)
    if found is None:
        raise RequestImpossible(place, "no_replicas", f"no node serves {place} at epoch {state.epoch}")
    group, _ = found
    return KeyReplicas(token, _nodes(state, group.read), _nodes(state, group.write), state.epoch)


def planned(
    state: ClusterState, place: str, key: Key, access: Access, level: Level = Level.QUORUM, datacenter: str = ""
) -> RequestPlan:
    """Return the nodes to ask, and the answers that a read or write of a key needs (``client.data.plans``).

    Raises RequestImpossible, TypeMismatch.
    """
    keyspace, _, table = place.partition(".")
    made = plan(state, ClientRequest(keyspace, token_of_key(state, place, key), access, level, datacenter, table))
    if isinstance(made, Failed):
        raise RequestImpossible(place, made.code, made.detail)
    return made


class HasReplica(Protocol):
    """A client or watch."""

    @property
    def replica(self) -> LogReplica: ...


class Router:
    """KeyReplicas by key, from the newest state of a client or watch.

    with ringlog.connect("127.0.0.1:9092", "shop") as client:
        print(Router(client).replicas("ks.orders", ["o-1"]).addresses)
    """

    def __init__(self, follows: HasReplica) -> None:
        self._replica = follows.replica

    @property
    def state(self) -> ClusterState:
        """The newest state."""
        return self._replica.state

    def replicas(self, place: str, key: Key) -> KeyReplicas:
        """See the function ``replicas``."""
        return replicas(self._replica.state, place, key)

    def plan(
        self, place: str, key: Key, access: Access, level: Level = Level.QUORUM, datacenter: str = ""
    ) -> RequestPlan:
        """See the function ``planned``."""
        return planned(self._replica.state, place, key, access, level, datacenter)

    def on_change(self, callback: Callable[[ClusterState], None]) -> Callable[[], None]:
        """Call back with each new state of nodes, ranges or tablets. Returns the function that ends it.

        The callback runs in the replica's thread: return quickly. A callback that raises is not called again.
        """

        def follow(before: ClusterState, after: ClusterState, *_: object) -> None:
            if after is not before and any(not BY_NAME[name].is_same(before, after) for name in _PLACED):
                callback(after)

        return self._replica.subscribe(follow).close


def _nodes(state: ClusterState, group: Sequence[Replica]) -> tuple[Node, ...]:
    return tuple(state.nodes[one.node] for one in group)
