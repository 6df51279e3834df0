"""Change records: what the rest of the world sees, as the difference of two states.

Each topic holds one record for each key; the last one counts, and a record without value says that the key is gone.
So a compacted topic is the current state, and a consumer that reads it from its beginning has it.

Which parts are published, under which topic and key, and which fields are not, is declared in ``kernel.sections``. A
change record has the other fields of its item by their names, and a few that are made of it; that none is missing is
checked as this module is imported.

``diff`` gives the records in the order of ``CHANGE_TOPICS``: a reader that has seen a generation has got its streams,
and the record of ``epochs`` closes each difference. A generation appears when it is committed; when it expires its
streams are first marked so, and deleted with a later epoch. Folding all differences from the empty state on gives, but
for the epochs of the values, ``project`` of the last one. Values carry the epoch of the state that they are from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, make_dataclass
from inspect import getdoc
from operator import attrgetter, is_not
from typing import Annotated, Any, Final, TypeVar, get_type_hints

from ringlog.kernel.columns.blocks import apart
from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Generation, Node, Operation, RangeGroup, Replica
from ringlog.kernel.model.state_section import StateSection, sections_of
from ringlog.kernel.model.tables import Keyspace, Table, UserType
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.tablet_streams import DescribedTable, ranges_of
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.moving import RangeChange, ServedRange, as_served
from ringlog.kernel.ownership.placements import placement_key
from ringlog.kernel.sections import (
    BY_NAME,
    CDC_STREAMS,
    PLACEMENTS,
    TABLETS,
)
from ringlog.kernel.tablets.change_records import TabletChange, TabletsChange, changed_tablets, tablet_change
from ringlog.kernel.values import (
    DatacenterReplication,
    Epoch,
    GenerationId,
    GenerationRange,
    Micros,
    Position,
    Token,
)

C = TypeVar("C")

EPOCHS: Final = "epochs"

STREAM_KEYS: Final = "generation id `/` range end, or generation id `/` table id `/` tablet's end"

HEAD: Final = "head"
"""The one key of ``epochs``: its last record says up to where the others go."""


@dataclass(frozen=True, slots=True)
class NodeChange(Node):
    """A member of the directory, as it is since ``epoch``."""

    epoch: Epoch = 0


@dataclass(frozen=True, slots=True)
class ItemChange:
    """What the change records have in common that follow from the part alone."""

    epoch: Annotated[Epoch, "The epoch of the state that this is from."]


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Who serves the range ``(start, end]`` of keyspaces with this replication key; ``changed``: since which epoch.

    ``moving``: what operations in flight do to its write group; ``kernel.operations.moving.write_groups`` makes of it
    the groups of which a write needs a quorum.
    """

    epoch: Epoch
    replication: str
    start: Token
    end: Token
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch
    moving: tuple[RangeChange, ...] = ()


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
    zone: str = ""


@dataclass(frozen=True, slots=True)
class TableChange(Table):
    """A table; in ``columns`` user types are spelled out."""

    epoch: Epoch = 0


@dataclass(frozen=True, slots=True)
class TypeChange(UserType):
    """A user type."""

    epoch: Epoch


def _change_of(part: StateSection, own: Iterable[tuple[str, Any]] = ()) -> type[Any]:
    """The change record of a part: what is published of an item, and its docs, and ``own`` fields besides."""
    field_types = get_type_hints(part.item, include_extras=True)
    published = [(name, field_types[name]) for name in part.fields if name not in part.unpublished]
    summary = (getdoc(part.item) or "").split("\n\n")[0].rstrip(".")
    name = f"{part.item.__name__}Change"
    made = make_dataclass(name, [*published, *own], bases=(ItemChange,), frozen=True, slots=True)
    made.__module__, made.__doc__ = __name__, f"{summary}. Topic {part.topic}, key: {part.prefix}{part.key}."
    return made


OperationChange: Final = _change_of(BY_NAME["operations"], [("stopped", str)])
"""``stopped``: why it stands still until an operator decides; empty if it goes on."""


@dataclass(frozen=True, slots=True)
class StreamsChange:
    """The streams of the range ``(start, end]`` of a generation, in slot order (order is data: slot j is of shard j).

    ``expired`` (microseconds): since when none of their rows is kept; null while they may be. The record is deleted
    some time after it was marked so. ``table``: the id of the table in tablets of which the range is one; empty: of the
    ring.
    """

    epoch: Epoch
    generation: GenerationId
    timestamp: Micros
    start: Token
    end: Token
    ignore_msb: int
    streams: tuple[bytes, ...]
    expired: Micros | None
    table: str = ""


