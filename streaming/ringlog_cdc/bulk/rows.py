"""Outcome of a record of the mutations topic: CDC rows, a dead letter, or nothing. The definition, one record at a
time.

``ringlog_cdc.columnar.routing`` decides for many writes at once. This module builds its arguments from decoded
mutations, and the outgoing records from its results. ``ringlog_cdc.bulk.compound_writes`` handles compound writes.

Invariant: ``ringlog_cdc.columnar`` gives the same bytes for batches of plain mutations without decoding them. The
simulator runs this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringlog.kernel.generations.admission import refused
from ringlog.kernel.generations.statements import (
    TableShape,
    is_compound,
    mistyped_key,
    mistyped_value,
    unknown_column,
)
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX, compose
from ringlog.kernel.values import Micros
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    KEY_KEPT,
    VALUE_KEPT,
    CdcRow,
    DeadLetter,
    Mutation,
    dead_letter_key,
    decode_mutation,
    encode_cdc_row,
    encode_dead_letter,
    is_key_of,
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

COLUMN_RULES = frozenset({"bad_key_type", "unknown_column", "bad_value_type"})
"""Reasons about a column, which the detail names."""
NO_TABLE = TableShape(0, 0, False)

NAME_SHOWN = 100
"""Characters of a name in the detail of a dead letter. A hostile name can be as long as the record."""


@dataclass(frozen=True, slots=True)
class Input:
    """A record of the mutations topic.

    Attributes:
        appended: The broker's append time, microseconds.
        mutation: None if the value is not a mutation.
    """

    partition: int
    offset: int
    appended: Micros
    key: bytes | None
    value: bytes | None
    mutation: Mutation | None

    def use(self, leeway: int) -> Micros:
        """Return the largest time that routing the record uses, microseconds. Without a mutation it is the append time.

        A write with one timestamp after the acceptance window is rejected under every set of generations. Its largest
        timestamp therefore decides.
        """
        if self.mutation is None:
            return self.appended
        own = [change.timestamp for change in self.mutation.more if change.timestamp is not None]
        return use_of(max([self.mutation.timestamp, *own]), self.appended, leeway)


@dataclass(frozen=True, slots=True)
class PartContext:
    """Facts about a plan part for its rows and dead letters.

    Attributes:
        incarnation: The writer's incarnation.
        epoch: Metadata epoch of the plan part.
        row_bytes_max: Most bytes of an encoded row.
    """

    source_topic: str
    cluster_id: str
    incarnation: str
    epoch: int
    row_bytes_max: int


@dataclass(frozen=True, slots=True)
class Out:
    """An outgoing record, or the fact that there is none.

    Attributes:
        number: Number of the source record.
        reason: ``ROUTED`` for a row, the number of a dead letter's reason, or ``SKIPPED``.
        generation: Start of the row's generation, microseconds.
        partition: Partition of the CDC topic.
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
    """Return the outgoing records of ``inputs``, in order. A compound write has one for each of its rows.

    Args:
        states: States of rows, for tables that keep images. None if no table does.
    """
    routed = route(table, columns_of(inputs, part.cluster_id, table.tables)) if inputs else None
    found: list[Out] = []
    for number, item in enumerate(inputs):
        assert routed is not None, "routing ran, since there are inputs"
        found += _outgoing(table, item, routed, number, part, states)
    return found


def _outgoing(
    table: RoutingTable, item: Input, routed: RoutedColumns, number: int, part: PartContext, states: States | None
) -> list[Out]:
    """Return the outgoing records of one record, whose routing result has the index ``number``."""
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
    letter = encode_dead_letter(dead_letter(item, reason, part, _column(table, item, reason)))
    return [Out(number, reason, 0, 0, dead_letter_key(part.source_topic, item.partition, item.offset), letter)]


def _is_single(table: RoutingTable, item: Input, mutation: Mutation, shape: TableShape | None) -> bool:
    """Return True if the write needs ``route_single``: an earlier table version, images, or several rows."""
    history = table.rules.history
    if history is not None and not history.is_newest(mutation, item.appended):
        return True
    if shape is None:
        return False
    return f"{mutation.keyspace}.{mutation.table}" in table.images or is_compound(mutation, shape)


def _single(item: Input) -> Single:
    assert item.mutation is not None, "the record is a mutation"
    return Single(item.mutation, item.appended, item.partition, item.offset, is_key_of(item.mutation, item.key))


def _column(table: RoutingTable, item: Input, reason: int) -> str:
    """Return the column that breaks the rule, in the table version that decided the write; empty if there is none."""
    if item.mutation is None or CODES[reason] not in COLUMN_RULES:
        return ""
    return refused(table.rules, item.mutation, item.appended)[1]


