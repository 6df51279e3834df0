"""Change records: the published state, as the difference of two states.

Each topic holds one record for each key. The last record counts, and a record without value deletes the key. So a
compacted topic is the current state, and a consumer that reads it from the beginning has that state.

``kernel.sections`` declares the published sections with their topic and key, and the fields that are not published. A
change record has the other fields of its item under their names, and a few derived fields. The import of this module
fails if a field is missing.

``diff`` returns the records in the order of ``CHANGE_TOPICS``: the streams of a generation precede the generation, and
the record of ``epochs`` closes each difference. A generation appears when it is committed. When it expires, its streams
are first marked expired and deleted with a later epoch. Applying all differences from the empty state gives ``project``
of the last state, except for the epochs in the values. A value has the epoch of the state that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import getdoc
from operator import attrgetter, is_not
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import msgspec

from ringlog.kernel.columns.blocks import unshared_items
from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.model.state import (
    EMPTY_STATE,
    RECORD_SECTIONS,
    ClusterState,
    Generation,
    Node,
    Operation,
    RangeGroup,
    Replica,
)
from ringlog.kernel.model.state_section import StateSection
from ringlog.kernel.model.tables import Keyspace, Table, UserType
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.tablet_streams import DescribedTable, ranges_of
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.moving import RangeChange, ServedRange, as_served
from ringlog.kernel.ownership.placements import placement_key
from ringlog.kernel.sections import (
    BY_NAME,
    CDC_STREAMS,
    CHANGE_TOPICS,
    EPOCHS,
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
    Value,
)

C = TypeVar("C", bound=Value)

STREAM_KEYS: Final = "generation id `/` range end, or generation id `/` table id `/` tablet's end"

HEAD: Final = "head"
"""The only key of ``epochs``: its last record names the epoch that the other topics have reached."""


class NodeChange(Node):
    """A node, as it has been since ``epoch``."""

    epoch: Epoch = 0


class ItemChange(Value):
    """The common field of the change records that follow from the section alone."""

    epoch: Annotated[Epoch, "Epoch of the state that the record is from."]


class PlacementChange(Value):
    """The groups of the range ``(start, end]`` for keyspaces with this replication key.

    ``changed``: the epoch that last changed them. ``moving``: changes of the write group by operations in flight. A
    write needs a quorum of each group that ``kernel.operations.moving.write_groups`` derives from it.
    """

    epoch: Epoch
    replication: str
    start: Token
    end: Token
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch
    moving: tuple[RangeChange, ...] = ()


class KeyspaceChange(Value):
    """A keyspace. ``replication`` is the key of its records in ``placements``."""

    epoch: Epoch
    name: str
    strategy: str
    factor: int
    replication: str
    version: str
    datacenters: tuple[DatacenterReplication, ...] = ()
    zone: str = ""


class TableChange(Table):
    """A table. In ``columns`` user types are expanded."""

    epoch: Epoch = 0


class TypeChange(UserType):
    """A user type."""

    epoch: Epoch


def _change_of(part: StateSection, own: Iterable[tuple[str, Any]] = ()) -> type[Any]:
    """Return the class of a section's change records: the published fields, the docstring, and ``own`` fields."""
    field_types = get_type_hints(part.item, include_extras=True)
    published = [(name, field_types[name]) for name in part.fields if name not in part.unpublished]
    summary = (getdoc(part.item) or "").split("\n\n")[0].rstrip(".")
    name = f"{part.item.__name__}Change"
    doc = f"{summary}. Topic {part.topic}, key: {part.prefix}{part.key}."
    return msgspec.defstruct(
        name, [*published, *own], bases=(ItemChange,), module=__name__, namespace={"__doc__": doc}, frozen=True
    )


OperationChange: Final = _change_of(BY_NAME["operations"], [("stopped", str)])
"""``stopped``: why the operation waits for an operator's decision; empty if it continues."""


class StreamsChange(Value):
    """The streams of the range ``(start, end]`` of a generation, in slot order: slot j is for shard j.

    ``expired``: the time in microseconds since which none of their rows is kept; null while rows may be kept. The
    record is deleted some time after it was marked expired. ``table``: the id of the table if the range is a tablet;
    empty: the range is of the ring.
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


class GenerationChange(Value):
    """A committed generation, active from ``timestamp`` on. ``status``: committed, published, closed or expired.

    ``ranges`` and ``streams`` count its records in ``cdc-streams`` and their stream ids; ``digest`` is hex SHA-256 over
    them. A consumer leaves a closed generation when it has read the CDC topic up to ``positions``. The records of an
    expired generation in ``cdc-streams`` are deleted (``expired`` as in StreamsChange); this record stays permanently.
    ``closed_at``: the time of the close, by its author's clock. ``leeway``: the allowed lateness at its commit, if the
    setting has changed since.
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


class EpochChange(Value):
    """All changes up to ``epoch`` are published. ``state_id``, ``time`` (microseconds) and ``chain`` (hex) are those of
    that state.
    """

    epoch: Epoch
    cluster_id: str
    state_id: str
    time: Micros
    chain: str = ""


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


class ChangeRecord(Value):
    """One record of a change topic. A record without value deletes the key."""

    topic: str
    key: str
    value: Change | None


