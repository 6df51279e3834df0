"""From mutations to CDC rows and dead letters: the columns that Spark computes in the JVM, around the routing.

Verdict, generation, stream and ``cdc$time`` come from ``ringlog_cdc.routing``; a record that is no mutation is routed
with empty columns, as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.ring.partition_key import COMPONENT_BYTES_MAX, compose
from ringlog.kernel.values import Micros
from ringlog.sim.broker import CDC, DEAD, MUTATIONS, Record
from ringlog.sim.memo import cached_mutation
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, DeadLetter, Mutation
from ringlog_cdc.plan import PlanEntry
from ringlog_cdc.routing import Routed, RoutingTable, Rows, route
from ringlog_cdc.verdicts import CODES, NO_OPERATION, OPERATION_CODES, ROUTED


@dataclass(frozen=True, slots=True)
class Input:
    """A record of the mutations topic. ``mutation`` is None if it is none; times in microseconds."""

    partition: int
    record: Record
    mutation: Mutation | None
    timestamp: Micros
    appended: Micros


def read_input(partition: int, record: Record) -> Input:
    """The record, decoded."""
    try:
        mutation = cached_mutation(record.value)
    except WireError:
        mutation = None
    timestamp = mutation.timestamp if mutation is not None else 0
    return Input(partition, record, mutation, timestamp, append_time_us(record.time // 1_000))


Places = dict[tuple[str, int], list[tuple[str, Any]]]
"""(topic, partition) to the values (key, record) that go there, in order."""


def outgoing(table: RoutingTable, rows: Sequence[Input], entry: PlanEntry, cluster_id: str) -> Places:
    """What goes out for the rows of a plan part, which are in the order of the source."""
    places: Places = {}
    if not rows:
        return places
    routed = route(table, _columns(rows, cluster_id))
    for index, row in enumerate(rows):
        verdict = int(routed.verdict[index])
        if verdict == ROUTED:
            assert row.mutation is not None
            made = _cdc_row(routed, index, row, row.mutation)
            places.setdefault((CDC, int(routed.partition[index])), []).append((made.stream_id.hex(), made))
        elif verdict > ROUTED:
            letter = _dead_letter(CODES[verdict], row, entry)
            places.setdefault((DEAD, 0), []).append((f"{row.partition}/{row.record.offset}", letter))
    return places


def _columns(rows: Sequence[Input], cluster_id: str) -> Rows:
    known = [row.mutation for row in rows]
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
        timestamps=np.array([row.timestamp for row in rows], dtype=np.int64),
        appended=np.array([row.appended for row in rows], dtype=np.int64),
        keys=pa.array([_key(key) for key in keys], type=pa.large_binary()),
        key_sizes=np.array([len(key) for key in keys], dtype=np.int32),
        missing_key=np.array([None in key for key in keys], dtype=bool),
        clustering_sizes=np.array([len(parts) for parts in clustering], dtype=np.int32),
        bad_component=np.array(bad, dtype=bool),
        identities=pa.array([_identity(m) for m in known], type=pa.large_binary()),
        partitions=np.array([row.partition for row in rows], dtype=np.int32),
        offsets=np.array([row.record.offset for row in rows], dtype=np.int64),
    )


def _operation(mutation: Mutation | None) -> int:
    return OPERATION_CODES.get(mutation.operation, NO_OPERATION) if mutation is not None else NO_OPERATION


def _key(parts: tuple[bytes | None, ...]) -> bytes:
    whole = [part for part in parts if part is not None and len(part) <= COMPONENT_BYTES_MAX]
    return compose(whole) if whole and len(whole) == len(parts) else b""


def _identity(mutation: Mutation | None) -> bytes:
    name = mutation.mutation_id if mutation is not None else None
    return bytes.fromhex(name.replace("-", "")) if name else b""


def _cdc_row(routed: Routed, index: int, row: Input, mutation: Mutation) -> CdcRow:
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
        source_topic=MUTATIONS,
        source_partition=row.partition,
        source_offset=row.record.offset,
        timestamp=mutation.timestamp,
        partition_key=tuple(part or b"" for part in mutation.partition_key),
        clustering_key=mutation.clustering_key,
        cells=tuple(cell for cell in mutation.cells if cell.value is not None),
        deleted=tuple(cell.column for cell in mutation.cells if cell.value is None),
    )


def _joined(high: np.int64, low: np.int64) -> bytes:
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


def _dead_letter(reason: str, row: Input, entry: PlanEntry) -> DeadLetter:
    return DeadLetter(
        reason=reason,
        detail="",
        topic=MUTATIONS,
        partition=row.partition,
        offset=row.record.offset,
        append_time=row.appended,
        key=row.record.key.encode(),
        value=row.record.value,
        writer=entry.incarnation,
        epoch=entry.epoch,
    )
