"""CDC rows of mutations with the same byte layout, routed together and written as tables.

The mutation that defines the layout is encoded as any other (``ringlog_cdc.bulk.encode``), and its row becomes a
*template*. All rows of the group are copies of it, with a few columns replaced: stream, time, source offset, and the
parts that vary between the mutations. Each byte is thus copied once, to its final place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from ringlog.kernel.generations.statements import TableShape, value_types
from ringlog.kernel.values import Value
from ringlog.wire.avro.codec import HEADER_BYTES
from ringlog_cdc.bulk.choice import RecordPath, choose
from ringlog_cdc.bulk.columns import PARTITION_DELETE, NamedTables, check_columns, operations_of
from ringlog_cdc.bulk.encode import Destinations, cdc_rows
from ringlog_cdc.bulk.layouts import ByteLayout, ByteTable, LayoutGroup
from ringlog_cdc.bulk.outgoing_columns import OutgoingColumns, fixed_width, in_bulk
from ringlog_cdc.bulk.routing import ID, BulkTable, MutationColumns, RoutedColumns, route
from ringlog_cdc.columnar.key_types import SIZES, is_fixed, of_type, texts
from ringlog_cdc.columnar.pieces import encoded_numbers
from ringlog_cdc.columnar.scan import padded
from ringlog_cdc.columnar.words import I64, U8, Flags

STREAM = TIME = ID
ONE = np.zeros(1, dtype=np.int64)
"""The number of the only mutation of a layout."""
TEMPLATES = 512
"""Templates cached by a worker: one for each layout, generation, source partition, length of an offset, and epoch."""


class ArrowSource(Value):
    """Origin of an Arrow batch.

    Attributes:
        topic: Name of the mutations topic.
        partition: Source partition.
        cluster_id: Id of this cluster, 16 bytes.
        epoch: Metadata epoch that decides the rows.
        offsets: Source offset of each record.
        appended: Append time of each record, microseconds.
        keys: Key of each record, or null.
    """

    topic: str
    partition: int
    cluster_id: bytes
    epoch: int
    offsets: I64
    appended: I64
    keys: pa.Array


def rows_alike(
    groups: Sequence[LayoutGroup], table: BulkTable, source: ArrowSource, row_bytes_max: int
) -> OutgoingColumns | None:
    """Encode the rows of mutations with a byte layout. Return None if there are none.

    All other mutations are omitted, and the caller processes them.
    """
    groups = [group for group in groups if _has_template(group.layout, table)]
    if not groups:
        return None
    numbers, places = _joined(groups, len(source.offsets))
    routed = route(table, _columns(groups, places, numbers, source, table))
    variants = list(_variants(groups, places, routed, source.offsets[numbers], source))
    variants = [variant for variant in variants if len(variant.template.row) <= row_bytes_max]
    # A row that stays at width 0 is omitted.
    widths = np.zeros(len(numbers), dtype=np.int64)
    for variant in variants:
        widths[variant.places] = len(variant.template.row)
    kept = np.flatnonzero(widths)
    if not len(kept):
        return None
    laid = Laid(widths)
    for variant in variants:
        _lay(variant, laid, routed.streams, routed.times, source.offsets[numbers])
    return in_bulk(
        numbers[kept],
        routed.generations[kept],
        routed.partitions[kept],
        fixed_width(routed.streams[kept] if len(kept) < len(numbers) else routed.streams),
        laid.array(kept),
    )


def _joined(groups: Sequence[LayoutGroup], count: int) -> tuple[I64, list[I64]]:
    """Return the ascending numbers of the records of all groups, and each group's indexes in them.

    Args:
        groups: The groups.
        count: Number of records in the Arrow batch.
    """
    if len(groups) == 1:
        return groups[0].numbers, [np.arange(len(groups[0].numbers))]
    taken = np.zeros(count, dtype=bool)
    for group in groups:
        taken[group.numbers] = True
    # Index of each record among the taken ones.
    place = np.cumsum(taken) - 1
    return np.flatnonzero(taken), [place[group.numbers] for group in groups]


def _has_template(layout: ByteLayout, table: BulkTable) -> bool:
    """Return True if mutations of this layout are processed in bulk, and their rows are copies of a template."""
    known = table.templates
    if layout not in known:
        if len(known) >= TEMPLATES:
            known.clear()
        known[layout] = _takes_template(layout, table)
    return known[layout]


def _takes_template(layout: ByteLayout, table: BulkTable) -> bool:
    """Return the result of ``_has_template``, which caches it."""
    shape, mutation = table.shape(layout.name), layout.mutation
    if shape is None or not shape.cdc or shape.delta == "keys" or layout.name in table.definition.images:
        return False
    if shape.columns is not None and not {*_columns_named(layout)} <= {*shape.columns}:
        return False
    tables = NamedTables(ONE.astype(np.int32), (layout.name,))
    appended = np.array([table.newest_since])
    path = choose(mutation, ONE, tables, check_columns(mutation, ONE, tables, table), appended, table)[0]
    return _has_valid_key(layout, shape) and bool(path == RecordPath.BULK)


def _has_valid_key(layout: ByteLayout, shape: TableShape) -> bool:
    """Return True if the keys of the layout have as many components as those of the table."""
    clustering = 0 if _operation(layout) == PARTITION_DELETE else shape.clustering_key
    return len(layout.key) == shape.partition_key and len(layout.clustering) == clustering and _operation(layout) > 0


@lru_cache(TEMPLATES)
def _columns_named(layout: ByteLayout) -> tuple[str, ...]:
    """Return the column of each cell of the layout."""
    data, spans = layout.mutation.data, layout.mutation.cells.content
    places = [(int(span.start[0]), int(span.length[0])) for span in spans]
    return tuple(data[start : start + size].tobytes().decode() for start, size in places)


def _operation(layout: ByteLayout) -> int:
    """Return ``cdc$operation`` of the layout."""
    return int(operations_of(layout.mutation, ONE)[0])


# ---------------------------------------------------------------------------------------------------------- routing


def _columns(
    groups: Sequence[LayoutGroup], places: Sequence[I64], numbers: I64, source: ArrowSource, table: BulkTable
) -> MutationColumns:
    """Build the arguments of routing for all groups."""
    count = len(numbers)
    of_group = np.zeros(count, dtype=np.int32)
    timestamps, valid = np.empty(count, dtype=np.int64), np.ones(count, dtype=bool)
    key_widths, id_widths = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for number, (group, at) in enumerate(zip(groups, places, strict=True)):
        layout, shape = group.layout, table.shape(group.layout.name)
        assert shape is not None, "the table of a layout with a template is known"
        of_group[at] = number
        timestamps[at] = layout.timestamps(group.table)
        # Three bytes per component of a composed key: its length (2) and a zero byte.
        key_widths[at] = sum(size for _, size in layout.key) + (3 * len(layout.key) if len(layout.key) > 1 else 0)
        id_widths[at] = ID if layout.mutation_id >= 0 else 0
        valid[at] = _well_typed(group, shape)
        if layout.cluster_id >= 0:
            # Void items compare as whole byte strings.
            valid[at] &= group.table.column(layout.cluster_id, ID) == np.frombuffer(source.cluster_id, dtype=f"V{ID}")
    keys, identities = Laid(key_widths), Laid(id_widths)
    for group, at in zip(groups, places, strict=True):
        _lay_key(group, keys, at)
        if group.layout.mutation_id >= 0:
            with_ids = identities.rows(at, ID)
            with_ids.column(0, ID)[:] = group.table.column(group.layout.mutation_id, ID)
            identities.set(at, with_ids)
    every = np.arange(count)
    return MutationColumns(
        names=pa.DictionaryArray.from_arrays(pa.array(of_group), [group.layout.name for group in groups]),
        valid=valid,
        timestamps=timestamps,
        appended=source.appended[numbers],
        keys=keys.array(every),
        record_keys=source.keys if count == len(source.keys) else source.keys.take(pa.array(numbers)),
        identities=identities.array(every),
        partitions=np.full(count, source.partition, dtype=np.int32),
        offsets=source.offsets[numbers],
    )


def _well_typed(group: LayoutGroup, shape: TableShape) -> Flags:
    """Return True for mutations whose clustering key and values have the types of their columns."""
    layout, table = group.layout, group.table
    types, names = value_types(shape), _columns_named(layout)
    kinds = (*shape.clustering_types[: len(layout.clustering)], *(types.get(name, "blob") for name in names))
    good, data = np.ones(table.count, dtype=bool), None
    for (at, size), kind in zip((*layout.clustering[: len(kinds) - len(names)], *layout.values), kinds, strict=True):
        if is_fixed(kind):
            good &= size == SIZES.get(kind, size)
            continue
        if kind == "text":
            good &= texts(_column(table, at, size))
            continue
        if data is None:
            data, starts = padded(table.data), np.arange(table.count) * table.width
        good = of_type(kind, data, starts + at, starts + (at + size), good)
    return good


def _column(table: ByteTable, at: int, size: int) -> pa.LargeBinaryArray:
    """Return ``size`` bytes from position ``at`` of each record."""
    content = table.column(at, size).copy() if size else b""
    ends = np.arange(table.count + 1, dtype=np.int64) * size
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), table.count, [None, pa.py_buffer(ends), pa.py_buffer(content)]
    )


def _lay_key(group: LayoutGroup, keys: Laid, at: I64) -> None:
    """Write the composed partition keys of a group (``ringlog_cdc.bulk.encode.composed_keys``)."""
    key = group.layout.key
    several = len(key) > 1
    width = sum(size + 3 * several for _, size in key)
    if not width:
        return
    rows, place = keys.rows(at, width), 0
    for start, size in key:
        if several:
            rows.column(place, 2)[:] = np.frombuffer(size.to_bytes(2, "big"), dtype="V2")
            rows.column(place + 2 + size, 1)[:] = np.zeros(1, dtype="V1")
            place += 2
        if size:
            rows.column(place, size)[:] = group.table.column(start, size)
        place += size + several
    keys.set(at, rows)


# ------------------------------------------------------------------------------------------------------------- rows


class Template(Value):
    """The encoded row of one mutation, and what differs in other rows with the same layout and offset length.

    Attributes:
        row: The row.
        stream, time, offset: Positions of these fields in the row.
        parts: (position in the row, position in the mutation, width) of each varying part.
    """

    row: bytes
    stream: int
    time: int
    offset: int
    parts: tuple[tuple[int, int, int], ...]


class Variant(Value):
    """Routed mutations with one template.

    Attributes:
        table: The mutations.
        places: Their ascending indexes among all routed mutations.
    """

    template: Template
    table: ByteTable
    places: I64


def _variants(
    groups: Sequence[LayoutGroup], places: Sequence[I64], routed: RoutedColumns, offsets: I64, source: ArrowSource
) -> Iterator[Variant]:
    """Split groups by generation and length of the offset, without the mutations that are not rows."""
    lengths = encoded_numbers(offsets)[1]
    for group, at in zip(groups, places, strict=True):
        mine = np.flatnonzero(routed.routed[at])
        while len(mine):
            generation, length = int(routed.generations[at[mine[0]]]), int(lengths[at[mine[0]]])
            alike = (routed.generations[at[mine]] == generation) & (lengths[at[mine]] == length)
            chosen = mine[alike]
            template = _template(group.layout, generation, source.partition, length, source.topic, source.epoch)
            yield Variant(template, group.table.only(chosen), at[chosen])
            mine = mine[~alike]


@lru_cache(TEMPLATES)
def _template(
    layout: ByteLayout, generation: int, partition: int, offset_bytes: int, topic: str, epoch: int
) -> Template:
    """Encode the row of the layout's first mutation, and find the parts that differ in other rows."""
    mutation, zero = layout.mutation, np.zeros((1, 16), dtype=np.uint8)
    # The smallest offset whose zigzag number has this many bytes.
    offset = (1 << 7 * (offset_bytes - 1)) >> 1
    places = Destinations(
        streams=zero,
        times=zero,
        generations=np.array([generation]),
        operations=np.array([_operation(layout)]),
        partitions=np.array([partition]),
        offsets=np.array([offset]),
        keys_only=np.zeros(1, dtype=bool),
    )
    (row,) = cdc_rows(mutation, np.zeros(1, dtype=np.int64), places, topic, epoch).to_pylist()
    # The positions follow the fields of ``ringlog.cdc.CdcRow``, as ``cdc_rows`` encodes them.
    spans = [*mutation.partition_key.inner, mutation.rest]
    stream = HEADER_BYTES
    time = stream + STREAM + _bytes(generation)
    at = time + TIME + 2 + int(mutation.ttl.length[0]) + 1 + int(mutation.names.length[0])
    parts = []
    if layout.mutation_id >= 0:
        parts.append((at + 1, layout.mutation_id, ID))
    at += int(mutation.mutation_id.length[0])
    at += _bytes(len(topic.encode())) + len(topic.encode()) + _bytes(partition)
    offset_at = at
    at += offset_bytes
    parts.append((at, layout.timestamp, layout.timestamp_bytes))
    at += layout.timestamp_bytes + _bytes(len(layout.key))
    for span in spans:
        parts.append((at, int(span.start[0]), int(span.length[0])))
        at += int(span.length[0])
    return Template(row, stream, time, offset_at, tuple(part for part in parts if part[2]))


