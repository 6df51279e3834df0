"""The arguments of routing for plain mutations, from their places in the bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ringlog.kernel.ring.partition_key import COMPONENT_BYTES_MAX
from ringlog_cdc.columnar.encode import composed_keys
from ringlog_cdc.columnar.mutations import Mutations, grouped
from ringlog_cdc.columnar.pieces import Pieces
from ringlog_cdc.columnar.scan import I64, Flags, Span
from ringlog_cdc.routing import Rows
from ringlog_cdc.verdicts import NO_OPERATION, OPERATION_CODES
from ringlog_schemas import current

TABLES_MAX = 256
"""So many tables of one Arrow batch are told apart; the mutations of others are read one by one."""


def operation_codes() -> I64:
    """The code in the CDC row of each operation, in the order of the mutation's schema."""
    fields = current()["ringlog.mutations.Mutation"].json["fields"]
    symbols = next(field["type"]["symbols"] for field in fields if field["name"] == "operation")
    return np.array([OPERATION_CODES.get(symbol, NO_OPERATION) for symbol in symbols], dtype=np.int64)


def columns_of(
    mutations: Mutations, rows: I64, cluster_id: bytes, appended: I64, partitions: I64, offsets: I64
) -> tuple[Rows, Flags]:
    """The arguments of routing for the plain mutations with these numbers, and which of them are of no known use
    because they name one table too many. ``appended``, ``partitions``, ``offsets``: of those rows.
    """
    data = mutations.data
    codes, contents = grouped(data, mutations.names, rows, TABLES_MAX)
    names = pa.DictionaryArray.from_arrays(pa.array(np.maximum(codes, 0)), pa.array([*map(_full_name, contents)]))
    key, clustering = mutations.partition_key, mutations.clustering_key
    bad = clustering.any_null()[rows]
    for span in key.content:
        bad = bad | (span.length[rows] > COMPONENT_BYTES_MAX)
    operations = operation_codes()
    known = mutations.operation[rows].clip(0, len(operations) - 1)
    return (
        Rows(
            readable=np.ones(len(rows), dtype=bool),
            foreign=_is_foreign(mutations, rows, cluster_id),
            names=names,
            operations=operations[known].astype(np.int32),
            timestamps=mutations.timestamp[rows],
            appended=appended,
            keys=composed_keys(mutations, rows),
            key_sizes=key.count[rows].astype(np.int32),
            missing_key=key.any_null()[rows],
            clustering_sizes=clustering.count[rows].astype(np.int32),
            bad_component=bad,
            identities=_identities(mutations, rows),
            partitions=partitions.astype(np.int32),
            offsets=offsets,
        ),
        codes < 0,
    )


def _full_name(content: bytes) -> str:
    """``keyspace.table`` of the two behind their lengths; those of plain mutations are shorter than 64 bytes or odd."""
    size, at = _length(content)
    keyspace = content[at : at + size]
    rest = content[at + size :]
    size, at = _length(rest)
    return f"{keyspace.decode()}.{rest[at : at + size].decode()}"


def _length(content: bytes) -> tuple[int, int]:
    number = place = 0
    while True:
        byte = content[place]
        number |= (byte & 0x7F) << 7 * place
        place += 1
        if byte < 0x80:
            return number >> 1, place


def _is_foreign(mutations: Mutations, rows: I64, cluster_id: bytes) -> Flags:
    span = mutations.cluster_id
    named = span.length[rows] > 1
    ids = np.ndarray((len(mutations.data) - 15,), dtype="V16", buffer=mutations.data, strides=(1,))
    found = ids[np.minimum(span.start[rows] + 1, len(ids) - 1)].view(np.uint8).reshape(-1, 16)
    own = np.frombuffer(cluster_id, dtype=np.uint8)
    foreign: Flags = named & (found != own).any(axis=1)
    return foreign


def _identities(mutations: Mutations, rows: I64) -> pa.LargeBinaryArray:
    """The mutation ids, 16 bytes or none."""
    span = mutations.mutation_id
    pieces = Pieces(len(rows), mutations.data)
    pieces.spans(Span(span.start[rows] + 1, span.length[rows] - 1))
    return pieces.joined()
