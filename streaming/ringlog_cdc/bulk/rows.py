"""What becomes of a record of the mutations topic: CDC row, dead letter, or nothing. The definition, one by one.

Routing decides for many at once (``ringlog_cdc.columnar.routing``); here are its arguments, made of decoded mutations,
and what goes out, made of its answers. Compound writes are taken apart in ``ringlog_cdc.bulk.compound_writes``.
``ringlog_cdc.columnar`` does the same for batches of plain mutations without looking at each; the two agree byte for
byte. The simulator runs this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringlog.kernel.generations.statements import TableShape, is_compound, unknown_column
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX, compose
from ringlog.kernel.values import Micros
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CdcRow,
    DeadLetter,
    Mutation,
    dead_letter_key,
    decode_mutation,
    encode_cdc_row,
    encode_dead_letter,
)
from ringlog_cdc.bulk.compound_writes import Single, plain_piece, route_single, row_of
from ringlog_cdc.columnar.routing import (
    CODES,
    NO_OPERATION,
    NUMBERS,
    OPERATION_CODES,
    ROUTED,
    RULES,
    MutationColumns,
    RoutedColumns,
    RoutingTable,
    route,
)
from ringlog_cdc.images.define import States
from ringlog_cdc.plan.plan import use_of

VALUE_KEPT, KEY_KEPT = 3 * 1024 * 1024, 64 * 1024
"""Bytes of the original that a dead letter keeps. Brokers limit what a record has *compressed*, so the original may be
far larger than any record that the job may write: then it is cut, and the detail has its size and SHA-256."""

NAME_SHOWN = 100
"""Characters of a name in the detail of a dead letter: a hostile one may be as long as the record."""


@dataclass(frozen=True, slots=True)
class Input:
    """A record of the mutations topic, with the broker's append time (microseconds). ``mutation`` is None if its value
    is none.
    """

    partition: int
    offset: int
    appended: Micros
    key: bytes | None
    value: bytes | None
    mutation: Mutation | None

    def use(self, leeway: int) -> Micros:
        """The greatest time that routing it uses; what is no mutation uses its append time.

        A write with one timestamp beyond the window is refused under every set of generations, whatever the others are.
        """
        if self.mutation is None:
            return self.appended
        own = [change.timestamp for change in self.mutation.more if change.timestamp is not None]
        return use_of(max([self.mutation.timestamp, *own]), self.appended, leeway)


@dataclass(frozen=True, slots=True)
class PartContext:
    """What rows and dead letters must know of the plan part that they are from.

    ``row_bytes_max``: of an encoded row.
    """

    source_topic: str
    cluster_id: str
    incarnation: str
    epoch: int
    row_bytes_max: int


@dataclass(frozen=True, slots=True)
class Out:
    """What goes out for the record of that ``number``: a row (``ROUTED``), a dead letter (its reason), or nothing.

    ``generation``: its timestamp; ``partition``: of the topic.
    """

    number: int
    reason: int
    generation: int
    partition: int
    key: bytes
    value: bytes


def outgoing(
    table: RoutingTable, inputs: Sequence[Input], part: PartContext, states: States | None = None
) -> list[Out]:
    """What goes out for records, in their order; of a compound write as many as it has rows.

    ``states``: of the rows of tables with images, if there are such tables.
    """
    routed = route(table, columns_of(inputs, part.cluster_id, table.tables)) if inputs else None
    found: list[Out] = []
    for number, item in enumerate(inputs):
        assert routed is not None, "there are some"
        found += _outgoing(table, item, routed, number, part, states)
    return found


def _outgoing(
    table: RoutingTable, item: Input, routed: RoutedColumns, number: int, part: PartContext, states: States | None
) -> list[Out]:
    reason, mutation = int(routed.verdict[number]), item.mutation
    shape = None if mutation is None else table.tables.get(f"{mutation.keyspace}.{mutation.table}")
    if mutation is not None and _is_single(table, item, mutation, shape):
        answer = route_single(table, part.source_topic, part.row_bytes_max, _single(item), part.epoch, states)
        if answer.verdict == ROUTED:
            places = zip(answer.generations, answer.partitions, answer.streams, answer.rows, strict=True)
            return [Out(number, ROUTED, *place) for place in places]
        reason = answer.verdict
    elif reason == ROUTED:
        row = cdc_row(item, routed, number, part, shape is not None and shape.delta == "keys")
        data = encode_cdc_row(row)
        if len(data) <= part.row_bytes_max:
            return [Out(number, ROUTED, row.generation, int(routed.partition[number]), row.stream_id, data)]
        reason = NUMBERS["oversized"]
    if reason < ROUTED:
        return [Out(number, reason, 0, 0, b"", b"")]
    letter = encode_dead_letter(dead_letter(item, reason, part, shape))
    return [Out(number, reason, 0, 0, dead_letter_key(part.source_topic, item.partition, item.offset), letter)]


def _is_single(table: RoutingTable, item: Input, mutation: Mutation, shape: TableShape | None) -> bool:
    """Is it to be looked at by itself?"""
    history = table.rules.history
    if history is not None and not history.is_newest(mutation, item.appended):
        return True
    if shape is None:
        return False
    return f"{mutation.keyspace}.{mutation.table}" in table.images or is_compound(mutation, shape)


def _single(item: Input) -> Single:
    assert item.mutation is not None, "it was decoded"
    return Single(item.mutation, item.appended, item.partition, item.offset)


def read_mutation(value: bytes | None) -> Mutation | None:
    """The mutation in a record's value, or None if it is none."""
    if value is None:
        return None
    try:
        return decode_mutation(value)
    except WireError:
        return None


