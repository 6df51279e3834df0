"""The parts of the state as others see them: one declaration each, for change topics and for caches.

Both show every field of every item, by its name. What is not shown is named here, with the reason: ``hidden`` is shown
nowhere, ``untold`` has no place in the change topics, whose records are bounded (``kernel.carried``). A new field, and
a new part, is seen by everybody unless it is named here; a field that a change record neither has nor may leave out
ends the import of ``kernel.changes``.

What grows with the number of ranges is shown range by range, as ``pieces`` of their item: so no record and no field of
a cache grows with the cluster, and a stage writes the ranges that it changes.

Invariants: ``PARTS`` has the parts of ``ClusterState``, each once; names of fields are those of the item's class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

from immutables import Map

from ringlog.kernel import state as states
from ringlog.kernel.operations.moving import ServedRange, as_served, served
from ringlog.kernel.state import ClusterState, in_order
from ringlog.kernel.tablets.map import TabletMap, shown

WHOLE: Final = ""
"""In place of a field: the part as a whole."""

NODES: Final = "nodes"
FEATURES: Final = "features"
PLACEMENTS: Final = "placements"
SCHEMA: Final = "schema"
OPERATIONS: Final = "operations"
TABLETS: Final = "tablets"
CDC_STREAMS: Final = "cdc-streams"
CDC_GENERATIONS: Final = "cdc-generations"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What of an item grows with the number of ranges or tablets, range by range.

    ``name``: the part of a cache that has them; ``field``: where an item has them; empty if it is nothing else;
    ``key``: what tells one from the others; ``show``: what is shown of one.
    """

    name: str
    field: str
    key: Callable[[Any], str]
    show: Callable[[Any], Any] = lambda piece: piece

    def of(self, item: Any) -> Iterable[Any]:
        """The pieces of an item, by their ends."""
        found: Iterable[Any] = getattr(item, self.field) if self.field else item
        return [piece for _, piece in in_order(found)] if isinstance(found, Map) else found


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the state.

    ``item``: the class of its items, each of which has a key. ``topic``: the change topic that tells of it, if one
    does; ``key``: what its keys there are, in words, behind ``prefix``. ``hidden``, ``untold``: field to why it is not
    shown. ``items``: the items of a state by key, in the order in which they are told, where they are no map of the
    state; they follow from the parts ``uses``.
    """

    name: str
    item: type[Any]
    topic: str = ""
    prefix: str = ""
    key: str = ""
    hidden: Mapping[str, str] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)
    items: Callable[[ClusterState], Mapping[str, Any]] | None = None
    uses: tuple[str, ...] = ()
    pieces: tuple[Pieces, ...] = ()

    def of(self, state: ClusterState) -> Mapping[str, Any]:
        """The items of a state by key."""
        if self.items is not None:
            return self.items(state)
        return {str(key): item for key, item in in_order(getattr(state, self.name))}

    def is_same(self, before: ClusterState, after: ClusterState) -> bool:
        """True if nothing was replaced from which the items follow."""
        return all(getattr(before, name) is getattr(after, name) for name in self.uses or (self.name,))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of an item that are not hidden; none if it is a plain value."""
        names = (one.name for one in fields(self.item)) if is_dataclass(self.item) else ()
        return tuple(name for name in names if name not in self.hidden)


