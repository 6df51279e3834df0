"""The tablet map: into which ranges a table is cut, and which shards of which nodes have each.

Tablet i of n has the tokens ``(ends[i-1], ends[i]]``; the last one ends at ``TOKEN_MAX``, so none wraps but the first,
whose start is the last end. Any count and any ends are legal.

One million tablets are one value, of which the next one shares all but what changed:

- what is settled is *packed*, a few bytes a tablet, in chunks of 256: a tablet that settles anew copies its chunk;
- what is in transition is beside it, in ``transitions``: a stage that changes touches nothing else.

::

    packed tablet    end (8 bytes), changed (8), then for each replica: since (8), node (4), shard (4); big-endian
    node             its place in ``nodes``: that of one that has no tablet any more, or one more

So ``nodes`` is as long as at most there were nodes at a time that had a tablet, and those that came in one step.

``Tablet`` and ``TabletReplica`` are what a map gives, not what it holds.

Source: ScyllaDB, ``locator/tablets.cc`` and ``docs/dev/topology-over-raft.md``, "Tablet migration".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from typing import Any, Final

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.values import TOKEN_MAX, Epoch, NodeId, Token

CHUNK: Final = 256
"""Tablets in a chunk: what is copied when one of them settles."""

_HEAD: Final = Struct(">qQ")
_REPLICA: Final = Struct(">QII")


@dataclass(frozen=True, slots=True)
class TabletReplica:
    """A shard that has a tablet. ``since``: the epoch since which the node has been a member, without a gap.

    ``since`` is 0 of a replica that is to come.
    """

    node: NodeId
    shard: int
    since: Epoch


@dataclass(frozen=True, slots=True)
class Transition:
    """Tablet number ``tablet`` between two sets of replicas, or under repair: see ``tablets.stages``.

    ``next``: the replicas that it is to have. ``started``, ``stage_epoch``: the epochs with which the transition and
    its stage began; ``changed``: that which last changed the read or the write group in it (0: none has). ``reason``:
    why it was turned back, or why a repair failed; empty if it goes its way.
    """

    tablet: int
    kind: str
    stage: str
    stage_epoch: Epoch
    started: Epoch
    next: tuple[TabletReplica, ...]
    changed: Epoch = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """A decision that is being carried out: ``split`` or ``merge``, number ``sequence``, since ``epoch``."""

    decision: str
    sequence: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Chunk:
    """The packed tablets before number ``end``, at most ``CHUNK`` of them."""

    end: int
    rows: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Tablet:
    """One tablet as its map has it: ``(start, end]``, the settled replicas, what is happening to it.

    ``changed``: the epoch that last changed its replicas, transitions in flight left aside.
    """

    index: int
    start: Token
    end: Token
    replicas: tuple[TabletReplica, ...]
    changed: Epoch
    transition: Transition | None = None


@dataclass(frozen=True, slots=True)
class TabletMap:
    """The tablets of ``table`` (``keyspace.table``), and of those that are co-located with it.

    ``ends`` repeats their last tokens, for bisection. ``held``: how many settled replicas each of ``nodes`` has.
    ``sequence``: the number of the last resize decision, 0 before any.
    ``made``: the epoch that made these tablets: the table's, or that of the last resize.
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
        """How many tablets there are."""
        return len(self.ends)

    def tablet(self, index: int) -> Tablet:
        """The tablet of that number; IndexError if there is none."""
        if not 0 <= index < len(self.ends):
            raise IndexError(index)
        end, changed, replicas = _unpacked(self.nodes, self.chunks[index // CHUNK].rows[index % CHUNK])
        return Tablet(index, self.ends[index - 1], end, replicas, changed, self.transitions.get(index))

    def index_of(self, token: Token) -> int:
        """The number of the tablet that holds a token. O(log n)."""
        return index_at(self.ends, token)

    def replicas(self, index: int) -> tuple[TabletReplica, ...]:
        """The settled replicas of a tablet, in their order."""
        return _unpacked(self.nodes, self.chunks[index // CHUNK].rows[index % CHUNK])[2]

    def settled(self, index: int) -> tuple[Epoch, list[NodeId], tuple[Epoch, ...]]:
        """``changed`` of a tablet; the nodes and ``since`` of its settled replicas, without making values of them."""
        row, nodes = self.chunks[index // CHUNK].rows[index % CHUNK], self.nodes
        found = _serving(len(row)).unpack(row)
        return found[0], [nodes[place] for place in found[2::2]], found[1::2]

    def __iter__(self) -> Iterator[Tablet]:
        """Every tablet, in order; for looks at all replicas ``columns`` is quicker."""
        return map(self.tablet, range(self.count))

    def columns(self) -> ReplicaColumns:
        """All settled replicas as arrays."""
        rows = [row for chunk in self.chunks for row in chunk.rows]
        words = np.fromiter(map(len, rows), np.int64, len(rows)) // 8
        data = np.frombuffer(b"".join(rows), ">u8")
        kept = np.ones(len(data), bool)
        kept[np.cumsum(words) - words] = kept[np.cumsum(words) - words + 1] = False
        where = data[kept][1::2].astype(np.uint64)
        return ReplicaColumns(
            tablet=np.repeat(np.arange(len(rows)), (words - 2) // 2),
            node=(where >> np.uint64(32)).astype(np.int64),
            shard=(where & np.uint64(2**32 - 1)).astype(np.int64),
        )


@dataclass(frozen=True, slots=True)
class ReplicaColumns:
    """One row for each settled replica, by tablet: its tablet's number, its node's place in ``nodes``, its shard."""

    tablet: NDArray[np.int64]
    node: NDArray[np.int64]
    shard: NDArray[np.int64]


# ------------------------------------------------------------------------------------------------------- making


def uniform_ends(count: int) -> tuple[Token, ...]:
    """The last tokens of ``count`` tablets of equal length; for powers of two they cut the ring by its top bits."""
    assert count >= 1, "a table has a tablet"
    ends = tuple((index + 1) * (2**64 - 1) // count - 2**63 for index in range(count))
    assert ends[-1] == TOKEN_MAX, "the last tablet ends where the ring does"
    return ends


def new_map(
    table: str,
    ends: tuple[Token, ...],
    replicas: Sequence[Sequence[TabletReplica]],
    epoch: Epoch,
    changed: Sequence[Epoch] = (),
    sequence: int = 0,
) -> TabletMap:
    """A map whose tablets have these replicas, since ``epoch`` unless ``changed`` says for each when it changed."""
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
    return TabletMap(table, ends, nodes, tuple(held), tuple(chunks), epoch, sequence=sequence)


def nodes_in(tablets: TabletMap) -> set[NodeId]:
    """Return every node that a map names: holders of settled replicas, and targets of transitions."""
    return {*tablets.nodes, *(one.node for moving in tablets.transitions.values() for one in moving.next)}


def with_transitions(tablets: TabletMap, changes: Mapping[int, Transition | None]) -> TabletMap:
    """The map with these transitions set, or gone."""
    transitions = tablets.transitions.mutate()
    for index, transition in changes.items():
        if transition is not None:
            transitions[index] = transition
        elif index in transitions:
            del transitions[index]
    return _with(tablets, transitions=transitions.finish())


def with_settled(tablets: TabletMap, changes: Mapping[int, tuple[tuple[TabletReplica, ...], Epoch]]) -> TabletMap:
    """The map with other settled replicas of these tablets, and since when. Costs a chunk for each."""
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
    """The nodes of a map, with a place for each that is to have a tablet: of who has none any more, or one more."""
    nodes, held = list(tablets.nodes), tablets.held
    free = (place for place, node in enumerate(tablets.nodes) if not held[place] and node not in wanted)
    for node in sorted(wanted.difference(nodes)):
        if (place := next(free, None)) is None:
            nodes.append(node)
        else:
            nodes[place] = node
    return tuple(nodes)


def with_resize(tablets: TabletMap, resize: Resize | None, sequence: int) -> TabletMap:
    """The map with a decision to resize it, or without; ``sequence`` is its number."""
    assert sequence > tablets.sequence, "decisions are numbered upwards"
    return _with(tablets, resize=resize, sequence=sequence)


_FIELDS: Final = ("table", "ends", "nodes", "held", "chunks", "made", "transitions", "resize", "sequence")


def _with(tablets: TabletMap, **values: Any) -> TabletMap:
    return TabletMap(*[values.get(name, getattr(tablets, name)) for name in _FIELDS])


def shown(chunk: Chunk) -> dict[str, Any]:
    """A chunk as others are shown it: of each tablet its end, ``changed``, and (node's place, shard, since)."""
    found = []
    for row in chunk.rows:
        end, changed = _HEAD.unpack_from(row)
        found.append((end, changed, [(node, shard, since) for since, node, shard in _places_of(row)]))
    return {"end": chunk.end, "tablets": found}


@cache
def _serving(length: int) -> Struct:
    """Of a packed tablet of that length: ``changed``, then ``since`` and node's place of each replica."""
    return Struct(">8xQ" + "QI4x" * ((length - _HEAD.size) // _REPLICA.size))


def _packed(places: Mapping[NodeId, int], end: Token, replicas: Sequence[TabletReplica], changed: Epoch) -> bytes:
    pack = _REPLICA.pack
    head = _HEAD.pack(end, changed)
    return b"".join((head, *[pack(one.since, places[one.node], one.shard) for one in replicas]))


def _unpacked(nodes: tuple[NodeId, ...], row: bytes) -> tuple[Token, Epoch, tuple[TabletReplica, ...]]:
    end, changed = _HEAD.unpack_from(row)
    return end, changed, tuple([TabletReplica(nodes[node], shard, since) for since, node, shard in _places_of(row)])


def _places_of(row: bytes) -> Iterator[tuple[Epoch, int, int]]:
    """(since, node's place, shard) of each replica of a packed tablet."""
    return _REPLICA.iter_unpack(row[_HEAD.size :])