@dataclass(frozen=True, slots=True)
class GenerationChange:
    """A committed generation: operates from ``timestamp`` on; ``status`` committed, published, closed or expired.

    ``ranges`` and ``streams`` count its records in ``cdc-streams`` and their ids, ``digest`` is hex SHA-256 over
    them. A consumer moves on from a closed generation when it has read the CDC topic up to ``positions``. Of an
    expired one (``expired`` as in StreamsChange) the records in ``cdc-streams`` go; this one stays for ever.
    ``closed_at``: when it was closed, by its author's clock. ``leeway``: that of its commit, if the setting has changed
    since.
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
    closed_at: Micros = 0
    leeway: Micros | None = None


@dataclass(frozen=True, slots=True)
class EpochChange:
    """The changes up to ``epoch`` are out; ``state_id`` and ``time`` (microseconds) are those of the state there."""

    epoch: Epoch
    cluster_id: str
    state_id: str
    time: Micros


Change = (
    NodeChange
    | ItemChange
    | PlacementChange
    | KeyspaceChange
    | TableChange
    | TypeChange
    | TabletsChange
    | TabletChange
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
    head = EpochChange(after.epoch, after.cluster_id, after.state_id, after.time)
    if not any(map(is_not, _published(before), _published(after))):  # of most epochs this is all that is asked
        return (ChangeRecord(EPOCHS, HEAD, head),)
    records: list[ChangeRecord] = []
    for publication in PUBLICATIONS:
        if not publication.part.is_same(before, after):
            records += _difference(publication, publication.part.of(before), publication.part.of(after), after.epoch)
    return (*records, ChangeRecord(EPOCHS, HEAD, head))


def project(state: ClusterState) -> dict[tuple[str, str], Change]:
    """All that the change topics hold at ``state``: (topic, key) to value, each with the epoch of ``state``."""
    records = diff(EMPTY_STATE, state)
    return {(record.topic, record.key): record.value for record in records if record.value is not None}


def table_change(table: Table, epoch: Epoch) -> TableChange:
    """The record of a table in a state of ``epoch``."""
    return _table(table, epoch)


# --------------------------------------------------------------------------------------- parts and their difference


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication of a part: its topic, the class of its records, their keys, and the records of an item."""

    part: StateSection
    topic: str
    change: type[Any]
    key: str
    records: Callable[[str, Any, Any, Epoch], Iterable[ChangeRecord]]


def _difference(
    publication: Publication, before: Mapping[str, Any], after: Mapping[str, Any], epoch: Epoch
) -> Iterator[ChangeRecord]:
    """Records of the items that differ, in the order of the part: first what is gone, then what is new or changed."""
    for key, item in before.items():
        if key not in after:
            yield from publication.records(key, item, None, epoch)
    for key, item in after.items():
        known = before.get(key)
        if item is not known and item != known:
            yield from publication.records(key, known, item, epoch)


def _maker(
    name: str,
    change: Callable[..., C],
    extra: tuple[str, ...] = (),
    made: Callable[[Any], tuple[object, ...]] = lambda _: (),
) -> Callable[[Any, Epoch], C]:
    """Items of a part to ``change``: the published fields, by their names, and ``extra`` ones ``made`` of them.

    Raises TypeError if the class has other fields.
    """
    part = BY_NAME[name]
    published = set(part.fields).difference(part.unpublished)
    own = {one.name for one in fields(change)}.difference(extra, ("epoch",))  # type: ignore[arg-type]
    if published != own:
        raise TypeError(f"{change} and {part.item} differ in {sorted(published ^ own)}: see kernel.parts")
    names = sorted(own)

    def make(item: Any, epoch: Epoch) -> C:
        values = {name: getattr(item, name) for name in names}
        return change(epoch=epoch, **values, **dict(zip(extra, made(item), strict=True)))

    return make


def _single(name: str, change: type[C], make: Callable[[Any, Epoch], C]) -> Publication:
    """An item has one record."""
    part = BY_NAME[name]

    def records(key: str, _: Any, after: Any, epoch: Epoch) -> Iterable[ChangeRecord]:
        value: Any = None if after is None else make(after, epoch)
        return (ChangeRecord(part.topic, f"{part.prefix}{key}", value),)

    prefix = f"`{part.prefix}` " if part.prefix else ""
    return Publication(part, part.topic, change, f"{prefix}{part.key}", records)


def _ranges(
    key: str, before: tuple[RangeGroup | ServedRange, ...], after: tuple[RangeGroup | ServedRange, ...], epoch: Epoch
) -> Iterable[ChangeRecord]:
    """The ranges of one placement that are gone, new or changed."""
    old, new = ({group.end: group for group in groups} for groups in apart(before or (), after or ()))
    for end in sorted(end for end in old if end not in new):
        yield ChangeRecord(PLACEMENTS, f"{key}/{end}", None)
    for end in sorted(new):
        group, known = new[end], old.get(end)
        if group is not known and group != known:
            shown = as_served(group)
            values = {name: getattr(shown, name) for name in BY_NAME["placements"].fields}
            yield ChangeRecord(PLACEMENTS, f"{key}/{end}", PlacementChange(epoch=epoch, replication=key, **values))


