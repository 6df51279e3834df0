"""What becomes of a record of the mutations topic: CDC row, dead letter, or nothing. The definition, one by one.

Routing decides for many at once (``ringlog_cdc.routing``); here are its arguments, made of decoded mutations, and what
goes out, made of its answers. ``ringlog_cdc.columnar`` does the same for batches of plain mutations without looking at
each; the two agree byte for byte. The simulator runs this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringlog.kernel.ring.partition_key import COMPONENT_BYTES_MAX, compose
from ringlog.kernel.values import Micros
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, DeadLetter, Mutation, decode_mutation
from ringlog_cdc.plan import use_of
from ringlog_cdc.routing import Routed, Rows
from ringlog_cdc.verdicts import CODES, NO_OPERATION, NUMBERS, OPERATION_CODES, RULES

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
        """The greatest time that routing it uses; what is no mutation uses its append time."""
        timestamp = 0 if self.mutation is None else self.mutation.timestamp
        return use_of(timestamp, self.appended, leeway)


@dataclass(frozen=True, slots=True)
class Limits:
    """What dead letters say of the plan part that they are from; ``row_bytes_max``: of an encoded row."""

    source_topic: str
    incarnation: str
    epoch: int
    row_bytes_max: int


def read_mutation(value: bytes | None) -> Mutation | None:
    """The mutation in a record's value, or None if it is none."""
    if value is None:
        return None
    try:
        return decode_mutation(value)
    except WireError:
        return None


def columns_of(inputs: Sequence[Input], cluster_id: str) -> Rows:
    """The arguments of routing."""
    known = [item.mutation for item in inputs]
    keys = [(m.partition_key if m is not None else ()) for m in known]
    clustering = [(m.clustering_key if m is not None else ()) for m in known]
    bad = [
        None in parts or any(part is not None and len(part) > COMPONENT_BYTES_MAX for part in key)
        for parts, key in zip(clustering, keys, strict=True)
    ]
    return Rows(
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
        identities=pa.array([_identity(m) for m in known], type=pa.large_binary()),
        partitions=np.array([item.partition for item in inputs], dtype=np.int32),
        offsets=np.array([item.offset for item in inputs], dtype=np.int64),
    )


def _operation(mutation: Mutation | None) -> int:
    """The code of a mutation that is one statement about plain cells."""
    if mutation is None or mutation.more or mutation.deleted_elements or mutation.replaced:
        return NO_OPERATION
    return OPERATION_CODES.get(mutation.operation, NO_OPERATION)


def _key(parts: tuple[bytes | None, ...]) -> bytes:
    whole = [part for part in parts if part is not None and len(part) <= COMPONENT_BYTES_MAX]
    return compose(whole) if whole and len(whole) == len(parts) else b""


def _identity(mutation: Mutation | None) -> bytes:
    name = mutation.mutation_id if mutation is not None else None
    return bytes.fromhex(name.replace("-", "")) if name else b""


def cdc_row(item: Input, routed: Routed, index: int, source_topic: str) -> CdcRow:
    """The row of a routed mutation, which is entry ``index`` of the answer."""
    mutation = item.mutation
    assert mutation is not None, "it was routed"
    return CdcRow(
        stream_id=_joined(routed.stream_high[index], routed.stream_low[index]),
        generation=int(routed.generation[index]),
        time=_joined(routed.time_high[index], routed.time_low[index]),
        batch_seq_no=0,
        operation=OPERATION_CODES[mutation.operation],
        ttl=mutation.ttl,
        end_of_batch=True,
        keyspace=mutation.keyspace,
        table=mutation.table,
        mutation_id=mutation.mutation_id,
        source_topic=source_topic,
        source_partition=item.partition,
        source_offset=item.offset,
        timestamp=mutation.timestamp,
        partition_key=tuple(part or b"" for part in mutation.partition_key),
        clustering_key=mutation.clustering_key,
        cells=tuple(cell for cell in mutation.cells if cell.value is not None),
        deleted=tuple(cell.column for cell in mutation.cells if cell.value is None),
    )


def _joined(high: np.int64, low: np.int64) -> bytes:
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


def dead_letter(item: Input, reason: int, limits: Limits) -> DeadLetter:
    """The letter of a record that cannot become a row; ``reason``: the number of the verdict."""
    found = _found(item, reason, limits)
    cuts = _cut("key", item.key, KEY_KEPT) + _cut("value", item.value, VALUE_KEPT)
    return DeadLetter(
        reason=CODES[reason],
        detail=f"{RULES[reason]} ({found}{cuts})",
        topic=limits.source_topic,
        partition=item.partition,
        offset=item.offset,
        append_time=item.appended,
        key=None if item.key is None else item.key[:KEY_KEPT],
        value=None if item.value is None else item.value[:VALUE_KEPT],
        writer=limits.incarnation,
        epoch=limits.epoch,
    )


def letter_key(item: Input, source_topic: str) -> bytes:
    """The key of a dead letter: where its record lies."""
    return f"{source_topic}/{item.partition}/{item.offset}".encode()


def _found(item: Input, reason: int, limits: Limits) -> str:
    mutation = item.mutation
    if reason == NUMBERS["unreadable"] or mutation is None:
        return f"{len(item.value or b'')} bytes"
    return (
        f"{mutation.keyspace[:NAME_SHOWN]}.{mutation.table[:NAME_SHOWN]}, {mutation.operation}, "
        f"timestamp {mutation.timestamp}, appended at {item.appended}; epoch {limits.epoch}; "
        f"rows have at most {limits.row_bytes_max} bytes"
    )


def _cut(name: str, data: bytes | None, kept: int) -> str:
    """What the detail says of a key or value that is longer than what is kept of it; else the empty text."""
    if data is None or len(data) <= kept:
        return ""
    return f"; first {kept} of {len(data)} bytes of the {name}, SHA-256 {hashlib.sha256(data).hexdigest()}"