PARTS: Final = (
    Part("settings", int, untold={WHOLE: "bounds by which operators rule; no consumer depends on them"}),
    Part("terms", states.Term, untold={WHOLE: "the topic agents tells who acts"}),
    Part("nodes", states.Node, NODES, key="node id"),
    Part("features", states.Feature, FEATURES, key="name of the feature"),
    Part("node_names", str, hidden={WHOLE: "repeats names and ids of nodes"}),
    Part("token_owners", str, hidden={WHOLE: "repeats the tokens of nodes"}),
    Part(
        "placements",
        ServedRange,
        PLACEMENTS,
        key="replication key `/` range end",
        items=served,
        uses=("placements", "operations"),
        pieces=(Pieces("placements", "", lambda group: str(group.end), as_served),),
    ),
    Part(
        "keyspaces",
        states.Keyspace,
        SCHEMA,
        "keyspace/",
        "name",
        untold={
            "replication": "spelled out as strategy, factor and datacenters; under this name is the placement's key",
            "placement": "is the placement's key, under replication",
        },
    ),
    Part("tables", states.Table, SCHEMA, "table/", "keyspace.table"),
    Part("table_ids", str, hidden={WHOLE: "repeats the ids of tables, and remembers those that are never used again"}),
    Part("types", states.UserType, SCHEMA, "type/", "keyspace.type"),
    Part(
        "schema_version",
        str,
        items=lambda state: {"version": state.schema_version} if state.schema_version else {},
        untold={WHOLE: "whoever follows the topic schema sees each change"},
    ),
    Part(
        "operations",
        states.Operation,
        OPERATIONS,
        key="operation id",
        hidden={"plan": "grows with the ring, and only the fold carries it out; each range says what moves in it"},
        untold={
            "locks": "grow with the ring; only admission asks for them",
            "reports": "grow with the number of nodes that gain",
            "ignored": "grow with the number of nodes that are down",
        },
        pieces=(Pieces("locks", "locks", lambda lock: f"{lock.replication}/{lock.end}"),),
    ),
    Part(
        "tablets",
        TabletMap,
        TABLETS,
        key="keyspace.table",
        hidden={"ends": "repeats the ends of the tablets", "held": "counts their replicas"},
        untold={
            "nodes": "each tablet names its own",
            "chunks": "tablets are told one by one",
            "transitions": "are told with their tablets",
        },
        pieces=(
            Pieces("tablet_chunks", "chunks", lambda chunk: str(chunk.end), shown),
            Pieces("tablet_transitions", "transitions", lambda transition: str(transition.tablet)),
        ),
    ),
    Part(
        "generations",
        states.Generation,
        CDC_GENERATIONS,
        key="generation id",
        items=lambda state: {generation.id: generation for generation in state.generations},
        untold={
            "ranges": "are told one by one, in cdc-streams; the record has their number",
            "forgotten": "the record has number and digest of the streams as before",
            "expired": "under this name is since when, not with which epoch",
            "expired_at": "is told as expired",
        },
        pieces=(Pieces("streams", "ranges", lambda described: str(described.end)),),
    ),
    Part(
        "prepared",
        states.PreparedGeneration,
        items=lambda state: {} if state.prepared is None else {state.prepared.id: state.prepared},
        hidden={"received": "streams that do not exist before the commit, a part of them at that"},
        untold={WHOLE: "a generation is told when it is committed, and may be dropped before"},
    ),
    Part("writers", states.CdcWriter, untold={WHOLE: "what they promise ends in the close of a generation"}),
    Part(
        "past_ttls",
        states.PastTtl,
        items=lambda state: {str(past.until): past for past in state.past_ttls},
        untold={WHOLE: "what comes of it is the expiry of generations"},
    ),
    Part(
        "settled",
        states.Settled,
        items=lambda state: {"verdicts": state.settled} if state.settled.until else {},
        untold={WHOLE: "who judges writes folds the log"},
    ),
    Part(
        "table_lives", states.TableLife, hidden={WHOLE: "repeats tables, as they were; who judges writes folds the log"}
    ),
)
"""In the order in which differences are told."""

assert sorted(part.name for part in PARTS) == sorted(states.PARTS), "each part is declared once"
assert all(
    not {*part.hidden, *part.untold} - {WHOLE} - {one.name for one in fields(part.item)}
    for part in PARTS
    if is_dataclass(part.item)
), "what is not shown is a field"

_KEYS = [(part.topic, part.prefix) for part in PARTS if part.topic]
assert len(set(_KEYS)) == len(_KEYS), "the keys of two parts in one topic differ by their prefix"

BY_NAME: Final = {part.name: part for part in PARTS}