def _streams(key: str, before: Generation | None, after: Generation | None, epoch: Epoch) -> Iterable[ChangeRecord]:
    """The ranges of a generation when it appears, expires or is forgotten, and of a table that comes to it; otherwise
    they never change.
    """
    if before is not None and (after is None or (not after.ranges and before.ranges)):
        for table, ranges in _ranges_by_table(before, ()):
            for described in ranges:
                yield ChangeRecord(CDC_STREAMS, _streams_key(key, table, described.end), None)
    elif after is not None and after.ranges:
        is_published = before is not None and before.expired == after.expired
        for table, ranges in _ranges_by_table(after, before.tables if before is not None and is_published else ()):
            start = ranges[-1].end
            for described in ranges if table or not is_published else ():
                value = StreamsChange(
                    epoch=epoch,
                    generation=key,
                    timestamp=after.timestamp,
                    start=start,
                    end=described.end,
                    ignore_msb=described.ignore_msb,
                    streams=described.streams,
                    expired=_expired(after),
                    table=table,
                )
                yield ChangeRecord(CDC_STREAMS, _streams_key(key, table, described.end), value)
                start = described.end


def _ranges_by_table(
    generation: Generation, known: tuple[DescribedTable, ...]
) -> Iterator[tuple[str, tuple[GenerationRange, ...]]]:
    """The ranges of the ring, under an empty id, then those of each table in tablets that is not ``known``."""
    yield "", generation.ranges
    for described in generation.tables if generation.tables is not known else ():
        if described not in known:
            yield described.table, ranges_of(generation.timestamp, described)


def _streams_key(generation: str, table: str, end: Token) -> str:
    return f"{generation}/{table}/{end}" if table else f"{generation}/{end}"


def _tablets(key: str, before: TabletMap | None, after: TabletMap | None, epoch: Epoch) -> Iterable[ChangeRecord]:
    """The tablets of a table that are gone, new or changed; chunks that both maps share are not looked at."""
    now, known = (0 if one is None else one.count for one in (after, before))
    for index in range(now, known):
        yield ChangeRecord(TABLETS, f"{key}/{index}", None)
    if after is not None:
        for index in sorted(changed_tablets(before, after)):
            value = tablet_change(key, after.tablet(index), epoch)
            yield ChangeRecord(TABLETS, f"{key}/{index}", value)


def _expired(generation: Generation) -> Micros | None:
    return None if generation.expired is None else generation.expired_at


def _setting(keyspace: Keyspace) -> tuple[object, ...]:
    own = keyspace.replication
    return placement_key(keyspace), own.strategy, own.factor, own.datacenters, own.zone


def _stopped(operation: Operation) -> tuple[object, ...]:
    return ("; ".join(failure.reason or "failed" for failure in stopped_by(operation)[-1:]),)


def _size(generation: Generation) -> tuple[object, ...]:
    size = size_of(generation)
    return size.ranges, size.streams, size.digest, _expired(generation)


CHANGES_OF: Final = {part.name: _change_of(part) for part in sections_of(ClusterState) if part.topic}
"""Part that is declared with its field to the class of its change records."""

_node = _maker("nodes", NodeChange)
_keyspace = _maker("keyspaces", KeyspaceChange, ("replication", "strategy", "factor", "datacenters", "zone"), _setting)
_table = _maker("tables", TableChange)
_type = _maker("types", TypeChange)
_operation = _maker("operations", OperationChange, ("stopped",), _stopped)
_table_tablets = _maker("tablets", TabletsChange, ("count",), lambda tablets: (tablets.count,))
_generation = _maker("generations", GenerationChange, ("ranges", "streams", "digest", "expired"), _size)

PUBLICATIONS: Final = (
    _single("nodes", NodeChange, _node),
    Publication(BY_NAME["placements"], PLACEMENTS, PlacementChange, BY_NAME["placements"].key, _ranges),
    _single("keyspaces", KeyspaceChange, _keyspace),
    _single("tables", TableChange, _table),
    _single("types", TypeChange, _type),
    _single("operations", OperationChange, _operation),
    _single("tablets", TabletsChange, _table_tablets),
    Publication(BY_NAME["tablets"], TABLETS, TabletChange, "keyspace.table `/` number", _tablets),
    Publication(BY_NAME["generations"], CDC_STREAMS, StreamsChange, STREAM_KEYS, _streams),
    _single("generations", GenerationChange, _generation),
    *(_single(name, change, _maker(name, change)) for name, change in CHANGES_OF.items()),
)
"""In the order of the records of a difference."""

_published: Final = attrgetter(*sorted({name for one in PUBLICATIONS for name in one.part.uses or (one.part.name,)}))
"""The values of a state that the change topics tell of."""

assert {publication.part.name for publication in PUBLICATIONS} == {name for name, part in BY_NAME.items() if part.topic}

CHANGE_TOPICS: Final = (*dict.fromkeys(publication.topic for publication in PUBLICATIONS), EPOCHS)
"""The suffixes of the topics' names, in the order of the records of a difference."""
