"""ClusterState: the content of the log as one immutable value.

Every entity is a ``Value``; every collection is a tuple or a persistent map, so states share unchanged parts.
Maps iterate in hash-seed order: code that decides, encodes or digests sorts first (``in_order``).

``changed`` has the epoch of the last modification of each section. ``advance`` is the only way to the next state. It
stamps sections by identity: a section that was not replaced keeps its epoch.

``kernel.invariants`` declares and checks the invariants of every state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from immutables import Map

from ringlog.kernel.model.applied_history import EMPTY_HISTORY, History
from ringlog.kernel.model.modes import (
    RECOVERIES,
    Feature,
    LogBound,
    Pause,
    Recovery,
    ServiceGoal,
    ServiceMember,
    TakenSnapshot,
    Term,
)
from ringlog.kernel.model.plans import APPROVALS, PLANS, StagedPlan
from ringlog.kernel.model.principals import PRINCIPALS, Principal
from ringlog.kernel.model.state_section import WHOLE, StateSection
from ringlog.kernel.model.tables import (
    AGGREGATES,
    FUNCTIONS,
    INDEXES,
    VIEWS,
    Aggregate,
    Function,
    Keyspace,
    Settled,
    Table,
    TableIndex,
    TableLifetime,
    UserType,
    View,
)
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.tablet_streams import DescribedTable, TabletStream, streams_of
from ringlog.kernel.model.zones import ZONE_PARTITIONS, ZONES, Zone, ZonePartition
from ringlog.kernel.values import (
    Epoch,
    GenerationId,
    GenerationRange,
    Micros,
    NodeId,
    OperationId,
    Position,
    Replication,
    StreamReport,
    Token,
    Value,
    field,
    replace,
)

K = TypeVar("K", str, int)
V = TypeVar("V")


# -------------------------------------------------------------------------------------------------- directory


NODE_STATES = ("none", "joining", "normal", "moving", "leaving", "left")
NO_MEMBER = ("none", "left")
"""States of nodes that are not members and are not joining."""
STAYS = ("normal", "moving")
"""States of members that own tokens and keep owning some."""
OWNING = (*STAYS, "leaving")
"""States of nodes that own tokens."""

assert {*NO_MEMBER, *OWNING} < {*NODE_STATES}, "each name is a state of a node"


class Node(Value):
    """A member of the directory; ids and names are never reused.

    ``state``: one of ``NODE_STATES``. ``down``, ``down_reason``: whether it was declared down, and why. ``replaced``:
    id of the node that it replaced in a finished operation; empty: none.
    """

    id: NodeId
    name: str
    address: str
    datacenter: str
    rack: str
    shards: int
    ignore_msb: int
    release: str
    features: tuple[str, ...]
    capacity: int
    state: str
    tokens: tuple[Token, ...]
    registered: Epoch
    down: bool = False
    down_reason: str = ""
    replaced: NodeId = ""


# -------------------------------------------------------------------------------------------------- placement


class Replica(Value):
    """A member of a group, and the epoch since which it has been a member, without a gap."""

    node: NodeId
    since: Epoch


class RangeGroup(Value):
    """The replicas of the range ``(start, end]``. ``changed``: the epoch that last changed its read or write group."""

    start: Token
    end: Token
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch


class Placement(Value):
    """The groups of all ranges under one replication setting, sorted by ``end``.

    ``ends`` repeats the ends for bisection.
    """

    key: str
    ranges: tuple[RangeGroup, ...]
    ends: tuple[Token, ...]


# ------------------------------------------------------------------------------------------------- operations


class Change(Value):
    """One node enters or leaves one group of the range ``(start, end]`` under a replication setting."""

    replication: str
    start: Token
    end: Token
    node: NodeId


class Deltas(Value):
    """Additions to and removals from read and write groups in one step; the inverse swaps added and removed."""

    read_added: tuple[Change, ...] = ()
    read_removed: tuple[Change, ...] = ()
    write_added: tuple[Change, ...] = ()
    write_removed: tuple[Change, ...] = ()

    def inverse(self) -> Deltas:
        """Return the deltas that undo these."""
        return Deltas(self.read_removed, self.read_added, self.write_removed, self.write_added)


class Source(Value):
    """A stream: ``target`` gets the rows of ``(start, end]`` from ``source``, the replica that it replaces.

    If that replica is dead or does not exist, there are several sources for one range and target: a quorum of the old
    group, whose rows are merged. A target may already have the range if its group shrinks.
    """

    replication: str
    start: Token
    end: Token
    source: NodeId
    target: NodeId


class Plan(Value):
    """An operation as data, so that any instance can resume or cancel it.

    ``split_at``: tokens at which ranges are split when it is prepared (undone by a cancel). ``start`` is applied on
    entering ``write_both_read_old``, ``middle`` on ``write_both_read_new``, ``finish`` on ``finished``; then ranges are
    merged at ``merge_at``. ``sources``: the streams.
    """

    split_at: tuple[Token, ...] = ()
    start: Deltas = field(default_factory=Deltas)
    middle: Deltas = field(default_factory=Deltas)
    finish: Deltas = field(default_factory=Deltas)
    sources: tuple[Source, ...] = ()
    merge_at: tuple[Token, ...] = ()


class LockedRange(Value):
    """A range that an operation keeps others from changing.

    ``changed``: the value of the range when it was locked, restored by a cancel.
    """

    replication: str
    start: Token
    end: Token
    changed: Epoch


class StageMark(Value):
    """An operation entered ``stage`` with ``epoch``, at state time ``at``."""

    stage: str
    epoch: Epoch
    at: Micros


class Failure(Value):
    """An error of an operation, reported with the entry of ``epoch``.

    ``node``: the node that failed; empty: unknown. ``tries``: the number of tries; 0: no retry can help.
    """

    epoch: Epoch
    reason: str
    node: NodeId = ""
    tries: int = 0


class Retry(Value):
    """An operator's decision, with the entry of ``epoch``, to retry an operation."""

    epoch: Epoch
    reason: str


