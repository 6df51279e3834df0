"""Change records: what the rest of the world is told, as the difference of two states.

Each topic holds one record for each key; the last one counts, and a record without value says that the key is gone.
So a compacted topic is the current state, and a consumer that reads it from its beginning has it.

===============  ===============================================  ==================
topic            key                                              value
===============  ===============================================  ==================
nodes            node id                                          NodeChange
placements       replication key ``/`` range end                  PlacementChange
schema           ``keyspace/`` name, ``table/`` keyspace.table    KeyspaceChange, TableChange
operations       operation id                                     OperationChange
cdc-streams      generation id ``/`` range end                    StreamsChange
cdc-generations  generation id                                    GenerationChange
epochs           ``head``                                         EpochChange
===============  ===============================================  ==================

``diff`` gives the records in the order of this table: whoever has seen a generation has been given its streams, and
the record of ``epochs`` closes each difference. A generation appears when it is committed; when it expires its streams
are first marked so, and deleted with a later epoch. Folding all differences
from the empty state on gives, but for the epochs of the values, ``project`` of the last one. Values carry the epoch
of the state that they are from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ringlog.kernel.commands.model import CdcOptions, Column, DatacenterReplication, Position
from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.operations.failures import stopped_by
from ringlog.kernel.ownership.placements import placement_key
from ringlog.kernel.state import (
    EMPTY_STATE,
    ClusterState,
    Generation,
    Keyspace,
    Node,
    Operation,
    Placement,
    RangeGroup,
    Replica,
    Table,
)
from ringlog.kernel.values import Epoch, GenerationId, Micros, NodeId, OperationId, Token

V = TypeVar("V")

NODES = "nodes"
PLACEMENTS = "placements"
SCHEMA = "schema"
OPERATIONS = "operations"
CDC_STREAMS = "cdc-streams"
CDC_GENERATIONS = "cdc-generations"
EPOCHS = "epochs"

CHANGE_TOPICS = (NODES, PLACEMENTS, SCHEMA, OPERATIONS, CDC_STREAMS, CDC_GENERATIONS, EPOCHS)
"""The suffixes of the topics' names, in the order of the records of a difference."""

HEAD = "head"
"""The one key of ``epochs``: its last record says up to where the others go."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A member of the directory, as it is since ``epoch``."""

    epoch: Epoch
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


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Who serves the range ``(start, end]`` of keyspaces with this replication key; ``changed``: since which epoch."""

    epoch: Epoch
    replication: str
    start: Token
    end: Token
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch


@dataclass(frozen=True, slots=True)
class KeyspaceChange:
    """A keyspace; ``replication`` is the key of its records in ``placements``."""

    epoch: Epoch
    name: str
    strategy: str
    factor: int
    replication: str
    version: str
    datacenters: tuple[DatacenterReplication, ...] = ()


@dataclass(frozen=True, slots=True)
class TableChange:
    """A table; ``version`` is the state id of the entry that last changed it."""

    epoch: Epoch
    id: str
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...]
    cdc: CdcOptions
    version: str
    changed: Epoch
    committed_by_log: bool


@dataclass(frozen=True, slots=True)
class OperationChange:
    """A range movement and the stage in which it is since ``stage_epoch``, or how it ended.

    ``stopped``: why it stands still until an operator decides; empty if it goes on.
    """

    epoch: Epoch
    id: OperationId
    kind: str
    node: NodeId
    tokens: tuple[Token, ...]
    stage: str
    stage_epoch: Epoch
    generation: GenerationId | None
    reason: str
    gone: tuple[Token, ...] = ()
    replaced: NodeId = ""
    keyspace: str = ""
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class StreamsChange:
    """The streams of the range ``(start, end]`` of a generation, in slot order (order is data: slot j is of shard j).

    ``expired`` (microseconds): since when none of their rows is kept; null while they may be. The record is deleted
    some time after it was marked so.
    """

    epoch: Epoch
    generation: GenerationId
    timestamp: Micros
    start: Token
    end: Token
    ignore_msb: int
    streams: tuple[bytes, ...]
    expired: Micros | None


@dataclass(frozen=True, slots=True)
class GenerationChange:
    """A committed generation: operates from ``timestamp`` on; ``status`` committed, published, closed or expired.

    ``ranges`` and ``streams`` count its records in ``cdc-streams`` and their ids, ``digest`` is hex SHA-256 over
    them. A consumer moves on from a closed generation when it has read the CDC topic up to ``positions``. Of an
    expired one (``expired`` as in StreamsChange) the records in ``cdc-streams`` go; this one stays for ever.
    """

    epoch: Epoch
    id: GenerationId
    timestamp: Micros
    status: str
    ranges: int
    streams: int
    digest: str
    committed: Epoch
    published: Epoch | None
    closed: Epoch | None
    positions: tuple[Position, ...]
    expired: Micros | None


@dataclass(frozen=True, slots=True)
class EpochChange:
    """The changes up to ``epoch`` are out; ``state_id`` and ``time`` (microseconds) are those of the state there."""

    epoch: Epoch
    cluster_id: str
    state_id: str
    time: Micros


Change = (
    NodeChange
    | PlacementChange
    | KeyspaceChange
    | TableChange
    | OperationChange
    | StreamsChange
    | GenerationChange
    | EpochChange
)


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One record of a change topic; without value the key is gone."""

    topic: str
    key: str
    value: Change | None


