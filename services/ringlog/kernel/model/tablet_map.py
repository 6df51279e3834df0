"""The tablet map: the ranges of a table, and the shards that have a replica of each.

Tablet i of n has the tokens ``(ends[i-1], ends[i]]``. The last tablet ends at ``TOKEN_MAX``, so only the first tablet
wraps: its start is the last end. Any count and any ends are legal.

One million tablets are one value that shares all unchanged parts with the next value:

- settled replicas are *packed*, a few bytes a tablet, in chunks of 256: a settling tablet copies its chunk;
- transitions are separate, in ``transitions``: a change of stage touches nothing else.

::

    packed tablet    end (8 bytes), changed (8), then for each replica: since (8), node (4), shard (4); big-endian
    node             its index in ``nodes``: an index freed by a node without tablets, or a new one

So ``nodes`` has at most the greatest number of nodes that had tablets at one time, and those that came in one step.

A map returns ``Tablet`` and ``TabletReplica``, but stores neither.

Source: ScyllaDB, ``locator/tablets.cc`` and ``docs/dev/topology-over-raft.md``, "Tablet migration".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Any, Final

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.values import TOKEN_MAX, Epoch, NodeId, Token, Value, field

CHUNK: Final = 256
"""Number of tablets in a chunk, which is copied when one of them settles."""

_HEAD: Final = Struct(">qQ")
_REPLICA: Final = Struct(">QII")

assert _HEAD.size == _REPLICA.size == 16, "``columns`` reads a row as pairs of 64-bit words"


class TabletReplica(Value):
    """A shard with a replica of a tablet. ``since``: the epoch since which the node has been a replica, without a gap.

    ``since`` is 0 for a future replica.
    """

    node: NodeId
    shard: int
    since: Epoch


class Transition(Value):
    """Tablet number ``tablet`` between two sets of replicas, or under repair: see ``tablets.stages``.

    ``next``: the target replicas. ``started``, ``stage_epoch``: the epochs at which the transition and its stage began.
    ``changed``: the epoch that last changed its read or write group; 0: none. ``reason``: why it was reverted, or why a
    repair failed; empty otherwise.
    """

    tablet: int
    kind: str
    stage: str
    stage_epoch: Epoch
    started: Epoch
    next: tuple[TabletReplica, ...]
    changed: Epoch = 0
    reason: str = ""


class Resize(Value):
    """A decision in progress to ``split`` or ``merge``, number ``sequence``, since ``epoch``."""

    decision: str
    sequence: int
    epoch: Epoch


class Chunk(Value):
    """The packed tablets before number ``end``, at most ``CHUNK`` of them."""

    end: int
    rows: tuple[bytes, ...]


class Tablet(Value):
    """One tablet: the range ``(start, end]``, the settled replicas and the transition.

    ``changed``: the epoch that last changed its settled replicas.
    """

    index: int
    start: Token
    end: Token
    replicas: tuple[TabletReplica, ...]
    changed: Epoch
    transition: Transition | None = None


class TabletMap(Value):
    """The tablets of ``table`` (``keyspace.table``) and of the tables that are co-located with it.

    ``ends`` repeats their last tokens, for bisection. ``held``: the number of settled replicas of each of ``nodes``.
    ``sequence``: the number of the last resize decision, 0 before any. ``made``: the epoch that made these tablets: the
    creation of the table, or the last resize.
    """

    table: str
    ends: tuple[Token, ...]
    nodes: tuple[NodeId, ...]
    held: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    made: Epoch
    transitions: Map[int, Transition] = field(default_factory=Map)
    resize: Resize | None = None
    sequence: int = 0

    @property
    def count(self) -> int:
        """Return the number of tablets."""
        return len(self.ends)

    def tablet(self, index: int) -> Tablet:
        """Return the tablet of that number. Raise IndexError if it does not exist."""
        if not 0 <= index < len(self.ends):
            raise IndexError(index)
        end, changed, replicas = _unpacked(self.nodes, self.chunks[index // CHUNK].rows[index % CHUNK])
        return Tablet(index, self.ends[index - 1], end, replicas, changed, self.transitions.get(index))

    def index_of(self, token: Token) -> int:
        """Return the number of the tablet that holds a token. O(log n)."""
        return index_at(self.ends, token)

    def replicas(self, index: int) -> tuple[TabletReplica, ...]:
        """Return the settled replicas of a tablet, in their order."""
        return _unpacked(self.nodes, self.chunks[index // CHUNK].rows[index % CHUNK])[2]

    def settled(self, index: int) -> tuple[Epoch, list[NodeId], tuple[Epoch, ...]]:
        """Return ``changed``, and the nodes and ``since`` of the settled replicas, without creating ``TabletReplica``
        values.
        """
        row, nodes = self.chunks[index // CHUNK].rows[index % CHUNK], self.nodes
        found = _serving(len(row)).unpack(row)
        return found[0], [nodes[place] for place in found[2::2]], found[1::2]

    def __iter__(self) -> Iterator[Tablet]:
        """Yield every tablet, in order. To read all replicas, ``columns`` is faster."""
        return map(self.tablet, range(self.count))

    def columns(self) -> ReplicaColumns:
        """Return all settled replicas as arrays."""
        rows = [row for chunk in self.chunks for row in chunk.rows]
        # Rows differ in length, so one flat array of 64-bit words is parsed instead of a matrix. Each row has two head
        # words (end, changed), then two words per replica: since, and node and shard in one word.
        words = np.fromiter(map(len, rows), np.int64, len(rows)) // 8
        data = np.frombuffer(b"".join(rows), ">u8")
        kept = np.ones(len(data), bool)
        kept[np.cumsum(words) - words] = kept[np.cumsum(words) - words + 1] = False
        # Shifting needs the native byte order; the stored words are big-endian.
        where = data[kept][1::2].astype(np.uint64)
        return ReplicaColumns(
            tablet=np.repeat(np.arange(len(rows)), (words - 2) // 2),
            node=(where >> np.uint64(32)).astype(np.int64),
            shard=(where & np.uint64(2**32 - 1)).astype(np.int64),
        )


class ReplicaColumns(Value):
    """One row for each settled replica, by tablet: the tablet's number, the node's index in ``nodes``, the shard."""

    tablet: NDArray[np.int64]
    node: NDArray[np.int64]
    shard: NDArray[np.int64]


# ------------------------------------------------------------------------------------------------------- making


def uniform_ends(count: int) -> tuple[Token, ...]:
    """Return the last tokens of ``count`` tablets of equal length. A power of two splits the ring by its top bits."""
    assert count >= 1, "a table has at least one tablet"
    ends = tuple((index + 1) * (2**64 - 1) // count - 2**63 for index in range(count))
    assert ends[-1] == TOKEN_MAX, "the last tablet ends at the end of the ring"
    return ends


def new_map(
    table: str,
    ends: tuple[Token, ...],
    replicas: Sequence[Sequence[TabletReplica]],
    epoch: Epoch,
    changed: Sequence[Epoch] = (),
    sequence: int = 0,
) -> TabletMap:
    """Return a map whose tablets have these replicas since ``epoch``, or since the epochs in ``changed``."""
    assert len(ends) == len(replicas), "each tablet has replicas"
    nodes = tuple(sorted({replica.node for group in replicas for replica in group}))
    places = {node: place for place, node in enumerate(nodes)}
    since = changed or [epoch] * len(ends)
    rows = [_packed(places, *row) for row in zip(ends, replicas, since, strict=True)]
    chunks = []
    for first in range(0, len(rows), CHUNK):
        part = tuple(rows[first : first + CHUNK])
        chunks.append(Chunk(first + len(part), part))
    held = [0] * len(nodes)
    for group in replicas:
        for one in group:
            held[places[one.node]] += 1
    assert sum(held) == sum(map(len, replicas)), "each replica counts for one node"
    assert sum(len(chunk.rows) for chunk in chunks) == len(ends), "each tablet is in one chunk"
    return TabletMap(table, ends, nodes, tuple(held), tuple(chunks), epoch, sequence=sequence)


def nodes_in(tablets: TabletMap) -> set[NodeId]:
    """Return every node that a map names: holders of settled replicas, and targets of transitions."""
    return {*tablets.nodes, *(one.node for moving in tablets.transitions.values() for one in moving.next)}


def with_transitions(tablets: TabletMap, changes: Mapping[int, Transition | None]) -> TabletMap:
    """Return the map with these transitions set, or removed if None."""
    assert all(0 <= index < tablets.count for index in changes), "a transition belongs to an existing tablet"
    assert all(one is None or one.tablet == index for index, one in changes.items()), "a transition names its tablet"
    transitions = tablets.transitions.mutate()
    for index, transition in changes.items():
        if transition is not None:
            transitions[index] = transition
        elif index in transitions:
            del transitions[index]
    return _with(tablets, transitions=transitions.finish())


def with_settled(tablets: TabletMap, changes: Mapping[int, tuple[tuple[TabletReplica, ...], Epoch]]) -> TabletMap:
    """Return the map with other settled replicas and ``changed`` of these tablets. Copies their chunks."""
    assert all(0 <= index < tablets.count for index in changes), "the changed tablets belong to the table"
    nodes = _with_room(tablets, {replica.node for group, _ in changes.values() for replica in group})
    places = {node: place for place, node in enumerate(nodes)}
    by_chunk: dict[int, list[int]] = {}
    for index in changes:
        by_chunk.setdefault(index // CHUNK, []).append(index)
    chunks, held = list(tablets.chunks), [*tablets.held, *[0] * (len(nodes) - len(tablets.nodes))]
    for number, indices in by_chunk.items():
        rows = list(chunks[number].rows)
        for index in indices:
            group, changed = changes[index]
            for _, place, _ in _places_of(rows[index % CHUNK]):
                held[place] -= 1
            for one in group:
                held[places[one.node]] += 1
            rows[index % CHUNK] = _packed(places, tablets.ends[index], group, changed)
        chunks[number] = Chunk(chunks[number].end, tuple(rows))
    return _with(tablets, nodes=nodes, held=tuple(held), chunks=tuple(chunks))


def _with_room(tablets: TabletMap, wanted: set[NodeId]) -> tuple[NodeId, ...]:
    """Return the nodes of a map with an index for each of ``wanted``: one of a node without tablets, or a new one."""
    nodes, held = list(tablets.nodes), tablets.held
    free = (place for place, node in enumerate(tablets.nodes) if not held[place] and node not in wanted)
    for node in sorted(wanted.difference(nodes)):
        if (place := next(free, None)) is None:
            nodes.append(node)
        else:
            nodes[place] = node
    assert wanted <= {*nodes}, "each wanted node has an index"
    return tuple(nodes)


def with_resize(tablets: TabletMap, resize: Resize | None, sequence: int) -> TabletMap:
    """Return the map with or without a resize decision; ``sequence`` is its number."""
    assert sequence > tablets.sequence, "numbers of decisions ascend"
    assert resize is None or resize.sequence == sequence, "a decision has the number of its map"
    return _with(tablets, resize=resize, sequence=sequence)


_FIELDS: Final = ("table", "ends", "nodes", "held", "chunks", "made", "transitions", "resize", "sequence")


def _with(tablets: TabletMap, **values: Any) -> TabletMap:
    return TabletMap(*[values.get(name, getattr(tablets, name)) for name in _FIELDS])


def shown(chunk: Chunk) -> dict[str, Any]:
    """Return a chunk as caches show it: for each tablet its end, ``changed``, and (node's index, shard, since) of
    replicas.
    """
    found = []
    for row in chunk.rows:
        end, changed = _HEAD.unpack_from(row)
        found.append((end, changed, [(node, shard, since) for since, node, shard in _places_of(row)]))
    return {"end": chunk.end, "tablets": found}


@cache
def _serving(length: int) -> Struct:
    """Return a parser for packed tablets of that length: ``changed``, then ``since`` and the node's index of each
    replica.
    """
    return Struct(">8xQ" + "QI4x" * ((length - _HEAD.size) // _REPLICA.size))


def _packed(places: Mapping[NodeId, int], end: Token, replicas: Sequence[TabletReplica], changed: Epoch) -> bytes:
    pack = _REPLICA.pack
    head = _HEAD.pack(end, changed)
    return b"".join((head, *[pack(one.since, places[one.node], one.shard) for one in replicas]))


def _unpacked(nodes: tuple[NodeId, ...], row: bytes) -> tuple[Token, Epoch, tuple[TabletReplica, ...]]:
    end, changed = _HEAD.unpack_from(row)
    return end, changed, tuple([TabletReplica(nodes[node], shard, since) for since, node, shard in _places_of(row)])


def _places_of(row: bytes) -> Iterator[tuple[Epoch, int, int]]:
    """Yield (since, node's index, shard) of each replica of a packed tablet."""
    return _REPLICA.iter_unpack(row[_HEAD.size :])
