"""The sections of the state as readers see them: one declaration each, for change topics and for caches.

Sections that are maps of records are declared with their fields of the state (``kernel.model.state_section``), the
others here. Both show every field of every item, by its name. A field that is not shown is named here with the reason:
``hidden`` fields are shown nowhere; ``unpublished`` fields are not in the change topics, whose records are bounded
(``kernel.size_limits``). A new field or section is visible to all readers unless it is named here. Importing
``kernel.changes`` fails for a field that a change record neither has nor may omit.

Data that grows with the number of ranges is shown range by range, as ``split_fields`` of its item. So no record and no
cache field grows with the cluster, and a stage writes only the ranges that it changes.

Invariants: ``PARTS`` has each section of ``ClusterState`` once; names of fields are those of the item's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Final

from ringlog.kernel.model import state as states
from ringlog.kernel.model.modes import Pause, ServiceGoal, Term
from ringlog.kernel.model.state_section import WHOLE, SplitField, StateSection, sections_of
from ringlog.kernel.model.tables import Keyspace, Settled, Table, TableLifetime, UserType
from ringlog.kernel.model.tablet_map import TabletMap, shown
from ringlog.kernel.operations.moving import ServedRange, as_served, served
from ringlog.kernel.operations.node_states import shown_nodes

NODES: Final = "nodes"
PLACEMENTS: Final = "placements"
SCHEMA: Final = "schema"
OPERATIONS: Final = "operations"
TABLETS: Final = "tablets"
CDC_STREAMS: Final = "cdc-streams"
CDC_GENERATIONS: Final = "cdc-generations"


def listed_nodes(state: states.ClusterState) -> Mapping[str, states.Node]:
    """Return the nodes by id, with states named as in ``kernel.operations.node_states``."""
    return dict(states.in_order(shown_nodes(state)))


PARTS: Final = (
    StateSection("settings", int, unpublished={WHOLE: "bounds by which operators rule; no consumer depends on them"}),
    StateSection("terms", Term, unpublished={WHOLE: "the topic agents tells who acts"}),
    StateSection("nodes", states.Node, NODES, key="node id", items=listed_nodes, uses=("nodes", "operations")),
    StateSection("node_names", str, hidden={WHOLE: "repeats names and ids of nodes"}),
    StateSection("token_owners", str, hidden={WHOLE: "repeats the tokens of nodes"}),
    StateSection(
        "placements",
        ServedRange,
        PLACEMENTS,
        key="replication key `/` range end",
        items=served,
        uses=("placements", "operations"),
        split_fields=(SplitField("placements", "", lambda group: str(group.end), as_served),),
    ),
    StateSection(
        "keyspaces",
        Keyspace,
        SCHEMA,
        "keyspace/",
        "name",
        hidden={
            "made": "says whose registers are a namesake's, to who keeps them and folds the log",
            "joined": "says what counts for those who keep registers, and fold the log",
        },
        unpublished={
            "replication": "spelled out as strategy, factor, datacenters, zone; under this name is the placement's key",
            "placement": "is the placement's key, under replication",
        },
    ),
    StateSection("tables", Table, SCHEMA, "table/", "keyspace.table"),
    StateSection(
        "table_ids", str, hidden={WHOLE: "repeats the ids of tables, and remembers those that are never used again"}
    ),
    StateSection("types", UserType, SCHEMA, "type/", "keyspace.type"),
    StateSection(
        "schema_version",
        str,
        items=lambda state: {"version": state.schema_version} if state.schema_version else {},
        unpublished={WHOLE: "a reader of the topic schema sees each change"},
    ),
    StateSection(
        "operations",
        states.Operation,
        OPERATIONS,
        key="operation id",
        hidden={"plan": "grows with the ring, and only the fold carries it out; each range says what moves in it"},
        unpublished={
            "locks": "grow with the ring; only admission asks for them",
            "reports": "grow with the number of nodes that gain",
            "ignored": "grow with the number of nodes that are down",
        },
        split_fields=(SplitField("locks", "locks", lambda lock: f"{lock.replication}/{lock.end}"),),
    ),
    StateSection(
        "tablets",
        TabletMap,
        TABLETS,
        key="keyspace.table",
        hidden={"ends": "repeats the ends of the tablets", "held": "counts their replicas"},
        unpublished={
            "nodes": "each tablet names its own",
            "chunks": "tablets are shown one by one",
            "transitions": "are shown with their tablets",
        },
        split_fields=(
            SplitField("tablet_chunks", "chunks", lambda chunk: str(chunk.end), shown),
            SplitField("tablet_transitions", "transitions", lambda transition: str(transition.tablet)),
        ),
    ),
    StateSection(
        "generations",
        states.Generation,
        CDC_GENERATIONS,
        key="generation id",
        items=lambda state: {generation.id: generation for generation in state.generations},
        unpublished={
            "ranges": "are shown one by one, in cdc-streams; the record has their number",
            "forgotten": "the record has number and digest of the streams as before",
            "expired": "under this name is since when, not with which epoch",
            "expired_at": "is shown as expired",
        },
        hidden={"tables": "are shown stream by stream, as tablet_streams; cdc-streams has them, too"},
        split_fields=(
            SplitField("streams", "ranges", lambda described: str(described.end)),
            SplitField("tablet_streams", "tablet_streams", lambda one: f"{one.table}/{one.end}"),
        ),
    ),
    StateSection(
        "prepared",
        states.PreparedGeneration,
        items=lambda state: {} if state.prepared is None else {state.prepared.id: state.prepared},
        hidden={"received": "streams that do not exist before the commit, a part of them at that"},
        unpublished={WHOLE: "a generation is published when it is committed, and may be dropped before"},
    ),
    StateSection(
        "writers", states.CdcWriter, unpublished={WHOLE: "what they promise ends in the close of a generation"}
    ),
    StateSection(
        "past_ttls",
        states.PastTtl,
        items=lambda state: {str(past.until): past for past in state.past_ttls},
        unpublished={WHOLE: "what comes of it is the expiry of generations"},
    ),
    StateSection(
        "settled",
        Settled,
        items=lambda state: {"verdicts": state.settled} if state.settled.until else {},
        unpublished={WHOLE: "who judges writes folds the log"},
    ),
    StateSection("pauses", Pause, unpublished={WHOLE: "what operators hold up; no consumer depends on it"}),
    StateSection(
        "service_goal",
        ServiceGoal,
        items=lambda state: {"service": state.service_goal} if state.service_goal != ServiceGoal() else {},
        unpublished={WHOLE: "what operators want of the metadata service; its topic has the members"},
    ),
    StateSection(
        "table_lives", TableLifetime, hidden={WHOLE: "repeats tables, as they were; who judges writes folds the log"}
    ),
    *sections_of(states.ClusterState),
)
"""The sections, in the order of publication."""

assert sorted(part.name for part in PARTS) == sorted(states.PARTS), "each part is declared once"
assert all(
    not {*part.hidden, *part.unpublished} - {WHOLE} - {one.name for one in fields(part.item)}
    for part in PARTS
    if is_dataclass(part.item)
), "what is not shown is a field"

assert all(part.hidden.keys().isdisjoint(part.unpublished) for part in PARTS), "a field has one reason not to be shown"
assert all(bool(part.topic) != (WHOLE in {*part.hidden, *part.unpublished}) for part in PARTS), (
    "a part has a topic, or the reason why it has none"
)
assert all({*part.uses} < {*states.PARTS} for part in PARTS), "items follow from sections of the state"
assert all(hasattr(part.item, split.field) for part in PARTS for split in part.split_fields if split.field), (
    "a field that is shown element by element is one of the item"
)

_KEYS = [(part.topic, part.prefix) for part in PARTS if part.topic]
assert len(set(_KEYS)) == len(_KEYS), "the keys of two parts in one topic differ by their prefix"

BY_NAME: Final = {part.name: part for part in PARTS}