def diff(before: ClusterState, after: ClusterState) -> tuple[ChangeRecord, ...]:
    """The records that bring readers from ``before`` to ``after``; none if it is the same epoch. Costs what differs."""
    if after.epoch == before.epoch:
        return ()
    records: list[ChangeRecord] = []
    for part in _PARTS:
        old, new = part.items(before), part.items(after)
        if old is not new:
            records += _difference(part, old, new, after.epoch)
    head = EpochChange(after.epoch, after.cluster_id, after.state_id, after.time)
    return (*records, ChangeRecord(EPOCHS, HEAD, head))


def project(state: ClusterState) -> dict[tuple[str, str], Change]:
    """All that the change topics hold at ``state``: (topic, key) to value, each with the epoch of ``state``."""
    records = diff(EMPTY_STATE, state)
    return {(record.topic, record.key): record.value for record in records if record.value is not None}


# --------------------------------------------------------------------------------------- parts and their difference


@dataclass(frozen=True, slots=True)
class _Part:
    """How one part of the state becomes records: its items, and the records of one item."""

    items: Callable[[ClusterState], Any]
    keyed: Callable[[Any], Mapping[Any, Any]]
    records: Callable[[Any, Any, Epoch], Iterable[ChangeRecord]]


def _difference(part: _Part, before: Any, after: Any, epoch: Epoch) -> Iterator[ChangeRecord]:
    """Records of the items that differ, by key: first what is gone, then what is new or changed."""
    old, new = part.keyed(before), part.keyed(after)
    for key in sorted(key for key in old if key not in new):
        yield from part.records(old[key], None, epoch)
    for key in sorted(new):
        known, item = old.get(key), new[key]
        if item is not known and item != known:
            yield from part.records(known, item, epoch)


def _single(
    topic: str, key: Callable[[V], str], value: Callable[[V, Epoch], Change]
) -> Callable[[V | None, V | None, Epoch], Iterable[ChangeRecord]]:
    """An item that has one record."""

    def records(before: V | None, after: V | None, epoch: Epoch) -> Iterable[ChangeRecord]:
        if after is not None:
            return (ChangeRecord(topic, key(after), value(after, epoch)),)
        assert before is not None, "an item is there before or after"
        return (ChangeRecord(topic, key(before), None),)

    return records


def _node(node: Node, epoch: Epoch) -> NodeChange:
    return NodeChange(
        epoch=epoch,
        id=node.id,
        name=node.name,
        address=node.address,
        datacenter=node.datacenter,
        rack=node.rack,
        shards=node.shards,
        ignore_msb=node.ignore_msb,
        release=node.release,
        features=node.features,
        capacity=node.capacity,
        state=node.state,
        tokens=node.tokens,
        registered=node.registered,
        down=node.down,
    )


def _placement(before: Placement | None, after: Placement | None, epoch: Epoch) -> Iterable[ChangeRecord]:
    """The ranges of one placement that are gone, new or changed."""
    shown = before if after is None else after
    assert shown is not None, "a placement is there before or after"
    key = shown.key
    old = _by_end(before)
    new = _by_end(after)
    for end in sorted(end for end in old if end not in new):
        yield ChangeRecord(PLACEMENTS, f"{key}/{end}", None)
    for end in sorted(new):
        group, known = new[end], old.get(end)
        if group is not known and group != known:
            value = PlacementChange(epoch, key, group.start, end, group.read, group.write, group.changed)
            yield ChangeRecord(PLACEMENTS, f"{key}/{end}", value)