class Operation(Value):
    """A range movement: its plan, stage, locks and history. Ended ones are kept for a while, without plan and locks.

    ``kind`` and ``stage``: see ``operations.stages``. ``stage_epoch``: the epoch at which the present stage began.
    ``node``: the node that joins, moves, leaves or rebuilds (empty: a keyspace changes). ``tokens``: the tokens that
    the node owns afterwards; ``gone``: tokens without an owner afterwards. ``replaced``: the node whose tokens it takes
    over. ``ignored``: nodes that are neither witnesses nor sources. ``keyspace`` and ``replication``: the altered
    keyspace and its new replication. ``generation``: the CDC generation made for it, once its data began to arrive.
    ``relaxed``: stages that it left although their gate was not fully met, because a setting allowed it. ``failures``,
    ``retries``: the last ones.
    """

    id: OperationId
    kind: str
    node: NodeId
    tokens: tuple[Token, ...]
    seed: bytes
    stage: str
    stage_epoch: Epoch
    plan: Plan
    locks: tuple[LockedRange, ...]
    generation: GenerationId | None
    marks: tuple[StageMark, ...]
    reports: tuple[StreamReport, ...]
    reason: str
    gone: tuple[Token, ...] = ()
    replaced: NodeId = ""
    ignored: tuple[NodeId, ...] = ()
    keyspace: str = ""
    replication: Replication | None = None
    source_datacenter: str = ""
    failures: tuple[Failure, ...] = ()
    relaxed: tuple[str, ...] = ()
    retries: tuple[Retry, ...] = ()


# -------------------------------------------------------------------------------------------------------- CDC


class Forgotten(Value):
    """The remains of a generation's streams: their number, the number of their ranges, and their digest."""

    ranges: int
    streams: int
    digest: str