def read_mutation(value: bytes | None) -> Mutation | None:
    """Return the mutation in a record's value, or None if it is not one."""
    if value is None:
        return None
    try:
        return decode_mutation(value)
    except WireError:
        return None


def columns_of(inputs: Sequence[Input], cluster_id: str, tables: Mapping[str, TableShape]) -> MutationColumns:
    """Build the arguments of routing.

    Args:
        inputs: Records.
        cluster_id: Id of this cluster.
        tables: Full name to table.
    """
    known = [item.mutation for item in inputs]
    keys = [(m.partition_key if m is not None else ()) for m in known]
    clustering = [(m.clustering_key if m is not None else ()) for m in known]
    bad = [
        None in parts or any(part is not None and len(part) > COMPONENT_BYTES_MAX for part in key)
        for parts, key in zip(clustering, keys, strict=True)
    ]
    judged = [None if m is None else (m, tables.get(f"{m.keyspace}.{m.table}", NO_TABLE)) for m in known]
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
        mistyped_clustering=np.array([one and mistyped_key(one[0], (), one[1]) is not None for one in judged], bool),
        unknown_column=np.array([one and unknown_column(*one) is not None for one in judged], dtype=bool),
        mistyped_value=np.array([one and mistyped_value(*one) is not None for one in judged], dtype=bool),
        record_keys=pa.array([item.key for item in inputs], type=pa.large_binary()),
        identities=pa.array([_identity(m) for m in known], type=pa.large_binary()),
        partitions=np.array([item.partition for item in inputs], dtype=np.int32),
        offsets=np.array([item.offset for item in inputs], dtype=np.int64),
    )


def _operation(mutation: Mutation | None) -> int:
    return OPERATION_CODES.get(mutation.operation, NO_OPERATION) if mutation is not None else NO_OPERATION


def _key(parts: tuple[bytes | None, ...]) -> bytes:
    """Return the composed partition key, or empty if a component is null or too long."""
    whole = [part for part in parts if part is not None and len(part) <= COMPONENT_BYTES_MAX]
    return compose(whole) if whole and len(whole) == len(parts) else b""


def _identity(mutation: Mutation | None) -> bytes:
    """Return the mutation id as 16 bytes, or empty."""
    name = mutation.mutation_id if mutation is not None else None
    return bytes.fromhex(name.replace("-", "")) if name else b""


def cdc_row(item: Input, routed: RoutedColumns, index: int, part: PartContext, keys_only: bool = False) -> CdcRow:
    """Return the row of a routed plain write.

    Args:
        item: The record.
        routed: Routing results.
        index: Index of the record in them.
        part: Context of the plan part.
        keys_only: Omit the cells.
    """
    mutation = item.mutation
    assert mutation is not None, "only decoded mutations are routed"
    piece = plain_piece(mutation, keys_only)
    stream = _joined(routed.stream_high[index], routed.stream_low[index])
    time = _joined(routed.time_high[index], routed.time_low[index])
    return row_of(mutation, part.source_topic, item, part.epoch, piece, int(routed.generation[index]), stream, time)


def _joined(high: np.int64, low: np.int64) -> bytes:
    """Return 16 bytes from two signed halves."""
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


def dead_letter(item: Input, reason: int, part: PartContext, column: str = "") -> DeadLetter:
    """Return the dead letter of a record.

    Args:
        item: The record.
        reason: Number of the reason.
        part: Context of the plan part.
        column: The column that breaks the rule, if there is one.
    """
    found = (f"column {column[:NAME_SHOWN]!r}; " if column else "") + _found(item, reason, part)
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


def _found(item: Input, reason: int, part: PartContext) -> str:
    """Return the text that describes the write."""
    mutation = item.mutation
    if reason == NUMBERS["unreadable"] or mutation is None:
        return f"{len(item.value or b'')} bytes"
    return (
        f"{mutation.keyspace[:NAME_SHOWN]}.{mutation.table[:NAME_SHOWN]}, {mutation.operation}, "
        f"timestamp {mutation.timestamp}, appended at {item.appended}; epoch {part.epoch}; "
        f"rows have at most {part.row_bytes_max} bytes"
    )


def _cut(name: str, data: bytes | None, kept: int) -> str:
    """Return the text about a truncated key or value, or empty if it was kept whole."""
    if data is None or len(data) <= kept:
        return ""
    return f"; first {kept} of {len(data)} bytes of the {name}, SHA-256 {hashlib.sha256(data).hexdigest()}"