def diff(before: ClusterState, after: ClusterState) -> tuple[ChangeRecord, ...]:
    """Return the records that bring readers from ``before`` to ``after``; none if both have the same epoch.

    The cost grows with the difference, not with the state.
    """
    if after.epoch == before.epoch:
        return ()
    head = EpochChange(after.epoch, after.cluster_id, after.state_id, after.time, after.chain.hex())
    if not any(map(is_not, _published(before), _published(after))):  # the fast path: most epochs
        return (ChangeRecord(EPOCHS, HEAD, head),)
    records: list[ChangeRecord] = []
    for publication in PUBLICATIONS:
        if not publication.part.is_same(before, after):
            records += _difference(publication, publication.part.of(before), publication.part.of(after), after.epoch)
    return (*records, ChangeRecord(EPOCHS, HEAD, head))


def project(state: ClusterState) -> dict[tuple[str, str], Change]:
    """Return the content of the change topics at ``state``: (topic, key) to value, each with the epoch of ``state``."""
    records = diff(EMPTY_STATE, state)
    return {(record.topic, record.key): record.value for record in records if record.value is not None}


def table_change(table: Table, epoch: Epoch) -> TableChange:
    """Return the record of a table in a state of ``epoch``."""
    return _table(table, epoch)


# --------------------------------------------------------------------------------------- parts and their difference


class Publication(Value):
    """The publication of a section: its topic, the class of its records, their keys, and the records of an item."""

    part: StateSection
    topic: str
    change: type[Any]
    key: str
    records: Callable[[str, Any, Any, Epoch], Iterable[ChangeRecord]]


def _difference(
    publication: Publication, before: Mapping[str, Any], after: Mapping[str, Any], epoch: Epoch
) -> Iterator[ChangeRecord]:
    """Yield the records of items that differ, in the order of the section: deleted items first, then new or changed
    ones.
    """
    for key, item in before.items():
        if key not in after:
            yield from publication.records(key, item, None, epoch)
    for key, item in after.items():
        known = before.get(key)
        if item is not known and item != known:
            yield from publication.records(key, known, item, epoch)


def _maker(
    name: str,
    change: type[C],
    extra: tuple[str, ...] = (),
    made: Callable[[Any], tuple[object, ...]] = lambda _: (),
) -> Callable[[Any, Epoch], C]:
    """Return a function from items of a section to ``change``: published fields by name, and ``extra`` fields from
    ``made``.

    Raise TypeError if the class has other fields.
    """
    part = BY_NAME[name]
    published = set(part.fields).difference(part.unpublished)
    own = {*change.__struct_fields__}.difference(extra, ("epoch",))
    if published != own:
        raise TypeError(f"{change} and {part.item} differ in {sorted(published ^ own)}: see kernel.parts")
    names = sorted(own)

    def make(item: Any, epoch: Epoch) -> C:
        values = {name: getattr(item, name) for name in names}
        return change(epoch=epoch, **values, **dict(zip(extra, made(item), strict=True)))

    return make


def _single(name: str, change: type[C], make: Callable[[Any, Epoch], C]) -> Publication:
    """Return the publication of a section whose items have one record each."""
    part = BY_NAME[name]

    def records(key: str, _: Any, after: Any, epoch: Epoch) -> Iterable[ChangeRecord]:
        value: Any = None if after is None else make(after, epoch)
        return (ChangeRecord(part.topic, f"{part.prefix}{key}", value),)

    prefix = f"`{part.prefix}` " if part.prefix else ""
    return Publication(part, part.topic, change, f"{prefix}{part.key}", records)


def _ranges(
    key: str, before: tuple[RangeGroup | ServedRange, ...], after: tuple[RangeGroup | ServedRange, ...], epoch: Epoch
) -> Iterable[ChangeRecord]:
    """Yield the records of the ranges of one placement that are deleted, new or changed."""
    old, new = ({group.end: group for group in groups} for groups in unshared_items(before or (), after or ()))
    for end in sorted(end for end in old if end not in new):
        yield ChangeRecord(PLACEMENTS, f"{key}/{end}", None)
    for end in sorted(new):
        group, known = new[end], old.get(end)
        if group is not known and group != known:
            shown = as_served(group)
            values = {name: getattr(shown, name) for name in BY_NAME["placements"].fields}
            yield ChangeRecord(PLACEMENTS, f"{key}/{end}", PlacementChange(epoch=epoch, replication=key, **values))


def _streams(key: str, before: Generation | None, after: Generation | None, epoch: Epoch) -> Iterable[ChangeRecord]:
    """Yield the stream records of a generation that appears, expires or is forgotten, and of a table that is added to
    it.

    Other changes of a generation do not change its streams.
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
    """Yield the ranges of the ring, under an empty id, then those of each table in tablets that is not ``known``."""
    yield "", generation.ranges
    for described in generation.tables if generation.tables is not known else ():
        if described not in known:
            yield described.table, ranges_of(generation.timestamp, described)


def _streams_key(generation: str, table: str, end: Token) -> str:
    return f"{generation}/{table}/{end}" if table else f"{generation}/{end}"


def _tablets(key: str, before: TabletMap | None, after: TabletMap | None, epoch: Epoch) -> Iterable[ChangeRecord]:
    """Yield the records of the tablets of a table that are deleted, new or changed. Chunks that both maps share are
    skipped.
    """
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


CHANGES_OF: Final = {part.name: _change_of(part) for part in RECORD_SECTIONS if part.topic}
"""Section that is declared with its field of the state to the class of its change records."""

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
"""The publications, in the order of the records of a difference."""

_published: Final = attrgetter(*sorted({name for one in PUBLICATIONS for name in one.part.uses or (one.part.name,)}))
"""The values of a state that the change topics depend on."""

assert {publication.part.name for publication in PUBLICATIONS} == {name for name, part in BY_NAME.items() if part.topic}

assert (*dict.fromkeys(one.topic for one in PUBLICATIONS), EPOCHS) == CHANGE_TOPICS, "records have the topics' order"