class Generation(Value):
    """A committed CDC generation.

    It is active from ``timestamp`` to that of the next one. ``status``: committed, published, closed, expired.
    ``closed_at``: the time of the close, by its author's clock. ``expired`` and ``expired_at``: the epoch that recorded
    the expiry of its rows, and the time of the expiry. ``forgotten``: set once ``ranges`` are empty because they have
    left the state; the record stays. ``leeway``: the allowed lateness at its commit, once the setting has changed
    since; None: the current setting (``leeway_at``). ``tables``: the tables in tablets that it describes, by id; rows
    of all other tables are in the streams of ``ranges``.
    """

    id: GenerationId
    timestamp: Micros
    ranges: tuple[GenerationRange, ...]
    status: str
    committed: Epoch
    published: Epoch | None
    closed: Epoch | None
    positions: tuple[Position, ...]
    closed_at: Micros = 0
    expired: Epoch | None = None
    expired_at: Micros = 0
    forgotten: Forgotten | None = None
    leeway: Micros | None = None
    tables: tuple[DescribedTable, ...] = ()

    @property
    def tablet_streams(self) -> tuple[TabletStream, ...]:
        """Return the streams of the tables in tablets, by table and tablet."""
        return tuple(stream for described in self.tables for stream in streams_of(self.timestamp, described))


class PastTtl(Value):
    """Before the epoch ``until``, rows of some CDC log had a TTL of ``ttl`` seconds; 0: no expiry."""

    ttl: int
    until: Epoch


class PreparedGeneration(Value):
    """The one generation between its request, or the first part of its data, and its commit.

    ``operation``: the operation that it was started for; None: check and repair. ``parts`` is 0 until the first part
    has arrived.
    """

    id: GenerationId
    operation: OperationId | None
    seed: bytes
    parts: int
    received: tuple[tuple[int, tuple[GenerationRange, ...]], ...]


class CdcWriter(Value):
    """A registered CDC writer.

    ``floor``: the horizon at registration; this incarnation never lowers its horizon below it. ``fenced``: the epoch
    since which neither this incarnation nor an earlier one can write; ``fence_reason``: why. ``source``: the topic that
    it logs, empty if it registered without one. ``decided``: positions in that topic below which every write is decided
    finally.
    """

    name: str
    incarnation: str
    registered: Epoch
    horizon: Micros
    floor: Micros
    low_watermark: Micros
    positions: tuple[Position, ...]
    ended: tuple[str, ...]
    fenced: Epoch | None = None
    fence_reason: str = ""
    source: str = ""
    decided: tuple[Position, ...] = ()


class GlobalRequest(Value):
    """A request to the cluster as a whole, made with the entry of ``epoch`` at state time ``at``.

    ``kind``: ``check_and_repair`` (of the CDC streams). ``generation``: the generation that it waits or waited for;
    None: there was nothing to do. ``outcome``: one of ``generations.requests.OUTCOMES``. ``ended``, ``ended_at``: the
    epoch that ended it, and the state time then.
    """

    id: str
    kind: str
    requester: str
    epoch: Epoch
    at: Micros
    generation: GenerationId | None
    outcome: str
    ended: Epoch | None = None
    ended_at: Micros = 0


# ------------------------------------------------------------------------------------------------------ state


