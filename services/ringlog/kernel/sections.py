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
from typing import Final

from ringlog.kernel.model import state as states
from ringlog.kernel.model.modes import Pause, ServiceGoal, Term
from ringlog.kernel.model.state_section import WHOLE, SplitField, StateSection
from ringlog.kernel.model.tables import Keyspace, Settled, Table, TableLifetime, UserType
from ringlog.kernel.model.tablet_map import TabletMap, shown
from ringlog.kernel.operations.moving import ServedRange, as_served, served
from ringlog.kernel.operations.node_states import shown_nodes
from ringlog.kernel.values import is_value_class

NODES: Final = "nodes"
PLACEMENTS: Final = "placements"
SCHEMA: Final = "schema"
OPERATIONS: Final = "operations"
TABLETS: Final = "tablets"
CDC_STREAMS: Final = "cdc-streams"
CDC_GENERATIONS: Final = "cdc-generations"
EPOCHS: Final = "epochs"


def listed_nodes(state: states.ClusterState) -> Mapping[str, states.Node]:
    """Return the nodes by id, with states named as in ``kernel.operations.node_states``."""
    return dict(states.in_order(shown_nodes(state)))


PARTS: Final = (
    StateSection("settings", int, unpublished={WHOLE: "limits that operators set; no consumer depends on them"}),
    StateSection("terms", Term, unpublished={WHOLE: "the topic agents names the active instances"}),
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
            "made": "nodes read it from the log to recognize registers of a dropped keyspace of the same name",
            "joined": "nodes read it from the log to decide which members have registers",
        },
        unpublished={
            "replication": "shown as strategy, factor, datacenters and zone; this name has the key of the placement",
            "placement": "shown as replication",
        },
    ),
    StateSection("tables", Table, SCHEMA, "table/", "keyspace.table"),
    StateSection("table_ids", str, hidden={WHOLE: "repeats the ids of tables, and keeps those of dropped tables"}),
    StateSection("types", UserType, SCHEMA, "type/", "keyspace.type"),
    StateSection(
        "schema_version",
        str,
        items=lambda state: {"version": state.schema_version} if state.schema_version else {},
        unpublished={WHOLE: "the topic schema has each change"},
    ),
    StateSection(
        "operations",
        states.Operation,
        OPERATIONS,
        key="operation id",
        hidden={"plan": "grows with the ring, and only the fold uses it; each range shows its own move"},
        unpublished={
            "locks": "grow with the ring; only admission uses them",
            "reports": "grow with the number of nodes that receive ranges",
            "ignored": "grow with the number of nodes that are down",
        },
        split_fields=(SplitField("locks", "locks", lambda lock: f"{lock.replication}/{lock.end}"),),
    ),
    StateSection(
        "tablets",
        TabletMap,
        TABLETS,
        key="keyspace.table",
        hidden={"ends": "repeats the ends of the tablets", "held": "repeats the replicas of the tablets"},
        unpublished={
            "nodes": "each tablet has its own nodes",
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
            "ranges": "have their own records in cdc-streams; this record has their number",
            "forgotten": "the record keeps the number and the digest of the streams",
            "expired": "this name has the time of the expiry, not its epoch",
            "expired_at": "is shown as expired",
        },
        hidden={"tables": "are shown by stream, as tablet_streams and in cdc-streams"},
        split_fields=(
            SplitField("streams", "ranges", lambda described: str(described.end)),
            SplitField("tablet_streams", "tablet_streams", lambda one: f"{one.table}/{one.end}"),
        ),
    ),
    StateSection(
        "prepared",
        states.PreparedGeneration,
        items=lambda state: {} if state.prepared is None else {state.prepared.id: state.prepared},
        hidden={"received": "an incomplete list of streams that do not exist before the commit"},
        unpublished={WHOLE: "a prepared generation may be dropped; it is published after its commit"},
    ),
    StateSection("writers", states.CdcWriter, unpublished={WHOLE: "consumers see their effect: a closed generation"}),
    StateSection(
        "past_ttls",
        states.PastTtl,
        items=lambda state: {str(past.until): past for past in state.past_ttls},
        unpublished={WHOLE: "consumers see their effect: the expiry of generations"},
    ),
    StateSection(
        "settled",
        Settled,
        items=lambda state: {"verdicts": state.settled} if state.settled.until else {},
        unpublished={WHOLE: "validators of writes fold the log"},
    ),
    StateSection("pauses", Pause, unpublished={WHOLE: "changes that operators pause; no consumer depends on them"}),
    StateSection(
        "service_goal",
        ServiceGoal,
        items=lambda state: {"service": state.service_goal} if state.service_goal != ServiceGoal() else {},
        unpublished={WHOLE: "the target that operators set; the topic service has the members"},
    ),
    StateSection(
        "table_lives", TableLifetime, hidden={WHOLE: "has past versions of tables; validators of writes fold the log"}
    ),
    *states.RECORD_SECTIONS,
)
"""The sections, in the order of publication."""

assert sorted(part.name for part in PARTS) == sorted(states.PARTS), "each section is declared once"
assert all(
    not {*part.hidden, *part.unpublished} - {WHOLE} - {*part.item.__struct_fields__}
    for part in PARTS
    if is_value_class(part.item)
), "hidden and unpublished names are fields of the item"

assert all(part.hidden.keys().isdisjoint(part.unpublished) for part in PARTS), "no field is both hidden and unpublished"
assert all(bool(part.topic) != (WHOLE in {*part.hidden, *part.unpublished}) for part in PARTS), (
    "a section has either a topic or a reason to have none"
)
assert all({*part.uses} < {*states.PARTS} for part in PARTS), "items are derived from named sections of the state"
assert all(hasattr(part.item, split.field) for part in PARTS for split in part.split_fields if split.field), (
    "a split field is a field of the item"
)

_KEYS = [(part.topic, part.prefix) for part in PARTS if part.topic]
assert len(set(_KEYS)) == len(_KEYS), "sections in one topic have different key prefixes"

BY_NAME: Final = {part.name: part for part in PARTS}

_topics = dict.fromkeys(part.topic for part in PARTS if part.topic)
CHANGE_TOPICS: Final = (
    *(one for topic in _topics for one in ((CDC_STREAMS, topic) if topic == CDC_GENERATIONS else (topic,))),
    EPOCHS,
)
"""The suffixes of the topics' names, in the order of the records of a difference. Streams precede their generation."""