def columns_of(inputs: Sequence[Input], cluster_id: str, tables: Mapping[str, TableShape]) -> MutationColumns:
    """The arguments of routing to tables by their full names."""
    known = [item.mutation for item in inputs]
    keys = [(m.partition_key if m is not None else ()) for m in known]
    clustering = [(m.clustering_key if m is not None else ()) for m in known]
    bad = [
        None in parts or any(part is not None and len(part) > COMPONENT_BYTES_MAX for part in key)
        for parts, key in zip(clustering, keys, strict=True)
    ]
    return MutationColumns(
        readable=np.array([m is not None for m in known], dtype=bool),
        foreign=np.array([bool(m and m.cluster_id and m.cluster_id != cluster_id) for m in known], dtype=bool),
        names=pa.array([f"{m.keyspace}.{m.table}" if m is not None else "" for m in known], type=pa.string()),
        operations=np.array([_operation(m) for m in known], dtype=np.int32),
        timestamps=np.array([0 if m is None else m.timestamp for m in known], dtype=np.int64),
        appended=np.array([item.appended for item in inputs], dtype=np.int64),
        keys=pa.array([_key(key) for key in keys], type=pa.large_binary()),
        key_sizes=np.array([len(key) for key in keys], dtype=np.int32),
        missing_key=np.array([None in key for key in keys], dtype=bool),
        clustering_sizes=np.array([len(parts) for parts in clustering], dtype=np.int32),
        bad_component=np.array(bad, dtype=bool),
        unknown_column=np.array([_names_unknown(m, tables) for m in known], dtype=bool),
        identities=pa.array([_identity(m) for m in known], type=pa.large_binary()),
        partitions=np.array([item.partition for item in inputs], dtype=np.int32),
        offsets=np.array([item.offset for item in inputs], dtype=np.int64),
    )


def _names_unknown(mutation: Mutation | None, tables: Mapping[str, TableShape]) -> bool:
    shape = None if mutation is None else tables.get(f"{mutation.keyspace}.{mutation.table}")
    return mutation is not None and shape is not None and unknown_column(mutation, shape) is not None


def _operation(mutation: Mutation | None) -> int:
    return OPERATION_CODES.get(mutation.operation, NO_OPERATION) if mutation is not None else NO_OPERATION


def _key(parts: tuple[bytes | None, ...]) -> bytes:
    whole = [part for part in parts if part is not None and len(part) <= COMPONENT_BYTES_MAX]
    return compose(whole) if whole and len(whole) == len(parts) else b""


def _identity(mutation: Mutation | None) -> bytes:
    name = mutation.mutation_id if mutation is not None else None
    return bytes.fromhex(name.replace("-", "")) if name else b""


def cdc_row(item: Input, routed: RoutedColumns, index: int, part: PartContext, keys_only: bool = False) -> CdcRow:
    """The row of a routed plain write, which is entry ``index`` of the answer. ``keys_only``: without its cells."""
    mutation = item.mutation
    assert mutation is not None, "it was routed"
    piece = plain_piece(mutation, keys_only)
    stream = _joined(routed.stream_high[index], routed.stream_low[index])
    time = _joined(routed.time_high[index], routed.time_low[index])
    return row_of(mutation, part.source_topic, item, part.epoch, piece, int(routed.generation[index]), stream, time)


def _joined(high: np.int64, low: np.int64) -> bytes:
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


def dead_letter(item: Input, reason: int, part: PartContext, shape: TableShape | None = None) -> DeadLetter:
    """The letter of a record that cannot become a row; ``reason``: the verdict's number; ``shape``: of its table."""
    found = _unknown(item, reason, shape) + _found(item, reason, part)
    cuts = _cut("key", item.key, KEY_KEPT) + _cut("value", item.value, VALUE_KEPT)
    return DeadLetter(
        reason=CODES[reason],
        detail=f"{RULES[reason]} ({found}{cuts})",
        topic=part.source_topic,
        partition=item.partition,
        offset=item.offset,
        append_time=item.appended,
        key=None if item.key is None else item.key[:KEY_KEPT],
        value=None if item.value is None else item.value[:VALUE_KEPT],
        writer=part.incarnation,
        epoch=part.epoch,
    )


def _unknown(item: Input, reason: int, shape: TableShape | None) -> str:
    """The column for which a write is refused, if it is."""
    if reason != NUMBERS["unknown_column"] or item.mutation is None or shape is None:
        return ""
    return f"column {(unknown_column(item.mutation, shape) or '')[:NAME_SHOWN]!r}; "


def _found(item: Input, reason: int, part: PartContext) -> str:
    mutation = item.mutation
    if reason == NUMBERS["unreadable"] or mutation is None:
        return f"{len(item.value or b'')} bytes"
    return (
        f"{mutation.keyspace[:NAME_SHOWN]}.{mutation.table[:NAME_SHOWN]}, {mutation.operation}, "
        f"timestamp {mutation.timestamp}, appended at {item.appended}; epoch {part.epoch}; "
        f"rows have at most {part.row_bytes_max} bytes"
    )


def _cut(name: str, data: bytes | None, kept: int) -> str:
    """What the detail says of a key or value that is longer than what is kept of it; else the empty text."""
    if data is None or len(data) <= kept:
        return ""
    return f"; first {kept} of {len(data)} bytes of the {name}, SHA-256 {hashlib.sha256(data).hexdigest()}"
