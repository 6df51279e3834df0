"""Facts about plain mutations, from their positions in the bytes: tables, columns, and the arguments of routing.

Functions take ``rows``, the ascending numbers of plain mutations, and return one value for each of them. A batch names
few tables and columns, so names are decoded and checked once per distinct name.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ringlog.kernel.generations.statements import UPSERTS, TableShape, value_types
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX
from ringlog.kernel.values import Value
from ringlog.wire.records import RANGE_DELETE
from ringlog_cdc.bulk.encode import composed_keys
from ringlog_cdc.bulk.routing import ID, NO_TABLE, BulkTable, MutationColumns
from ringlog_cdc.columnar.key_types import of_type
from ringlog_cdc.columnar.mutations import MUTATION, Mutations, grouped
from ringlog_cdc.columnar.pieces import BytePieces
from ringlog_cdc.columnar.scan import ByteSpan
from ringlog_cdc.columnar.words import I64, U8, Flags, rows_of
from ringlog_cdc.definition.row import OPERATION_CODES
from ringlog_schemas import current

Codes = NDArray[np.int32] | I64

TABLES_MAX = 256
"""Most distinct tables per Arrow batch. Mutations of further tables are decoded one by one."""


COLUMNS_MAX = 64
"""Most distinct column names at one position of the cells. Mutations with further names are decoded one by one."""
NO_OPERATION = 0
"""Marks operations without an entry in ``OPERATION_CODES``. As ``cdc$operation``, 0 is a preimage, and a mutation is
never one.
"""
PARTITION_DELETE = OPERATION_CODES["PARTITION_DELETE"]


@cache
def _symbols() -> tuple[str, ...]:
    """Return the operations of the current schema. An older schema lacks some at the end."""
    fields = current()[MUTATION].json["fields"]
    return tuple(next(field["type"]["symbols"] for field in fields if field["name"] == "operation"))


def operation_codes() -> I64:
    """Return ``cdc$operation`` for each operation of the current schema."""
    return np.array([OPERATION_CODES.get(symbol, NO_OPERATION) for symbol in _symbols()], dtype=np.int64)


class NamedTables(Value):
    """The table of each of n plain mutations.

    Attributes:
        codes: Index into ``names``, or -1 beyond ``TABLES_MAX``.
        names: Distinct full names.
    """

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    def shapes(self, table: BulkTable) -> list[TableShape]:
        """Return the table of each name. An unknown one becomes a table without key and log."""
        known = [table.shape(name) for name in self.names]
        # The extra entry at the end serves code -1, which indexes from the end.
        return [shape or NO_TABLE for shape in known] + [NO_TABLE]


def named(mutations: Mutations, rows: I64) -> NamedTables:
    """Return the tables of these mutations."""
    codes, contents = grouped(mutations.data, mutations.names, rows, TABLES_MAX)
    return NamedTables(codes, tuple(map(full_name, contents)))


def is_compound(mutations: Mutations, rows: I64, tables: NamedTables, table: BulkTable) -> Flags:
    """Return the result of ``ringlog.kernel.generations.statements.is_compound`` for these mutations."""
    special = np.array([shape.is_special for shape in tables.shapes(table)])[tables.codes]
    operation = mutations.operation[rows]
    symbols = _symbols()
    upsert = np.isin(operation, [symbols.index(name) for name in UPSERTS])
    # The span has the union's branch, one byte, and a value after it if there is one.
    has_ttl = mutations.ttl.length[rows] > 1
    has_null = mutations.cells.any_null()[rows]
    expires = has_ttl & ((mutations.ttl_value[rows] == 0) | has_null)
    compound: Flags = upsert & (special | expires) | (operation == symbols.index(RANGE_DELETE))
    return compound


def has_images(tables: NamedTables, table: BulkTable) -> Flags:
    """Return True for mutations of tables that keep images."""
    found: Flags = np.array([*(name in table.definition.images for name in tables.names), False])[tables.codes]
    return found


class ColumnChecks(Value):
    """Results about the columns of n plain mutations.

    Attributes:
        valid: True if the table has all named columns outside its key, and each value is of its column's type.
        doubtful: True for mutations to decode one by one: a column occurs twice, or there are too many distinct
            columns.
    """

    valid: Flags
    doubtful: Flags


def check_columns(mutations: Mutations, rows: I64, tables: NamedTables, table: BulkTable) -> ColumnChecks:
    """Check the columns of these mutations and their values."""
    shapes = tables.shapes(table)
    known = [None if shape.columns is None else frozenset(shape.columns) for shape in shapes]
    types = [value_types(shape) for shape in shapes]
    wrong, doubtful = (np.zeros(len(rows), dtype=bool) for _ in range(2))
    counts = mutations.cells.count[rows]
    numbers: dict[bytes, int] = {}
    named_at = np.full((len(rows), len(mutations.cells.content)), -1, dtype=np.int64)
    names_at_places = 0
    for place, span in enumerate(mutations.cells.content):
        some = np.flatnonzero(counts > place)
        codes, contents = grouped(mutations.data, span, rows[some], COLUMNS_MAX)
        said = [content.decode() for content in contents]
        # Matrices (table, column name) of what is unknown, and of types, indexed by the codes of both. A table without
        # known columns rejects none. The extra column serves code -1.
        unknown = [[names is not None and name not in names for name in said] + [False] for names in known]
        wrong[some] |= np.array(unknown, dtype=bool)[tables.codes[some], codes]
        kinds = [[own.get(name, "") for name in said] + [""] for own in types]
        values, is_null = mutations.cells.values[place], mutations.cells.is_null[place]
        wrong[some] |= _mistyped(mutations.data, values, is_null, rows[some], kinds, (tables.codes[some], codes))
        doubtful[some] |= codes < 0
        own = [numbers.setdefault(content, len(numbers)) for content in contents]
        named_at[some, place] = np.array([*own, -1], dtype=np.int64)[codes]
        names_at_places += len(contents)
    if len(numbers) < names_at_places:  # otherwise each column occurs at one position only, and cannot repeat
        # Sorted, a repeated column number is next to its equal. -1 stands for no column.
        named_at.sort(axis=1)
        doubtful |= ((named_at[:, 1:] == named_at[:, :-1]) & (named_at[:, 1:] >= 0)).any(axis=1)
    return ColumnChecks(~wrong, doubtful)


def mistyped_clustering(mutations: Mutations, rows: I64, tables: NamedTables, table: BulkTable) -> Flags:
    """Return True for mutations with a clustering component that is not of its column's type."""
    found, key = np.zeros(len(rows), dtype=bool), mutations.clustering_key
    types = [shape.clustering_types for shape in tables.shapes(table)]
    nobody = np.zeros(len(rows), dtype=np.int64)
    for place, span in enumerate(key.values):
        some = np.flatnonzero(key.count[rows] > place)
        kinds = [[own[place] if place < len(own) else ""] for own in types]
        codes = tables.codes[some], nobody[some]
        found[some] |= _mistyped(mutations.data, span, key.is_null[place], rows[some], kinds, codes)
    return found