def _bytes(number: int) -> int:
    """Return the length of an encoded number."""
    return int(encoded_numbers(np.array([number], dtype=np.int64))[1][0])


def _lay(variant: Variant, laid: Laid, streams: U8, times: U8, offsets: I64) -> None:
    """Write the rows of a variant to their final places."""
    template, at = variant.template, variant.places
    whole = len(at) == len(streams)
    rows = laid.rows(at, len(template.row))
    # The template broadcasts to all rows. The following assignments replace the columns that vary.
    rows.column(0, len(template.row))[:] = np.frombuffer(template.row, dtype=f"V{len(template.row)}")
    for place, values, width in ((template.stream, streams, STREAM), (template.time, times, TIME)):
        rows.column(place, width)[:] = (values if whole else values[at]).view(f"V{width}").ravel()
    digits, _ = encoded_numbers(offsets if whole else offsets[at])
    rows.column(template.offset, digits.shape[1])[:] = digits.view(f"V{digits.shape[1]}").ravel()
    for to, place, width in template.parts:
        rows.column(to, width)[:] = variant.table.column(place, width)
    laid.set(at, rows)


class Laid:
    """Byte strings of known widths in one buffer, filled group by group."""

    def __init__(self, widths: I64) -> None:
        self._ends = np.zeros(len(widths) + 1, dtype=np.int32)
        assert int(widths.sum()) < 2**31, "arrow_batching limits a batch to less than 2 GiB"
        np.cumsum(widths, out=self._ends[1:])
        self._data = np.empty(int(self._ends[-1]), dtype=np.uint8)

    def rows(self, places: I64, width: int) -> ByteTable:
        """Return a table to fill for these strings, which all have this width.

        If they are all strings, it is the buffer itself.
        """
        if len(places) == len(self._ends) - 1:
            return ByteTable(self._data, len(places), width)
        return ByteTable(np.empty(len(places) * width, dtype=np.uint8), len(places), width)

    def set(self, places: I64, rows: ByteTable) -> None:
        """Store the filled table at these strings."""
        # ``rows`` returned the buffer itself, so nothing has to be copied.
        if rows.data is self._data:
            return
        windows = np.ndarray(
            (len(self._data) - rows.width + 1,), dtype=f"V{rows.width}", buffer=self._data, strides=(1,)
        )
        windows[self._ends[:-1][places]] = rows.data.view(f"V{rows.width}")

    def array(self, kept: I64) -> pa.BinaryArray:
        """Return the strings at these indexes. All others must be empty."""
        # Empty strings take no bytes, so dropping their offsets keeps the others in place.
        ends = self._ends if len(kept) == len(self._ends) - 1 else self._ends[np.append(kept, len(self._ends) - 1)]
        return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(self._data)])