class ClusterState(Value):
    """The state at ``epoch``. Only plans expire by ``time``, the greatest ``at``. No rule depends on ``chain``."""

    cluster_id: str = ""
    name: str = ""
    epoch: Epoch = 0
    state_id: str = ""
    time: Micros = 0
    schema_version: str = ""
    settings: Map[str, int] = Map()
    terms: Map[str, Term] = Map()
    nodes: Map[str, Node] = Map()
    node_names: Map[str, NodeId] = Map()
    token_owners: Map[int, NodeId] = Map()
    keyspaces: Map[str, Keyspace] = Map()
    tables: Map[str, Table] = Map()
    table_ids: Map[str, str] = Map()
    placements: Map[str, Placement] = Map()
    operations: Map[str, Operation] = Map()
    generations: tuple[Generation, ...] = ()
    prepared: PreparedGeneration | None = None
    writers: Map[str, CdcWriter] = Map()
    past_ttls: tuple[PastTtl, ...] = ()
    types: Map[str, UserType] = Map()
    features: Map[str, Feature] = Map()
    tablets: Map[str, TabletMap] = Map()
    settled: Settled = Settled()
    table_lives: Map[str, tuple[TableLifetime, ...]] = Map()
    pauses: Map[str, Pause] = Map()
    requests: Map[str, GlobalRequest] = Map()
    snapshots: Map[str, TakenSnapshot] = Map()
    log_bounds: Map[str, LogBound] = Map()
    views: Map[str, View] = Map()
    indexes: Map[str, TableIndex] = Map()
    functions: Map[str, Function] = Map()
    aggregates: Map[str, Aggregate] = Map()
    zones: Map[str, Zone] = Map()
    zone_partitions: Map[str, ZonePartition] = Map()
    service: Map[str, ServiceMember] = Map()
    service_goal: ServiceGoal = ServiceGoal()
    recoveries: Map[str, Recovery] = Map()
    principals: Map[str, Principal] = Map()
    plans: Map[str, StagedPlan] = Map()
    approvals: Map[str, int] = Map()
    history: History = EMPTY_HISTORY
    changed: Map[str, int] = Map()
    chain: bytes = b""


RECORD_SECTIONS: Final = (
    StateSection("features", Feature, "features", key="name of the feature", most=(256, "features")),
    StateSection(
        "requests",
        GlobalRequest,
        unpublished={WHOLE: "the generation that a request waits for is published, with its streams"},
        most=(20_000, "requests to the cluster, including ended ones"),
    ),
    StateSection("snapshots", TakenSnapshot, unpublished={WHOLE: "the topic snapshots has the stored snapshots"}),
    StateSection("log_bounds", LogBound, unpublished={WHOLE: "readers of the log find the bounds in the log"}),
    VIEWS,
    INDEXES,
    FUNCTIONS,
    AGGREGATES,
    ZONES,
    ZONE_PARTITIONS,
    StateSection("service", ServiceMember, "service", prefix="member/", key="node id"),
    RECOVERIES,
    PRINCIPALS,
    PLANS,
    APPROVALS,
)
"""The sections that are maps of records, in the order of the fields."""

_NOT_SECTIONS = ("cluster_id", "name", "epoch", "state_id", "time", "history", "changed", "chain")

PARTS = tuple(name for name in ClusterState.__struct_fields__ if name not in _NOT_SECTIONS)
"""The sections with a last-modified epoch; each has its own digest. ``kernel.sections`` declares their readers."""

_STAMPED = frozenset(PARTS)
EMPTY_STATE = ClusterState()


def changes_nothing(before: ClusterState, after: ClusterState) -> bool:
    """Return True if no section was replaced: the states differ at most in epoch, ids, time and history."""
    return after.changed is before.changed


def in_order(mapping: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return the items of a map by ascending key. The kernel walks maps only in this order."""
    return sorted(mapping.items())


def generation_of(state: ClusterState, name: GenerationId | None) -> Generation | None:
    """Return the generation of that id, or None. The search starts with the last one, the usual one."""
    for generation in reversed(state.generations):
        if generation.id == name:
            return generation
    return None


def advance(state: ClusterState, epoch: Epoch, **parts: Any) -> ClusterState:
    """Return the next state with ``parts`` replaced.

    Sections whose object changed get ``epoch`` as last modified.
    """
    changed = state.changed
    for name, part in parts.items():
        if name in _STAMPED and part is not getattr(state, name):
            changed = changed.set(name, epoch)
    return replace(state, changed=changed, **parts)