def _mistyped(
    data: U8, span: ByteSpan, is_null: Flags, rows: I64, kinds: list[list[str]], codes: tuple[Codes, Codes]
) -> Flags:
    """Return True for values that are not null and not of their type.

    Args:
        data: The padded buffer.
        span: Values of all mutations.
        is_null: Flags of all mutations.
        rows: Numbers of the mutations to check.
        kinds: Types by two codes. Empty: not checked.
        codes: The codes of each of ``rows``.
    """
    found = np.zeros(len(rows), dtype=bool)
    distinct = sorted({kind for own in kinds for kind in own})
    numbers = np.array([[distinct.index(kind) for kind in own] for own in kinds])[codes]
    for number, kind in enumerate(distinct):
        if kind in ("", "blob"):
            continue
        mine = np.flatnonzero((numbers == number) & ~is_null[rows])
        first = span.start[rows[mine]]
        found[mine] = ~of_type(kind, data, first, first + span.length[rows[mine]], np.ones(len(mine), dtype=bool))
    return found


def columns_of(
    mutations: Mutations,
    rows: I64,
    tables: NamedTables,
    checks: ColumnChecks,
    table: BulkTable,
    record_keys: pa.Array,
    cluster_id: bytes,
    appended: I64,
    partitions: I64,
    offsets: I64,
) -> MutationColumns:
    """Build the arguments of routing.

    Args:
        mutations: Columns of a batch.
        rows: Numbers of m plain mutations.
        tables: Their tables.
        checks: Checks of their columns.
        table: The table of the workers.
        record_keys: Keys of their records, or null.
        cluster_id: Id of this cluster, 16 bytes.
        appended: Their append times, microseconds.
        partitions: Their source partitions.
        offsets: Their source offsets.
    """
    dictionary = pa.array([*tables.names, ""], pa.string())
    codes = np.where(tables.codes < 0, len(tables.names), tables.codes)
    return MutationColumns(
        names=pa.DictionaryArray.from_arrays(pa.array(codes), dictionary),
        valid=checks.valid & _valid_keys(mutations, rows, tables, table) & ~_is_foreign(mutations, rows, cluster_id),
        timestamps=mutations.timestamp[rows],
        appended=appended,
        keys=composed_keys(mutations, rows),
        record_keys=record_keys,
        identities=_identities(mutations, rows),
        partitions=partitions.astype(np.int32),
        offsets=offsets,
    )