def _by_end(placement: Placement | None) -> dict[Token, RangeGroup]:
    return {} if placement is None else {group.end: group for group in placement.ranges}


def _keyspace(keyspace: Keyspace, epoch: Epoch) -> KeyspaceChange:
    replication = keyspace.replication
    return KeyspaceChange(
        epoch=epoch,
        name=keyspace.name,
        strategy=replication.strategy,
        factor=replication.factor,
        replication=placement_key(keyspace),
        version=keyspace.version,
        datacenters=replication.datacenters,
    )


def table_change(table: Table, epoch: Epoch) -> TableChange:
    """The record of a table in a state of ``epoch``."""
    return TableChange(
        epoch=epoch,
        id=table.id,
        keyspace=table.keyspace,
        name=table.name,
        columns=table.columns,
        partition_key=table.partition_key,
        clustering_key=table.clustering_key,
        cdc=table.cdc,
        version=table.version,
        changed=table.changed,
        committed_by_log=table.committed_by_log,
    )


def _operation(operation: Operation, epoch: Epoch) -> OperationChange:
    return OperationChange(
        epoch=epoch,
        id=operation.id,
        kind=operation.kind,
        node=operation.node,
        tokens=operation.tokens,
        stage=operation.stage,
        stage_epoch=operation.stage_epoch,
        generation=operation.generation,
        reason=operation.reason,
        gone=operation.gone,
        replaced=operation.replaced,
        keyspace=operation.keyspace,
        stopped="; ".join(failure.reason or "failed" for failure in stopped_by(operation)[-1:]),
    )


def _streams(before: Generation | None, after: Generation | None, epoch: Epoch) -> Iterable[ChangeRecord]:
    """The ranges of a generation when it appears, expires or is forgotten; otherwise they never change."""
    if before is not None and (after is None or (not after.ranges and before.ranges)):
        for described in before.ranges:
            yield ChangeRecord(CDC_STREAMS, f"{before.id}/{described.end}", None)
    elif after is not None and after.ranges and (before is None or before.expired != after.expired):
        start = after.ranges[-1].end
        for described in after.ranges:
            value = StreamsChange(
                epoch=epoch,
                generation=after.id,
                timestamp=after.timestamp,
                start=start,
                end=described.end,
                ignore_msb=described.ignore_msb,
                streams=described.streams,
                expired=_expired(after),
            )
            yield ChangeRecord(CDC_STREAMS, f"{after.id}/{described.end}", value)
            start = described.end


def _expired(generation: Generation) -> Micros | None:
    return None if generation.expired is None else generation.expired_at


def _generation(generation: Generation, epoch: Epoch) -> GenerationChange:
    size = size_of(generation)
    return GenerationChange(
        epoch=epoch,
        id=generation.id,
        timestamp=generation.timestamp,
        status=generation.status,
        ranges=size.ranges,
        streams=size.streams,
        digest=size.digest,
        committed=generation.committed,
        published=generation.published,
        closed=generation.closed,
        positions=generation.positions,
        expired=_expired(generation),
    )


def _as_it_is(items: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return items


def _by_timestamp(generations: Iterable[Generation]) -> Mapping[Micros, Generation]:
    return {generation.timestamp: generation for generation in generations}


_PARTS = (
    _Part(lambda state: state.nodes, _as_it_is, _single(NODES, lambda node: node.id, _node)),
    _Part(lambda state: state.placements, _as_it_is, _placement),
    _Part(lambda state: state.keyspaces, _as_it_is, _single(SCHEMA, lambda item: f"keyspace/{item.name}", _keyspace)),
    _Part(lambda state: state.tables, _as_it_is, _single(SCHEMA, lambda item: f"table/{item.full_name}", table_change)),
    _Part(lambda state: state.operations, _as_it_is, _single(OPERATIONS, lambda item: item.id, _operation)),
    _Part(lambda state: state.generations, _by_timestamp, _streams),
    _Part(lambda state: state.generations, _by_timestamp, _single(CDC_GENERATIONS, lambda item: item.id, _generation)),
)