def operations_of(mutations: Mutations, rows: I64) -> I64:
    """Return ``cdc$operation`` of these mutations, or ``NO_OPERATION``."""
    codes = operation_codes()
    # Clipped so that the index is valid for rows that are not plain as well.
    found: I64 = codes[mutations.operation[rows].clip(0, len(codes) - 1)]
    return found


def _valid_keys(mutations: Mutations, rows: I64, tables: NamedTables, table: BulkTable) -> Flags:
    """Return True for mutations of known tables and operations with a valid key.

    It has the table's number of components, none of them null or too long, and the clustering components have the types
    of their columns. Routing checks the types of the partition key.
    """
    key, clustering = mutations.partition_key, mutations.clustering_key
    shapes = tables.shapes(table)
    known = np.array([*(table.shape(name) is not None for name in tables.names), False])[tables.codes]
    operations = operations_of(mutations, rows)
    key_parts = np.array([shape.partition_key for shape in shapes], dtype=np.int64)[tables.codes]
    clustering_parts = np.array([shape.clustering_key for shape in shapes], dtype=np.int64)[tables.codes]
    clustering_parts[operations == PARTITION_DELETE] = 0
    valid: Flags = known & (operations != NO_OPERATION) & ~key.any_null()[rows] & ~clustering.any_null()[rows]
    valid &= (key.count[rows] > 0) & (key.count[rows] == key_parts) & (clustering.count[rows] == clustering_parts)
    for span in key.content:
        valid &= span.length[rows] <= COMPONENT_BYTES_MAX
    valid &= ~mistyped_clustering(mutations, rows, tables, table)
    return valid


def full_name(content: bytes) -> str:
    """Return ``keyspace.table`` from both names with their lengths."""
    size, at = _length(content)
    keyspace = content[at : at + size]
    rest = content[at + size :]
    size, at = _length(rest)
    return f"{keyspace.decode()}.{rest[at : at + size].decode()}"


def _length(content: bytes) -> tuple[int, int]:
    """Decode a length. Return it and the number of its bytes."""
    number = place = 0
    while True:
        byte = content[place]
        number |= (byte & 0x7F) << 7 * place
        place += 1
        if byte < 0x80:
            return number >> 1, place


def _is_foreign(mutations: Mutations, rows: I64, cluster_id: bytes) -> Flags:
    """Return True for mutations that name another cluster."""
    span = mutations.cluster_id
    named = span.length[rows] > 1
    if not named.any():
        return named
    # Clamped for rows without an id, whose comparison is masked.
    at = np.minimum(span.start[rows] + 1, len(mutations.data) - ID)
    found = rows_of(mutations.data, at, ID)
    own = np.frombuffer(cluster_id, dtype=np.uint8)
    foreign: Flags = named & (found != own).any(axis=1)
    return foreign


def _identities(mutations: Mutations, rows: I64) -> pa.LargeBinaryArray:
    """Return the mutation ids, 16 bytes or none."""
    span = mutations.mutation_id
    pieces = BytePieces(len(rows), mutations.data)
    pieces.spans(ByteSpan(span.start[rows] + 1, span.length[rows] - 1))
    return pieces.joined()
